/* contexts.c - contexts and streams in the simulated machine. */
#include <string.h>
#include "timeline.h"

int context_add(uint32_t process, uint32_t gpu) {
    for (uint32_t i = 0; i < SIM_CONTEXTS; i++) {
        struct sim_context *c = &world->contexts[i];
        if (c->used)
            continue;
        memset(c, 0, sizeof *c);
        c->process = process;
        c->gpu = gpu;
        c->number = ++world->next_context_number;
        c->server = world->processes[process].server;
        c->share_ppm = world->processes[process].share_ppm;
        c->low_priority = world->processes[process].low_priority;
        if (c->server < 0)
            world->gpus[gpu].last_held_ns[i] = 0;
        if (i >= world->contexts_top)
            world->contexts_top = i + 1;
        world->gpus[gpu].used = 1;
        if (gpu >= world->gpus_top)
            world->gpus_top = gpu + 1;
        c->used = 1;
        int stream = stream_add(i, SIM_LEGACY);
        if (stream < 0) {
            c->used = 0;
            return -1;
        }
        c->legacy_stream = (uint32_t)stream;
        world->processes[process].memory_bytes[gpu] += SIM_CONTEXT_BYTES;
        log_context(gpu, i);
        return (int)i;
    }
    return -1;
}

void context_remove(uint32_t context) {
    struct sim_context *c = &world->contexts[context];
    timeline_drop_context(context);
    c->active_count = 0;
    for (uint32_t i = 0; i < world->streams_top; i++)
        if (world->streams[i].used && world->streams[i].context == context)
            stream_free(i);
    uint64_t *bytes = &world->processes[c->process].memory_bytes[c->gpu];
    *bytes -= *bytes < SIM_CONTEXT_BYTES ? *bytes : SIM_CONTEXT_BYTES;
    c->used = 0;
}

int stream_add(uint32_t context, uint32_t flags) {
    for (uint32_t i = 0; i < SIM_STREAMS; i++) {
        struct sim_stream *s = &world->streams[i];
        if (s->used)
            continue;
        uint32_t generation = s->generation;
        memset(s, 0, sizeof *s);
        s->generation = generation;
        s->context = context;
        s->flags = flags;
        s->id = ++world->next_stream_id;
        if (i >= world->streams_top)
            world->streams_top = i + 1;
        s->used = 1;
        return (int)i;
    }
    return -1;
}

void stream_free(uint32_t stream) {
    world->streams[stream].generation++;
    world->streams[stream].used = 0;
}

uint64_t stream_push(uint32_t stream, const struct sim_op *op) {
    struct sim_stream *s = &world->streams[stream];
    struct sim_context *c = &world->contexts[s->context];
    uint64_t position = s->tail;
    struct sim_op *slot = stream_op(stream, position);
    *slot = *op;
    slot->id = ++world->next_id;
    slot->order = ++c->next_order;
    slot->launch_ns = world->now_ns;
    s->issued_ns += op->duration_ns;
    slot->total_ns = s->issued_ns;
    s->tail++;
    if (s->tail == s->head + 1)
        c->active[c->active_count++] = (uint16_t)stream;
    return position;
}

/* The operation that a process was working on when it died may be half done: a compute
 * operation that has started but that no GPU runs is taken as over. */
static void repair_stream(uint32_t stream) {
    struct sim_stream *s = &world->streams[stream];
    const struct sim_gpu *g = &world->gpus[world->contexts[s->context].gpu];
    const struct sim_op *head = stream_op(stream, s->head);
    if (s->head != s->tail && occupies(head) && head->flags & SIM_STARTED &&
        !(head->flags & SIM_SPINS) && !running_on(g, stream))
        s->head++;
    s->passed_ns = s->issued_ns;
    for (uint64_t at = s->head; at != s->tail; at++)
        s->passed_ns -= stream_op(stream, at)->duration_ns;
}

void contexts_rebuild(void) {
    for (uint32_t i = 0; i < world->contexts_top; i++)
        world->contexts[i].active_count = 0;
    for (uint32_t i = 0; i < world->streams_top; i++) {
        struct sim_stream *s = &world->streams[i];
        struct sim_context *c = &world->contexts[s->context];
        if (!s->used || !c->used)
            continue;
        repair_stream(i);
        if (s->head != s->tail)
            c->active[c->active_count++] = (uint16_t)i;
    }
    for (uint32_t gpu = 0; gpu < world->gpus_top; gpu++) {
        struct sim_gpu *g = &world->gpus[gpu];
        for (uint32_t r = g->running_count < SIM_RUNNING ? g->running_count : SIM_RUNNING;
             r-- > 0;) {
            const struct sim_stream *s = &world->streams[g->running[r]];
            if (!s->used || s->head == s->tail ||
                !(stream_op(g->running[r], s->head)->flags & SIM_STARTED))
                g->running[r] = g->running[--g->running_count];
        }
        g->stale = 1;
    }
}

static void drop_work(uint32_t context, uint32_t code) {
    struct sim_context *c = &world->contexts[context];
    if (c->fault)
        return;
    timeline_drop_context(context);
    for (uint32_t i = 0; i < world->streams_top; i++) {
        struct sim_stream *s = &world->streams[i];
        if (!s->used || s->context != context)
            continue;
        s->head = s->done = s->tail;
        s->passed_ns = s->issued_ns;
    }
    c->active_count = 0;
    c->fault = code;
}

void context_fault(uint32_t context, uint32_t code, bool spreads) {
    const struct sim_context *first = &world->contexts[context];
    drop_work(context, code);
    if (spreads && first->server >= 0)
        world->servers[first->server].state = SIM_SERVER_FAULT;
    for (uint32_t i = 0; spreads && first->server >= 0 && i < world->contexts_top; i++) {
        const struct sim_context *c = &world->contexts[i];
        if (c->used && c->gpu == first->gpu && c->server == first->server)
            drop_work(i, code);
    }
}
