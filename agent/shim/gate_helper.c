/* gate_helper.c - the gate's own thread. It takes what the agent sends, watches the heartbeat,
 * sees completions and training's return while no caller does, marks what nobody marked, and
 * attaches again when the agent was gone. Callers look at every launch: while they launch it stays
 * out of their way. With nothing in flight it sleeps. */
#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>
#include "gate.h"
#include "gate_driver.h"
#include "own_fd.h"

#define WATCH_NS 25000ull      /* between looks while something is about to happen */
#define SETTLE_NS 50000ull     /* ... or may happen */
#define CALLERS_NS 125000ull   /* ... while callers look; then it is awake at their next launch */
#define CROWDED_NS 250000ull   /* ... and every look takes the CPU from them */
#define IDLE_MS 40             /* between looks at the heartbeat */
#define UNMARKED_NS 100000ull  /* what has been unmarked for so long is marked from here */
#define MESSAGES_NS 2000000ull /* between looks at the socket while watching */
#define RECONNECT_NS 500000000ull

static struct own_fd wake = OWN_FD_NONE;
static _Atomic bool asleep;

void gate_helper_wake(void) {
    uint64_t one = 1;
    if (atomic_load(&asleep) && atomic_exchange(&asleep, false))
        if (write(own_fd(&wake), &one, sizeof one) < 0)
            return; /* full: it is being woken already */
}

/* Nobody waits on the GPU: what the gate would say now is shown all the same. */
static void show_unasked(struct gate_gpu *gpu, uint64_t now_ns) {
    const struct gate_ask ask = {.weightless = true};
    struct idle_view view = {0};
    if (atomic_load(&gpu->next_number) == atomic_load(&gpu->serving))
        gate_show(gpu, gate_decide(gpu, &ask, now_ns, &view));
}

/* After how long a GPU has to be looked at again; `shared`: callers have looked since last time. */
static uint64_t pause_after_look(const struct gate_gpu *gpu, bool shared, uint64_t now_ns) {
    if (uses_resumed(&gpu->uses)) /* when training has the GPU is seen by looking */
        return WATCH_NS;
    if (shared)
        return gate_cores_to_spare() ? CALLERS_NS : CROWDED_NS;
    if (uses_wants_polls(&gpu->uses, now_ns))
        return SETTLE_NS;
    if (!gpu->flight.count)
        return UINT64_MAX;
    uint64_t end_ns = flight_next_end(&gpu->flight), most = flight_look_after(&gpu->flight);
    uint64_t next = end_ns > now_ns + 2 * WATCH_NS ? end_ns - now_ns - WATCH_NS : WATCH_NS;
    return next > most ? most : next;
}

/* Looks at one GPU; returns after how long it has to be looked at again. */
static uint64_t look(struct gate_gpu *gpu, bool show) {
    pthread_mutex_lock(&gpu->lock);
    uint64_t now_ns = shim_now_ns();
    bool shared = gpu->flight.polled_ns > gpu->helped_ns;
    gpu->helped_ns = now_ns;
    gate_poll(gpu, now_ns);
    if (show)
        show_unasked(gpu, now_ns);
    uint64_t next = pause_after_look(gpu, shared, now_ns);
    if (gpu->flight.count)
        gate_stream_mark_all(gpu, now_ns - UNMARKED_NS);
    pthread_mutex_unlock(&gpu->lock);
    return next;
}

static uint64_t look_at_all(bool show) {
    uint64_t next = UINT64_MAX;
    uint32_t used = atomic_load(&gate.gpus_used);
    for (uint32_t i = 0; i < used; i++) {
        uint64_t own = look(atomic_load(&gate.gpus[i]), show);
        next = own < next ? own : next;
    }
    return next;
}

/* Sleeps until the agent says something, an operation is released or IDLE_MS have passed. */
static void rest(void) {
    struct pollfd fds[2] = {{.fd = own_fd(&wake), .events = POLLIN},
                            {.fd = shim_connection(), .events = POLLIN}};
    poll(fds, 2, IDLE_MS);
    uint64_t count;
    if (fds[0].revents & POLLIN && read(own_fd(&wake), &count, sizeof count) < 0)
        shim_log(2, "gate: spurious wake");
}

static void take_messages(void) {
    for (int i = 0; i < 64 && shim_connection() >= 0; i++) {
        struct pollfd fd = {.fd = shim_connection(), .events = POLLIN};
        if (poll(&fd, 1, 0) <= 0)
            return;
        if (!reader_take(0)) {
            shim_log(1, "the agent is gone: the gate is shut until it is back");
            reader_forget_all();
        }
    }
}

static void attach_again(void) {
    struct shim_answer answer = {.board_fd = -1};
    if (!shim_reattach(SHIM_GATE, reader_board_fd(), &answer, 50))
        return;
    if (answer.role != SHIM_GATE || !reader_adopt(&answer))
        return; /* stays shut: no policy page comes */
    shim_log(1, "attached to the agent again");
    gate_gpus_tell();
}

static void run(void) {
    int relaxed = CU_CAPTURE_MODE_RELAXED;
    uint64_t messages_ns = 0, shown_ns = 0, attached_ns = shim_now_ns();
    shim_inside++; /* whatever this thread calls is ours */
    if (gate_driver.capture_mode)
        gate_driver.capture_mode(&relaxed);
    for (;;) {
        uint64_t now_ns = shim_now_ns();
        bool show = now_ns - shown_ns > IDLE_MS * 1000000ull;
        shown_ns = show ? now_ns : shown_ns;
        uint64_t next_ns = look_at_all(show);
        if (next_ns == UINT64_MAX) {
            atomic_store(&asleep, true); /* before looking: a release after the look wakes us */
            next_ns = look_at_all(false);
        }
        bool watching = next_ns != UINT64_MAX;
        if (watching)
            atomic_store(&asleep, false);
        if (!watching || now_ns - messages_ns > MESSAGES_NS) {
            messages_ns = now_ns;
            take_messages();
        }
        if (shim_connection() < 0 && now_ns - attached_ns > RECONNECT_NS) {
            attached_ns = now_ns;
            attach_again();
        }
        if (watching) {
            struct timespec t = {.tv_nsec = (long)next_ns};
            nanosleep(&t, NULL);
        } else {
            rest();
            atomic_store(&asleep, false);
        }
    }
}

bool gate_helper_start(void) {
    own_fd_keep(&wake, eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    return own_fd(&wake) >= 0 && shim_thread(run, "sfill-gate");
}
