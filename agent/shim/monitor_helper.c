/* monitor_helper.c - the monitor's own thread: marks streams that have gone quiet, opens bubbles
 * when a queue has run dry, keeps in touch with the agent. It sleeps when nothing is to be done. */
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "monitor.h"

enum {
    SLEEP_NS = 500000000,     /* nothing to do: look after the agent twice a second */
    ACTIVE_NS = 500000,       /* the host is launching: nothing is quiet yet */
    BLOCKING_NS = 800000,     /* ... and its bubbles have begun in blocking calls of its own */
    BLOCKING_BUBBLES = 8,     /* so many lately */
    SOON_ROUNDS = 2,          /* looks that a launch is awaited for where bubbles are short */
    SOON_NS = 1000000,        /* a deep sleep was in vain that a launch ended so soon */
    BLOCKED_NS = 1000000,     /* a thread waits in the driver and opens the bubble itself */
    WATCH_NS = 100000,        /* all is marked: the queue will run dry soon */
    WATCH_LONGER_NS = 200000, /* ... or not so soon */
    WATCH_SHORT_ROUNDS = 20,
    AFTER_BLOCK_NS = 1000000, /* a bubble so soon after a blocking call is the tail of its work */
    RECONNECT_NS = 500000000,
    RECONNECT_MS = 50
};

static _Atomic uint32_t wake_word;
/* What the helper may be woken from: the long sleep, or a nap while a thread is blocked. */
enum sleep { SLEEP_NONE = 0, SLEEP_LONG = 1, SLEEP_BLOCKED = 2 };
static _Atomic int asleep; /* enum sleep */
static _Atomic int in_driver;
static unsigned opened_by_program; /* bubbles lately, one after the other */
static bool reconnects = true;

static void wake_from(int depth) {
    if (atomic_load(&asleep) != depth)
        return;
    atomic_fetch_add(&wake_word, 1);
    syscall(SYS_futex, &wake_word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

void monitor_helper_wake(void) { wake_from(SLEEP_LONG); }
void monitor_helper_wake_after_block(void) { wake_from(SLEEP_BLOCKED); }

/* `word` was read before `asleep` was set: a wake-up in between is not lost. */
static void sleep_until_woken(uint32_t word, long most_ns) {
    struct timespec limit = {.tv_nsec = most_ns};
    syscall(SYS_futex, &wake_word, FUTEX_WAIT_PRIVATE, word, &limit, NULL, 0);
    atomic_store(&asleep, SLEEP_NONE);
}

static void sleep_ns(uint64_t duration_ns) {
    struct timespec wait = {.tv_sec = (time_t)(duration_ns / 1000000000),
                            .tv_nsec = (long)(duration_ns % 1000000000)};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &wait, NULL);
}

bool monitor_helper_leave_driver(uint64_t most_ns) {
    uint64_t deadline = shim_now_ns() + most_ns;
    while (atomic_load(&in_driver)) {
        if (shim_now_ns() > deadline)
            return false;
        sched_yield();
    }
    return true;
}

bool monitor_helper_enter_driver(void) {
    static bool relaxed; /* our calls must not break a capture of another thread */
    atomic_store(&in_driver, 1);
    if (!relaxed && !atomic_load(&monitor_exiting)) {
        int mode = CU_CAPTURE_MODE_RELAXED;
        relaxed = monitor_driver.capture_mode(&mode) == CUDA_SUCCESS;
    }
    if (relaxed && !atomic_load(&monitor_exiting))
        return true;
    atomic_store(&in_driver, 0);
    return false;
}

void monitor_helper_left_driver(void) { atomic_store(&in_driver, 0); }

/* What one look at all streams found. */
struct look {
    bool active;  /* the host is at work on a stream, or was a moment ago */
    bool waiting; /* a marked stream is not drained yet */
    bool stuck;   /* a stream is busy that only its own thread may mark */
    uint64_t last_issue_ns;
};

static void look_at(unsigned index, uint64_t now, struct look *look) {
    struct sfill_stream_slot *slot = &monitor_board->slots[index];
    struct monitor_stream *stream = &monitor_streams[index];
    if (monitor_slot_drained(slot)) {
        if (atomic_load(&stream->gone)) {
            monitor_follow_lock();
            if (atomic_load(&stream->gone) && monitor_slot_drained(slot))
                monitor_stream_free(index);
            monitor_follow_unlock();
        }
        return;
    }
    uint64_t after = atomic_load(&slot->after), before = atomic_load(&slot->before);
    uint64_t last = atomic_load(&slot->last_issue_ns);
    if (last > look->last_issue_ns)
        look->last_issue_ns = last;
    if (after == before && atomic_load(&slot->marked) == before) {
        look->waiting = true;
        return;
    }
    if (after != before || (last < now && now - last < MONITOR_QUIET_NS) || last >= now) {
        look->active = true;
        return;
    }
    bool far_ahead = before - (atomic_load(&slot->done) >> 2) > MONITOR_AHEAD_MOST;
    bool marked = false;
    if (!far_ahead && monitor_helper_enter_driver()) {
        marked = monitor_mark(index, MARK_BY_HELPER);
        monitor_helper_left_driver();
    }
    if (marked)
        look->waiting = true;
    else
        look->stuck = true;
}

static struct look look_at_all(void) {
    struct look look = {false, false, false, 0};
    uint64_t now = shim_now_ns();
    unsigned used = atomic_load(&monitor_board->slots_used);
    for (unsigned i = 0; i < used; i++)
        if (atomic_load(&monitor_board->slots[i].state) != SFILL_SLOT_FREE)
            look_at(i, now, &look);
    return look;
}

/* How many have begun so far. */
static uint64_t bubbles(void) {
    uint64_t sum = 0;
    for (unsigned gpu = 0; gpu < atomic_load(&monitor_board->gpus_used); gpu++)
        sum += (atomic_load(&monitor_board->gpus[gpu].bubble_seq) + 1) / 2;
    return sum;
}

static bool open_bubbles(void) {
    bool all = true;
    bool tail = shim_now_ns() - atomic_load(&monitor_block_ended_ns) < AFTER_BLOCK_NS;
    enum sfill_cause cause = tail ? SFILL_CAUSE_TAIL : SFILL_CAUSE_HOST;
    for (unsigned gpu = 0; gpu < atomic_load(&monitor_board->gpus_used); gpu++) {
        if (!monitor_bubble_try_open(gpu, cause))
            all = false;
    }
    return all;
}

/* The board outlives the agent: one that starts again is offered it. */
static void keep_in_touch(void) {
    static uint64_t last_try_ns;
    char text[4097];
    int fd;
    while (shim_connection() >= 0 && shim_receive(text, sizeof text, &fd, 0) > 0)
        if (fd >= 0)
            close(fd); /* nothing that is sent to a monitor carries one */
    uint64_t now = shim_now_ns();
    if (shim_connection() >= 0 || !reconnects || now - last_try_ns < RECONNECT_NS)
        return;
    last_try_ns = now;
    struct shim_answer answer;
    bool attached = shim_reattach(SHIM_MONITOR, monitor_board_descriptor(), &answer, RECONNECT_MS);
    if (answer.board_fd >= 0) {
        /* Not adopted: markers cannot move to another board, so this process lends no more. */
        close(answer.board_fd);
        reconnects = false;
        monitor_shut(SFILL_SHUT_UNSUPPORTED, "the agent did not take the board back");
    } else if (attached) {
        monitor_announce_gpus();
    }
}

/* The thread that launched last is the one that waits, as far as can be told. */
static bool launcher_blocked(const struct look *look) {
    return atomic_load(&monitor_blocked) > 0 &&
           atomic_load(&monitor_block_began_ns) > look->last_issue_ns;
}

/* Opens what can be opened. A program that waits for its work opens its bubbles itself, and needs
 * this thread the less. */
static bool look_for_bubbles(void) {
    static uint64_t known;
    uint64_t before = bubbles();
    opened_by_program += (unsigned)(before - known);
    bool all = open_bubbles();
    known = bubbles();
    if (known != before)
        opened_by_program = 0;
    return all;
}

static void sleep_while_active(void) {
    sleep_ns(opened_by_program >= BLOCKING_BUBBLES ? BLOCKING_NS : ACTIVE_NS);
}

/* Nothing to do until the next launch, which wakes this thread from a deep sleep. That costs both
 * of them some us: where launches come soon, they are awaited as if there were some. */
static void sleep_while_idle(void) {
    static uint64_t bubble;
    static unsigned rounds;
    static bool soon;
    uint32_t word = atomic_load(&wake_word);
    uint64_t now = shim_now_ns(), latest = bubbles();
    rounds = latest == bubble ? rounds + 1 : 0;
    bubble = latest;
    if (soon && rounds < SOON_ROUNDS) {
        sleep_while_active();
        return;
    }
    atomic_store(&asleep, SLEEP_LONG);
    /* Whoever closes a bubble or makes a context wakes us, unless it came before the flag. */
    if (open_bubbles())
        sleep_until_woken(word, SLEEP_NS);
    atomic_store(&asleep, SLEEP_NONE);
    soon = shim_now_ns() - now < SOON_NS;
}

static void nap(const struct look *look, bool all_open) {
    static unsigned watched;
    uint32_t word = atomic_load(&wake_word);
    if (all_open && !look->waiting && !look->stuck && !look->active) {
        watched = 0;
        sleep_while_idle();
    } else if (look->active) {
        watched = 0;
        sleep_while_active();
    } else if (launcher_blocked(look) || (look->stuck && !look->waiting)) {
        atomic_store(&asleep, SLEEP_BLOCKED);
        sleep_until_woken(word, BLOCKED_NS);
    } else {
        sleep_ns(watched++ < WATCH_SHORT_ROUNDS ? WATCH_NS : WATCH_LONGER_NS);
    }
}

void monitor_helper_run(void) {
    uint64_t touched_ns = 0;
    while (!atomic_load(&monitor_exiting)) {
        uint64_t now = shim_now_ns();
        if (now - touched_ns >= RECONNECT_NS) {
            touched_ns = now;
            keep_in_touch();
        }
        struct look look = look_at_all();
        bool all_open = look_for_bubbles();
        monitor_count_launches();
        nap(&look, all_open);
    }
}
