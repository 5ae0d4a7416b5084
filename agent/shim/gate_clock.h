/* gate_clock.h - GPU timestamps of one context on the host's clock. */
#ifndef SFILL_GATE_CLOCK_H
#define SFILL_GATE_CLOCK_H
#include <stdbool.h>
#include <stdint.h>
#include "cuda_abi.h"

#define CLOCK_EVENTS 1024 /* of one context at most */

/* Events of one context. All zero with `context` set: nothing made yet. */
struct gate_clock {
    CUcontext context;
    CUstream stream;       /* of our own, so that an anchor waits for nobody's work */
    CUevent reference;     /* an event whose time on the host's clock is known; NULL: none */
    uint64_t reference_ns; /* that time */
    uint64_t error_ns;     /* how wrong it may be, at anchored_ns */
    uint64_t anchored_ns;
    uint64_t tried_ns;
    uint64_t marker_ns; /* what a marker takes between two operations; 0: not measured */
    CUevent spare[CLOCK_EVENTS];
    uint32_t spares, made;
    bool broken; /* no events here: times are those at which markers are seen */
};

/* Records an event behind what stands in the stream; NULL: none to be had. The context is
 * current. */
CUevent clock_record(struct gate_clock *clock, CUstream stream);

/* When a recorded event that has passed did so, by CLOCK_MONOTONIC. False: not known. */
bool clock_time(struct gate_clock *clock, CUevent event, uint64_t *at_ns);

/* The event is not needed any more; at_ns: its time, 0: unknown. */
void clock_give_back(struct gate_clock *clock, CUevent event, uint64_t at_ns);

/* Is it time to compare both clocks? Only when nothing of ours is in flight. */
bool clock_due(const struct gate_clock *clock, uint64_t now_ns);

/* Compares both clocks; waits some us for the GPU. spare_word and spare_at: a word that the GPU
 * may write. */
void clock_anchor(struct gate_clock *clock, _Atomic uint64_t *spare_word, CUdeviceptr spare_at);
#endif
