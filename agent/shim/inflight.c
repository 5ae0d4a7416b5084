/* inflight.c - accounts for released operations by the words that the GPU writes.
 *
 * A look sees a word that an earlier look did not: the completion lies between both. Within that
 * interval the learned duration places it, so errors do not add up: over a busy stretch the sum
 * of all durations is the stretch. What contradicts the learned duration (too early, too late)
 * corrects it. Measurements during which training moved are not learned from: the GPU then
 * served both. That is for GPUs without events; with them, flight_exact.c knows the ends. The
 * caller holds the GPU's lock. */
#include "inflight.h"
#include <stdatomic.h>
#include <stddef.h>

/* An operation released so long before its predecessor was seen not to be done was queued when
 * that one ended, and began at once. */
#define SURE_NS 15000u
#define LONG_NS 200000u /* more than that, and it took longer than was thought */
/* Predictions are good to that; what should have ended before training's return did, and only the
 * marker behind it had to wait for training. */
#define FORESEEN_NS 50000u

static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }
static uint64_t sooner(uint64_t a, uint64_t b) { return a < b ? a : b; }

struct flown *flight_op(struct flight *flight, uint64_t ticket) {
    return &flight->ops[ticket % FLIGHT_OPS];
}

/* What the oldest operation has had of its time by now; it need not be waited for any more. */
static uint64_t elapsed(const struct flight *flight, uint64_t now_ns) {
    const struct flown *op = &flight->ops[flight->head % FLIGHT_OPS];
    uint64_t begin = later(op->release_ns, flight->last_done_ns);
    return now_ns > begin ? sooner(now_ns - begin, sooner(op->mean_ns, op->bound_ns)) : 0;
}

uint64_t flight_left(const struct flight *flight, uint64_t now_ns) {
    return flight->count ? flight->in_flight_ns - elapsed(flight, now_ns) : 0;
}

bool flight_has_room(const struct flight *flight, uint64_t bound_ns, bool alone, uint64_t budget_ns,
                     uint64_t now_ns) {
    if (flight->count == 0)
        return flight->tail - flight->head < FLIGHT_OPS;
    if (alone || flight->alone || flight->tail - flight->head >= FLIGHT_OPS)
        return false;
    return flight_left(flight, now_ns) + bound_ns <= budget_ns;
}

uint64_t flight_release(struct flight *flight, const struct flown *op) {
    uint64_t ticket = flight->tail++;
    struct flown *own = flight_op(flight, ticket);
    *own = *op;
    own->state = FLOWN_RELEASED;
    if (flight->count++ == 0)
        flight->progress_ns = op->release_ns;
    flight->alone += own->alone;
    flight->launching += !own->blocking;
    flight->in_flight_ns += own->bound_ns;
    return ticket;
}

void flight_remove(struct flight *flight, struct flown *op) {
    flight->in_flight_ns -= op->bound_ns;
    flight->alone -= op->alone;
    flight->count--;
    if (op->state == FLOWN_ISSUED)
        flight->streams[op->stream].pending--;
    else
        flight->launching -= !op->blocking;
    op->state = FLOWN_NONE;
    while (flight->head < flight->tail && flight_op(flight, flight->head)->state == FLOWN_NONE)
        flight->head++;
}

void flight_cancel(struct flight *flight, uint64_t ticket) {
    flight_remove(flight, flight_op(flight, ticket));
}

void flight_issued(struct flight *flight, uint64_t ticket, uint32_t stream, uint64_t now_ns) {
    struct flown *op = flight_op(flight, ticket);
    struct flight_stream *own = &flight->streams[stream];
    op->stream = stream;
    op->issued_ns = now_ns;
    op->value = ++own->issued;
    op->state = FLOWN_ISSUED;
    flight->launching -= !op->blocking;
    own->pending++;
    if (own->unmarked_ns == 0)
        own->unmarked_since_ns = now_ns;
    own->unmarked_ns += op->mean_ns + 1;
}

uint64_t flight_sure(const struct flight *flight, uint64_t begin_ns, uint64_t end_ns,
                     uint64_t thought_ns) {
    uint64_t resume_ns = flight->resume_ns;
    bool outlasts = end_ns > resume_ns && resume_ns > begin_ns + thought_ns + LONG_NS;
    return outlasts ? resume_ns - begin_ns : 0;
}

uint64_t flight_shared(uint64_t sure_ns, uint64_t whole_ns) {
    return sure_ns + (whole_ns - sooner(sure_ns, whole_ns)) / 2;
}

/* Operations of one stream that one look found done, and what their durations predicted. */
struct harvest {
    uint64_t begin_ns;     /* when the first must have begun */
    uint64_t release_ns;   /* when the first was released */
    uint64_t most_ns;      /* what they can have taken at most */
    uint64_t predicted_ns; /* when the last should have ended */
    uint64_t busy_ns;      /* sum of their durations as thought */
    uint64_t end_ns;       /* when the last did end, as far as two looks tell */
    bool exact;            /* each began when an earlier one ended */
    bool idle_before;      /* the first was released after all before it had ended */
    bool clean;            /* training was idle all along */
    bool known;            /* every duration is learned */
    bool trusted;          /* ... from exact measurements */
    uint32_t count;
    uint64_t sure_ns; /* one that had the GPU for so long before training came back; else 0 */
};

bool flight_is_done(const struct flown *op, uint32_t stream, uint64_t value) {
    return op->state == FLOWN_ISSUED && op->stream == stream && op->value <= value;
}

static struct harvest survey(struct flight *flight, uint32_t stream, uint64_t value, uint64_t epoch,
                             uint64_t before_ns) {
    struct harvest h = {.exact = true, .clean = true, .known = true, .trusted = true};
    uint64_t at = flight->last_done_ns, not_done_ns = flight->not_done_ns;
    for (uint64_t i = flight->head; i < flight->tail; i++) {
        const struct flown *op = flight_op(flight, i);
        if (!flight_is_done(op, stream, value))
            continue;
        h.exact &= op->release_ns + SURE_NS <= not_done_ns;
        not_done_ns = before_ns;
        h.trusted &= op->trusted;
        h.clean &= op->epoch != 0 && op->epoch == epoch;
        h.known &= op->known;
        at = later(at, op->release_ns);
        if (h.busy_ns == 0)
            h = (struct harvest){.begin_ns = at,
                                 .release_ns = op->release_ns,
                                 .exact = h.exact,
                                 .clean = h.clean,
                                 .known = h.known,
                                 .trusted = h.trusted,
                                 .idle_before = op->release_ns >= flight->last_done_ns};
        at += op->mean_ns + 1;
        h.busy_ns += op->mean_ns + 1;
        h.count++;
    }
    h.predicted_ns = at;
    return h;
}

/* Places the end between the last look that did not see it and the one that did. */
static void place_end(struct harvest *h, uint64_t before_ns, uint64_t now_ns) {
    uint64_t least = later(h->begin_ns, sooner(before_ns, now_ns));
    if (h->predicted_ns >= now_ns)
        h->end_ns = later(now_ns, h->begin_ns);
    else if (h->predicted_ns >= least)
        h->end_ns = h->predicted_ns;
    else if (h->clean)
        h->end_ns = least;
    else /* the GPU was lent to training in between: nothing says when within the interval */
        h->end_ns = least + (later(now_ns, least) - least) / 2;
}

/* Factor between thought and measured durations. */
static double stretch(const struct harvest *h) {
    double busy = (double)h->busy_ns, measured;
    if (h->clean && !h->exact && h->trusted) /* launch and look add to it */
        measured = sooner(h->busy_ns, h->end_ns - h->begin_ns);
    else if (h->clean) /* idle gaps between them, as predicted, are not their time */
        measured = busy + ((double)h->end_ns - (double)h->predicted_ns);
    else if (h->sure_ns)
        measured = (double)flight_shared(h->sure_ns, h->end_ns - h->begin_ns);
    else
        measured = sooner(h->busy_ns, h->end_ns - h->begin_ns);
    return measured < busy * 0.02 ? 0.02 : measured / busy;
}

/* What began when its predecessor ended is measured; what began on an idle GPU took no longer
 * than since its release. While training had the GPU as well, most operations still took no
 * longer than since their predecessor was seen not to be done, so the median tells. */
static void learn(struct flight *flight, const struct flown *op, const struct harvest *h,
                  uint64_t busy_ns) {
    double most = (double)(op->mean_ns + 1) * (double)h->most_ns / (double)h->busy_ns;
    if (h->clean && (h->exact || h->idle_before || !op->known))
        durations_learn(flight->durations, op->shape, busy_ns, h->exact);
    else if (h->sure_ns && !op->trusted)
        durations_outlasted(flight->durations, op->shape, h->sure_ns, h->most_ns);
    else if (!op->trusted)
        durations_disturbed(flight->durations, op->shape,
                            op->known ? (uint64_t)most : sooner((uint64_t)most, op->mean_ns));
}

static void collect(struct flight *flight, uint32_t stream, uint64_t value, uint64_t before_ns,
                    uint64_t now_ns, uint64_t epoch, flight_sink sink, void *argument) {
    struct harvest h = survey(flight, stream, value, epoch, before_ns);
    if (h.busy_ns == 0)
        return;
    place_end(&h, before_ns, now_ns);
    if (h.count == 1 && !h.clean && !h.trusted)
        h.sure_ns = flight_sure(flight, h.begin_ns, h.end_ns, h.busy_ns);
    h.most_ns = now_ns - sooner(now_ns, later(h.release_ns, flight->not_done_ns));
    double factor = stretch(&h);
    double total = (double)h.busy_ns * factor;
    uint64_t span = (uint64_t)total, end = h.end_ns;
    uint64_t at = h.clean && h.exact ? h.begin_ns : (end > span ? end - span : 0);
    at = later(at, h.begin_ns);
    uint64_t foreseen = flight->last_done_ns;
    for (uint64_t i = flight->head; i < flight->tail; i++) {
        struct flown *op = flight_op(flight, i);
        if (!flight_is_done(op, stream, value))
            continue;
        uint64_t busy = (uint64_t)((double)(op->mean_ns + 1) * factor);
        foreseen = later(foreseen, op->release_ns) + op->mean_ns + 1;
        if (!h.clean && !h.sure_ns && flight->resume_ns &&
            foreseen <= flight->resume_ns + FORESEEN_NS) {
            end = sooner(foreseen, now_ns);
            at = end > busy ? end - busy : 0;
        } else if (end != h.end_ns) { /* the first that ran after training's return */
            end = h.end_ns;
            at = later(end > span ? end - span : 0, at);
        }
        span -= sooner(span, busy);
        struct flight_done done = {.release_ns = op->release_ns,
                                   .begin_ns = sooner(at, end),
                                   .end_ns = sooner(at + busy, end),
                                   .busy_ns = busy,
                                   .compute = op->compute};
        at += busy;
        learn(flight, op, &h, busy);
        flight->last_epoch = op->epoch;
        flight_remove(flight, op);
        sink(&done, argument);
    }
    flight->last_done_ns = later(flight->last_done_ns, end);
    flight->last_stream = -1;
    flight->not_done_ns = before_ns;
    flight->progress_ns = now_ns;
}

void flight_timed(struct flight_stream *stream, uint64_t value, struct CUevent_st *event,
                  struct gate_clock *clock) {
    stream->times[stream->times_tail++ % FLIGHT_TIMES] =
        (struct flight_time){.value = value, .event = event, .clock = clock};
}

/* The oldest event of the stream that has passed by now_ns; NULL: none, or when is not known.
 * What passed since then is for the next look: until then nobody has looked whether training had
 * come back before it. */
static struct flight_time *next_time(struct flight *flight, struct flight_stream *stream,
                                     uint64_t value, uint64_t now_ns) {
    while (stream->times_head != stream->times_tail) {
        struct flight_time *time = &stream->times[stream->times_head % FLIGHT_TIMES];
        if (time->value > value)
            return NULL;
        if (!time->asked)
            time->known = flight->time_of && flight->time_of(time);
        time->asked = true;
        if (time->known)
            return time->at_ns <= now_ns ? time : NULL;
        stream->times_head++; /* that marker counts as if it had none */
    }
    return NULL;
}

/* Takes the operations whose ends are known, in the order of these ends. */
static void collect_timed(struct flight *flight, uint64_t now_ns, uint64_t epoch, flight_sink sink,
                          void *argument) {
    for (;;) {
        struct flight_time *first = NULL;
        uint32_t at = 0;
        for (uint32_t i = 0; i < flight->streams_used; i++) {
            struct flight_stream *stream = &flight->streams[i];
            if (!stream->pending || stream->times_head == stream->times_tail)
                continue;
            uint64_t value = atomic_load_explicit(stream->word, memory_order_acquire);
            struct flight_time *time = next_time(flight, stream, value, now_ns);
            if (time && (!first || time->at_ns < first->at_ns)) {
                first = time;
                at = i;
            }
        }
        if (!first)
            return;
        flight->streams[at].times_head++;
        flight->streams[at].done = first->value;
        flight_collect_exact(flight, at, first->value, first->at_ns, now_ns, epoch, sink, argument);
    }
}

bool flight_moved(const struct flight *flight) {
    for (uint32_t i = 0; flight->count && i < flight->streams_used; i++) {
        const struct flight_stream *stream = &flight->streams[i];
        if (!stream->pending)
            continue;
        bool timed = stream->times_head != stream->times_tail;
        uint64_t next =
            timed ? stream->times[stream->times_head % FLIGHT_TIMES].value : stream->done + 1;
        if (atomic_load_explicit(stream->word, memory_order_acquire) >= next)
            return true;
    }
    return false;
}

void flight_poll(struct flight *flight, uint64_t now_ns, uint64_t epoch, flight_sink sink,
                 void *argument) {
    uint64_t before_ns = flight->polled_ns;
    flight->polled_ns = now_ns;
    if (flight->count)
        collect_timed(flight, now_ns, epoch, sink, argument);
    for (uint32_t i = 0; flight->count && i < flight->streams_used; i++) {
        struct flight_stream *stream = &flight->streams[i];
        /* While events are to come all before them waits for them: between two of known times
         * nothing is placed by guess. One that fails has been dropped above. */
        if (!stream->pending || stream->times_head != stream->times_tail)
            continue;
        uint64_t value = atomic_load_explicit(stream->word, memory_order_acquire);
        if (value <= stream->done)
            continue;
        stream->done = value;
        collect(flight, i, value, before_ns, now_ns, epoch, sink, argument);
    }
}

void flight_drained(struct flight *flight, uint32_t stream, uint64_t now_ns, uint64_t epoch,
                    flight_sink sink, void *argument) {
    struct flight_stream *own = &flight->streams[stream];
    own->done = own->marked = own->issued;
    own->unmarked_ns = 0;
    struct flight_time *time;
    while ((time = next_time(flight, own, own->issued, UINT64_MAX))) {
        own->times_head++;
        flight_collect_exact(flight, stream, time->value, time->at_ns, now_ns, epoch, sink,
                             argument);
    }
    collect(flight, stream, own->issued, flight->polled_ns, now_ns, epoch, sink, argument);
}

/* The call says only that it is done, and says so late: with nothing else in flight it began at
 * its release and took what the quickest of its kind took. */
void flight_returned(struct flight *flight, uint64_t ticket, uint64_t now_ns, uint64_t epoch,
                     flight_sink sink, void *argument) {
    struct flown *op = flight_op(flight, ticket);
    uint64_t begin = sooner(later(op->release_ns, flight->last_done_ns), now_ns);
    uint64_t busy = sooner(now_ns - begin, op->mean_ns);
    if (op->epoch != 0 && op->epoch == epoch)
        durations_learn(flight->durations, op->shape, now_ns - begin, false);
    struct flight_done done = {.release_ns = op->release_ns,
                               .begin_ns = begin,
                               .end_ns = begin + busy,
                               .busy_ns = busy,
                               .compute = op->compute};
    flight->last_epoch = op->epoch;
    flight_remove(flight, op);
    flight->last_done_ns = later(flight->last_done_ns, begin + busy);
    flight->last_stream = -1;
    flight->not_done_ns = flight->progress_ns = now_ns;
    sink(&done, argument);
}

uint64_t flight_room_at(const struct flight *flight, uint64_t bound_ns, bool alone,
                        uint64_t budget_ns) {
    uint64_t end_ns = flight_next_end(flight), over_ns = flight->in_flight_ns + bound_ns;
    const struct flown *op = &flight->ops[flight->head % FLIGHT_OPS];
    if (alone || flight->alone || over_ns <= budget_ns || over_ns - budget_ns >= op->mean_ns)
        return end_ns;
    return end_ns - op->mean_ns + (over_ns - budget_ns);
}

uint64_t flight_look_after(const struct flight *flight) {
    uint64_t mean_ns = flight->count ? flight->ops[flight->head % FLIGHT_OPS].mean_ns : 0;
    return later(mean_ns / 4, 30000);
}

uint64_t flight_next_end(const struct flight *flight) {
    if (flight->count == 0)
        return 0;
    const struct flown *op = &flight->ops[flight->head % FLIGHT_OPS];
    return later(op->release_ns, flight->last_done_ns) + op->mean_ns;
}
