/* timeline.c - what the simulated GPUs do, computed step by step up to a given time.
 *
 * Steps are taken in the order of simulated time over all GPUs, each at its exact time, however
 * late the call comes. Rules: a GPU is held by one context, or by all clients of one MPS server
 * together. Each of these runs one kernel, copy or set at a time, by priority and then in the
 * order in which they became ready, and any communication beside it (running.c says how fast).
 * A holder with nothing to do loses the GPU to a context that has; a holder whose slice is over
 * starts nothing more and loses it when what runs has ended. Only kernels that spin are stopped
 * for it, and go on later. Each change costs switch_ns. What a context does in the front end
 * (marks, event records, waits that are over) also needs the GPU: a frozen one writes nothing. */
#include <string.h>
#include "timeline.h"

static bool in_group(uint32_t context, uint32_t gpu, int group) {
    const struct sim_context *c = &world->contexts[context];
    return c->used && c->gpu == gpu && c->active_count && group_of(context) == group;
}

static void deactivate(struct sim_context *c, uint32_t stream) {
    for (uint32_t i = 0; i < c->active_count; i++)
        if (c->active[i] == stream) {
            c->active[i] = c->active[c->active_count - 1];
            c->active_count--;
            return;
        }
}

static void pass_head(uint32_t stream) {
    struct sim_stream *s = &world->streams[stream];
    struct sim_op *op = stream_op(stream, s->head);
    s->passed_ns += op->duration_ns;
    s->head++;
    if (s->head == s->tail)
        deactivate(&world->contexts[s->context], stream);
}

/* Starts or passes a front-end operation at time t. True when its stream moved on. */
static bool front_end(struct sim_context *c, uint32_t stream, uint64_t t) {
    struct sim_stream *s = &world->streams[stream];
    struct sim_op *op = stream_op(stream, s->head);
    if (occupies(op) || !runnable(c, s, op) || (op->kind == SIM_MARK && op->flags & SIM_STARTED))
        return false;
    op->ready_ns = ready_time(c, s, op);
    if (op->kind == SIM_MARK || (op->kind == SIM_HOST && !(op->flags & SIM_STARTED))) {
        op->start_ns = t;
        op->end_ns = t + op->duration_ns;
        op->flags |= SIM_STARTED;
        return false;
    }
    if (op->kind == SIM_RECORD || op->kind == SIM_WAIT_EVENT)
        op->start_ns = t;
    op->end_ns = t;
    s->previous_ns = op->ready_ns;
    pass_head(stream);
    return true;
}

static void finish_mark(uint32_t gpu, uint32_t stream) {
    struct sim_stream *s = &world->streams[stream];
    struct sim_op *op = stream_op(stream, s->head);
    s->previous_ns = op->ready_ns + op->duration_ns;
    log_op(gpu, s->context, op, stream);
    pass_head(stream);
}

/* True: it ended with a fault. */
static bool finish_running(uint32_t gpu, uint32_t index, uint64_t t, uint16_t flags) {
    struct sim_gpu *g = &world->gpus[gpu];
    uint32_t stream = g->running[index];
    struct sim_stream *s = &world->streams[stream];
    struct sim_op *op = stream_op(stream, s->head);
    running_remove(g, index, t);
    op->flags |= flags;
    op->end_ns = t;
    s->previous_ns = t;
    uint64_t from = op->start_ns > g->busy_until_ns ? op->start_ns : g->busy_until_ns;
    g->busy_ns += t > from ? t - from : 0;
    g->busy_until_ns = t;
    log_op(gpu, s->context, op, stream);
    pass_head(stream);
    return op->flags & SIM_FAULTS && !(flags & SIM_KILLED);
}

/* Earliest ready time of what the context could do now; SIM_NEVER for nothing. */
static uint64_t ready_since(const struct sim_gpu *g, uint32_t context) {
    const struct sim_context *c = &world->contexts[context];
    uint64_t since = SIM_NEVER;
    for (uint32_t i = 0; i < c->active_count; i++) {
        const struct sim_stream *s = &world->streams[c->active[i]];
        const struct sim_op *op = stream_op(c->active[i], s->head);
        uint64_t ready = 0;
        if (op->flags & SIM_STARTED && occupies(op)) /* was stopped */
            ready = g->last_held_ns[group_of(context)];
        else if ((op->flags & SIM_STARTED && op->kind != SIM_HOST) || !runnable(c, s, op))
            continue;
        else
            ready = ready_time(c, s, op);
        since = ready < since ? ready : since;
    }
    return since;
}

/* The group, other than the holder, that has work and has waited longest for its turn. */
static int contender(uint32_t gpu, uint64_t *since) {
    const struct sim_gpu *g = &world->gpus[gpu];
    int best = -1;
    *since = SIM_NEVER;
    for (uint32_t i = 0; i < world->contexts_top; i++) {
        const struct sim_context *c = &world->contexts[i];
        if (!c->used || c->gpu != gpu || !c->active_count || group_of(i) == g->holder)
            continue;
        uint64_t ready = ready_since(g, i);
        if (ready == SIM_NEVER)
            continue;
        *since = ready < *since ? ready : *since;
        if (best < 0 || g->last_held_ns[group_of(i)] < g->last_held_ns[best])
            best = group_of(i);
    }
    return best;
}

/* Which of the group's contexts the log names: one with work, else any. */
static uint32_t number_of(uint32_t gpu, int group) {
    uint32_t number = 0;
    for (uint32_t i = 0; i < world->contexts_top; i++)
        if (world->contexts[i].used && world->contexts[i].gpu == gpu && group_of(i) == group &&
            (!number || world->contexts[i].active_count))
            number = world->contexts[i].number;
    return number;
}

static void begin_switch(uint32_t gpu, int to, uint64_t t) {
    struct sim_gpu *g = &world->gpus[gpu];
    if (g->holder >= 0) {
        running_pause(g, t);
        g->last_held_ns[g->holder] = t;
        g->left_context = number_of(gpu, g->holder);
    }
    g->holder = -1;
    g->next = to;
    g->switch_begin_ns = t;
    g->switch_end_ns = t + (g->ever_held ? world->switch_ns : 0);
}

static void end_switch(uint32_t gpu) {
    struct sim_gpu *g = &world->gpus[gpu];
    uint32_t number = number_of(gpu, g->next);
    if (number) {
        g->holder = g->next;
        g->slice_begin_ns = g->switch_end_ns;
        if (g->ever_held)
            log_switch(gpu, g->left_context, number, g->switch_begin_ns, g->switch_end_ns);
        g->ever_held = 1;
    }
    g->next = -1;
}

/* Slices follow one another from when the holder got the GPU; the one in which somebody else
 * got work is the last. */
static uint64_t slice_end(const struct sim_gpu *g, uint64_t since) {
    uint64_t waited = since > g->slice_begin_ns ? since - g->slice_begin_ns : 0;
    uint64_t slices = waited / world->slice_ns + 1;
    return g->slice_begin_ns + slices * world->slice_ns;
}

static bool mark_running(uint32_t gpu) {
    for (uint32_t m = 0; m < world->contexts_top; m++) {
        const struct sim_context *c = &world->contexts[m];
        if (!in_group(m, gpu, world->gpus[gpu].holder))
            continue;
        for (uint32_t i = 0; i < c->active_count; i++) {
            const struct sim_op *op = stream_op(c->active[i], world->streams[c->active[i]].head);
            if (op->kind == SIM_MARK && op->flags & SIM_STARTED)
                return true;
        }
    }
    return false;
}

/* Is a comes before b: by the stream's priority, when it was ready, the order of issue. */
static bool goes_first(uint32_t a, uint32_t b) {
    const struct sim_stream *x = &world->streams[a], *y = &world->streams[b];
    const struct sim_op *p = stream_op(a, x->head), *q = stream_op(b, y->head);
    if (x->priority != y->priority)
        return x->priority < y->priority;
    return p->ready_ns != q->ready_ns ? p->ready_ns < q->ready_ns : p->order < q->order;
}

/* What the context can have on the GPU now and has not: communication and what was paused at
 * once, of the rest the first if nothing of it runs. -1: nothing. */
static int next_to_run(const struct sim_gpu *g, struct sim_context *c) {
    int best = -1;
    bool taken = false;
    for (uint32_t i = 0; i < c->active_count; i++) {
        uint32_t stream = c->active[i];
        const struct sim_stream *s = &world->streams[stream];
        struct sim_op *op = stream_op(stream, s->head);
        if (!occupies(op))
            continue;
        if (op->flags & SIM_STARTED) {
            if (!running_on(g, stream))
                return (int)stream;
            taken |= !(op->flags & SIM_COMMUNICATION);
            continue;
        }
        if (!runnable(c, s, op))
            continue;
        op->ready_ns = ready_time(c, s, op);
        if (op->flags & SIM_COMMUNICATION)
            return (int)stream;
        if (best < 0 || goes_first(stream, (uint32_t)best))
            best = (int)stream;
    }
    return taken ? -1 : best;
}

static bool front_ends(uint32_t gpu, uint64_t t) {
    bool moved = false;
    for (uint32_t m = 0; m < world->contexts_top; m++) {
        struct sim_context *c = &world->contexts[m];
        for (bool again = in_group(m, gpu, world->gpus[gpu].holder); again;) {
            again = false;
            for (uint32_t i = c->active_count; i-- > 0;)
                if (i < c->active_count && front_end(c, c->active[i], t))
                    again = moved = true;
        }
    }
    return moved;
}

/* Starts all that can be, or finds out whether anything could. */
static bool start_ready(uint32_t gpu, uint64_t t, bool try_only) {
    struct sim_gpu *g = &world->gpus[gpu];
    int stream;
    for (uint32_t m = 0; g->holder >= 0 && m < world->contexts_top; m++) {
        struct sim_context *c = &world->contexts[m];
        if (!in_group(m, gpu, g->holder))
            continue;
        while ((stream = next_to_run(g, c)) >= 0)
            if (try_only || !running_add(g, (uint32_t)stream, t))
                return true;
    }
    return false;
}

/* Does at time t all that this GPU can do at once. True when an event elsewhere may have come. */
static bool settle(uint32_t gpu, uint64_t t) {
    struct sim_gpu *g = &world->gpus[gpu];
    g->preempt_ns = SIM_NEVER;
    if (g->next >= 0)
        return false;
    bool moved = front_ends(gpu, t);
    bool ready = start_ready(gpu, t, true);
    bool may_leave = running_only_spins(g);
    uint64_t since = SIM_NEVER;
    int other = ready || may_leave ? contender(gpu, &since) : -1;
    bool over = other >= 0 && t >= slice_end(g, since);
    if (ready && !over)
        start_ready(gpu, t, false);
    if (other >= 0 && may_leave && (over || !g->running_count)) {
        if (g->holder < 0 || !mark_running(gpu))
            begin_switch(gpu, other, t);
    } else if (other >= 0 && running_only_spins(g)) {
        g->preempt_ns = slice_end(g, since);
    }
    running_rate(g, t);
    return moved;
}

uint64_t timeline_next_step(uint32_t gpu) {
    const struct sim_gpu *g = &world->gpus[gpu];
    if (g->next >= 0)
        return g->switch_end_ns;
    uint64_t at = g->preempt_ns;
    for (uint32_t i = 0; i < g->running_count; i++) {
        uint64_t end = stream_op(g->running[i], world->streams[g->running[i]].head)->end_ns;
        at = end < at ? end : at;
    }
    for (uint32_t m = 0; g->holder >= 0 && m < world->contexts_top; m++) {
        const struct sim_context *c = &world->contexts[m];
        if (!in_group(m, gpu, g->holder))
            continue;
        for (uint32_t i = 0; i < c->active_count; i++) {
            const struct sim_op *op = stream_op(c->active[i], world->streams[c->active[i]].head);
            if (op->kind == SIM_MARK && op->flags & SIM_STARTED && op->end_ns < at)
                at = op->end_ns;
        }
    }
    return at;
}

static void finish_marks(uint32_t gpu, struct sim_context *c, uint64_t t) {
    for (uint32_t i = c->active_count; i-- > 0;) {
        const struct sim_op *op = stream_op(c->active[i], world->streams[c->active[i]].head);
        if (op->kind == SIM_MARK && op->flags & SIM_STARTED && op->end_ns <= t)
            finish_mark(gpu, c->active[i]);
    }
}

/* Ends what ends at t. */
static void step(uint32_t gpu, uint64_t t) {
    struct sim_gpu *g = &world->gpus[gpu];
    if (g->next >= 0) {
        if (g->switch_end_ns <= t)
            end_switch(gpu);
        return;
    }
    for (uint32_t i = g->running_count; i-- > 0;) {
        if (i >= g->running_count) /* a fault has taken others with it */
            continue;
        uint32_t stream = g->running[i];
        uint32_t context = world->streams[stream].context;
        if (stream_op(stream, world->streams[stream].head)->end_ns <= t &&
            finish_running(gpu, i, t, 0))
            context_fault(context, SIM_ERROR_ILLEGAL_ADDRESS, true);
    }
    for (uint32_t m = 0; g->holder >= 0 && m < world->contexts_top; m++)
        if (in_group(m, gpu, g->holder))
            finish_marks(gpu, &world->contexts[m], t);
}

static void settle_all(uint64_t t) {
    for (bool again = true; again;) {
        again = false;
        for (uint32_t gpu = 0; gpu < world->gpus_top; gpu++)
            if (world->gpus[gpu].used && settle(gpu, t))
                again = true;
    }
}

void timeline_advance(uint64_t now) {
    if (now < world->now_ns)
        now = world->now_ns;
    for (;;) {
        settle_all(world->now_ns);
        uint64_t at = SIM_NEVER;
        for (uint32_t gpu = 0; gpu < world->gpus_top; gpu++)
            if (world->gpus[gpu].used) {
                uint64_t next = timeline_next_step(gpu);
                at = next < at ? next : at;
            }
        if (at > now)
            break;
        world->now_ns = at;
        for (uint32_t gpu = 0; gpu < world->gpus_top; gpu++)
            if (world->gpus[gpu].used)
                step(gpu, at);
    }
    world->now_ns = now;
}

static uint64_t queued_kernels(uint32_t context) {
    uint64_t kernels = 0;
    for (uint32_t i = 0; i < world->streams_top; i++) {
        const struct sim_stream *s = &world->streams[i];
        for (uint64_t at = s->head; s->used && s->context == context && at != s->tail; at++)
            kernels += stream_op(i, at)->kind == SIM_KERNEL;
    }
    return kernels;
}

void timeline_drop_context(uint32_t context) {
    uint32_t gpu = world->contexts[context].gpu;
    struct sim_gpu *g = &world->gpus[gpu];
    for (uint32_t i = g->running_count; i-- > 0;)
        if (world->streams[g->running[i]].context == context)
            finish_running(gpu, i, world->now_ns, SIM_KILLED);
    uint64_t kernels = queued_kernels(context);
    if (kernels)
        log_dropped(gpu, context, kernels);
    if (g->holder != group_of(context))
        return;
    for (uint32_t i = 0; i < world->contexts_top; i++)
        if (i != context && world->contexts[i].used && world->contexts[i].gpu == gpu &&
            group_of(i) == g->holder)
            return; /* another client still holds it */
    g->left_context = world->contexts[context].number;
    g->holder = -1;
}
