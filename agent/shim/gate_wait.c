/* gate_wait.c - holds a caller until its operation may start. Mechanism only: gate_decide.c
 * says yes or no. No lock is held while waiting; callers of one GPU are served in order. */
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "gate.h"

#define HELD_LOG_NS 5000000000ull /* too long for the bubbles for so long: told to the agent */
#define COPY_BYTES_PER_US 10000u  /* assumed until learned: 10 GB/s */
#define SET_BYTES_PER_US 400000u
#define COPY_BASE_NS 10000u
#define SPIN_NS 60000ull        /* room will be there so soon: spinning keeps the GPU fed */
#define SPIN_MOST_NS 2000000ull /* of one wait */
#define SPIN_CORES 4

uint64_t gate_epoch(const struct gate_gpu *gpu) {
    return idle_epoch(gpu->hosts, gpu->hosts_count, gpu->uuid);
}

void gate_done_sink(const struct flight_done *done, void *argument) {
    struct gate_gpu *gpu = argument;
    uses_done(&gpu->uses, done);
}

void gate_poll(struct gate_gpu *gpu, uint64_t now_ns) {
    policy_poll(&gpu->page, now_ns);
    gpu->flight.resume_ns = uses_resume(&gpu->uses, gpu->hosts, gpu->hosts_count, now_ns);
    if (flight_moved(&gpu->flight))
        flight_poll(&gpu->flight, now_ns, gate_epoch(gpu), gate_done_sink, gpu);
    else
        gpu->flight.polled_ns = now_ns;
    uses_poll(&gpu->uses, gpu->hosts, gpu->hosts_count, gpu->flight.count > 0, now_ns);
    atomic_store_explicit(&gpu->face->in_flight_ns, gpu->flight.in_flight_ns, memory_order_relaxed);
}

void gate_show(struct gate_gpu *gpu, enum sfill_closed closed) {
    if (closed == SFILL_CLOSED_IN_FLIGHT)
        return; /* open, only full */
    atomic_store_explicit(&gpu->face->open, closed == SFILL_OPEN, memory_order_relaxed);
    if (closed != SFILL_OPEN)
        atomic_store_explicit(&gpu->face->closed_reason, closed, memory_order_relaxed);
}

/* One caller's wait. */
struct waiting {
    uint64_t since_ns;    /* when it began */
    uint64_t counted_ns;  /* up to here it stands in wait_ns */
    uint64_t too_long_ns; /* since when the operation has been too long; 0: it is not */
    uint64_t room_ns;     /* when there should be room in flight */
    uint64_t look_ns;     /* longest pause between two looks */
    enum sfill_closed closed;
    bool anchor; /* open, but the clocks have to be compared first */
    int slack;   /* the thread's timer slack before we changed it; -1: unchanged */
    bool logged;
};

static void futex(_Atomic uint32_t *word, int op, uint32_t value, const struct timespec *timeout) {
    syscall(SYS_futex, (uint32_t *)word, op | FUTEX_PRIVATE_FLAG, value, timeout, NULL, 0);
}

static void await_number(struct gate_gpu *gpu, uint32_t number) {
    uint32_t serving;
    const struct timespec limit = {.tv_nsec = 10000000};
    while ((serving = atomic_load(&gpu->serving)) != number)
        futex(&gpu->serving, FUTEX_WAIT, serving, &limit);
}

static void serve_next(struct gate_gpu *gpu) {
    uint32_t served = atomic_fetch_add(&gpu->serving, 1) + 1;
    if (atomic_load(&gpu->next_number) != served)
        futex(&gpu->serving, FUTEX_WAKE, INT_MAX, NULL);
    else
        atomic_store_explicit(&gpu->face->wants, 0, memory_order_relaxed);
}

static void sleep_ns(struct waiting *w, uint64_t ns) {
    if (w->slack < 0) { /* the default slack of 50 us would lengthen every short sleep */
        w->slack = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
        prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);
    }
    struct timespec t = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
    nanosleep(&t, NULL);
}

bool gate_cores_to_spare(void) {
    static _Atomic long cores;
    long known = atomic_load_explicit(&cores, memory_order_relaxed);
    if (!known) {
        cpu_set_t own;
        known = sched_getaffinity(0, sizeof own, &own) == 0 ? CPU_COUNT(&own) : 1;
        atomic_store(&cores, known);
    }
    return known >= SPIN_CORES;
}

static void spin(void) {
    for (int i = 0; i < 64; i++)
        __asm__ volatile("" ::: "memory");
}

/* Sleeps as long as nothing can have changed, or as little as matters. */
static void pause_caller(struct waiting *w, uint64_t median_ns, uint64_t now_ns) {
    uint64_t waited = now_ns - w->since_ns;
    uint64_t step;
    switch (w->closed) {
    case SFILL_CLOSED_IN_FLIGHT:
        if (w->room_ns <= now_ns + SPIN_NS && waited < SPIN_MOST_NS && gate_cores_to_spare()) {
            spin();
            return;
        }
        step = w->room_ns > now_ns + 70000 ? w->room_ns - now_ns - 50000 : 20000;
        step = step > w->look_ns ? w->look_ns : step;
        break;
    case SFILL_CLOSED_BUSY:
    case SFILL_CLOSED_DWELL:
    case SFILL_CLOSED_TOO_LONG:
        step = median_ns ? median_ns / 32 : 100000;
        step = step < 20000 ? 20000 : step > 100000 ? 100000 : step;
        if (waited > 1000000000)
            step = 250000;
        break;
    case SFILL_CLOSED_TURN:
        step = 200000;
        break;
    default:
        step = waited > 1000000000 ? 5000000 : 1000000;
    }
    sleep_ns(w, step);
}

static uint64_t size_class(const struct shim_op *op) {
    int bits = op->bytes ? 64 - __builtin_clzll(op->bytes) : 0;
    return 0xc0b1000000000000ull | (uint64_t)op->kind << 8 | (uint64_t)bits;
}

/* What the operation should take, as known now. */
static struct flown estimate(struct gate_gpu *gpu, const struct shim_op *op, uint64_t held_ns) {
    struct flown own = {.shape = op->shape, .known = true, .blocking = op->blocking};
    own.compute = op->kind == SHIM_OP_KERNEL || op->kind == SHIM_OP_GRAPH;
    if (!own.compute)
        own.shape = size_class(op);
    const struct duration *learned = durations_use(&gpu->durations, own.shape);
    if (learned) {
        own.mean_ns = duration_mean(learned);
        own.bound_ns = duration_bound(learned);
        own.trusted = duration_trusted(learned);
        own.tried = duration_doubted(learned, held_ns);
        if (!own.tried)
            return own;
    }
    own.known = false;
    if (own.compute) {
        own.mean_ns = policy_numbers(&gpu->page).unknown_op_ns;
        own.alone = true;
    } else {
        uint64_t rate = op->kind == SHIM_OP_SET ? SET_BYTES_PER_US : COPY_BYTES_PER_US;
        own.mean_ns = COPY_BASE_NS + op->bytes * 1000 / rate;
    }
    own.bound_ns = own.mean_ns;
    return own;
}

/* Training is idle and yet nothing of ours moves: what is in flight may wait for what is held
 * here (a stream that waits for a value which a later operation writes). */
static bool is_stalled(const struct gate_gpu *gpu, uint64_t now_ns) {
    const struct flight *flight = &gpu->flight;
    return flight->count && now_ns - flight->progress_ns > 30000000 + 8 * flight->in_flight_ns;
}

/* view->epoch 0: training's state is ignored. */
static void account_release(struct gate_gpu *gpu, const struct idle_view *view, bool compute,
                            uint64_t now_ns) {
    bool ignoring = view->epoch == 0;
    if (!ignoring) /* the age of the check goes on record */
        now_ns = shim_now_ns();
    uses_released(&gpu->uses, gpu->hosts, gpu->hosts_count, view, compute, ignoring, now_ns);
    uint64_t released = atomic_load_explicit(&gpu->face->released, memory_order_relaxed) + 1;
    atomic_store_explicit(&gpu->face->released, released, memory_order_relaxed);
    atomic_store_explicit(&gpu->face->last_release_ns, now_ns, memory_order_relaxed);
    atomic_store_explicit(&gpu->face->in_flight_ns, gpu->flight.in_flight_ns, memory_order_relaxed);
}

/* One attempt. The operation is in flight when this returns true. op NULL: only opening. */
static bool attempt(struct gate_gpu *gpu, struct gate_context *context, const struct shim_op *op,
                    struct waiting *w, uint64_t *ticket, uint64_t *bound_ns, uint64_t *median_ns) {
    pthread_mutex_lock(&gpu->lock);
    uint64_t now_ns = shim_now_ns();
    gate_poll(gpu, now_ns);
    uint64_t held_ns = w->too_long_ns ? now_ns - w->too_long_ns : 0;
    struct flown own = op ? estimate(gpu, op, held_ns) : (struct flown){0};
    struct gate_ask ask = {.bound_ns = own.bound_ns,
                           .alone = own.alone,
                           .weightless = op == NULL,
                           .copy = op && !own.compute,
                           .stalled = is_stalled(gpu, now_ns),
                           .held_ns = held_ns};
    struct idle_view view = {.checked_ns = now_ns};
    w->closed = gate_decide(gpu, &ask, now_ns, &view);
    gate_show(gpu, w->closed);
    w->anchor = w->closed == SFILL_OPEN && context && gpu->flight.count == 0 &&
                gate_clock_due(context, now_ns);
    if (w->closed == SFILL_OPEN && op && !w->anchor) {
        own.release_ns = now_ns;
        if (own.tried)
            durations_tried(&gpu->durations, own.shape);
        own.epoch = view.epoch;
        *ticket = flight_release(&gpu->flight, &own);
        account_release(gpu, &view, own.compute, now_ns);
    } else if (w->closed == SFILL_CLOSED_IN_FLIGHT) {
        gate_stream_mark_all(gpu, UINT64_MAX);
        uint64_t budget_ns = policy_numbers(&gpu->page).in_flight_ns;
        w->look_ns = flight_look_after(&gpu->flight);
        w->room_ns = flight_room_at(&gpu->flight, own.bound_ns, own.alone, budget_ns);
    }
    *bound_ns = own.bound_ns;
    bool released = w->closed == SFILL_OPEN && !w->anchor;
    if (!released)
        *median_ns = predict_median(&gpu->predictor);
    pthread_mutex_unlock(&gpu->lock);
    return released;
}

static void note_too_long(struct gate_gpu *gpu, struct waiting *w, uint64_t bound_ns,
                          uint64_t median_ns, uint64_t now_ns) {
    char text[200];
    if (!w->too_long_ns)
        w->too_long_ns = now_ns;
    if (w->logged || now_ns - w->too_long_ns < HELD_LOG_NS)
        return;
    w->logged = true;
    atomic_fetch_add(&gpu->face->held_too_long, 1);
    if (gpu->held_logged++)
        return;
    snprintf(text, sizeof text,
             "log\ntext=an operation of about %llu us has waited 5 s for a bubble that holds it "
             "(bubbles last about %llu us)\n",
             (unsigned long long)bound_ns / 1000, (unsigned long long)median_ns / 1000);
    shim_send(text); /* for the audit log; and for the job's own: */
    shim_log(1, "%.*s", (int)strcspn(text + sizeof "log\ntext=" - 1, "\n"),
             text + sizeof "log\ntext=" - 1);
}

static uint64_t wait_for(struct gate_gpu *gpu, struct gate_context *context,
                         const struct shim_op *op) {
    struct waiting w = {.slack = -1};
    uint64_t ticket = 0, bound_ns = 0, median_ns = 0;
    uint32_t number = atomic_fetch_add(&gpu->next_number, 1);
    if (atomic_load(&gpu->serving) != number)
        await_number(gpu, number);
    int cancel = PTHREAD_CANCEL_ENABLE;
    while (!attempt(gpu, context, op, &w, &ticket, &bound_ns, &median_ns)) {
        if (w.anchor) {
            gate_clock_anchor(context);
            continue;
        }
        uint64_t now_ns = shim_now_ns();
        if (!w.since_ns) { /* a thread cancelled here would leave all behind it waiting */
            pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
            w.since_ns = w.counted_ns = now_ns;
            atomic_store_explicit(&gpu->face->wants, 1, memory_order_relaxed);
        }
        if (w.closed == SFILL_CLOSED_TOO_LONG)
            note_too_long(gpu, &w, bound_ns, median_ns, now_ns);
        pause_caller(&w, median_ns, now_ns);
        now_ns = shim_now_ns();
        atomic_fetch_add_explicit(&gpu->face->wait_ns, now_ns - w.counted_ns, memory_order_relaxed);
        w.counted_ns = now_ns;
    }
    serve_next(gpu);
    if (w.slack >= 0)
        prctl(PR_SET_TIMERSLACK, w.slack, 0, 0, 0);
    if (w.since_ns)
        pthread_setcancelstate(cancel, NULL);
    return ticket;
}

uint64_t gate_wait(struct gate_context *context, const struct shim_op *op) {
    uint64_t ticket = wait_for(gate_context_gpu(context), context, op);
    gate_helper_wake();
    return ticket;
}

void gate_wait_open(struct gate_gpu *gpu) { wait_for(gpu, NULL, NULL); }
