/* api_copy.c - copies and sets. A copy takes 2 us and its bytes at 20 GB/s of the GPU's time. */
#include <stdlib.h>
#include <string.h>
#include "capture.h"
#include "handles.h"
#include "memory.h"

static uint64_t copy_ns(size_t bytes) {
    return SIM_COPY_LATENCY_NS + bytes * 1000 / SIM_COPY_BYTES_PER_US;
}

struct sim_op copy_op(size_t bytes) {
    return (struct sim_op){
        .kind = SIM_COPY, .flags = SIM_EFFECT, .duration_ns = copy_ns(bytes), .b = bytes};
}

struct sim_op set_op(size_t bytes) {
    return (struct sim_op){.kind = SIM_SET,
                           .flags = SIM_EFFECT,
                           .duration_ns = SIM_COPY_LATENCY_NS + bytes * 1000 / SIM_SET_BYTES_PER_US,
                           .b = bytes};
}

static CUresult issue(bool per_thread, CUstream stream, bool blocking, struct sim_op op,
                      struct transfer *t) {
    struct stream_ref ref;
    uint64_t position = 0;
    op.a = (uintptr_t)t;
    CUresult result = stream_resolve(stream, per_thread, &ref);
    if (!result && blocking)
        result = capture_refuse_wait(&ref);
    if (!result)
        result = blocking ? stream_enqueue(&ref, &op, &position) : stream_issue(&ref, &op, NULL);
    if (result) {
        free(t->staged);
        free(t);
        return result;
    }
    return blocking ? engine_wait(&ref, position) : CUDA_SUCCESS;
}

/* The whole range must lie in memory that the device knows. */
static bool on_device(CUdeviceptr at, size_t bytes) {
    struct allocation a;
    return memory_find(at, &a) && at + bytes <= a.base + a.bytes;
}

static CUresult copy(bool per_thread, CUstream stream, bool blocking, uint64_t to, uint64_t from,
                     size_t bytes) {
    struct allocation a;
    if (!bytes)
        return driver_ready();
    struct transfer *t = calloc(1, sizeof *t);
    if (!t)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *t = (struct transfer){
        .to = (void *)(uintptr_t)to, .from = (void *)(uintptr_t)from, .bytes = bytes};
    if (!blocking && !memory_find(from, &a)) {
        /* Pageable source: the caller may use it again as soon as the call returns. */
        t->staged = malloc(bytes);
        if (!t->staged) {
            free(t);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        memcpy(t->staged, (void *)(uintptr_t)from, bytes);
    }
    return issue(per_thread, stream, blocking, copy_op(bytes), t);
}

static CUresult set(bool per_thread, CUstream stream, bool blocking, CUdeviceptr to, uint32_t value,
                    uint32_t width, size_t count) {
    if (!count)
        return driver_ready();
    if (!on_device(to, count * width) || to % width)
        return CUDA_ERROR_INVALID_VALUE;
    struct transfer *t = calloc(1, sizeof *t);
    if (!t)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *t = (struct transfer){
        .to = (void *)(uintptr_t)to, .bytes = count * width, .value = value, .width = width};
    return issue(per_thread, stream, blocking, set_op(count * width), t);
}

#define CHECK(device, bytes)                                                                       \
    if (driver_ready() == CUDA_SUCCESS && (bytes) && !on_device(device, bytes))                    \
        return CUDA_ERROR_INVALID_VALUE;

static CUresult sim_cuMemcpyHtoD_v2(bool pt, CUdeviceptr to, const void *from, size_t bytes) {
    CHECK(to, bytes)
    return copy(pt, NULL, true, to, (uintptr_t)from, bytes);
}
BOTH(cuMemcpyHtoD_v2, _ptds, (CUdeviceptr to, const void *from, size_t bytes), (to, from, bytes))

static CUresult sim_cuMemcpyDtoH_v2(bool pt, void *to, CUdeviceptr from, size_t bytes) {
    CHECK(from, bytes)
    return copy(pt, NULL, true, (uintptr_t)to, from, bytes);
}
BOTH(cuMemcpyDtoH_v2, _ptds, (void *to, CUdeviceptr from, size_t bytes), (to, from, bytes))

static CUresult sim_cuMemcpyDtoD_v2(bool pt, CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    CHECK(to, bytes)
    CHECK(from, bytes)
    return copy(pt, NULL, true, to, from, bytes);
}
BOTH(cuMemcpyDtoD_v2, _ptds, (CUdeviceptr to, CUdeviceptr from, size_t bytes), (to, from, bytes))

static CUresult sim_cuMemcpy(bool pt, CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return copy(pt, NULL, true, to, from, bytes);
}
BOTH(cuMemcpy, _ptds, (CUdeviceptr to, CUdeviceptr from, size_t bytes), (to, from, bytes))

static CUresult sim_cuMemcpyHtoDAsync_v2(bool pt, CUdeviceptr to, const void *from, size_t bytes,
                                         CUstream stream) {
    CHECK(to, bytes)
    return copy(pt, stream, false, to, (uintptr_t)from, bytes);
}
BOTH(cuMemcpyHtoDAsync_v2, _ptsz, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream),
     (to, from, bytes, stream))

static CUresult sim_cuMemcpyDtoHAsync_v2(bool pt, void *to, CUdeviceptr from, size_t bytes,
                                         CUstream stream) {
    CHECK(from, bytes)
    return copy(pt, stream, false, (uintptr_t)to, from, bytes);
}
BOTH(cuMemcpyDtoHAsync_v2, _ptsz, (void *to, CUdeviceptr from, size_t bytes, CUstream stream),
     (to, from, bytes, stream))

static CUresult sim_cuMemcpyDtoDAsync_v2(bool pt, CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                         CUstream stream) {
    CHECK(to, bytes)
    CHECK(from, bytes)
    return copy(pt, stream, false, to, from, bytes);
}
BOTH(cuMemcpyDtoDAsync_v2, _ptsz, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
     (to, from, bytes, stream))

static CUresult sim_cuMemcpyAsync(bool pt, CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                  CUstream stream) {
    return copy(pt, stream, false, to, from, bytes);
}
BOTH(cuMemcpyAsync, _ptsz, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
     (to, from, bytes, stream))

static CUresult sim_cuMemcpyPeer(bool pt, CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                                 CUcontext from_context, size_t bytes) {
    (void)to_context, (void)from_context;
    return copy(pt, NULL, true, to, from, bytes);
}
BOTH(cuMemcpyPeer, _ptds,
     (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes),
     (to, to_context, from, from_context, bytes))

static CUresult sim_cuMemcpyPeerAsync(bool pt, CUdeviceptr to, CUcontext to_context,
                                      CUdeviceptr from, CUcontext from_context, size_t bytes,
                                      CUstream stream) {
    (void)to_context, (void)from_context;
    return copy(pt, stream, false, to, from, bytes);
}
BOTH(cuMemcpyPeerAsync, _ptsz,
     (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes,
      CUstream stream),
     (to, to_context, from, from_context, bytes, stream))

/* The plain sets of device memory return before they are done, as the real driver's do. */
#define SET(bits, type)                                                                            \
    static CUresult sim_cuMemsetD##bits##_v2(bool pt, CUdeviceptr to, type value, size_t count) {  \
        return set(pt, NULL, false, to, value, bits / 8, count);                                   \
    }                                                                                              \
    BOTH(cuMemsetD##bits##_v2, _ptds, (CUdeviceptr to, type value, size_t count),                  \
         (to, value, count))                                                                       \
    static CUresult sim_cuMemsetD##bits##Async(bool pt, CUdeviceptr to, type value, size_t count,  \
                                               CUstream stream) {                                  \
        return set(pt, stream, false, to, value, bits / 8, count);                                 \
    }                                                                                              \
    BOTH(cuMemsetD##bits##Async, _ptsz,                                                            \
         (CUdeviceptr to, type value, size_t count, CUstream stream), (to, value, count, stream))

SET(8, unsigned char)
SET(16, unsigned short)
SET(32, unsigned)
