/* api_memory.c - allocation, registration and pointer attributes. */
#include <string.h>
#include "capture.h"
#include "handles.h"
#include "memory.h"
#include "pool.h"

#define PITCH 512

static CUresult allocate(CUdeviceptr *pointer, size_t bytes, unsigned kind) {
    CUcontext context;
    CUresult result = context_required(&context);
    if (!result)
        result = capture_unsafe();
    return result ? result : memory_allocate(pointer, bytes, context, kind);
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    return allocate(pointer, bytes, MEMORY_DEVICE);
}

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height,
                                   unsigned element) {
    if (!pitch || (element != 4 && element != 8 && element != 16))
        return CUDA_ERROR_INVALID_VALUE;
    size_t row = (width + PITCH - 1) / PITCH * PITCH;
    CUresult result = allocate(pointer, row * height, MEMORY_DEVICE);
    if (!result)
        *pitch = row;
    return result;
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags) {
    if (flags != 1 && flags != 2)
        return CUDA_ERROR_INVALID_VALUE;
    return allocate(pointer, bytes, MEMORY_MANAGED);
}

/* As with the real driver the memory's users on the device are waited for. */
EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer) {
    CUresult ready = driver_ready();
    struct allocation a;
    if (ready || !pointer)
        return ready;
    if (!memory_find(pointer, &a) || a.base != pointer)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = capture_unsafe();
    if (!result && a.context->alive)
        result = context_finish(a.context);
    return result ? result : memory_free(pointer, MEMORY_DEVICE | MEMORY_MANAGED);
}

static CUresult sim_cuMemAllocAsync(bool per_thread, CUdeviceptr *pointer, size_t bytes,
                                    CUstream stream) {
    struct stream_ref ref;
    CUresult result = stream_resolve(stream, per_thread, &ref);
    if (!result)
        result = capture_refuse(&ref); /* nodes that allocate are not simulated */
    if (result)
        return result;
    CUmemoryPool pool = pool_of_device(ref.context->device);
    return pool ? memory_allocate_from(pool, pointer, bytes, ref.context)
                : CUDA_ERROR_OUT_OF_MEMORY;
}
BOTH(cuMemAllocAsync, _ptsz, (CUdeviceptr * pointer, size_t bytes, CUstream stream),
     (pointer, bytes, stream))

static CUresult sim_cuMemAllocFromPoolAsync(bool per_thread, CUdeviceptr *pointer, size_t bytes,
                                            CUmemoryPool pool, CUstream stream) {
    struct stream_ref ref;
    CUresult result = stream_resolve(stream, per_thread, &ref);
    if (!result)
        result = pool_check(pool);
    if (!result)
        result = capture_refuse(&ref);
    return result ? result : memory_allocate_from(pool, pointer, bytes, ref.context);
}
BOTH(cuMemAllocFromPoolAsync, _ptsz,
     (CUdeviceptr * pointer, size_t bytes, CUmemoryPool pool, CUstream stream),
     (pointer, bytes, pool, stream))

static CUresult sim_cuMemFreeAsync(bool per_thread, CUdeviceptr pointer, CUstream stream) {
    struct stream_ref ref;
    struct allocation a;
    CUresult result = stream_resolve(stream, per_thread, &ref);
    if (result)
        return result;
    if (!memory_find(pointer, &a) || a.base != pointer || a.kind != MEMORY_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    result = capture_refuse(&ref);
    struct sim_op op = {.kind = SIM_RECORD, .flags = SIM_EFFECT, .c = pointer};
    return result ? result : stream_enqueue(&ref, &op, NULL);
}
BOTH(cuMemFreeAsync, _ptsz, (CUdeviceptr pointer, CUstream stream), (pointer, stream))

static CUresult allocate_host(void **pointer, size_t bytes) {
    CUdeviceptr at;
    if (!pointer)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = allocate(&at, bytes, MEMORY_HOST);
    if (!result)
        *pointer = (void *)(uintptr_t)at;
    return result;
}

EXPORT CUresult cuMemAllocHost_v2(void **pointer, size_t bytes) {
    return allocate_host(pointer, bytes);
}
EXPORT CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags) {
    return flags & ~7u ? CUDA_ERROR_INVALID_VALUE : allocate_host(pointer, bytes);
}
EXPORT CUresult cuMemFreeHost(void *pointer) {
    CUresult ready = driver_ready();
    return ready || !pointer ? ready : memory_free((uintptr_t)pointer, MEMORY_HOST);
}

EXPORT CUresult cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned flags) {
    CUcontext context;
    CUresult result = context_required(&context);
    if (!result)
        result = capture_unsafe();
    return result ? result : memory_register(pointer, bytes, flags, context);
}
EXPORT CUresult cuMemHostUnregister(void *pointer) {
    CUresult ready = driver_ready();
    if (ready)
        return ready;
    return memory_free((uintptr_t)pointer, MEMORY_REGISTERED)
               ? CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED
               : CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *host, unsigned flags) {
    CUresult ready = driver_ready();
    struct allocation a;
    if (ready)
        return ready;
    if (!device || flags || !memory_find((uintptr_t)host, &a) ||
        !(a.kind & (MEMORY_HOST | MEMORY_REGISTERED)))
        return CUDA_ERROR_INVALID_VALUE;
    *device = (uintptr_t)host;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostGetFlags(unsigned *flags, void *host) {
    struct allocation a;
    if (!flags || !memory_find((uintptr_t)host, &a) || a.kind != MEMORY_HOST)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = 2; /* device map */
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    CUcontext context;
    CUresult result = context_required(&context);
    if (result)
        return result;
    world_lock();
    uint64_t used = gpu_memory_used(context->gpu);
    world_unlock();
    if (free_bytes)
        *free_bytes = world->memory_bytes - used;
    if (total)
        *total = world->memory_bytes;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr pointer) {
    struct allocation a;
    if (!memory_find(pointer, &a))
        return CUDA_ERROR_NOT_FOUND;
    if (base)
        *base = a.base;
    if (bytes)
        *bytes = a.bytes;
    return CUDA_SUCCESS;
}

/* Attribute numbers are the driver API's; each writes the type that the API states. */
static CUresult attribute(void *data, int which, CUdeviceptr pointer, const struct allocation *a) {
    bool host = a->kind & (MEMORY_HOST | MEMORY_REGISTERED);
    bool managed = a->kind == MEMORY_MANAGED;
    switch (which) {
    case 1: /* context */
        *(CUcontext *)data = a->context;
        return CUDA_SUCCESS;
    case 2: /* memory type */
        *(unsigned *)data = host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        return CUDA_SUCCESS;
    case 3: /* device pointer */
        *(CUdeviceptr *)data = pointer;
        return CUDA_SUCCESS;
    case 4: /* host pointer */
        if (!host && !managed)
            return CUDA_ERROR_INVALID_VALUE;
        *(void **)data = (void *)(uintptr_t)pointer;
        return CUDA_SUCCESS;
    case 7:  /* buffer id */
    case 20: /* block id */
        *(unsigned long long *)data = a->id;
        return CUDA_SUCCESS;
    case 8: /* is managed: the API states unsigned */
        *(unsigned *)data = managed;
        return CUDA_SUCCESS;
    case 9: /* device ordinal */
        *(int *)data = a->context->device;
        return CUDA_SUCCESS;
    case 11: /* range */
    case 19:
        *(CUdeviceptr *)data = a->base;
        return CUDA_SUCCESS;
    case 12:
    case 18:
        *(size_t *)data = a->bytes;
        return CUDA_SUCCESS;
    case 13: /* mapped */
        *(int *)data = 1;
        return CUDA_SUCCESS;
    case 16: /* access */
        *(int *)data = a->read_only ? 1 : 3;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

EXPORT CUresult cuPointerGetAttribute(void *data, int which, CUdeviceptr pointer) {
    CUresult ready = driver_ready();
    struct allocation a;
    if (ready)
        return ready;
    if (!data || !memory_find(pointer, &a))
        return CUDA_ERROR_INVALID_VALUE;
    return attribute(data, which, pointer, &a);
}

/* Of memory that is not the driver's, all attributes read as zero, without an error. */
EXPORT CUresult cuPointerGetAttributes(unsigned count, const int *which, void **data,
                                       CUdeviceptr pointer) {
    CUresult ready = driver_ready();
    struct allocation a;
    if (ready)
        return ready;
    bool known = memory_find(pointer, &a);
    for (unsigned i = 0; i < count; i++) {
        bool wide =
            which[i] != 2 && which[i] != 8 && which[i] != 9 && which[i] != 13 && which[i] != 16;
        memset(data[i], 0, wide ? 8 : 4);
        if (which[i] == 9 && !known)
            *(int *)data[i] = -2;
        if (known)
            attribute(data[i], which[i], pointer, &a);
    }
    return CUDA_SUCCESS;
}
