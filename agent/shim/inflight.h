/* inflight.h - fill work that is released and not yet seen done, in GPU time. */
#ifndef SFILL_INFLIGHT_H
#define SFILL_INFLIGHT_H
#include <stdbool.h>
#include <stdint.h>
#include "durations.h"

#define FLIGHT_OPS 4096    /* operations in flight at most; more wait */
#define FLIGHT_STREAMS 256 /* streams of the process on one GPU that are followed */

enum flown_state { FLOWN_NONE = 0, FLOWN_RELEASED, FLOWN_ISSUED };

/* One operation between its release and its completion. */
struct flown {
    uint64_t shape;
    uint64_t release_ns;
    uint64_t issued_ns; /* when its launch call had returned */
    uint64_t mean_ns;   /* what it is thought to take */
    uint64_t bound_ns;  /* what it counts as in the budget */
    uint64_t value;     /* of its stream's progress word once it is done */
    uint64_t epoch;     /* idle_epoch() at its release; 0: training was not idle */
    uint32_t stream;
    enum flown_state state;
    bool known;    /* mean_ns is learned, not assumed */
    bool trusted;  /* ... from exact measurements */
    bool alone;    /* nothing else may be in flight with it */
    bool compute;  /* kernel or graph, else copy or set */
    bool tried;    /* its learned duration is in doubt */
    bool blocking; /* its call returns only when it is done */
};

#define FLIGHT_TIMES 64 /* markers of one stream under way that have an event */

/* An event that the GPU passes just before it writes `value`. */
struct flight_time {
    uint64_t value;
    struct CUevent_st *event;
    struct gate_clock *clock;
    uint64_t at_ns; /* when it did, once asked for */
    bool asked, known;
};

/* Progress of one stream: the GPU writes the word, operations count up to `issued`. */
struct flight_stream {
    const _Atomic uint64_t *word; /* NULL: free entry */
    uint64_t issued;
    uint64_t marked;
    uint64_t unmarked_ns;       /* estimated GPU time issued since the last marker */
    uint64_t unmarked_since_ns; /* time of the first such issue */
    uint64_t done;
    uint32_t pending;   /* operations in flight on it */
    uint64_t marker_ns; /* what a marker takes between two operations; 0: unknown */
    struct flight_time times[FLIGHT_TIMES];
    uint32_t times_head, times_tail;
    bool closing; /* the stream is destroyed: the entry is free once nothing is pending */
};

struct flight {
    struct flown ops[FLIGHT_OPS];
    struct flight_stream streams[FLIGHT_STREAMS];
    uint32_t streams_used; /* entries [0, streams_used) may have a word */
    uint64_t head, tail;   /* operations [head, tail) may be in flight */
    uint32_t count;
    uint32_t alone; /* of them such that nothing may join */
    /* Released and not yet counted on their streams: a marker made now might stand behind one
     * without counting it. Not those whose call blocks: all is marked before that call. */
    uint32_t launching;
    bool mark_wanted; /* marking was put off for that */
    uint64_t in_flight_ns;
    uint64_t resume_ns;    /* when training came back in the bubble in use; 0: it has not */
    uint64_t polled_ns;    /* latest look at the words */
    uint64_t last_done_ns; /* latest completion */
    int last_stream;       /* where that was; -1: not known to the microsecond */
    uint64_t last_epoch;   /* of that operation */
    uint64_t not_done_ns;  /* a time at which that one was seen not to be done */
    uint64_t progress_ns;  /* latest completion, or when the first operation was released */
    struct durations *durations;
    /* Asks when the GPU passed an event, once; NULL: there are none. */
    bool (*time_of)(struct flight_time *time);
};

/* An operation seen done: the GPU worked busy_ns on it, in [begin_ns, end_ns]. */
struct flight_done {
    uint64_t release_ns, begin_ns, end_ns, busy_ns;
    uint64_t start_ns; /* from its launch to its begin, if it was the first since training had the
                        * GPU and its duration is well known; else 0 */
    bool compute;
};
typedef void (*flight_sink)(const struct flight_done *done, void *argument);

/* Room for an operation within the budget? A longer one than the budget needs an empty GPU. */
bool flight_has_room(const struct flight *flight, uint64_t bound_ns, bool alone, uint64_t budget_ns,
                     uint64_t now_ns);

/* GPU time that what is in flight will still take, as thought now. */
uint64_t flight_left(const struct flight *flight, uint64_t now_ns);

/* Takes a released operation in; returns its ticket. flight_has_room() must have said yes. */
uint64_t flight_release(struct flight *flight, const struct flown *op);

/* The operation stands in the stream (its value is set) or failed, or its blocking call returned.
 */
void flight_issued(struct flight *flight, uint64_t ticket, uint32_t stream, uint64_t now_ns);
void flight_cancel(struct flight *flight, uint64_t ticket);
void flight_returned(struct flight *flight, uint64_t ticket, uint64_t now_ns, uint64_t epoch,
                     flight_sink sink, void *argument);

/* The marker of that value has an event before it. */
void flight_timed(struct flight_stream *stream, uint64_t value, struct CUevent_st *event,
                  struct gate_clock *clock);

/* flight_exact.c: what one marker has behind it is done, and the last of it ended at end_ns. */
void flight_collect_exact(struct flight *flight, uint32_t stream, uint64_t value, uint64_t end_ns,
                          uint64_t now_ns, uint64_t epoch, flight_sink sink, void *argument);
/* inflight.c, for flight_exact.c */
struct flown *flight_op(struct flight *flight, uint64_t ticket);
void flight_remove(struct flight *flight, struct flown *op);
bool flight_is_done(const struct flown *op, uint32_t stream, uint64_t value);
/* How long what ended after training's return had the GPU for certain before it, if it was thought
 * to take less; else 0. */
uint64_t flight_sure(const struct flight *flight, uint64_t begin_ns, uint64_t end_ns,
                     uint64_t thought_ns);
/* ... and what it had of it in all: from that return on they took turns, as far as we know. */
uint64_t flight_shared(uint64_t sure_ns, uint64_t whole_ns);

/* Some word has moved on: the next look will find something done. Else it is enough to note that
 * there was a look. */
bool flight_moved(const struct flight *flight);

/* Looks at the words of all streams and hands over what is done. */
void flight_poll(struct flight *flight, uint64_t now_ns, uint64_t epoch, flight_sink sink,
                 void *argument);

/* The stream's context is gone, or it was drained by other means: all of it counts as done. */
void flight_drained(struct flight *flight, uint32_t stream, uint64_t now_ns, uint64_t epoch,
                    flight_sink sink, void *argument);

/* When the oldest operation should be done; 0: nothing is in flight. */
uint64_t flight_next_end(const struct flight *flight);

/* Longest pause between two looks from which durations can still be learned. */
uint64_t flight_look_after(const struct flight *flight);

/* When there should be room for an operation that has none now: at the latest at that time. */
uint64_t flight_room_at(const struct flight *flight, uint64_t bound_ns, bool alone,
                        uint64_t budget_ns);
#endif
