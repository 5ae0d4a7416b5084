/* forecast.c - when an operation can be over at the earliest, so that nobody looks too late. */
#include "timeline.h"

/* When all that must end before a switch can have ended. */
static uint64_t least_end(const struct sim_gpu *g) {
    uint64_t end = world->now_ns;
    for (uint32_t i = 0; i < g->running_count; i++) {
        if (stream_op(g->running[i], world->streams[g->running[i]].head)->flags & SIM_SPINS)
            continue;
        uint64_t left = running_left(g, g->running[i], world->now_ns);
        end = world->now_ns + left > end ? world->now_ns + left : end;
    }
    return end;
}

/* When the context's own kernel can have ended, so that its next can start. */
static uint64_t earliest_turn(const struct sim_gpu *g, uint32_t context) {
    for (uint32_t i = 0; i < g->running_count; i++) {
        const struct sim_stream *s = &world->streams[g->running[i]];
        if (s->context != context || stream_op(g->running[i], s->head)->flags & SIM_COMMUNICATION)
            continue;
        uint64_t left = running_left(g, g->running[i], world->now_ns);
        return left == SIM_NEVER ? SIM_NEVER : world->now_ns + left;
    }
    return world->now_ns;
}

/* The earliest time at which the operation at position can be over. Nothing that another process
 * does can make it come sooner, but for that process's death. */
uint64_t timeline_earliest_end(uint32_t stream, uint64_t position) {
    const struct sim_stream *s = &world->streams[stream];
    if (s->head > position)
        return world->now_ns;
    const struct sim_context *c = &world->contexts[s->context];
    const struct sim_gpu *g = &world->gpus[c->gpu];
    const struct sim_op *head = stream_op(stream, s->head);
    uint64_t rest = stream_op(stream, position)->total_ns - s->passed_ns;
    if (head->flags & SIM_STARTED && occupies(head)) {
        uint64_t left = running_left(g, stream, world->now_ns);
        return left == SIM_NEVER ? SIM_NEVER : world->now_ns + left + rest - head->duration_ns;
    }
    if (head->flags & SIM_STARTED && head->kind != SIM_HOST)
        return head->end_ns + rest - head->duration_ns;
    if (runnable(c, s, head)) {
        int group = group_of(s->context);
        if (g->next >= 0)
            return g->switch_end_ns + (g->next == group ? 0 : world->switch_ns) + rest;
        uint64_t turn = earliest_turn(g, s->context);
        if (g->holder == group)
            return turn == SIM_NEVER ? SIM_NEVER : turn + rest;
        return least_end(g) + world->switch_ns + rest;
    }
    /* Blocked: look again at the next step of any GPU. */
    uint64_t at = SIM_NEVER;
    for (uint32_t gpu = 0; gpu < world->gpus_top; gpu++)
        if (world->gpus[gpu].used) {
            uint64_t next = timeline_next_step(gpu);
            at = next < at ? next : at;
        }
    return at;
}
