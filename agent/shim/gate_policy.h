/* gate_policy.h - what the agent's policy page says to this fill on one GPU. No CUDA, no locks:
 * the caller holds the GPU's lock. */
#ifndef SFILL_GATE_POLICY_H
#define SFILL_GATE_POLICY_H
#include <stdbool.h>
#include <stdint.h>
#include "board.h"
#include "gate_idle.h"

/* A mapped policy page and how fresh its heartbeat is on our own clock. */
struct gate_page {
    const struct sfill_policy_page *page; /* NULL: none yet */
    bool seen;                            /* the heartbeat has been read at least once */
    uint64_t heartbeat;                   /* latest value read */
    uint64_t polled_ns;                   /* when it was last read */
    uint64_t fresh_ns; /* a time at which the heartbeat had certainly not been older */
};

/* Numbers that the gate works with, copied from the page (one torn update harms nothing). */
struct gate_numbers {
    uint64_t dwell_ns;
    uint64_t in_flight_ns;
    uint64_t min_bubble_ns;
    uint64_t unknown_op_ns;
    uint64_t max_op_ns; /* 0: no such limit */
    uint64_t turn_ns;
    uint64_t graph_part_ns; /* 0: graphs start whole */
    bool ignore_training;
    bool predict_end; /* false: bench */
};

/* A new page, or NULL to forget the old one: stale until its heartbeat has been seen to move. */
void policy_map(struct gate_page *page, const struct sfill_policy_page *mapped);

/* Reads the heartbeat. Has to happen at least every 100 ms, because a change is only known to
 * have happened after the read before it. */
void policy_poll(struct gate_page *page, uint64_t now_ns);

struct gate_numbers policy_numbers(const struct gate_page *page);

/* Everything but training's state and the work in flight: freshness, permission, training
 * processes without a board, agreement about boards, our turn. SFILL_OPEN: go on. */
enum sfill_closed policy_permits(const struct gate_page *page, const struct gate_host *hosts,
                                 int count, const struct sfill_fill_gpu *face, uint64_t job_id,
                                 uint64_t now_ns);

/* Ours for how much longer, in ns; UINT64_MAX when there are no turns. 0: not our turn. Jobs take
 * turns by the page; the processes of a job have its turns one after another, by their boards. */
uint64_t policy_turn_left(const struct gate_page *page, const struct sfill_fill_gpu *face,
                          uint64_t job_id, uint64_t now_ns);

/* Memory limit in bytes of this fill on the page; 0 when the page names none. */
uint64_t policy_memory_limit(const struct gate_page *page, uint64_t job_id);
#endif
