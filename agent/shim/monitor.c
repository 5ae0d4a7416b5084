/* monitor.c - the role "monitor": what a training process launches is counted before and after,
 * the GPU writes how far it has got, and the difference is on the board for fills to see. */
#include <sys/mman.h>
#include "hooks.h"
#include "monitor.h"
#include "own_fd.h"

struct sfill_training_board *monitor_board;
struct monitor_driver monitor_driver;
_Atomic int monitor_captures;
_Atomic int monitor_blocked;
_Atomic uint64_t monitor_block_began_ns, monitor_block_ended_ns;
_Atomic bool monitor_exiting;
static _Atomic int lend_wish = 1;

/* What a full synchronisation proves when it returns: these streams have reached these values. */
enum { PROOFS_MOST = 16 };
static __thread struct {
    unsigned slot;
    uint64_t value;
} proofs[PROOFS_MOST];
static __thread unsigned proof_count;

void monitor_shut(enum sfill_shut why, const char *what) {
    uint32_t not_shut = SFILL_SHUT_NO;
    if (atomic_compare_exchange_strong(&monitor_board->head.shut, &not_shut, why))
        /* Many a program ends without waiting for its last work: nothing to trouble its user with.
         */
        shim_log(why == SFILL_SHUT_TEARDOWN ? 2 : 1, "this training lends nothing from now on: %s",
                 what);
}

/* The launch that ends a bubble: the gate wants to know from when on the work was ready. */
static __attribute__((noinline)) void end_bubble(struct shim_op *op, unsigned gpu, int index) {
    monitor_bubble_close(gpu, &monitor_streams[index]);
    op->cookie[1] = 1;
    atomic_store(&monitor_board->gpus[gpu].resume_call_ns, shim_now_ns());
}

static void before(struct shim_op *op) {
    op->cookie[0] = op->cookie[1] = 0;
    if (op->kind == SHIM_OP_SETUP || op->kind == SHIM_OP_EVENT)
        return;
    int index = monitor_stream_slot(op->stream);
    if (index < 0)
        return;
    struct sfill_stream_slot *slot = &monitor_board->slots[index];
    /* Counted first, then the bubble is looked at; whoever opens one does it the other way
     * round, so one of both sees the other. */
    atomic_fetch_add(&slot->before, 1);
    op->cookie[0] = (uint64_t)index + 1;
    unsigned gpu = atomic_load_explicit(&slot->gpu, memory_order_relaxed);
    if (atomic_load(&monitor_board->gpus[gpu].bubble_seq) & 1)
        end_bubble(op, gpu, index);
}

static void after(struct shim_op *op, CUresult result) {
    (void)result; /* a launch that failed is counted too: the next marker settles it */
    if (!op->cookie[0])
        return;
    unsigned index = (unsigned)(op->cookie[0] - 1);
    struct sfill_stream_slot *slot = &monitor_board->slots[index];
    uint64_t now = shim_now_ns();
    atomic_store_explicit(&slot->last_issue_ns, now, memory_order_relaxed);
    if (op->cookie[1] && !op->blocking)
        atomic_store(&monitor_board->gpus[atomic_load(&slot->gpu)].resume_issued_ns, now);
    uint64_t issued = atomic_fetch_add(&slot->after, 1) + 1;
    if (op->blocking)
        monitor_mark(index, MARK_AT_BLOCK); /* done already: the marker costs the GPU nothing */
    else if (issued - atomic_load_explicit(&slot->marked, memory_order_relaxed) >=
             MONITOR_INLINE_EVERY)
        monitor_mark(index, MARK_BY_LAUNCHER);
    if (atomic_load_explicit(&monitor_exiting, memory_order_relaxed))
        monitor_shut(SFILL_SHUT_TEARDOWN, "work was launched while the process ended");
}

static void note_proof(unsigned index) {
    const struct sfill_stream_slot *slot = &monitor_board->slots[index];
    uint64_t issued = atomic_load(&slot->after);
    if (proof_count < PROOFS_MOST && issued == atomic_load(&slot->before)) {
        proofs[proof_count].slot = index;
        proofs[proof_count].value = issued;
        proof_count++;
    }
}

static bool of_context(unsigned index, const struct monitor_context *context) {
    return atomic_load_explicit(&monitor_board->slots[index].state, memory_order_acquire) !=
               SFILL_SLOT_FREE &&
           monitor_streams[index].context == context;
}

static struct monitor_context *current_context(void) {
    CUcontext handle = NULL;
    if (monitor_driver.context_current(&handle) != CUDA_SUCCESS || !handle)
        return NULL;
    for (unsigned i = 0; i < MONITOR_CONTEXTS; i++)
        if (atomic_load(&monitor_contexts[i].state) == CONTEXT_LIVE &&
            monitor_contexts[i].handle == handle)
            return &monitor_contexts[i];
    return NULL;
}

/* Marks what is unmarked in the current context; a whole synchronisation proves it as well. */
static void mark_context(enum shim_block scope) {
    struct monitor_context *context = current_context();
    unsigned used = context ? atomic_load(&monitor_board->slots_used) : 0;
    uint64_t now = shim_now_ns();
    for (unsigned i = 0; i < used; i++) {
        const struct sfill_stream_slot *slot = &monitor_board->slots[i];
        if (!of_context(i, context) || monitor_slot_drained(slot))
            continue;
        /* A poll between launches is no wait: mark only what has been quiet. */
        if (scope == SHIM_BLOCK_QUERY && now - atomic_load(&slot->last_issue_ns) < MONITOR_QUIET_NS)
            continue;
        /* Here the legacy stream's marker would be a barrier that nobody asked for. */
        bool barrier =
            monitor_streams[i].kind == STREAM_LEGACY && atomic_load(&context->blocking_streams) > 0;
        if (!barrier || scope == SHIM_BLOCK_CONTEXT)
            monitor_mark(i, MARK_AT_BLOCK);
        if (scope == SHIM_BLOCK_CONTEXT)
            note_proof(i);
    }
}

static void block_begin(CUstream stream, enum shim_block scope) {
    if (scope == SHIM_BLOCK_QUERY) {
        mark_context(scope);
        return;
    }
    proof_count = 0;
    atomic_store(&monitor_block_began_ns, shim_now_ns());
    atomic_fetch_add(&monitor_blocked, 1);
    if (scope != SHIM_BLOCK_STREAM) {
        mark_context(scope);
        return;
    }
    int index = monitor_stream_slot(stream);
    if (index >= 0 && !monitor_slot_drained(&monitor_board->slots[index])) {
        monitor_mark((unsigned)index, MARK_AT_BLOCK);
        note_proof((unsigned)index);
    }
}

static void block_end(CUstream stream, enum shim_block scope, CUresult result) {
    (void)stream;
    (void)scope;
    atomic_fetch_sub(&monitor_blocked, 1);
    atomic_store(&monitor_block_ended_ns, shim_now_ns());
    for (unsigned i = 0; result == CUDA_SUCCESS && i < proof_count; i++)
        monitor_done_by_host(proofs[i].slot, proofs[i].value);
    proof_count = 0;
    struct monitor_context *context = current_context();
    /* Another stream is not done yet: the helper shall look more often now. */
    if (context && !monitor_bubble_try_open(context->gpu, SFILL_CAUSE_TAIL))
        monitor_helper_wake_after_block();
}

/* From here until the capture ends no marker is issued at all; one that the helper was about to
 * issue is waited for, so that it cannot get into the graph. */
static void capture_begin(CUstream stream, int mode) {
    (void)stream;
    (void)mode;
    atomic_fetch_add(&monitor_captures, 1);
    unsigned used = atomic_load(&monitor_board->slots_used);
    for (unsigned i = 0; i < used; i++) {
        if (!monitor_lock_stream(&monitor_streams[i], 1000000000ull))
            monitor_shut(SFILL_SHUT_MARKER, "a marker is stuck in the driver");
        else
            monitor_unlock_stream(&monitor_streams[i]);
    }
}

static void capture_end(CUstream stream) {
    (void)stream;
    atomic_fetch_sub(&monitor_captures, 1);
}

/* A training may do all it likes; but what goes unseen cannot be lent around. */
static void unseen(void) {
    monitor_shut(SFILL_SHUT_UNSUPPORTED,
                 "a function of the driver is used that is newer than this version");
}

const struct shim_role_ops monitor_ops = {
    .before = before,
    .after = after,
    .block_begin = block_begin,
    .block_end = block_end,
    .context_created = monitor_context_created,
    .context_destroying = monitor_context_destroying,
    .context_destroyed = monitor_context_destroyed,
    .stream_created = monitor_stream_created,
    .stream_destroying = monitor_stream_destroying,
    .capture_begin = capture_begin,
    .capture_end = capture_end,
    .memory_short = monitor_memory_short,
    .unseen = unseen,
    .memory_info = monitor_memory_info,
};

/* Lets a training pause lending: 0 pauses, anything else lends again. Returns the former state. */
int specinf_lend(int on);
HOOK_EXPORT int specinf_lend(int on) {
    int before_now = atomic_exchange(&lend_wish, on != 0);
    if (atomic_load(&shim_ops) == &monitor_ops)
        atomic_store(&monitor_board->lend, (uint32_t)(on != 0));
    return before_now;
}

/* Before the driver's own end (registered later, so run earlier): the helper gets out of it. The
 * board stays as it is when all is done; the agent sees the process end. */
void monitor_at_exit(void) {
    if (atomic_load(&shim_ops) != &monitor_ops)
        return; /* a forked child: the board is not mapped here */
    atomic_store(&monitor_exiting, true);
    bool quiet = monitor_helper_leave_driver(20000000);
    for (unsigned gpu = 0; gpu < atomic_load(&monitor_board->gpus_used); gpu++)
        if (!monitor_drained(gpu))
            quiet = false;
    if (!quiet)
        monitor_shut(SFILL_SHUT_TEARDOWN, "the process ended while work may run");
}

static void *either(const char *name, const char *older) {
    void *function = real_symbol(name);
    return function ? function : real_symbol(older);
}

static bool load_driver(struct monitor_driver *driver) {
    driver->context_current = real_symbol("cuCtxGetCurrent");
    driver->context_push = real_symbol("cuCtxPushCurrent_v2");
    driver->context_pop = real_symbol("cuCtxPopCurrent_v2");
    driver->context_device = real_symbol("cuCtxGetDevice");
    driver->device_uuid = either("cuDeviceGetUuid_v2", "cuDeviceGetUuid");
    driver->device_uuid_whole = either("cuDeviceGetUuid", "cuDeviceGetUuid_v2");
    driver->device_attribute = real_symbol("cuDeviceGetAttribute");
    driver->stream_context = real_symbol("cuStreamGetCtx");
    driver->stream_id = real_symbol("cuStreamGetId");
    driver->stream_flags = real_symbol("cuStreamGetFlags");
    driver->write64 = either("cuStreamWriteValue64_v2", "cuStreamWriteValue64");
    driver->host_register = either("cuMemHostRegister_v2", "cuMemHostRegister");
    driver->host_device_pointer =
        either("cuMemHostGetDevicePointer_v2", "cuMemHostGetDevicePointer");
    driver->capture_mode = real_symbol("cuThreadExchangeStreamCaptureMode");
    void *const *all = (void *const *)driver;
    for (size_t i = 0; i < sizeof *driver / sizeof *all; i++)
        if (!all[i])
            return false;
    return true;
}

static struct own_fd own_board = OWN_FD_NONE;

size_t monitor_board_bytes(void) { return sizeof(struct sfill_training_board); }

void *monitor_board_view(void) {
    void *view = mmap(NULL, monitor_board_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED,
                      own_fd(&own_board), 0);
    if (view == MAP_FAILED)
        return NULL;
    madvise(view, monitor_board_bytes(), MADV_DONTFORK);
    return view;
}

int monitor_board_descriptor(void) { return own_fd(&own_board); }

bool monitor_start(const struct shim_answer *answer) {
    if (answer->board_fd < 0 || answer->size_bytes < sizeof(struct sfill_training_board)) {
        shim_log(1, "the agent's board is too small: not of this version");
        return false;
    }
    own_fd_keep(&own_board, answer->board_fd);
    monitor_rescue_within(answer->rescue_ms);
    monitor_board = monitor_board_view();
    if (!monitor_board || monitor_board->head.magic != SFILL_MAGIC_TRAINING ||
        monitor_board->head.version != SFILL_LAYOUT_VERSION) {
        shim_log(1, "the agent's board is not of this version");
        return false;
    }
    atomic_store(&monitor_board->lend, (uint32_t)atomic_load(&lend_wish));
    if (!load_driver(&monitor_driver)) {
        monitor_shut(SFILL_SHUT_UNSUPPORTED, "the driver lacks what progress markers need");
        return false;
    }
    monitor_streams_start();
    if (!shim_thread(monitor_helper_run, "specinf-mon")) {
        monitor_shut(SFILL_SHUT_UNSUPPORTED, "no helper thread can be started");
        return false;
    }
    /* Every context and stream is followed from its first operation on, and there was none yet. */
    atomic_store(&monitor_board->ready, 1);
    return true;
}
