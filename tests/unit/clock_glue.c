/* clock_glue.c - a driver of three functions under gate_clock.c: events whose times a test sets,
 * and each of which can be made to fail. Built by test_gate_clock.py. */
#include <stdlib.h>
#include "gate_clock.h"
#include "gate_driver.h"
#include "shim.h"

struct CUevent_st {
    uint64_t at_ns;
};

struct gate_driver gate_driver;
static uint64_t gpu_ahead_ns, late_ns;
static int failing; /* 1: no event is made, 2: none is recorded, 3: no stream is made */
static uint64_t recorded;

void shim_log(int level, const char *format, ...) {
    (void)level;
    (void)format;
}

static CUresult create(CUevent *event, unsigned flags) {
    (void)flags;
    if (failing == 1)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *event = calloc(1, sizeof **event);
    return CUDA_SUCCESS;
}
static CUresult record(CUevent event, CUstream stream) {
    (void)stream;
    if (failing == 2)
        return CUDA_ERROR_UNKNOWN;
    event->at_ns = shim_now_ns() + gpu_ahead_ns;
    recorded++;
    return CUDA_SUCCESS;
}
static CUresult synchronize(CUevent event) {
    (void)event;
    for (uint64_t end = shim_now_ns() + late_ns; shim_now_ns() < end;)
        ;
    return CUDA_SUCCESS;
}
static CUresult elapsed(float *ms, CUevent from, CUevent to) {
    *ms = (float)((double)(int64_t)(to->at_ns - from->at_ns) / 1e6);
    return CUDA_SUCCESS;
}
static CUresult stream_create(CUstream *stream, unsigned flags) {
    (void)flags;
    *stream = (CUstream)8;
    return failing == 3 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
static CUresult current(CUcontext *context) {
    *context = (CUcontext)16;
    return CUDA_SUCCESS;
}
static CUresult push(CUcontext context) {
    (void)context;
    return CUDA_SUCCESS;
}

struct gate_clock *glue_clock(uint64_t ahead_ns, uint64_t synchronize_ns, int fail) {
    gpu_ahead_ns = ahead_ns;
    late_ns = synchronize_ns;
    failing = fail;
    recorded = 0;
    gate_driver = (struct gate_driver){.event_create = create,
                                       .event_record = record,
                                       .event_synchronize = synchronize,
                                       .event_elapsed = elapsed,
                                       .stream_create = stream_create,
                                       .context_current = current,
                                       .context_push = push,
                                       .context_pop = current};
    struct gate_clock *clock = calloc(1, sizeof *clock);
    clock->context = (CUcontext)16;
    return clock;
}

void glue_anchor(struct gate_clock *clock) {
    _Atomic uint64_t word = 0;
    clock_anchor(clock, &word, 0);
}

/* Records an event as if the GPU passed it so much later; its time on the host's clock less the
 * true one. INT64_MAX: no event. */
int64_t glue_error(struct gate_clock *clock, uint64_t later_ns) {
    CUevent event = clock_record(clock, (CUstream)8);
    if (!event)
        return INT64_MAX;
    event->at_ns += later_ns;
    uint64_t truly = event->at_ns - gpu_ahead_ns, seen = 0;
    while (shim_now_ns() < truly)
        ;
    bool known = clock_time(clock, event, &seen);
    clock_give_back(clock, event, known ? seen : 0);
    return known ? (int64_t)(seen - truly) : INT64_MAX;
}

int glue_due(const struct gate_clock *clock, uint64_t after_ns) {
    return clock_due(clock, shim_now_ns() + after_ns);
}
uint64_t glue_recorded(void) { return recorded; }
