/* job_record.h - what the prolog learned about a job, left for slurmstepd in a folder that only
 * root writes: so that a fill job is known as one even while the agent is away, and an ordinary
 * job is not held up by what its user's environment claims. */
#ifndef SFILL_JOB_RECORD_H
#define SFILL_JOB_RECORD_H
#include <stdbool.h>
#include <stdint.h>

enum job_kind { JOB_UNKNOWN, JOB_OTHER, JOB_HOST, JOB_FILL };

struct job_record {
    enum job_kind kind;
    bool agent_answered; /* in the prolog */
};

const char *job_kind_name(enum job_kind kind);
bool job_record_write(const char *folder, const char *node, uint32_t job_id,
                      const struct job_record *record);
struct job_record job_record_read(const char *folder, const char *node, uint32_t job_id);
void job_record_remove(const char *folder, const char *node, uint32_t job_id);
#endif
