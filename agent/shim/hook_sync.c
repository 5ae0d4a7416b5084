/* hook_sync.c - calls that block the host until the GPU has done something, and polls for it. */
#include "hooks.h"

#define HOOK(symbol, parameters)                                                                   \
    HOOK_EXPORT CUresult symbol parameters;                                                        \
    HOOK_EXPORT CUresult symbol parameters
#define REAL(symbol, parameters) ((CUresult(*) parameters)hook_real(HOOK_##symbol))

/* The frame of a blocking call: `call` is an expression over `real`. */
#define BLOCKING_HOOK(symbol, parameters, scope, stream_of, call)                                  \
    HOOK(symbol, parameters) {                                                                     \
        CUresult(*real) parameters = REAL(symbol, parameters);                                     \
        if (!real)                                                                                 \
            return hook_missing();                                                                 \
        const struct shim_role_ops *role = hook_enter();                                           \
        if (role && role->block_begin)                                                             \
            role->block_begin(stream_of, scope);                                                   \
        CUresult result = call;                                                                    \
        if (role && role->block_end)                                                               \
            role->block_end(stream_of, scope, result);                                             \
        hook_leave(role);                                                                          \
        return result;                                                                             \
    }
BLOCKING_HOOK(cuStreamSynchronize, (CUstream stream), SHIM_BLOCK_STREAM, hook_stream(stream, false),
              real(stream))
BLOCKING_HOOK(cuStreamSynchronize_ptsz, (CUstream stream), SHIM_BLOCK_STREAM,
              hook_stream(stream, true), real(stream))
BLOCKING_HOOK(cuEventSynchronize, (CUevent event), SHIM_BLOCK_EVENT, NULL, real(event))
BLOCKING_HOOK(cuCtxSynchronize, (void), SHIM_BLOCK_CONTEXT, NULL, real())
/* The context that this one names need not be the current one: promise no more than an event. */
BLOCKING_HOOK(cuCtxSynchronize_v2, (CUcontext context), SHIM_BLOCK_EVENT, NULL, real(context))

#define QUERY_HOOK(symbol, parameters, stream_of, call)                                            \
    HOOK(symbol, parameters) {                                                                     \
        CUresult(*real) parameters = REAL(symbol, parameters);                                     \
        if (!real)                                                                                 \
            return hook_missing();                                                                 \
        const struct shim_role_ops *role = hook_enter();                                           \
        CUresult result = call;                                                                    \
        if (role && role->block_begin && result == CUDA_ERROR_NOT_READY)                           \
            role->block_begin(stream_of, SHIM_BLOCK_QUERY);                                        \
        hook_leave(role);                                                                          \
        return result;                                                                             \
    }
QUERY_HOOK(cuStreamQuery, (CUstream stream), hook_stream(stream, false), real(stream))
QUERY_HOOK(cuStreamQuery_ptsz, (CUstream stream), hook_stream(stream, true), real(stream))
QUERY_HOOK(cuEventQuery, (CUevent event), NULL, real(event))
