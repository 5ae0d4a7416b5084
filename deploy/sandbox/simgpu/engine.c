/* engine.c - carries out in this process's memory what its simulated work did: values written,
 * copies, events' times, host functions; and finds the values that streams wait for.
 *
 * A thread sleeps until the earliest time at which one of these can be due. A thread that waits
 * for work does the same for itself, so a synchronising call needs no hand-over. One lock keeps
 * effects in order; it is taken before the world's. */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "effects.h"
#include "handles.h"

#define POLL_NS 50000ull /* how often awaited values are looked at */
#define WAIT_CAP_NS 20000000ull
#define SHORT_NS 2000ull /* soonest that a plan looks again */
#define SPIN_NS 8000ull  /* shorter waits than this are spun */

static pthread_mutex_t apply_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_t thread;
static bool stopping;
static uint16_t own[SIM_STREAMS]; /* this process's streams; under the world's lock */
static unsigned own_count;
static _Atomic uint32_t engine_word; /* changes when the engine must plan again */
static _Atomic uint32_t waiter_word; /* changes when a blocked stream may go on */
static _Atomic uint64_t engine_deadline;
static _Atomic uint32_t host_word;

struct poll {
    uint32_t slot;
    uint64_t position;
    struct sim_op op;
};
static struct poll polls[SIM_STREAMS]; /* under apply_lock */
static unsigned poll_count;

static void futex_wake(_Atomic uint32_t *word) {
    atomic_fetch_add(word, 1);
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void futex_sleep(_Atomic uint32_t *word, uint32_t seen, uint64_t until) {
    struct timespec at = {(time_t)(until / 1000000000ull), (long)(until % 1000000000ull)};
    syscall(SYS_futex, word, FUTEX_WAIT_BITSET_PRIVATE, seen, until == SIM_NEVER ? NULL : &at, NULL,
            FUTEX_BITSET_MATCH_ANY);
}

void engine_lock(void) { pthread_mutex_lock(&apply_lock); }
void engine_unlock(void) { pthread_mutex_unlock(&apply_lock); }
void engine_replan(void) { futex_wake(&engine_word); }
void engine_track(uint32_t slot) { own[own_count++] = (uint16_t)slot; }

/* A wait, or a kernel that spins, whose value has not come yet. */
static bool awaits_value(const struct sim_op *op) {
    if (op->flags & SIM_RELEASED)
        return false;
    return op->kind == SIM_WAIT_VALUE ||
           (op->kind == SIM_KERNEL && op->flags & SIM_SPINS && op->flags & SIM_STARTED && op->a);
}

/* Own stream with the effect that comes first in simulated time; -1: none is due. */
static int first_due(void) {
    int best = -1;
    uint64_t best_end = 0;
    for (unsigned i = 0; i < own_count; i++) {
        const struct sim_stream *s = &world->streams[own[i]];
        if (s->done == s->head)
            continue;
        uint64_t end = stream_op(own[i], s->done)->end_ns;
        if (best < 0 || end < best_end) {
            best = own[i];
            best_end = end;
        }
    }
    return best;
}

static void drop_closed(void) {
    for (unsigned i = own_count; i-- > 0;) {
        struct sim_stream *s = &world->streams[own[i]];
        if (!(s->flags & SIM_CLOSING) || s->done != s->tail)
            continue;
        stream_free(own[i]);
        own[i] = own[--own_count];
    }
}

/* Both locks held. */
static void apply_effects(void) {
    int stream;
    while ((stream = first_due()) >= 0) {
        struct sim_op op = *stream_op((uint32_t)stream, world->streams[stream].done);
        uint64_t position = world->streams[stream].done;
        effect_apply(&op);
        if (world->streams[stream].done == position) /* a fault may have dropped it all */
            world->streams[stream].done++;
    }
    drop_closed();
}

/* Position of the first operation that needs this process on time; the tail for none. */
static uint64_t next_effect(uint32_t slot) {
    const struct sim_stream *s = &world->streams[slot];
    uint64_t at = s->head;
    while (at != s->tail && !(stream_op(slot, at)->flags & SIM_EFFECT))
        at++;
    return at;
}

/* Releases waits whose value is there and lists the others. True when one was released. */
static bool look_at_waits(void) {
    bool released = false;
    poll_count = 0;
    for (unsigned i = 0; i < own_count; i++) {
        struct sim_stream *s = &world->streams[own[i]];
        struct sim_op *op = stream_op(own[i], s->head);
        if (s->head == s->tail || !awaits_value(op))
            continue;
        if (effect_value_reached(op)) {
            if (op->kind == SIM_WAIT_VALUE)
                op->end_ns = world->now_ns;
            op->flags |= SIM_RELEASED;
            world->gpus[world->contexts[s->context].gpu].stale = 1;
            released = true;
        } else {
            polls[poll_count++] = (struct poll){own[i], s->head, *op};
        }
    }
    return released;
}

static bool host_function_due(void) {
    for (unsigned i = 0; i < own_count; i++) {
        const struct sim_stream *s = &world->streams[own[i]];
        const struct sim_op *op = stream_op(own[i], s->head);
        if (s->head != s->tail && op->kind == SIM_HOST && (op->flags & SIM_STARTED) &&
            !(op->flags & SIM_RELEASED))
            return true;
    }
    return false;
}

/* When the engine must next be awake. Both locks held. */
static uint64_t plan(void) {
    bool released = false;
    do {
        timeline_advance(world->now_ns);
        apply_effects();
        bool more = look_at_waits();
        released |= more;
        if (!more)
            break;
    } while (true);
    if (released)
        futex_wake(&waiter_word);
    if (host_function_due())
        futex_wake(&host_word);
    uint64_t deadline = SIM_NEVER;
    for (unsigned i = 0; i < own_count; i++) {
        uint64_t at = next_effect(own[i]);
        const struct sim_stream *s = &world->streams[own[i]];
        if (at == s->tail)
            continue;
        const struct sim_op *head = stream_op(own[i], s->head);
        if (awaits_value(head) ||
            (head->kind == SIM_HOST && head->flags & SIM_STARTED && !(head->flags & SIM_RELEASED)))
            continue; /* polled, or told by the host thread */
        uint64_t due = timeline_earliest_end(own[i], at);
        deadline = due < deadline ? due : deadline;
    }
    return deadline;
}

bool engine_needs(uint32_t slot, uint64_t position) {
    const struct sim_op *op = stream_op(slot, position);
    if (world->streams[slot].head == position && (awaits_value(op) || op->kind == SIM_HOST))
        return true; /* to be polled, or called, from now on */
    return timeline_earliest_end(slot, position) < atomic_load(&engine_deadline);
}

/* A sleep of a few microseconds would take tens of them. */
static bool spin_until(uint64_t deadline) {
    uint64_t now = sim_now_ns();
    if (deadline > now + SPIN_NS)
        return false;
    while (now < deadline)
        now = sim_now_ns();
    return true;
}

/* Looks at awaited values without the world's lock, until the plan's time comes. */
static void watch(uint32_t seen, uint64_t deadline) {
    for (;;) {
        if (spin_until(deadline))
            return;
        uint64_t now = sim_now_ns();
        uint64_t until = poll_count && now + POLL_NS < deadline ? now + POLL_NS : deadline;
        futex_sleep(&engine_word, seen, until);
        if (atomic_load(&engine_word) != seen || !poll_count)
            return;
        bool reached = false;
        engine_lock();
        if (atomic_load(&engine_word) == seen)
            for (unsigned i = 0; i < poll_count && !reached; i++)
                reached = effect_value_reached(&polls[i].op);
        engine_unlock();
        if (reached)
            return;
    }
}

static void become_engine(const char *name) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    prctl(PR_SET_NAME, name);
    prctl(PR_SET_TIMERSLACK, 1);
}

static void *engine_main(void *unused) {
    (void)unused;
    become_engine("simgpu");
    for (;;) {
        uint32_t seen = atomic_load(&engine_word);
        engine_lock();
        if (stopping) {
            engine_unlock();
            return NULL;
        }
        world_lock();
        uint64_t deadline = plan();
        /* A plan for this very moment means "blocked on something that moves soon". */
        if (deadline < world->now_ns + SHORT_NS)
            deadline = world->now_ns + SHORT_NS;
        atomic_store(&engine_deadline, deadline);
        world_unlock();
        engine_unlock();
        watch(seen, deadline);
    }
}

/* Takes the first host function that is due; both locks held. */
static bool take_host(struct stream_ref *ref, uint64_t *position, struct sim_op *op) {
    for (unsigned i = 0; i < own_count; i++) {
        const struct sim_stream *s = &world->streams[own[i]];
        struct sim_op *head = stream_op(own[i], s->head);
        if (s->head == s->tail || head->kind != SIM_HOST || !(head->flags & SIM_STARTED) ||
            head->flags & SIM_RELEASED)
            continue;
        *ref = (struct stream_ref){own[i], s->generation, NULL, NULL};
        *position = s->head;
        *op = *head;
        return true;
    }
    return false;
}

static void run_host(const struct stream_ref *ref, uint64_t position, const struct sim_op *op) {
    ((CUhostFn)(uintptr_t)op->a)((void *)(uintptr_t)op->b);
    world_lock();
    struct sim_stream *s = &world->streams[ref->slot];
    if (s->generation == ref->generation && s->head == position) {
        struct sim_op *head = stream_op(ref->slot, position);
        head->end_ns = world->now_ns;
        head->flags |= SIM_RELEASED;
    }
    world_unlock();
    futex_wake(&engine_word);
    futex_wake(&waiter_word);
}

static void *host_main(void *unused) {
    (void)unused;
    become_engine("simgpu-host");
    for (;;) {
        uint32_t seen = atomic_load(&host_word);
        struct stream_ref ref;
        struct sim_op op;
        uint64_t position = 0;
        engine_lock();
        if (stopping) {
            engine_unlock();
            return NULL;
        }
        world_lock();
        bool found = take_host(&ref, &position, &op);
        world_unlock();
        engine_unlock();
        if (found)
            run_host(&ref, position, &op);
        else
            futex_sleep(&host_word, seen, SIM_NEVER);
    }
}

void engine_start(void) {
    atomic_store(&engine_deadline, SIM_NEVER);
    pthread_t host;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before); /* from their first instruction on */
    if (!pthread_create(&thread, NULL, engine_main, NULL))
        pthread_detach(thread);
    if (!pthread_create(&host, NULL, host_main, NULL))
        pthread_detach(host);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void engine_stop(void) {
    engine_lock();
    stopping = true;
    own_count = poll_count = 0;
    engine_unlock();
}

bool engine_done(const struct stream_ref *ref, uint64_t position) {
    engine_lock();
    world_lock();
    if (!stopping)
        apply_effects();
    const struct sim_stream *s = &world->streams[ref->slot];
    bool done = s->generation != ref->generation || s->done > position;
    world_unlock();
    engine_unlock();
    return done;
}

/* A context that has faulted answers everything with its error. */
static CUresult context_fault_of(const struct stream_ref *ref) {
    const struct sim_stream *s = &world->streams[ref->slot];
    return s->generation == ref->generation ? (CUresult)world->contexts[s->context].fault
                                            : CUDA_SUCCESS;
}

CUresult engine_wait(const struct stream_ref *ref, uint64_t position) {
    int slack = prctl(PR_GET_TIMERSLACK);
    bool precise = false;
    for (;;) {
        uint32_t seen = atomic_load(&waiter_word);
        engine_lock();
        if (stopping) {
            engine_unlock();
            return CUDA_ERROR_DEINITIALIZED;
        }
        world_lock();
        apply_effects();
        const struct sim_stream *s = &world->streams[ref->slot];
        bool done = s->generation != ref->generation || s->done > position;
        uint64_t now = world->now_ns;
        uint64_t until = done ? 0 : timeline_earliest_end(ref->slot, position);
        world_unlock();
        engine_unlock();
        if (done)
            break;
        if (until < now + SHORT_NS)
            until = now + SHORT_NS;
        if (until > now + WAIT_CAP_NS) /* the death of another process can bring it forward */
            until = now + WAIT_CAP_NS;
        if (spin_until(until))
            continue;
        if (!precise)
            prctl(PR_SET_TIMERSLACK, 1); /* a sleeper's 50 us would lengthen every wait */
        precise = true;
        futex_sleep(&waiter_word, seen, until);
    }
    if (precise)
        prctl(PR_SET_TIMERSLACK, slack);
    return context_fault_of(ref);
}

void engine_forget(uint32_t context) {
    for (unsigned i = own_count; i-- > 0;)
        if (world->streams[own[i]].context == context)
            own[i] = own[--own_count];
    poll_count = 0;
}
