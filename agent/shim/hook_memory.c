/* hook_memory.c - device memory taken and given back, so that a role can keep to a limit. */
#include "hooks.h"

#define HOOK(symbol, parameters)                                                                   \
    HOOK_EXPORT CUresult symbol parameters;                                                        \
    HOOK_EXPORT CUresult symbol parameters
#define REAL(symbol, parameters) ((CUresult(*) parameters)hook_real(HOOK_##symbol))

/* Pointers, arrays and allocation handles are numbers of three kinds that could coincide; the
 * kind goes into the top bits, which no device address uses. */
enum memory_kind { MEMORY_POINTER = 0, MEMORY_ARRAY = 1, MEMORY_PHYSICAL = 2 };

static uint64_t tagged(enum memory_kind kind, uint64_t handle) {
    return (uint64_t)kind << 60 ^ handle;
}

static bool ask(const struct shim_role_ops *role, uint64_t bytes) {
    return !role || !role->memory_ask || role->memory_ask(bytes);
}

static void took(const struct shim_role_ops *role, CUresult result, enum memory_kind kind,
                 uint64_t handle, uint64_t bytes) {
    if (role && role->memory_took && result == CUDA_SUCCESS)
        role->memory_took(tagged(kind, handle), bytes);
    else if (role && role->memory_took)
        role->memory_took(0, 0);
}

/* The frame of a call that takes memory: `made` is what the caller gets, a pointer to a handle. */
#define TAKE_HOOK(symbol, parameters, arguments, kind, made, count)                                \
    HOOK(symbol, parameters) {                                                                     \
        CUresult(*real) parameters = REAL(symbol, parameters);                                     \
        if (!real)                                                                                 \
            return hook_missing();                                                                 \
        const struct shim_role_ops *role = hook_enter();                                           \
        uint64_t wanted = (count);                                                                 \
        CUresult result = CUDA_ERROR_OUT_OF_MEMORY;                                                \
        if (ask(role, wanted)) {                                                                   \
            unsigned tries = 0;                                                                    \
            do                                                                                     \
                result = real arguments;                                                           \
            while (hook_again(role, result, -1, wanted, &tries));                                  \
            took(role, result, kind, result ? 0 : (uint64_t) * (made), wanted);                    \
        }                                                                                          \
        hook_leave(role);                                                                          \
        return result;                                                                             \
    }
TAKE_HOOK(cuMemAlloc, (CUdeviceptr_v1 * at, unsigned bytes), (at, bytes), MEMORY_POINTER, at, bytes)
TAKE_HOOK(cuMemAlloc_v2, (CUdeviceptr * at, size_t bytes), (at, bytes), MEMORY_POINTER, at, bytes)
/* The driver chooses the pitch; rows are at most 512 bytes longer than asked for. */
#define PITCHED(width, height) (((uint64_t)(width) + 511) / 512 * 512 * (height))
TAKE_HOOK(cuMemAllocPitch,
          (CUdeviceptr_v1 * at, unsigned *pitch, unsigned width, unsigned height, unsigned element),
          (at, pitch, width, height, element), MEMORY_POINTER, at, PITCHED(width, height))
TAKE_HOOK(cuMemAllocPitch_v2,
          (CUdeviceptr * at, size_t *pitch, size_t width, size_t height, unsigned element),
          (at, pitch, width, height, element), MEMORY_POINTER, at, PITCHED(width, height))
HOOK(cuMemAllocManaged, (CUdeviceptr * at, size_t bytes, unsigned flags)) {
    CUresult (*real)(CUdeviceptr *, size_t, unsigned) =
        REAL(cuMemAllocManaged, (CUdeviceptr *, size_t, unsigned));
    if (!real)
        return hook_missing();
    const struct shim_role_ops *role = hook_enter();
    CUresult result;
    if (role && role->allows && !role->allows(SHIM_MANAGED_MEMORY)) {
        result = CUDA_ERROR_NOT_SUPPORTED;
    } else if (!ask(role, bytes)) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    } else {
        unsigned tries = 0;
        do
            result = real(at, bytes, flags);
        while (hook_again(role, result, -1, bytes, &tries));
        took(role, result, MEMORY_POINTER, result ? 0 : *at, bytes);
    }
    hook_leave(role);
    return result;
}

/* The first members of the properties of a physical allocation. */
struct allocation_place {
    int allocation_type, handle_types;
    CUmemLocation location;
};
enum { LOCATION_DEVICE = 1 };

#define CREATE_PARAMETERS                                                                          \
    (CUmemGenericAllocationHandle * handle, size_t bytes, const struct allocation_place *place,    \
     unsigned long long flags)
/* Only what lies on a device counts. */
TAKE_HOOK(cuMemCreate, CREATE_PARAMETERS, (handle, bytes, place, flags), MEMORY_PHYSICAL, handle,
          place && place->location.type == LOCATION_DEVICE ? bytes : 0)

/* Bytes of one element, by the code of its format (CUarray_format). */
static uint64_t element_bytes(int format, unsigned channels) {
    switch (format) {
    case 0x01: /* unsigned and signed 8-bit integers */
    case 0x08:
        return channels;
    case 0x02: /* 16-bit integers, half */
    case 0x09:
    case 0x10:
        return 2ull * channels;
    default: /* 32-bit, and packed formats: not more */
        return 4ull * channels;
    }
}

static uint64_t array_bytes(const CUDA_ARRAY_DESCRIPTOR *array) {
    if (!array)
        return 0;
    return array->Width * (array->Height ? array->Height : 1) *
           element_bytes(array->Format, array->NumChannels);
}

static uint64_t volume_bytes(const CUDA_ARRAY3D_DESCRIPTOR *array) {
    if (!array)
        return 0;
    return array->Width * (array->Height ? array->Height : 1) * (array->Depth ? array->Depth : 1) *
           element_bytes(array->Format, array->NumChannels);
}

/* The 32-bit descriptors: the same members, narrower. */
struct array_descriptor_v1 {
    unsigned width, height;
    int format;
    unsigned channels;
};
struct volume_descriptor_v1 {
    unsigned width, height, depth;
    int format;
    unsigned channels, flags;
};

static uint64_t array_bytes_v1(const struct array_descriptor_v1 *array) {
    return array ? array_bytes(&(CUDA_ARRAY_DESCRIPTOR){array->width, array->height, array->format,
                                                        array->channels})
                 : 0;
}

static uint64_t volume_bytes_v1(const struct volume_descriptor_v1 *array) {
    return array ? volume_bytes(&(CUDA_ARRAY3D_DESCRIPTOR){array->width, array->height,
                                                           array->depth, array->format,
                                                           array->channels, array->flags})
                 : 0;
}

TAKE_HOOK(cuArrayCreate, (CUarray * array, const struct array_descriptor_v1 *descriptor),
          (array, descriptor), MEMORY_ARRAY, (uintptr_t *)array, array_bytes_v1(descriptor))
TAKE_HOOK(cuArrayCreate_v2, (CUarray * array, const CUDA_ARRAY_DESCRIPTOR *descriptor),
          (array, descriptor), MEMORY_ARRAY, (uintptr_t *)array, array_bytes(descriptor))
TAKE_HOOK(cuArray3DCreate, (CUarray * array, const struct volume_descriptor_v1 *descriptor),
          (array, descriptor), MEMORY_ARRAY, (uintptr_t *)array, volume_bytes_v1(descriptor))
TAKE_HOOK(cuArray3DCreate_v2, (CUarray * array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor),
          (array, descriptor), MEMORY_ARRAY, (uintptr_t *)array, volume_bytes(descriptor))
/* All levels of a mipmap together take less than twice the first. */
TAKE_HOOK(cuMipmappedArrayCreate,
          (CUmipmappedArray * array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels),
          (array, descriptor, levels), MEMORY_ARRAY, (uintptr_t *)array,
          volume_bytes(descriptor) * (levels > 1 ? 2 : 1))

/* The frame of a call that gives memory back. */
#define FREE_HOOK(symbol, parameters, arguments, kind, handle)                                     \
    HOOK(symbol, parameters) {                                                                     \
        CUresult(*real) parameters = REAL(symbol, parameters);                                     \
        if (!real)                                                                                 \
            return hook_missing();                                                                 \
        const struct shim_role_ops *role = hook_enter();                                           \
        CUresult result = real arguments;                                                          \
        if (role && result == CUDA_SUCCESS && role->memory_freed)                                  \
            role->memory_freed(tagged(kind, (uint64_t)(handle)));                                  \
        hook_leave(role);                                                                          \
        return result;                                                                             \
    }
FREE_HOOK(cuMemFree, (CUdeviceptr_v1 at), (at), MEMORY_POINTER, at)
FREE_HOOK(cuMemFree_v2, (CUdeviceptr at), (at), MEMORY_POINTER, at)
FREE_HOOK(cuMemFreeAsync, (CUdeviceptr at, CUstream stream), (at, stream), MEMORY_POINTER, at)
FREE_HOOK(cuMemFreeAsync_ptsz, (CUdeviceptr at, CUstream stream), (at, stream), MEMORY_POINTER, at)
FREE_HOOK(cuMemRelease, (CUmemGenericAllocationHandle handle), (handle), MEMORY_PHYSICAL, handle)
FREE_HOOK(cuArrayDestroy, (CUarray array), (array), MEMORY_ARRAY, (uintptr_t)array)
FREE_HOOK(cuMipmappedArrayDestroy, (CUmipmappedArray array), (array), MEMORY_ARRAY,
          (uintptr_t)array)

HOOK(cuMemGetInfo_v2, (size_t * free_bytes, size_t *total_bytes)) {
    CUresult (*real)(size_t *, size_t *) = REAL(cuMemGetInfo_v2, (size_t *, size_t *));
    if (!real)
        return hook_missing();
    const struct shim_role_ops *role = hook_enter();
    CUresult result = real(free_bytes, total_bytes);
    if (role && result == CUDA_SUCCESS && role->memory_info && free_bytes && total_bytes)
        role->memory_info(free_bytes, total_bytes);
    hook_leave(role);
    return result;
}

HOOK(cuMemGetInfo, (unsigned *free_bytes, unsigned *total_bytes)) {
    CUresult (*real)(unsigned *, unsigned *) = REAL(cuMemGetInfo, (unsigned *, unsigned *));
    if (!real)
        return hook_missing();
    const struct shim_role_ops *role = hook_enter();
    CUresult result = real(free_bytes, total_bytes);
    if (role && result == CUDA_SUCCESS && role->memory_info && free_bytes && total_bytes) {
        size_t wide_free = *free_bytes, wide_total = *total_bytes;
        role->memory_info(&wide_free, &wide_total);
        *free_bytes = (unsigned)wide_free;
        *total_bytes = (unsigned)wide_total;
    }
    hook_leave(role);
    return result;
}

HOOK(cuDeviceTotalMem_v2, (size_t * bytes, CUdevice device)) {
    CUresult (*real)(size_t *, CUdevice) = REAL(cuDeviceTotalMem_v2, (size_t *, CUdevice));
    if (!real)
        return hook_missing();
    const struct shim_role_ops *role = hook_enter();
    CUresult result = real(bytes, device);
    if (role && result == CUDA_SUCCESS && role->memory_total && bytes)
        role->memory_total(device, bytes);
    hook_leave(role);
    return result;
}

HOOK(cuDeviceTotalMem, (unsigned *bytes, CUdevice device)) {
    CUresult (*real)(unsigned *, CUdevice) = REAL(cuDeviceTotalMem, (unsigned *, CUdevice));
    if (!real)
        return hook_missing();
    const struct shim_role_ops *role = hook_enter();
    CUresult result = real(bytes, device);
    if (role && result == CUDA_SUCCESS && role->memory_total && bytes) {
        size_t wide = *bytes;
        role->memory_total(device, &wide);
        *bytes = (unsigned)wide;
    }
    hook_leave(role);
    return result;
}
