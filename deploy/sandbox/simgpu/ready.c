/* ready.c - what a stream's first operation waits for, and since when it could have run. */
#include "timeline.h"

static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }

bool timeline_event_passed(uint64_t stream, uint64_t generation, uint64_t position) {
    const struct sim_stream *s = &world->streams[stream];
    return s->generation != generation || s->head > position;
}

/* When the event that op waits for was reached, by the count of ready_ns. 0: long ago. */
static uint64_t event_time(const struct sim_op *op) {
    const struct sim_stream *s = &world->streams[op->a];
    if (s->generation != op->b || s->tail - op->c > SIM_RING)
        return 0;
    return stream_op((uint32_t)op->a, op->c)->ready_ns;
}

/* The legacy default stream and blocking streams wait for what the other was given before. */
static bool barrier_open(const struct sim_context *c, const struct sim_stream *s,
                         const struct sim_op *op) {
    if (s->flags & SIM_NON_BLOCKING)
        return true;
    if (!(s->flags & SIM_LEGACY)) {
        const struct sim_stream *legacy = &world->streams[c->legacy_stream];
        return legacy->head == legacy->tail ||
               stream_op(c->legacy_stream, legacy->head)->order > op->order;
    }
    for (uint32_t i = 0; i < c->active_count; i++) {
        const struct sim_stream *other = &world->streams[c->active[i]];
        if (other != s && !(other->flags & SIM_NON_BLOCKING) && other->head != other->tail &&
            stream_op(c->active[i], other->head)->order < op->order)
            return false;
    }
    return true;
}

/* When all that the head waits for was over. The blocking streams' last ends are looked at only
 * for the legacy stream: by its barrier none of them can have gone past op. */
uint64_t ready_time(const struct sim_context *c, const struct sim_stream *s,
                    const struct sim_op *op) {
    uint64_t ready = later(op->launch_ns, s->previous_ns);
    if (op->kind == SIM_WAIT_EVENT)
        return later(ready, event_time(op));
    if (op->kind == SIM_WAIT_VALUE || (op->kind == SIM_HOST && (op->flags & SIM_RELEASED)))
        return later(ready, op->end_ns);
    if (s->flags & SIM_NON_BLOCKING)
        return ready;
    if (!(s->flags & SIM_LEGACY))
        return later(ready, world->streams[c->legacy_stream].previous_ns);
    uint32_t context = (uint32_t)(c - world->contexts);
    for (uint32_t i = 0; i < world->streams_top; i++) {
        const struct sim_stream *other = &world->streams[i];
        if (other->used && other->context == context && !(other->flags & SIM_NON_BLOCKING))
            ready = later(ready, other->previous_ns);
    }
    return ready;
}

/* Can the head go on, had its context the GPU? */
bool runnable(const struct sim_context *c, const struct sim_stream *s, const struct sim_op *op) {
    if (op->kind == SIM_WAIT_EVENT && !timeline_event_passed(op->a, op->b, op->c))
        return false;
    if (op->kind == SIM_WAIT_VALUE && !(op->flags & SIM_RELEASED))
        return false;
    if (op->kind == SIM_HOST && (op->flags & SIM_STARTED) && !(op->flags & SIM_RELEASED))
        return false;
    return barrier_open(c, s, op);
}
