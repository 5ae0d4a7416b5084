/* stream_glue.c - a driver that counts markers under gate_stream.c, and a GPU to count for. Built
 * by test_gate_marking.py. */
#include <stdlib.h>
#include "gate.h"
#include "gate_driver.h"

struct gate_driver gate_driver;
struct gate_state gate;
__thread int shim_inside;
static struct gate_gpu *gpu;
static uint64_t markers, last_marker;

void shim_log(int level, const char *format, ...) {
    (void)level;
    (void)format;
}
struct gate_gpu *gate_gpu_of_device(int device) {
    (void)device;
    return gpu;
}
void memory_context_made(struct gate_gpu *of) { (void)of; }
uint64_t gate_epoch(const struct gate_gpu *of) {
    (void)of;
    return 1;
}
void gate_done_sink(const struct flight_done *done, void *of) {
    (void)done;
    (void)of;
}

static CUresult write64(CUstream stream, CUdeviceptr at, uint64_t value, unsigned flags) {
    (void)stream;
    (void)at;
    (void)flags;
    markers++;
    last_marker = value;
    return CUDA_SUCCESS;
}
static CUresult current(CUcontext *context) {
    *context = (CUcontext)16;
    return CUDA_SUCCESS;
}
static CUresult push(CUcontext context) {
    (void)context;
    return CUDA_SUCCESS;
}
static CUresult device(CUdevice *found) {
    *found = 0;
    return CUDA_SUCCESS;
}
static CUresult host_register(void *at, size_t bytes, unsigned flags) {
    (void)at;
    (void)bytes;
    (void)flags;
    return CUDA_SUCCESS;
}
static CUresult host_pointer(CUdeviceptr *found, void *at, unsigned flags) {
    (void)flags;
    *found = (CUdeviceptr)(uintptr_t)at;
    return CUDA_SUCCESS;
}

/* A context on a new GPU. */
struct gate_context *glue_open(void) {
    struct gate_context *context = NULL;
    gate_driver = (struct gate_driver){.stream_write64 = write64,
                                       .host_register = host_register,
                                       .host_device_pointer = host_pointer,
                                       .context_current = current,
                                       .context_device = device,
                                       .context_push = push,
                                       .context_pop = current};
    gpu = calloc(1, sizeof *gpu);
    gpu->flight.durations = &gpu->durations;
    atomic_store(&gate.gpus[0], gpu);
    atomic_store(&gate.gpus_used, 1);
    markers = 0;
    gate_context_of((CUstream)32, &context);
    return context;
}

void glue_close(void) {
    gate_context_forget((CUcontext)16);
    free(gpu);
}

/* An operation of 1 us, too short for a marker of its own. */
uint64_t glue_release(int blocking) {
    const struct flown op = {
        .shape = 1, .mean_ns = 1000, .bound_ns = 1000, .known = true, .blocking = blocking != 0};
    return flight_release(&gpu->flight, &op);
}
void glue_issue(struct gate_context *context, uint64_t ticket, uint64_t stream) {
    struct shim_op op = {.kind = SHIM_OP_KERNEL, .stream = (CUstream)(uintptr_t)stream};
    gate_stream_issued(context, &op, ticket, shim_now_ns());
}
void glue_fail(uint64_t ticket) { flight_cancel(&gpu->flight, ticket); }
void glue_mark(uint64_t since_ns) { gate_stream_mark_all(gpu, since_ns); }
uint64_t glue_markers(void) { return markers; }
uint64_t glue_last(void) { return last_marker; }
