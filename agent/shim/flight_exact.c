/* flight_exact.c - GPU time of operations whose ends are known from events.
 *
 * An operation that stood in its stream before its predecessor ended began at that end, behind
 * the marker in between: its time is the difference of two events, however late the host looks.
 * One that met an idle GPU began after its launch call: at once if the GPU was ours already, else
 * the learned duration says when. One that ended after training had come back may have stood behind
 * training's slice: there the learned duration says so too. */
#include "inflight.h"

#define SURE_NS 15000u  /* the two clocks agree to that */
#define LONG_NS 200000u /* launching, and a pause between two launches, are little beside it */

static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }
static uint64_t sooner(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* The operations of one marker. */
struct group {
    uint64_t free_ns;  /* from when on the GPU could begin the first */
    uint64_t least_ns; /* ... and its launch call was made: it cannot have begun before */
    uint64_t mean_ns;  /* sum of what they are thought to take */
    uint32_t count;
    bool queued;      /* all stood in the stream when the predecessor ended */
    bool known;       /* all are learned */
    bool alone;       /* training had not come back when the last ended */
    uint64_t sure_ns; /* had the GPU for so long before that, longer than thought; 0: it had not */
};

static struct group survey(struct flight *flight, uint32_t stream, uint64_t value, uint64_t end_ns,
                           uint64_t epoch) {
    uint64_t before_ns = flight->last_done_ns, marker_ns = flight->streams[stream].marker_ns;
    struct group g = {.queued = before_ns != 0, .known = true};
    bool trusted = true;
    g.free_ns = flight->last_stream >= 0 ? before_ns + marker_ns : before_ns;
    g.alone = !flight->resume_ns || end_ns <= flight->resume_ns;
    for (uint64_t i = flight->head; i < flight->tail; i++) {
        const struct flown *op = flight_op(flight, i);
        if (!flight_is_done(op, stream, value))
            continue;
        if (g.count++ == 0)
            g.least_ns = later(g.free_ns, op->release_ns);
        g.queued &= op->issued_ns + SURE_NS <= before_ns;
        g.known &= op->known;
        trusted &= op->trusted;
        g.alone &= op->epoch != 0 && (flight->resume_ns || op->epoch == epoch);
        g.mean_ns += op->mean_ns + 1;
    }
    g.least_ns = sooner(g.least_ns, end_ns);
    if (!g.alone && !trusted)
        g.sure_ns = flight_sure(flight, g.least_ns, end_ns, g.mean_ns);
    return g;
}

/* What the GPU worked on the group. */
static uint64_t busy_time(const struct group *g, uint64_t end_ns) {
    uint64_t longest = end_ns - g->least_ns;
    if (g->queued && g->alone)
        return end_ns - sooner(g->free_ns, end_ns);
    if (!g->known && g->alone)
        return longest;
    if (g->sure_ns)
        return flight_shared(g->sure_ns, longest);
    return sooner(longest, g->mean_ns); /* the rest was launching and switching */
}

/* What one took that began as soon as it was launched; 0: it may not have. So begin those that
 * meet a GPU which is still ours from the one before, as all but the first in a bubble do that are
 * longer than the work in flight may be: they never stand behind another. */
static uint64_t since_launch(const struct flight *flight, const struct flown *op,
                             const struct group *g, uint64_t end_ns) {
    bool ours = op->epoch == flight->last_epoch && flight->last_done_ns != 0 &&
                op->release_ns <= flight->last_done_ns + LONG_NS; /* else another fill had it */
    if (!ours || g->count != 1 || !g->alone || op->issued_ns > g->least_ns + SURE_NS)
        return 0;
    uint64_t took_ns = end_ns - sooner(later(g->free_ns, op->issued_ns), end_ns);
    return took_ns >= LONG_NS ? took_ns : 0;
}

static void learn(struct flight *flight, const struct flown *op, const struct group *g,
                  uint64_t busy_ns, uint64_t most_ns, bool exact) {
    if (g->alone && exact)
        durations_learn(flight->durations, op->shape, busy_ns, true);
    else if (g->alone && g->count == 1)
        durations_learn(flight->durations, op->shape, most_ns, false);
    else if (g->sure_ns && g->count == 1)
        durations_outlasted(flight->durations, op->shape, g->sure_ns, most_ns);
    else if (!op->trusted)
        durations_disturbed(flight->durations, op->shape, op->known ? most_ns : busy_ns);
}

/* What the GPU took to turn from training to us: an operation of known duration that met a GPU
 * which training had used last. */
static uint64_t start_time(const struct flight *flight, const struct flown *op,
                           const struct group *g, uint64_t end_ns) {
    uint64_t begin_ns = end_ns - sooner(end_ns, op->mean_ns);
    bool first = op->epoch != flight->last_epoch && op->issued_ns > flight->last_done_ns;
    if (!first || g->count != 1 || !op->trusted || !g->alone || begin_ns <= op->issued_ns)
        return 0;
    return begin_ns - op->issued_ns;
}

void flight_collect_exact(struct flight *flight, uint32_t stream, uint64_t value, uint64_t end_ns,
                          uint64_t now_ns, uint64_t epoch, flight_sink sink, void *argument) {
    struct group g = survey(flight, stream, value, end_ns, epoch);
    if (g.count == 0)
        return;
    uint64_t busy_ns = busy_time(&g, end_ns);
    uint64_t longest = end_ns - g.least_ns;
    /* What training waited is charged whole where its share of the GPU is not known. */
    uint64_t at = g.sure_ns ? g.least_ns : end_ns - busy_ns;
    bool exact = g.queued && flight->last_stream == (int)stream;
    double part = 1.0 / (double)g.mean_ns;
    uint32_t left = g.count;
    for (uint64_t i = flight->head; i < flight->tail; i++) {
        struct flown *op = flight_op(flight, i);
        if (!flight_is_done(op, stream, value))
            continue;
        double share = (double)(op->mean_ns + 1) * part;
        uint64_t own = (uint64_t)((double)busy_ns * share);
        struct flight_done done = {.release_ns = op->release_ns,
                                   .begin_ns = at,
                                   .end_ns = --left ? at + own : end_ns,
                                   .busy_ns = own,
                                   .start_ns = start_time(flight, op, &g, end_ns),
                                   .compute = op->compute};
        at += own;
        uint64_t alone_ns = since_launch(flight, op, &g, end_ns);
        learn(flight, op, &g, alone_ns ? alone_ns : own, (uint64_t)((double)longest * share),
              exact || alone_ns);
        flight->last_epoch = op->epoch;
        flight_remove(flight, op);
        sink(&done, argument);
    }
    flight->last_done_ns = later(flight->last_done_ns, end_ns);
    flight->last_stream = (int)stream;
    flight->not_done_ns = end_ns;
    flight->progress_ns = now_ns;
}
