/* api_context.c - primary contexts, contexts of one's own, and each thread's stack of them. */
#include <string.h>
#include "capture.h"
#include "handles.h"
#include "pool.h"

/* Scheduling, mapping and the later flags: they change nothing here. */
#define CONTEXT_FLAGS 0x1ffu

static struct {
    pthread_mutex_t lock;
    CUcontext context[SIM_GPUS]; /* by ordinal */
    unsigned retained[SIM_GPUS];
    unsigned flags[SIM_GPUS];
} primary = {.lock = PTHREAD_MUTEX_INITIALIZER};

static CUresult check_device(CUdevice device) {
    CUresult ready = driver_ready();
    if (ready)
        return ready;
    return device_valid(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    CUresult result = check_device(device);
    if (result || !context)
        return result ? result : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&primary.lock);
    if (!primary.retained[device])
        result = context_make(device, primary.flags[device], true, &primary.context[device]);
    if (!result) {
        primary.retained[device]++;
        *context = primary.context[device];
    }
    pthread_mutex_unlock(&primary.lock);
    return result;
}

static CUresult give_up_primary(CUdevice device, bool all) {
    CUresult result = check_device(device);
    if (result)
        return result;
    pthread_mutex_lock(&primary.lock);
    if (primary.retained[device]) {
        primary.retained[device] = all ? 0 : primary.retained[device] - 1;
        if (!primary.retained[device])
            context_end(primary.context[device]);
    } else if (!all) {
        result = CUDA_ERROR_INVALID_CONTEXT;
    }
    pthread_mutex_unlock(&primary.lock);
    return result;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    return give_up_primary(device, false);
}
EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
    return give_up_primary(device, false);
}
EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    return give_up_primary(device, true);
}
EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice device) { return give_up_primary(device, true); }

EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
    CUresult result = check_device(device);
    if (!result && flags & ~CONTEXT_FLAGS)
        result = CUDA_ERROR_INVALID_VALUE;
    if (!result)
        primary.flags[device] = flags;
    return result;
}

EXPORT CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags) {
    return cuDevicePrimaryCtxSetFlags_v2(device, flags);
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    CUresult result = check_device(device);
    if (result)
        return result;
    pthread_mutex_lock(&primary.lock);
    if (flags)
        *flags = primary.flags[device];
    if (active)
        *active = primary.retained[device] > 0;
    pthread_mutex_unlock(&primary.lock);
    return CUDA_SUCCESS;
}

static CUresult create(CUcontext *context, unsigned flags, CUdevice device) {
    CUresult result = check_device(device);
    if (!result && !context)
        result = CUDA_ERROR_INVALID_VALUE;
    if (!result)
        result = context_make(device, flags, false, context);
    return result ? result : context_push(*context);
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device) {
    return create(context, flags, device);
}

EXPORT CUresult cuCtxCreate_v3(CUcontext *context, void *affinity, int count, unsigned flags,
                               CUdevice device) {
    return affinity && count ? CUDA_ERROR_NOT_SUPPORTED : create(context, flags, device);
}

EXPORT CUresult cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned flags,
                               CUdevice device) {
    return parameters ? CUDA_ERROR_NOT_SUPPORTED : create(context, flags, device);
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext context) {
    CUresult ready = driver_ready();
    if (ready)
        return ready;
    if (!context || !context->alive || context->primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (context_current() == context)
        context_pop();
    context_end(context);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
    CUresult ready = driver_ready();
    if (ready)
        return ready;
    context_pop();
    return context ? context_push(context) : CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *context) {
    CUresult ready = driver_ready();
    if (ready || !context)
        return ready ? ready : CUDA_ERROR_INVALID_VALUE;
    *context = context_current();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context) {
    CUresult ready = driver_ready();
    if (ready)
        return ready;
    return context && context->alive ? context_push(context) : CUDA_ERROR_INVALID_CONTEXT;
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    CUresult ready = driver_ready();
    if (ready)
        return ready;
    CUcontext top = context_pop();
    if (!top)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (context)
        *context = top;
    return CUDA_SUCCESS;
}

/* NULL: the current context. */
static CUresult given_or_current(CUcontext *context) {
    if (!*context)
        return context_required(context);
    CUresult ready = driver_ready();
    if (ready)
        return ready;
    return context_usable(*context);
}

static CUresult get_device(CUdevice *device, CUcontext context) {
    CUresult result = given_or_current(&context);
    if (result || !device)
        return result ? result : CUDA_ERROR_INVALID_VALUE;
    *device = context->device;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device) { return get_device(device, NULL); }
EXPORT CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context) {
    return get_device(device, context);
}

EXPORT CUresult cuCtxGetId(CUcontext context, unsigned long long *id) {
    CUresult result = given_or_current(&context);
    if (result || !id)
        return result ? result : CUDA_ERROR_INVALID_VALUE;
    *id = context->id;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetFlags(unsigned *flags) {
    CUcontext context = NULL;
    CUresult result = given_or_current(&context);
    if (result || !flags)
        return result ? result : CUDA_ERROR_INVALID_VALUE;
    *flags = context->flags;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetApiVersion(CUcontext context, unsigned *version) {
    CUresult result = given_or_current(&context);
    if (result || !version)
        return result ? result : CUDA_ERROR_INVALID_VALUE;
    *version = 3020;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    CUcontext context = NULL;
    CUresult result = given_or_current(&context);
    if (result)
        return result;
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return CUDA_SUCCESS;
}

static CUresult synchronize(CUcontext context) {
    CUresult result = given_or_current(&context);
    if (!result)
        result = capture_refuse_context(context);
    if (!result)
        result = capture_unsafe();
    if (!result)
        result = context_finish(context);
    pools_release();
    return result;
}

EXPORT CUresult cuCtxSynchronize(void) { return synchronize(NULL); }
EXPORT CUresult cuCtxSynchronize_v2(CUcontext context) { return synchronize(context); }

/* Limits, cache and peer settings change nothing in the simulation. */
EXPORT CUresult cuCtxSetLimit(int limit, size_t value) {
    (void)limit, (void)value;
    return driver_ready();
}
EXPORT CUresult cuCtxGetLimit(size_t *value, int limit) {
    (void)limit;
    CUresult ready = driver_ready();
    if (ready || !value)
        return ready ? ready : CUDA_ERROR_INVALID_VALUE;
    *value = 1024;
    return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
    (void)peer, (void)flags;
    return driver_ready();
}
