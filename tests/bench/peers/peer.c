/* peer.c - the bench's own policies to compare ours with. The library is the interposer's hooks
 * with this role in place of monitor and gate, so that a launch costs every policy the same.
 *
 *   SFILL_BENCH_PAGE   file of struct page; without it the library does nothing
 *   SFILL_BENCH_ROLE   training: counts launches; fill: holds launches as the page says
 *
 * The launch-count gate is what several published systems do: it knows what the host has launched
 * and not how far the GPU is. The rate policy is the actuator of a TGS-style control loop, whose
 * controller is tests/bench/rate_control.py. */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>
#include "connect.h"
#include "hooks.h"
#include "page.h"

enum { RING = 64, SPIN_NS = 30000, NAP_NS = 20000, LATE_NS = 1000000 };

__thread int shim_inside;
const struct shim_role_ops *_Atomic shim_ops;
_Atomic bool shim_decided;
static struct page *page;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool is_work(const struct shim_op *op) {
    return op->kind == SHIM_OP_KERNEL || op->kind == SHIM_OP_GRAPH || op->kind == SHIM_OP_COPY ||
           op->kind == SHIM_OP_SET;
}

static void training_before(struct shim_op *op) {
    if (!is_work(op))
        return;
    atomic_fetch_add_explicit(&page->training_launches, 1, memory_order_relaxed);
    atomic_store_explicit(&page->training_last_ns, shim_now_ns(), memory_order_release);
}

/* Waits `left_ns`, or less: the caller looks again. */
static void nap(uint64_t left_ns) {
    if (left_ns <= SPIN_NS) {
        sched_yield();
        return;
    }
    struct timespec pause = {.tv_nsec = NAP_NS};
    nanosleep(&pause, NULL);
}

/* A pausing fill finishes what it has begun, held by nothing: training waits for it meanwhile. */
static bool held(void) { return atomic_load_explicit(&page->command, memory_order_acquire) & 1; }

static void wait_for_quiet(void) {
    while (held()) {
        uint64_t last = atomic_load_explicit(&page->training_last_ns, memory_order_acquire);
        uint64_t open_ns = last + atomic_load_explicit(&page->quiet_ns, memory_order_relaxed);
        uint64_t now = shim_now_ns();
        if (now >= open_ns)
            return;
        nap(open_ns - now);
    }
}

static void wait_for_turn(void) {
    static uint64_t next_ns;
    while (held()) {
        uint64_t rate = atomic_load_explicit(&page->rate, memory_order_relaxed);
        uint64_t now = shim_now_ns();
        /* What was not used for a while is lost, or a pause would end in a burst. */
        if (next_ns + LATE_NS < now)
            next_ns = now - LATE_NS;
        if (rate && next_ns <= now) {
            next_ns += 1000000000ull / rate;
            return;
        }
        nap(rate ? next_ns - now : (uint64_t)LATE_NS);
    }
}

/* Launches of the fill that may not be done yet, oldest first. */
static struct {
    CUevent events[RING];
    unsigned oldest, count;
    bool broken;
} flight;

static void wait_for_room(void) {
    CUresult (*query)(CUevent) = (CUresult(*)(CUevent))real_symbol("cuEventQuery");
    uint64_t most = atomic_load_explicit(&page->in_flight, memory_order_relaxed);
    while (query && flight.count && (flight.count >= RING || (most && flight.count >= most))) {
        if (query(flight.events[flight.oldest]) == CUDA_ERROR_NOT_READY) {
            sched_yield();
            continue;
        }
        flight.oldest = (flight.oldest + 1) % RING;
        flight.count--;
    }
}

static void remember(CUstream stream) {
    CUresult (*create)(CUevent *, unsigned) =
        (CUresult(*)(CUevent *, unsigned))real_symbol("cuEventCreate");
    CUresult (*record)(CUevent, CUstream) =
        (CUresult(*)(CUevent, CUstream))real_symbol("cuEventRecord");
    enum { DISABLE_TIMING = 2 };
    CUevent *event = &flight.events[(flight.oldest + flight.count) % RING];
    flight.broken = flight.broken || !create || !record;
    if (!flight.broken && !*event)
        flight.broken = create(event, DISABLE_TIMING) != CUDA_SUCCESS;
    if (!flight.broken && record(*event, stream) == CUDA_SUCCESS)
        flight.count++;
    if (flight.broken)
        shim_log(1, "peer: no events; work in flight has no bound");
}

static void fill_before(struct shim_op *op) {
    if (!is_work(op) || !held())
        return;
    uint64_t policy = atomic_load_explicit(&page->policy, memory_order_relaxed);
    pthread_mutex_lock(&lock);
    if (atomic_load_explicit(&page->in_flight, memory_order_relaxed) && !flight.broken)
        wait_for_room();
    if (policy == PAGE_POLICY_LAUNCH_COUNT)
        wait_for_quiet();
    else if (policy == PAGE_POLICY_RATE)
        wait_for_turn();
    pthread_mutex_unlock(&lock);
}

static void fill_after(struct shim_op *op, CUresult result) {
    if (!is_work(op))
        return;
    atomic_fetch_add_explicit(&page->fill_launches, 1, memory_order_relaxed);
    if (result != CUDA_SUCCESS || op->blocking || !held() ||
        !atomic_load_explicit(&page->in_flight, memory_order_relaxed))
        return;
    pthread_mutex_lock(&lock);
    if (!flight.broken && flight.count < RING)
        remember(op->stream);
    pthread_mutex_unlock(&lock);
}

static const struct shim_role_ops training_ops = {.before = training_before};
static const struct shim_role_ops fill_ops = {.before = fill_before, .after = fill_after};

static const struct shim_role_ops *start(void) {
    const char *path = getenv("SFILL_BENCH_PAGE"), *role = getenv("SFILL_BENCH_ROLE");
    if (!path || !role)
        return NULL;
    int file = open(path, O_RDWR | O_CLOEXEC);
    void *at = file < 0 ? MAP_FAILED
                        : mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file >= 0)
        close(file);
    if (at == MAP_FAILED || atomic_load(&((struct page *)at)->magic) != PAGE_MAGIC) {
        shim_log(1, "peer: %s is no page of the bench", path);
        abort(); /* figures without the policy would be wrong */
    }
    page = at;
    prctl(PR_SET_TIMERSLACK, 1000); /* else a nap of 20 us takes 70 */
    return strcmp(role, "fill") == 0 ? &fill_ops : &training_ops;
}

/* The hooks' other roles and their agent: there is none here. */
const struct shim_role_ops monitor_ops;
bool shim_ask(char *text, size_t size, int timeout_ms) {
    (void)text;
    (void)size;
    (void)timeout_ms;
    return false;
}
uint64_t connect_number(const char *text, const char *key) {
    (void)text;
    (void)key;
    return 0;
}

static void in_child(void) { atomic_store(&shim_ops, NULL); }

const struct shim_role_ops *shim_decide(void) {
    shim_inside = 1;
    pthread_mutex_lock(&lock);
    if (!atomic_load(&shim_decided)) {
        pthread_atfork(NULL, NULL, in_child);
        atomic_store_explicit(&shim_ops, start(), memory_order_release);
        atomic_store_explicit(&shim_decided, true, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    shim_inside = 0;
    return atomic_load(&shim_ops);
}
