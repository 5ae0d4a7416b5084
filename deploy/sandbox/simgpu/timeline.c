/* timeline.c - what the simulated GPUs do, computed step by step up to a given time.
 *
 * Steps are taken in the order of simulated time over all GPUs, each at its exact time, however
 * late the call comes. Rules: one context holds a GPU; kernels, copies and sets of it run one at
 * a time in the order in which they became ready, nothing is preempted; a holder with nothing to
 * do loses the GPU to a context that has, and so does a holder whose slice is over, at the end
 * of an operation; each change costs switch_ns. What a context does in the front end (marks,
 * event records, waits that are over) also needs the GPU: a frozen context writes nothing. */
#include <string.h>
#include "world.h"

static bool occupies(const struct sim_op *op) { return op->kind <= SIM_SET; }

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

static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* When all that the head waits for was over. The blocking streams' last ends are looked at only
 * for the legacy stream: by its barrier none of them can have gone past op. */
static uint64_t ready_time(const struct sim_context *c, const struct sim_stream *s,
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
static bool runnable(const struct sim_context *c, const struct sim_stream *s,
                     const struct sim_op *op) {
    if (op->kind == SIM_WAIT_EVENT && !timeline_event_passed(op->a, op->b, op->c))
        return false;
    if (op->kind == SIM_WAIT_VALUE && !(op->flags & SIM_RELEASED))
        return false;
    if (op->kind == SIM_HOST && (op->flags & SIM_STARTED) && !(op->flags & SIM_RELEASED))
        return false;
    return barrier_open(c, s, op);
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

static void finish_running(uint32_t gpu, uint8_t flags) {
    struct sim_gpu *g = &world->gpus[gpu];
    uint32_t stream = (uint32_t)g->running_stream;
    struct sim_stream *s = &world->streams[stream];
    struct sim_op *op = stream_op(stream, s->head);
    op->flags |= flags;
    s->previous_ns = op->end_ns;
    g->busy_ns += op->end_ns - op->start_ns;
    log_op(gpu, s->context, op, stream);
    g->running_stream = -1;
    pass_head(stream);
}

/* Earliest ready time of what the context could do now; SIM_NEVER for nothing. */
static uint64_t ready_since(const struct sim_context *c) {
    uint64_t since = SIM_NEVER;
    for (uint32_t i = 0; i < c->active_count; i++) {
        const struct sim_stream *s = &world->streams[c->active[i]];
        const struct sim_op *op = stream_op(c->active[i], s->head);
        if ((op->flags & SIM_STARTED && op->kind != SIM_HOST) || !runnable(c, s, op))
            continue;
        uint64_t ready = ready_time(c, s, op);
        since = ready < since ? ready : since;
    }
    return since;
}

/* The context, other than the holder, that has work and has waited longest for its turn. */
static int contender(uint32_t gpu, uint64_t *since) {
    int best = -1;
    *since = SIM_NEVER;
    for (uint32_t i = 0; i < world->contexts_top; i++) {
        const struct sim_context *c = &world->contexts[i];
        if (!c->used || c->gpu != gpu || (int)i == world->gpus[gpu].holder || !c->active_count)
            continue;
        uint64_t ready = ready_since(c);
        if (ready == SIM_NEVER)
            continue;
        *since = ready < *since ? ready : *since;
        if (best < 0 || c->last_held_ns < world->contexts[best].last_held_ns)
            best = (int)i;
    }
    return best;
}

static void begin_switch(struct sim_gpu *g, int to, uint64_t t) {
    if (g->holder >= 0) {
        world->contexts[g->holder].last_held_ns = t;
        g->left_context = world->contexts[g->holder].number;
    }
    g->holder = -1;
    g->next = to;
    g->switch_begin_ns = t;
    g->switch_end_ns = t + (g->ever_held ? world->switch_ns : 0);
}

static void end_switch(uint32_t gpu) {
    struct sim_gpu *g = &world->gpus[gpu];
    if (world->contexts[g->next].used && world->contexts[g->next].gpu == gpu) {
        g->holder = g->next;
        g->slice_begin_ns = g->switch_end_ns;
        if (g->ever_held)
            log_switch(gpu, g->left_context, world->contexts[g->holder].number, g->switch_begin_ns,
                       g->switch_end_ns);
        g->ever_held = 1;
    }
    g->next = -1;
}

/* Slices follow one another from when the holder got the GPU; the one in which somebody else
 * got work is the last. */
static bool slice_over(const struct sim_gpu *g, uint64_t since, uint64_t t) {
    uint64_t waited = since > g->slice_begin_ns ? since - g->slice_begin_ns : 0;
    uint64_t slices = waited / world->slice_ns + 1;
    return t >= g->slice_begin_ns + slices * world->slice_ns;
}

static bool mark_running(const struct sim_context *c) {
    for (uint32_t i = 0; i < c->active_count; i++) {
        const struct sim_op *op = stream_op(c->active[i], world->streams[c->active[i]].head);
        if (op->kind == SIM_MARK && op->flags & SIM_STARTED)
            return true;
    }
    return false;
}

/* First stream, by ready time and then order of issue, whose head can have the compute engine. */
static int next_to_run(struct sim_context *c) {
    int best = -1;
    uint64_t best_ready = 0, best_order = 0;
    for (uint32_t i = 0; i < c->active_count; i++) {
        uint32_t stream = c->active[i];
        const struct sim_stream *s = &world->streams[stream];
        struct sim_op *op = stream_op(stream, s->head);
        if (!occupies(op) || op->flags & SIM_STARTED || !runnable(c, s, op))
            continue;
        op->ready_ns = ready_time(c, s, op);
        if (best >= 0 &&
            (op->ready_ns > best_ready || (op->ready_ns == best_ready && op->order > best_order)))
            continue;
        best = (int)stream;
        best_ready = op->ready_ns;
        best_order = op->order;
    }
    return best;
}

static void start_running(struct sim_gpu *g, uint32_t stream, uint64_t t) {
    struct sim_op *op = stream_op(stream, world->streams[stream].head);
    op->start_ns = t;
    op->end_ns = t + op->duration_ns;
    op->flags |= SIM_STARTED;
    g->running_stream = (int32_t)stream;
}

/* Does at time t all that this GPU can do at once. True when an event elsewhere may have come. */
static bool settle(uint32_t gpu, uint64_t t) {
    struct sim_gpu *g = &world->gpus[gpu];
    bool moved = false;
    if (g->next >= 0)
        return false;
    if (g->holder >= 0) {
        struct sim_context *c = &world->contexts[g->holder];
        for (bool again = true; again;) {
            again = false;
            for (uint32_t i = c->active_count; i-- > 0;)
                if (i < c->active_count && front_end(c, c->active[i], t))
                    again = moved = true;
        }
    }
    if (g->running_stream >= 0)
        return moved;
    int stream = g->holder >= 0 ? next_to_run(&world->contexts[g->holder]) : -1;
    uint64_t since;
    int other = contender(gpu, &since);
    if (other >= 0 && (stream < 0 || slice_over(g, since, t))) {
        if (g->holder < 0 || !mark_running(&world->contexts[g->holder]))
            begin_switch(g, other, t);
    } else if (stream >= 0) {
        start_running(g, (uint32_t)stream, t);
    }
    return moved;
}

/* When this GPU next does something by itself. */
static uint64_t next_step(const struct sim_gpu *g) {
    if (g->next >= 0)
        return g->switch_end_ns;
    uint64_t at = SIM_NEVER;
    if (g->running_stream >= 0) {
        uint32_t stream = (uint32_t)g->running_stream;
        at = stream_op(stream, world->streams[stream].head)->end_ns;
    }
    if (g->holder < 0)
        return at;
    const struct sim_context *c = &world->contexts[g->holder];
    for (uint32_t i = 0; i < c->active_count; i++) {
        const struct sim_op *op = stream_op(c->active[i], world->streams[c->active[i]].head);
        if (op->kind == SIM_MARK && op->flags & SIM_STARTED && op->end_ns < at)
            at = op->end_ns;
    }
    return at;
}

/* Ends what ends at t. */
static void step(uint32_t gpu, uint64_t t) {
    struct sim_gpu *g = &world->gpus[gpu];
    if (g->next >= 0) {
        if (g->switch_end_ns <= t)
            end_switch(gpu);
        return;
    }
    if (g->running_stream >= 0) {
        uint32_t stream = (uint32_t)g->running_stream;
        if (stream_op(stream, world->streams[stream].head)->end_ns <= t)
            finish_running(gpu, 0);
    }
    if (g->holder < 0)
        return;
    struct sim_context *c = &world->contexts[g->holder];
    for (uint32_t i = c->active_count; i-- > 0;) {
        const struct sim_op *op = stream_op(c->active[i], world->streams[c->active[i]].head);
        if (op->kind == SIM_MARK && op->flags & SIM_STARTED && op->end_ns <= t)
            finish_mark(gpu, c->active[i]);
    }
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
                uint64_t next = next_step(&world->gpus[gpu]);
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

void timeline_drop_context(uint32_t context) {
    struct sim_gpu *g = &world->gpus[world->contexts[context].gpu];
    if (g->holder != (int)context)
        return;
    if (g->running_stream >= 0) {
        struct sim_op *op =
            stream_op((uint32_t)g->running_stream, world->streams[g->running_stream].head);
        op->end_ns = world->now_ns;
        finish_running(world->contexts[context].gpu, SIM_KILLED);
    }
    g->left_context = world->contexts[context].number;
    g->holder = -1;
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
    if (head->flags & SIM_STARTED && head->kind != SIM_HOST)
        return head->end_ns + rest - head->duration_ns;
    uint64_t busy_until = world->now_ns;
    if (g->running_stream >= 0)
        busy_until =
            stream_op((uint32_t)g->running_stream, world->streams[g->running_stream].head)->end_ns;
    if (runnable(c, s, head)) {
        if (g->next >= 0)
            return g->switch_end_ns + (g->next == (int)s->context ? 0 : world->switch_ns) + rest;
        return busy_until + (g->holder == (int)s->context ? 0 : world->switch_ns) + rest;
    }
    /* Blocked: look again at the next step of any GPU. */
    uint64_t at = SIM_NEVER;
    for (uint32_t gpu = 0; gpu < world->gpus_top; gpu++)
        if (world->gpus[gpu].used) {
            uint64_t next = next_step(&world->gpus[gpu]);
            at = next < at ? next : at;
        }
    return at;
}
