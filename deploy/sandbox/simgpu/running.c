/* running.c - the operations that a GPU works on at once, and how fast each goes.
 *
 * A kernel fills the GPU, or as much of it as its process may use under MPS. Communication takes a
 * tenth of it and is not slowed down. What is left is shared among the contexts: equally, and ten
 * to one where a client has the lower priority. A kernel with half of its share takes twice as
 * long. Copies and sets take none of it. */
#include "timeline.h"

#define ALL_PPM 1000000u
#define COMMUNICATION_PPM 100000u
#define COMMUNICATION_MOST_PPM 500000u
#define LOW_WEIGHT 1u
#define NORMAL_WEIGHT 10u

static struct sim_op *head_of(uint32_t stream) {
    return stream_op(stream, world->streams[stream].head);
}

static const struct sim_context *context_of(uint32_t stream) {
    return &world->contexts[world->streams[stream].context];
}

static bool computes(const struct sim_op *op) {
    return op->kind == SIM_KERNEL && !(op->flags & SIM_COMMUNICATION);
}

static bool endless(const struct sim_op *op) {
    return op->flags & SIM_SPINS && !(op->flags & SIM_RELEASED);
}

bool running_on(const struct sim_gpu *g, uint32_t stream) {
    for (uint32_t i = 0; i < g->running_count; i++)
        if (g->running[i] == stream)
            return true;
    return false;
}

bool running_only_spins(const struct sim_gpu *g) {
    for (uint32_t i = 0; i < g->running_count; i++)
        if (!(head_of(g->running[i])->flags & SIM_SPINS))
            return false;
    return true;
}

/* Takes in what was done since the speeds were last set. */
static void account(struct sim_gpu *g, uint64_t t) {
    uint64_t passed = t > g->rated_ns ? t - g->rated_ns : 0;
    for (uint32_t i = 0; i < g->running_count; i++) {
        struct sim_op *op = head_of(g->running[i]);
        uint64_t done = passed * op->rate_ppm / ALL_PPM;
        op->ran_ns += passed;
        op->lost_ns += passed * (op->alone_ppm - op->rate_ppm) / ALL_PPM;
        op->left_ns -= done < op->left_ns ? done : op->left_ns;
    }
    g->rated_ns = t;
}

/* Share of the GPU that communication takes; only: of this context, UINT32_MAX for all. */
static uint32_t communication_share(const struct sim_gpu *g, uint32_t only) {
    uint32_t share = 0;
    for (uint32_t i = 0; i < g->running_count; i++) {
        const struct sim_stream *s = &world->streams[g->running[i]];
        if (head_of(g->running[i])->flags & SIM_COMMUNICATION &&
            (only == UINT32_MAX || s->context == only))
            share += COMMUNICATION_PPM;
    }
    return share < COMMUNICATION_MOST_PPM ? share : COMMUNICATION_MOST_PPM;
}

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

static uint32_t weight_of(const struct sim_context *c) {
    return c->low_priority ? LOW_WEIGHT : NORMAL_WEIGHT;
}

/* Shares what is free by weight; what one may not use goes to the others. */
static void share_out(struct sim_gpu *g, uint32_t free_ppm) {
    bool settled[SIM_RUNNING] = {false};
    for (bool again = true; again;) {
        uint64_t weights = 0;
        again = false;
        for (uint32_t i = 0; i < g->running_count; i++)
            if (computes(head_of(g->running[i])) && !settled[i])
                weights += weight_of(context_of(g->running[i]));
        uint32_t taken = 0;
        for (uint32_t i = 0; i < g->running_count; i++) {
            struct sim_op *op = head_of(g->running[i]);
            const struct sim_context *c = context_of(g->running[i]);
            if (!computes(op) || settled[i])
                continue;
            op->rate_ppm = (uint32_t)((uint64_t)free_ppm * weight_of(c) / weights);
            if (op->rate_ppm <= c->share_ppm)
                continue;
            op->rate_ppm = c->share_ppm;
            taken += c->share_ppm;
            settled[i] = again = true;
        }
        free_ppm -= taken;
    }
}

void running_rate(struct sim_gpu *g, uint64_t t) {
    if (!g->stale)
        return;
    account(g, t);
    g->stale = 0;
    share_out(g, ALL_PPM - communication_share(g, UINT32_MAX));
    for (uint32_t i = 0; i < g->running_count; i++) {
        struct sim_op *op = head_of(g->running[i]);
        const struct sim_stream *s = &world->streams[g->running[i]];
        if (!computes(op))
            op->rate_ppm = op->alone_ppm = ALL_PPM;
        else
            op->alone_ppm = least(context_of(g->running[i])->share_ppm,
                                  ALL_PPM - communication_share(g, s->context));
        op->end_ns =
            endless(op) ? SIM_NEVER : t + (op->left_ns * ALL_PPM + op->rate_ppm - 1) / op->rate_ppm;
    }
}

bool running_add(struct sim_gpu *g, uint32_t stream, uint64_t t) {
    struct sim_op *op = head_of(stream);
    if (g->running_count == SIM_RUNNING)
        return false;
    account(g, t);
    if (!(op->flags & SIM_STARTED)) {
        op->start_ns = t;
        op->left_ns = op->duration_ns;
        op->lost_ns = op->ran_ns = 0;
        op->flags |= SIM_STARTED;
    }
    op->rate_ppm = op->alone_ppm = 0;
    op->end_ns = SIM_NEVER;
    g->running[g->running_count++] = stream;
    g->stale = 1;
    return true;
}

void running_remove(struct sim_gpu *g, uint32_t index, uint64_t t) {
    account(g, t);
    g->running[index] = g->running[g->running_count - 1];
    g->running_count--;
    g->stale = 1;
}

void running_pause(struct sim_gpu *g, uint64_t t) {
    account(g, t);
    g->running_count = 0;
    g->stale = 0;
}

/* At most as fast as alone on the whole GPU, whatever else comes or goes. */
uint64_t running_left(const struct sim_gpu *g, uint32_t stream, uint64_t t) {
    const struct sim_op *op = head_of(stream);
    if (endless(op))
        return SIM_NEVER;
    uint64_t done =
        running_on(g, stream) && t > g->rated_ns ? (t - g->rated_ns) * op->rate_ppm / ALL_PPM : 0;
    return done < op->left_ns ? op->left_ns - done : 0;
}
