/* requeue.h - sends a fill job back to the queue, or ends it with a reason where Slurm can't. */
#ifndef SFILL_REQUEUE_H
#define SFILL_REQUEUE_H
#include <stdbool.h>
#include <stdint.h>

/* Asks slurmctld at once; false when it refused or did not answer in time. */
bool requeue_now(const char *scontrol, const char *job);

/* From a process of its own that outlives the caller, since a job in its prolog can't be changed
 * before that has ended: requeues a batch job, to start again `delay_s` from now at the earliest;
 * any other job is told the reason and cancelled. Returns at once. */
void requeue_later(const char *scontrol, uint32_t job_id, bool batch, unsigned delay_s,
                   const char *reason);
#endif
