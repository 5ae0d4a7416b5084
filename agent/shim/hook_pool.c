/* hook_pool.c - memory that pools hand out and keep. */
#include "hooks.h"

#define HOOK(symbol, parameters)                                                                   \
    HOOK_EXPORT CUresult symbol parameters;                                                        \
    HOOK_EXPORT CUresult symbol parameters
#define REAL(symbol, parameters) ((CUresult(*) parameters)hook_real(HOOK_##symbol))

enum { LOCATION_DEVICE = 1 };

/* The first members of a pool's properties. */
struct pool_place {
    int allocation_type, handle_types;
    CUmemLocation location;
};

/* What a graph that is being recorded will take counts when it is made ready (graph_memory.c). */
static bool captures(CUstream stream) {
    return atomic_load_explicit(&hook_captures, memory_order_acquire) > 0 && hook_capturing(stream);
}

static bool ask(const struct shim_role_ops *role, struct shim_pool_call *call) {
    return !role || role->pool_ask(call);
}

/* The result that the caller gets; *at is what the driver made. */
static CUresult took(const struct shim_role_ops *role, const struct shim_pool_call *call,
                     CUresult result, const CUdeviceptr *at) {
    bool kept = !role || role->pool_took(call, result == CUDA_SUCCESS ? *at : 0);
    return kept ? result : CUDA_ERROR_OUT_OF_MEMORY;
}

#define POOL_HOOK(symbol, parameters, arguments, from, variant)                                    \
    HOOK(symbol, parameters) {                                                                     \
        CUresult(*real) parameters = REAL(symbol, parameters);                                     \
        if (!real)                                                                                 \
            return hook_missing();                                                                 \
        const struct shim_role_ops *role = hook_enter();                                           \
        struct shim_pool_call call = {                                                             \
            .pool = (from), .stream = hook_stream(stream, variant), .bytes = bytes};               \
        const struct shim_role_ops *counts =                                                       \
            role && role->pool_ask && !captures(call.stream) ? role : NULL;                        \
        CUresult result = CUDA_ERROR_OUT_OF_MEMORY;                                                \
        if (ask(counts, &call)) {                                                                  \
            unsigned tries = 0;                                                                    \
            do                                                                                     \
                result = real arguments;                                                           \
            while (hook_again(role, result, -1, bytes, &tries));                                   \
            result = took(counts, &call, result, at);                                              \
        }                                                                                          \
        hook_leave(role);                                                                          \
        return result;                                                                             \
    }
#define ASYNC_PARAMETERS (CUdeviceptr * at, size_t bytes, CUstream stream)
POOL_HOOK(cuMemAllocAsync, ASYNC_PARAMETERS, (at, bytes, stream), NULL, false)
POOL_HOOK(cuMemAllocAsync_ptsz, ASYNC_PARAMETERS, (at, bytes, stream), NULL, true)
#define POOL_PARAMETERS (CUdeviceptr * at, size_t bytes, CUmemoryPool pool, CUstream stream)
POOL_HOOK(cuMemAllocFromPoolAsync, POOL_PARAMETERS, (at, bytes, pool, stream), pool, false)
POOL_HOOK(cuMemAllocFromPoolAsync_ptsz, POOL_PARAMETERS, (at, bytes, pool, stream), pool, true)

HOOK(cuMemPoolCreate, (CUmemoryPool * pool, const struct pool_place *place)) {
    CUresult (*real)(CUmemoryPool *, const struct pool_place *) =
        REAL(cuMemPoolCreate, (CUmemoryPool *, const struct pool_place *));
    if (!real)
        return hook_missing();
    const struct shim_role_ops *role = hook_enter();
    CUresult result = real(pool, place);
    if (role && role->pool_made && result == CUDA_SUCCESS) {
        bool on_host = place->location.type != LOCATION_DEVICE;
        role->pool_made(*pool, on_host ? 0 : place->location.id, on_host);
    }
    hook_leave(role);
    return result;
}

HOOK(cuMemPoolDestroy, (CUmemoryPool pool)) {
    CUresult (*real)(CUmemoryPool) = REAL(cuMemPoolDestroy, (CUmemoryPool));
    if (!real)
        return hook_missing();
    const struct shim_role_ops *role = hook_enter();
    uint64_t left = role && role->pool_left ? role->pool_left(pool) : 0;
    CUresult result = real(pool);
    if (role && role->pool_gone && result == CUDA_SUCCESS)
        role->pool_gone(pool, left);
    hook_leave(role);
    return result;
}

HOOK(cuMemPoolTrimTo, (CUmemoryPool pool, size_t least)) {
    CUresult (*real)(CUmemoryPool, size_t) = REAL(cuMemPoolTrimTo, (CUmemoryPool, size_t));
    if (!real)
        return hook_missing();
    const struct shim_role_ops *role = hook_enter();
    CUresult result = real(pool, least);
    if (role && role->pools_changed)
        role->pools_changed();
    hook_leave(role);
    return result;
}
