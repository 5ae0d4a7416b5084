/* hook_object.c - lives of contexts, streams and modules: what is followed by handle must be
 * forgotten with it, since the driver uses handles again. */
#include "hooks.h"

#define HOOK(symbol, parameters)                                                                   \
    HOOK_EXPORT CUresult symbol parameters;                                                        \
    HOOK_EXPORT CUresult symbol parameters
#define REAL(symbol, parameters) ((CUresult(*) parameters)hook_real(HOOK_##symbol))

enum { DEVICES_MOST = 64 };
/* The primary context of each device, as the program learned it from the driver. */
static _Atomic(CUcontext) primary[DEVICES_MOST];

HOOK(cuInit, (unsigned flags)) {
    CUresult (*real)(unsigned) = REAL(cuInit, (unsigned));
    if (!real)
        return hook_missing();
    const struct shim_role_ops *role = hook_enter(); /* decides the role */
    CUresult result = real(flags);
    hook_leave(role);
    return result;
}

static void created(const struct shim_role_ops *role, const CUcontext *made, CUresult result) {
    if (role && result == CUDA_SUCCESS && role->context_created)
        role->context_created(*made);
}

static bool fits(const struct shim_role_ops *role, CUdevice device) {
    return !role || !role->context_fits || role->context_fits(device);
}

/* Making a context is an operation too: it uploads, and can stop the GPU. */
#define CREATE_HOOK(symbol, parameters, arguments)                                                 \
    HOOK(symbol, parameters) {                                                                     \
        CUresult(*real) parameters = REAL(symbol, parameters);                                     \
        if (!real)                                                                                 \
            return hook_missing();                                                                 \
        struct shim_op op = {.kind = SHIM_OP_SETUP, .device = device};                             \
        const struct shim_role_ops *role = hook_before(&op, false);                                \
        CUresult result = CUDA_ERROR_OUT_OF_MEMORY;                                                \
        unsigned tries = 0;                                                                        \
        if (fits(role, device))                                                                    \
            do                                                                                     \
                result = real arguments;                                                           \
            while (hook_again(role, result, device, 0, &tries));                                   \
        created(role, context, result);                                                            \
        hook_after(role, &op, result);                                                             \
        return result;                                                                             \
    }
CREATE_HOOK(cuCtxCreate, (CUcontext * context, unsigned flags, CUdevice device),
            (context, flags, device))
CREATE_HOOK(cuCtxCreate_v2, (CUcontext * context, unsigned flags, CUdevice device),
            (context, flags, device))
CREATE_HOOK(cuCtxCreate_v3,
            (CUcontext * context, void *affinity, int count, unsigned flags, CUdevice device),
            (context, affinity, count, flags, device))
CREATE_HOOK(cuCtxCreate_v4,
            (CUcontext * context, void *parameters, unsigned flags, CUdevice device),
            (context, parameters, flags, device))

HOOK(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device)) {
    CUresult (*real)(CUcontext *, CUdevice) =
        REAL(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice));
    if (!real)
        return hook_missing();
    struct shim_op op = {.kind = SHIM_OP_SETUP, .device = device};
    const struct shim_role_ops *role = hook_before(&op, false);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    unsigned tries = 0;
    if (fits(role, device))
        do
            result = real(context, device);
        while (hook_again(role, result, device, 0, &tries));
    if (result == CUDA_SUCCESS && device >= 0 && device < DEVICES_MOST)
        atomic_store(&primary[device], *context);
    created(role, context, result);
    hook_after(role, &op, result);
    return result;
}

static bool primary_active(CUdevice device) {
    CUresult (*state)(CUdevice, unsigned *, int *) =
        (CUresult(*)(CUdevice, unsigned *, int *))real_symbol("cuDevicePrimaryCtxGetState");
    unsigned flags = 0;
    int active = 0;
    return state && state(device, &flags, &active) == CUDA_SUCCESS && active;
}

/* A release ends the context when it is the last, a reset always. */
#define PRIMARY_HOOK(symbol, ends)                                                                 \
    HOOK(symbol, (CUdevice device)) {                                                              \
        CUresult (*real)(CUdevice) = REAL(symbol, (CUdevice));                                     \
        if (!real)                                                                                 \
            return hook_missing();                                                                 \
        const struct shim_role_ops *role = hook_enter();                                           \
        CUcontext context =                                                                        \
            device >= 0 && device < DEVICES_MOST ? atomic_load(&primary[device]) : NULL;           \
        if (role && context && role->context_destroying)                                           \
            role->context_destroying(context);                                                     \
        CUresult result = real(device);                                                            \
        if (role && context && role->context_destroyed)                                            \
            role->context_destroyed(context,                                                       \
                                    result == CUDA_SUCCESS && (ends || !primary_active(device)));  \
        hook_leave(role);                                                                          \
        return result;                                                                             \
    }
PRIMARY_HOOK(cuDevicePrimaryCtxRelease, false)
PRIMARY_HOOK(cuDevicePrimaryCtxRelease_v2, false)
PRIMARY_HOOK(cuDevicePrimaryCtxReset, true)
PRIMARY_HOOK(cuDevicePrimaryCtxReset_v2, true)

#define DESTROY_HOOK(symbol, type, context_of)                                                     \
    HOOK(symbol, (type handle)) {                                                                  \
        CUresult (*real)(type) = REAL(symbol, (type));                                             \
        if (!real)                                                                                 \
            return hook_missing();                                                                 \
        const struct shim_role_ops *role = hook_enter();                                           \
        CUcontext context = role ? context_of : NULL;                                              \
        if (context && role->context_destroying)                                                   \
            role->context_destroying(context);                                                     \
        CUresult result = real(handle);                                                            \
        if (context && role->context_destroyed)                                                    \
            role->context_destroyed(context, result == CUDA_SUCCESS);                              \
        hook_leave(role);                                                                          \
        return result;                                                                             \
    }

static CUcontext context_of_green(CUgreenCtx green) {
    CUresult (*convert)(CUcontext *, CUgreenCtx) =
        (CUresult(*)(CUcontext *, CUgreenCtx))real_symbol("cuCtxFromGreenCtx");
    CUcontext context = NULL;
    return convert && convert(&context, green) == CUDA_SUCCESS ? context : NULL;
}

DESTROY_HOOK(cuCtxDestroy, CUcontext, handle)
DESTROY_HOOK(cuCtxDestroy_v2, CUcontext, handle)
DESTROY_HOOK(cuCtxDetach, CUcontext, handle)
DESTROY_HOOK(cuGreenCtxDestroy, CUgreenCtx, context_of_green(handle))

#define STREAM_HOOK(symbol, parameters, arguments)                                                 \
    HOOK(symbol, parameters) {                                                                     \
        CUresult(*real) parameters = REAL(symbol, parameters);                                     \
        if (!real)                                                                                 \
            return hook_missing();                                                                 \
        const struct shim_role_ops *role = hook_enter();                                           \
        CUresult result = real arguments;                                                          \
        if (role && result == CUDA_SUCCESS && role->stream_created)                                \
            role->stream_created(*stream, flags);                                                  \
        hook_leave(role);                                                                          \
        return result;                                                                             \
    }
STREAM_HOOK(cuStreamCreate, (CUstream * stream, unsigned flags), (stream, flags))
STREAM_HOOK(cuStreamCreateWithPriority, (CUstream * stream, unsigned flags, int priority),
            (stream, flags, priority))
STREAM_HOOK(cuGreenCtxStreamCreate,
            (CUstream * stream, CUgreenCtx context, unsigned flags, int priority),
            (stream, context, flags, priority))

#define STREAM_DESTROY_HOOK(symbol)                                                                \
    HOOK(symbol, (CUstream stream)) {                                                              \
        CUresult (*real)(CUstream) = REAL(symbol, (CUstream));                                     \
        if (!real)                                                                                 \
            return hook_missing();                                                                 \
        const struct shim_role_ops *role = hook_enter();                                           \
        if (role)                                                                                  \
            hook_capture_forget(stream);                                                           \
        if (role && role->stream_destroying)                                                       \
            role->stream_destroying(stream);                                                       \
        CUresult result = real(stream);                                                            \
        hook_leave(role);                                                                          \
        return result;                                                                             \
    }
STREAM_DESTROY_HOOK(cuStreamDestroy)
STREAM_DESTROY_HOOK(cuStreamDestroy_v2)

#define UNLOAD_HOOK(symbol, type, module)                                                          \
    HOOK(symbol, (type handle)) {                                                                  \
        CUresult (*real)(type) = REAL(symbol, (type));                                             \
        if (!real)                                                                                 \
            return hook_missing();                                                                 \
        const struct shim_role_ops *role = hook_enter();                                           \
        if (role && role->module_unloading)                                                        \
            role->module_unloading(module);                                                        \
        CUresult result = real(handle);                                                            \
        hook_leave(role);                                                                          \
        return result;                                                                             \
    }
UNLOAD_HOOK(cuModuleUnload, CUmodule, handle)
UNLOAD_HOOK(cuLibraryUnload, CUlibrary, NULL)
