/* agent_client.c - see agent_client.h */
#include "agent_client.h"
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static int64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static bool wait_readable(int fd, int64_t deadline_ms) {
    for (;;) {
        int64_t left = deadline_ms - now_ms();
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int n = left > 0 ? poll(&p, 1, (int)left) : 0;
        if (n < 0 && errno == EINTR)
            continue;
        return n > 0;
    }
}

/* A full backlog answers EAGAIN at once, since the socket does not block: try until the deadline.
 */
static enum agent_result connect_until(int fd, const char *path, int64_t deadline_ms) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path)
        return AGENT_ABSENT;
    strcpy(address.sun_path, path);
    while (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        if (errno != EAGAIN && errno != EINTR)
            return AGENT_ABSENT;
        if (now_ms() >= deadline_ms)
            return AGENT_SILENT;
        struct timespec pause = {0, 2000000};
        nanosleep(&pause, NULL);
    }
    return AGENT_ANSWERED;
}

static int64_t sooner(int64_t one_ms, int64_t other_ms) {
    return one_ms < other_ms ? one_ms : other_ms;
}

enum agent_result agent_ask_for_long(const char *path, const char *request,
                                     char answer[AGENT_MESSAGE_SIZE], int silent_ms, int most_ms) {
    int64_t last_ms = now_ms() + most_ms, deadline_ms = sooner(last_ms, now_ms() + silent_ms);
    answer[0] = 0;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return AGENT_ABSENT;
    enum agent_result result = connect_until(fd, path, deadline_ms);
    if (result == AGENT_ANSWERED && send(fd, request, strlen(request), MSG_NOSIGNAL) < 0)
        result = AGENT_ABSENT;
    while (result == AGENT_ANSWERED) {
        if (!wait_readable(fd, deadline_ms)) {
            result = AGENT_SILENT;
            break;
        }
        ssize_t n = recv(fd, answer, AGENT_MESSAGE_SIZE - 1, 0);
        answer[n > 0 ? n : 0] = 0;
        if (n <= 0) /* hung up: it died over our question */
            result = AGENT_ABSENT;
        if (!answer_is(answer, "wait"))
            break;
        deadline_ms = sooner(last_ms, now_ms() + silent_ms);
    }
    close(fd);
    return result;
}

enum agent_result agent_ask(const char *path, const char *request, char answer[AGENT_MESSAGE_SIZE],
                            int timeout_ms) {
    return agent_ask_for_long(path, request, answer, timeout_ms, timeout_ms);
}

bool answer_is(const char *answer, const char *verb) {
    size_t length = strcspn(answer, "\n");
    return length == strlen(verb) && !memcmp(answer, verb, length);
}

bool answer_value(const char *answer, const char *key, char *value, size_t size) {
    size_t key_length = strlen(key);
    value[0] = 0;
    for (const char *line = strchr(answer, '\n'); line; line = strchr(line, '\n')) {
        line++;
        if (strncmp(line, key, key_length) || line[key_length] != '=')
            continue;
        const char *begin = line + key_length + 1;
        size_t length = strcspn(begin, "\n");
        size_t taken = length < size ? length : size - 1;
        memcpy(value, begin, taken);
        value[taken] = 0;
        return taken == length;
    }
    return false;
}
