/* paths_calls.c - each way to the GPU, gone once. `time` counts up from 1. */
#include <stdio.h>
#include "paths.h"

#define CALL(parameters, ...) (((CUresult(*) parameters)m.call)(__VA_ARGS__))
#define SIZES unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned
#define ONE_THREAD 1, 1, 1, 1, 1, 1, 0
enum { HOST = 1, DEVICE = 2 }; /* CUmemorytype */

static CUresult kernel(uint64_t time) {
    (void)time;
    return CALL((CUfunction, SIZES, CUstream, void **, void **), m.count, ONE_THREAD, m.stream,
                NULL, NULL);
}
static CUresult kernel_ex(uint64_t time) {
    (void)time;
    CUlaunchConfig form = {ONE_THREAD, m.stream, NULL, 0};
    return CALL((const CUlaunchConfig *, CUfunction, void **, void **), &form, m.count, NULL, NULL);
}
static CUresult cooperative(uint64_t time) {
    (void)time;
    return CALL((CUfunction, SIZES, CUstream, void **), m.count, ONE_THREAD, m.stream, NULL);
}
static CUresult several_devices(uint64_t time) {
    (void)time;
    CUDA_LAUNCH_PARAMS one = {m.count, ONE_THREAD, m.stream, NULL};
    return CALL((CUDA_LAUNCH_PARAMS *, unsigned, unsigned), &one, 1, 0);
}
static CUresult oldest(uint64_t time) {
    CUresult bad = time == 1 ? m.set_block_shape(m.count, 1, 1, 1) : CUDA_SUCCESS;
    return bad ? bad : CALL((CUfunction), m.count);
}
static CUresult oldest_grid(uint64_t time) {
    CUresult bad = time == 1 ? m.set_block_shape(m.count, 1, 1, 1) : CUDA_SUCCESS;
    return bad ? bad : CALL((CUfunction, int, int), m.count, 1, 1);
}
static CUresult oldest_async(uint64_t time) {
    CUresult bad = time == 1 ? m.set_block_shape(m.count, 1, 1, 1) : CUDA_SUCCESS;
    return bad ? bad : CALL((CUfunction, int, int, CUstream), m.count, 1, 1, m.stream);
}
static CUresult graph(uint64_t time) {
    (void)time;
    return CALL((CUgraphExec, CUstream), m.graph, m.stream);
}

/* Copies: number `time` goes to where it is seen, or to the device word that is watched. */
static CUresult any_copy(uint64_t time) {
    return CALL((CUdeviceptr, CUdeviceptr, size_t), m.seen_at, m.table + 8 * time, 8);
}
static CUresult any_copy_async(uint64_t time) {
    return CALL((CUdeviceptr, CUdeviceptr, size_t, CUstream), m.seen_at, m.table + 8 * time, 8,
                m.stream);
}
static CUresult to_host(uint64_t time) {
    return CALL((void *, CUdeviceptr, size_t), m.seen, m.table + 8 * time, 8);
}
static CUresult to_host_async(uint64_t time) {
    return CALL((void *, CUdeviceptr, size_t, CUstream), m.seen, m.table + 8 * time, 8, m.stream);
}
static CUresult to_device(uint64_t time) {
    return CALL((CUdeviceptr, const void *, size_t), m.word, &m.numbers[time], 8);
}
static CUresult to_device_async(uint64_t time) {
    *(volatile uint64_t *)m.source = time;
    return CALL((CUdeviceptr, const void *, size_t, CUstream), m.word, m.source, 8, m.stream);
}
static CUresult on_device(uint64_t time) {
    return CALL((CUdeviceptr, CUdeviceptr, size_t), m.word, m.table + 8 * time, 8);
}
static CUresult on_device_async(uint64_t time) {
    return CALL((CUdeviceptr, CUdeviceptr, size_t, CUstream), m.word, m.table + 8 * time, 8,
                m.stream);
}
static CUresult peer(uint64_t time) {
    return CALL((CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t), m.word, m.context,
                m.table + 8 * time, m.context, 8);
}
static CUresult peer_async(uint64_t time) {
    return CALL((CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t, CUstream), m.word,
                m.context, m.table + 8 * time, m.context, 8, m.stream);
}
static CUresult array_to_host(uint64_t time) {
    return CALL((void *, CUarray, size_t, size_t), m.seen, m.array, 8 * time, 8);
}
static CUresult array_to_host_async(uint64_t time) {
    return CALL((void *, CUarray, size_t, size_t, CUstream), m.seen, m.array, 8 * time, 8,
                m.stream);
}
static CUresult array_to_device(uint64_t time) {
    return CALL((CUdeviceptr, CUarray, size_t, size_t), m.word, m.array, 8 * time, 8);
}
static CUDA_MEMCPY2D form_2d(uint64_t time) {
    return (CUDA_MEMCPY2D){.srcMemoryType = DEVICE,
                           .srcDevice = m.table + 8 * time,
                           .srcPitch = 8,
                           .dstMemoryType = HOST,
                           .dstHost = m.seen,
                           .dstPitch = 8,
                           .WidthInBytes = 8,
                           .Height = 1};
}
static CUresult plane(uint64_t time) {
    CUDA_MEMCPY2D form = form_2d(time);
    return CALL((const CUDA_MEMCPY2D *), &form);
}
static CUresult plane_async(uint64_t time) {
    CUDA_MEMCPY2D form = form_2d(time);
    return CALL((const CUDA_MEMCPY2D *, CUstream), &form, m.stream);
}
static CUDA_MEMCPY3D form_3d(uint64_t time, int peers) {
    CUDA_MEMCPY3D form = {.srcMemoryType = DEVICE,
                          .srcDevice = m.table + 8 * time,
                          .srcPitch = 8,
                          .srcHeight = 1,
                          .dstPitch = 8,
                          .dstHeight = 1,
                          .WidthInBytes = 8,
                          .Height = 1,
                          .Depth = 1};
    form.dstMemoryType = peers ? DEVICE : HOST;
    form.dstDevice = peers ? m.word : 0;
    form.dstHost = peers ? NULL : m.seen;
    form.srcContext = form.dstContext = peers ? m.context : NULL;
    return form;
}
static CUresult volume(uint64_t time) {
    CUDA_MEMCPY3D form = form_3d(time, 0);
    return CALL((const CUDA_MEMCPY3D *), &form);
}
static CUresult volume_async(uint64_t time) {
    CUDA_MEMCPY3D form = form_3d(time, 0);
    return CALL((const CUDA_MEMCPY3D *, CUstream), &form, m.stream);
}
static CUresult volume_peer(uint64_t time) {
    CUDA_MEMCPY3D form = form_3d(time, 1);
    return CALL((const CUDA_MEMCPY3D *), &form);
}
static CUresult volume_peer_async(uint64_t time) {
    CUDA_MEMCPY3D form = form_3d(time, 1);
    return CALL((const CUDA_MEMCPY3D *, CUstream), &form, m.stream);
}

struct attributes {
    int order; /* 1: source is read in stream order */
    CUmemLocation from, to;
    unsigned flags;
};
static CUresult batch(uint64_t time) {
    CUdeviceptr to = m.seen_at, from = m.table + 8 * time;
    size_t bytes = 8, index = 0, failed;
    struct attributes form = {.order = 1};
    return CALL((CUdeviceptr *, CUdeviceptr *, size_t *, size_t, void *, size_t *, size_t, size_t *,
                 CUstream),
                &to, &from, &bytes, 1, &form, &index, 1, &failed, m.stream);
}
static CUresult batch_v2(uint64_t time) {
    CUdeviceptr to = m.seen_at, from = m.table + 8 * time;
    size_t bytes = 8, index = 0;
    struct attributes form = {.order = 1};
    return CALL(
        (CUdeviceptr *, CUdeviceptr *, size_t *, size_t, void *, size_t *, size_t, CUstream), &to,
        &from, &bytes, 1, &form, &index, 1, m.stream);
}

#define SET(name, type)                                                                            \
    static CUresult name(uint64_t time) {                                                          \
        return CALL((CUdeviceptr, type, size_t), m.seen_at, (type)time, 16);                       \
    }                                                                                              \
    static CUresult name##_async(uint64_t time) {                                                  \
        return CALL((CUdeviceptr, type, size_t, CUstream), m.seen_at, (type)time, 16, m.stream);   \
    }                                                                                              \
    static CUresult name##_plane(uint64_t time) {                                                  \
        return CALL((CUdeviceptr, size_t, type, size_t, size_t), m.seen_at, 64, (type)time, 4, 2); \
    }                                                                                              \
    static CUresult name##_plane_async(uint64_t time) {                                            \
        return CALL((CUdeviceptr, size_t, type, size_t, size_t, CUstream), m.seen_at, 64,          \
                    (type)time, 4, 2, m.stream);                                                   \
    }
SET(set8, unsigned char)
SET(set16, unsigned short)
SET(set32, unsigned)

static CUresult write32(uint64_t time) {
    return CALL((CUstream, CUdeviceptr, uint32_t, unsigned), m.stream, m.seen_at, (uint32_t)time,
                0);
}
static CUresult write64(uint64_t time) {
    return CALL((CUstream, CUdeviceptr, uint64_t, unsigned), m.stream, m.seen_at, time, 0);
}
union batched {
    struct {
        unsigned operation; /* 5: write 64 bits */
        CUdeviceptr address;
        uint64_t value;
        unsigned flags;
        CUdeviceptr alias;
    } value;
    uint64_t pad[6];
};
static CUresult write_batch(uint64_t time) {
    union batched one = {.value = {.operation = 5, .address = m.seen_at, .value = time}};
    return CALL((CUstream, unsigned, union batched *, unsigned), m.stream, 1, &one, 0);
}

const struct path paths[] = {
    {"cuLaunchKernel", "_ptsz", kernel, TRACE_KERNEL, 0},
    {"cuLaunchKernelEx", "_ptsz", kernel_ex, TRACE_KERNEL, 0},
    {"cuLaunchCooperativeKernel", "_ptsz", cooperative, TRACE_KERNEL, 0},
    {"cuLaunchCooperativeKernelMultiDevice", NULL, several_devices, TRACE_KERNEL, 0},
    {"cuLaunch", NULL, oldest, TRACE_KERNEL, 0},
    {"cuLaunchGrid", NULL, oldest_grid, TRACE_KERNEL, 0},
    {"cuLaunchGridAsync", NULL, oldest_async, TRACE_KERNEL, 0},
    {"cuGraphLaunch", "_ptsz", graph, TRACE_KERNEL, NEEDS_GRAPH},
    {"cuMemcpy", "_ptds", any_copy, TRACE_DESTINATION, 0},
    {"cuMemcpyPeer", "_ptds", peer, TRACE_WATCHED, 0},
    {"cuMemcpyHtoD_v2", "_ptds", to_device, TRACE_WATCHED, 0},
    {"cuMemcpyDtoH_v2", "_ptds", to_host, TRACE_DESTINATION, 0},
    {"cuMemcpyDtoD_v2", "_ptds", on_device, TRACE_WATCHED, 0},
    {"cuMemcpyAtoD_v2", "_ptds", array_to_device, TRACE_WATCHED, NEEDS_ARRAY},
    {"cuMemcpyAtoH_v2", "_ptds", array_to_host, TRACE_DESTINATION, NEEDS_ARRAY},
    {"cuMemcpy2D_v2", "_ptds", plane, TRACE_DESTINATION, 0},
    {"cuMemcpy2DUnaligned_v2", "_ptds", plane, TRACE_DESTINATION, 0},
    {"cuMemcpy3D_v2", "_ptds", volume, TRACE_DESTINATION, 0},
    {"cuMemcpy3DPeer", "_ptds", volume_peer, TRACE_WATCHED, 0},
    {"cuMemcpyAsync", "_ptsz", any_copy_async, TRACE_DESTINATION, 0},
    {"cuMemcpyPeerAsync", "_ptsz", peer_async, TRACE_WATCHED, 0},
    {"cuMemcpyHtoDAsync_v2", "_ptsz", to_device_async, TRACE_WATCHED, 0},
    {"cuMemcpyDtoHAsync_v2", "_ptsz", to_host_async, TRACE_DESTINATION, 0},
    {"cuMemcpyDtoDAsync_v2", "_ptsz", on_device_async, TRACE_WATCHED, 0},
    {"cuMemcpyAtoHAsync_v2", "_ptsz", array_to_host_async, TRACE_DESTINATION, NEEDS_ARRAY},
    {"cuMemcpy2DAsync_v2", "_ptsz", plane_async, TRACE_DESTINATION, 0},
    {"cuMemcpy3DAsync_v2", "_ptsz", volume_async, TRACE_DESTINATION, 0},
    {"cuMemcpy3DPeerAsync", "_ptsz", volume_peer_async, TRACE_WATCHED, 0},
    {"cuMemcpyBatchAsync", "_ptsz", batch, TRACE_DESTINATION, 0},
    {"cuMemcpyBatchAsync_v2", "_ptsz", batch_v2, TRACE_DESTINATION, 0},
    {"cuMemsetD8_v2", "_ptds", set8, TRACE_DESTINATION, 0},
    {"cuMemsetD16_v2", "_ptds", set16, TRACE_DESTINATION, 0},
    {"cuMemsetD32_v2", "_ptds", set32, TRACE_DESTINATION, 0},
    {"cuMemsetD2D8_v2", "_ptds", set8_plane, TRACE_DESTINATION, 0},
    {"cuMemsetD2D16_v2", "_ptds", set16_plane, TRACE_DESTINATION, 0},
    {"cuMemsetD2D32_v2", "_ptds", set32_plane, TRACE_DESTINATION, 0},
    {"cuMemsetD8Async", "_ptsz", set8_async, TRACE_DESTINATION, 0},
    {"cuMemsetD16Async", "_ptsz", set16_async, TRACE_DESTINATION, 0},
    {"cuMemsetD32Async", "_ptsz", set32_async, TRACE_DESTINATION, 0},
    {"cuMemsetD2D8Async", "_ptsz", set8_plane_async, TRACE_DESTINATION, 0},
    {"cuMemsetD2D16Async", "_ptsz", set16_plane_async, TRACE_DESTINATION, 0},
    {"cuMemsetD2D32Async", "_ptsz", set32_plane_async, TRACE_DESTINATION, 0},
    {"cuStreamWriteValue32", "_ptsz", write32, TRACE_DESTINATION, 0},
    {"cuStreamWriteValue32_v2", "_ptsz", write32, TRACE_DESTINATION, 0},
    {"cuStreamWriteValue64", "_ptsz", write64, TRACE_DESTINATION, 0},
    {"cuStreamWriteValue64_v2", "_ptsz", write64, TRACE_DESTINATION, 0},
    {"cuStreamBatchMemOp", "_ptsz", write_batch, TRACE_DESTINATION, 0},
    {"cuStreamBatchMemOp_v2", "_ptsz", write_batch, TRACE_DESTINATION, 0},
    {NULL, NULL, NULL, 0, 0},
};
