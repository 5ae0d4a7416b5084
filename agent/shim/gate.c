/* gate.c - the role gate: what a fill process does on a GPU waits for bubbles of training. */
#include "gate.h"
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "gate_driver.h"

struct gate_state gate;

static bool is_gated(enum shim_op_kind kind) {
    return kind == SHIM_OP_KERNEL || kind == SHIM_OP_GRAPH || kind == SHIM_OP_COPY ||
           kind == SHIM_OP_SET;
}

/* A GPU that cannot be followed is a GPU that stays shut. */
static struct gate_context *followed(CUstream stream) {
    struct gate_context *context;
    bool told = false;
    while (gate_context_of(stream, &context)) {
        if (context)
            return context;
        if (!told)
            shim_log(1, "this GPU cannot be followed: its operations are held");
        told = true;
        usleep(100000);
    }
    return NULL;
}

static void before_setup(const struct shim_op *op) {
    struct gate_gpu *gpu = NULL;
    struct gate_context *context;
    if (op->device >= 0) {
        shim_inside++;
        gpu = gate_gpu_of_device(op->device);
        shim_inside--;
    } else if (gate_context_of(NULL, &context) && context) {
        gpu = gate_context_gpu(context);
    }
    if (gpu && !gate_stream_capturing())
        gate_wait_open(gpu);
}

/* The host is about to wait: nothing may stay unmarked until it launches again. */
static void mark_before_wait(struct gate_gpu *gpu) {
    pthread_mutex_lock(&gpu->lock);
    gate_stream_mark_all(gpu, UINT64_MAX);
    pthread_mutex_unlock(&gpu->lock);
}

static void gate_before(struct shim_op *op) {
    op->cookie[0] = 0;
    if (op->kind == SHIM_OP_SETUP)
        before_setup(op);
    if (!is_gated(op->kind) && !op->writes)
        return;
    struct gate_context *context = followed(op->stream);
    if (!context)
        return;       /* no context at all: the driver refuses by itself */
    if (op->writes) { /* a few words: no time to account for, but the GPU turns to us for them */
        gate_wait_open(gate_context_gpu(context));
        return;
    }
    op->cookie[0] = gate_wait(context, op) + 1;
    op->cookie[1] = (uint64_t)(uintptr_t)context;
    if (op->blocking)
        mark_before_wait(gate_context_gpu(context));
}

static void gate_after(struct shim_op *op, CUresult result) {
    if (!op->cookie[0])
        return;
    uint64_t ticket = op->cookie[0] - 1, returned_ns = shim_now_ns();
    struct gate_context *context = (struct gate_context *)(uintptr_t)op->cookie[1];
    struct gate_gpu *gpu = gate_context_gpu(context);
    if (result == CUDA_SUCCESS && !op->blocking) {
        gate_stream_issued(context, op, ticket, returned_ns);
        return;
    }
    pthread_mutex_lock(&gpu->lock);
    if (result == CUDA_SUCCESS) {
        uint64_t now_ns = shim_now_ns();
        gate_poll(gpu, now_ns);
        flight_returned(&gpu->flight, ticket, now_ns, gate_epoch(gpu), gate_done_sink, gpu);
    } else {
        flight_cancel(&gpu->flight, ticket);
    }
    pthread_mutex_unlock(&gpu->lock);
}

static void gate_block_begin(CUstream stream, enum shim_block scope) {
    struct gate_context *context;
    (void)scope;
    if (gate_context_of(stream, &context) && context)
        mark_before_wait(gate_context_gpu(context));
}

/* What was waited for is done; the process may end before anybody looks again. A pool gives back
 * when its process has waited. */
static void gate_block_end(CUstream stream, enum shim_block scope, CUresult result) {
    struct gate_context *context;
    (void)scope;
    (void)result;
    if (gate_context_of(stream, &context) && context) {
        struct gate_gpu *gpu = gate_context_gpu(context);
        pthread_mutex_lock(&gpu->lock);
        gate_poll(gpu, shim_now_ns());
        pthread_mutex_unlock(&gpu->lock);
    }
    pools_look();
}

static void gate_context_destroyed(CUcontext context, bool gone) {
    if (!gone)
        return;
    gate_graph_context_gone(context);
    gate_context_forget(context);
}

static void gate_capture_begin(CUstream stream, int mode) {
    (void)stream;
    (void)mode;
    gate_stream_capture(1);
}

static void gate_capture_end(CUstream stream) {
    (void)stream;
    gate_stream_capture(-1);
}

/* What could reach the GPU without passing here is refused. */
static bool gate_allows(enum shim_feature feature) { return feature == SHIM_MANAGED_MEMORY; }

const struct shim_role_ops gate_ops = {
    .shapes = true,
    .before = gate_before,
    .after = gate_after,
    .block_begin = gate_block_begin,
    .block_end = gate_block_end,
    .context_fits = memory_context_fits,
    .context_destroyed = gate_context_destroyed,
    .stream_destroying = gate_stream_forget,
    .capture_begin = gate_capture_begin,
    .capture_end = gate_capture_end,
    .module_unloading = gate_forget_functions,
    .graph_made = gate_graph_made,
    .graph_launching = gate_graph_launching,
    .graph_launched = gate_graph_launched,
    .graph_changing = gate_graph_changing,
    .memory_ask = memory_ask,
    .memory_took = memory_took,
    .memory_freed = memory_freed,
    .pool_ask = pool_ask,
    .pool_took = pool_took,
    .pool_made = pool_made,
    .pool_left = pool_left,
    .pool_gone = pool_gone,
    .pools_changed = pools_look,
    .allows = gate_allows,
    .memory_info = memory_info,
    .memory_of_gpu = memory_of_gpu,
    .memory_total = memory_total,
};

bool gate_start(const struct shim_answer *answer) {
    gate_driver_find();
    return reader_adopt(answer) && gate_helper_start();
}
