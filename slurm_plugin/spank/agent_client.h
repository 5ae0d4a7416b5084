/* agent_client.h - one question to the node agent (agent/PROTOCOL.md), never waiting for longer
 * than it was told. */
#ifndef SFILL_AGENT_CLIENT_H
#define SFILL_AGENT_CLIENT_H
#include <stdbool.h>
#include <stddef.h>

#define AGENT_MESSAGE_SIZE 4097 /* a packet, and an end */

enum agent_result {
    AGENT_ANSWERED,
    AGENT_ABSENT, /* nobody listens */
    AGENT_SILENT  /* somebody listens, and did not answer in time */
};

enum agent_result agent_ask(const char *socket_path, const char *request,
                            char answer[AGENT_MESSAGE_SIZE], int timeout_ms);
/* The same of an agent that takes its time and says `wait` again and again meanwhile: for `most_ms`
 * at most, and no longer than `silent_ms` without a word. */
enum agent_result agent_ask_for_long(const char *socket_path, const char *request,
                                     char answer[AGENT_MESSAGE_SIZE], int silent_ms, int most_ms);
bool answer_is(const char *answer, const char *verb);
/* Value of `key`. False when the answer has none (value "") or it does not fit (value cut). */
bool answer_value(const char *answer, const char *key, char *value, size_t size);
#endif
