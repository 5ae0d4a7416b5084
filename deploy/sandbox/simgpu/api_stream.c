/* api_stream.c - streams: making, asking and waiting. */
#include <stdlib.h>
#include "capture.h"
#include "handles.h"
#include "pool.h"

static CUresult create(CUstream *stream, unsigned flags, int priority) {
    CUcontext context;
    CUresult result = context_required(&context);
    if (result)
        return result;
    if (!stream || flags & ~(unsigned)CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    return stream_make(context, flags, priority, stream);
}

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
    return create(stream, flags, 0);
}

EXPORT CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
    /* What is out of range is taken as the nearest that is not. */
    return create(stream, flags, priority > 0 ? 0 : priority < -5 ? -5 : priority);
}

EXPORT CUresult cuStreamDestroy_v2(CUstream stream) {
    struct stream_ref ref;
    if (stream <= CU_STREAM_PER_THREAD)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = stream_resolve(stream, false, &ref);
    if (!result)
        stream_close(stream);
    return result;
}

static CUresult sim_cuStreamSynchronize(bool per_thread, CUstream stream) {
    struct stream_ref ref;
    CUresult result = stream_resolve(stream, per_thread, &ref);
    if (!result)
        result = capture_refuse_wait(&ref);
    if (!result)
        result = stream_finish(&ref);
    pools_release();
    return result;
}
BOTH(cuStreamSynchronize, _ptsz, (CUstream stream), (stream))

static CUresult sim_cuStreamQuery(bool per_thread, CUstream stream) {
    struct stream_ref ref;
    CUresult result = stream_resolve(stream, per_thread, &ref);
    if (!result)
        result = capture_refuse_wait(&ref);
    if (result)
        return result;
    world_lock();
    uint64_t tail = world->streams[ref.slot].tail;
    world_unlock();
    if (tail && !engine_done(&ref, tail - 1))
        return CUDA_ERROR_NOT_READY;
    return context_usable(ref.context);
}
BOTH(cuStreamQuery, _ptsz, (CUstream stream), (stream))

static CUresult sim_cuStreamGetId(bool per_thread, CUstream stream, unsigned long long *id) {
    struct stream_ref ref;
    CUresult result = stream_resolve(stream, per_thread, &ref);
    if (result || !id)
        return result ? result : CUDA_ERROR_INVALID_VALUE;
    *id = world->streams[ref.slot].id;
    return CUDA_SUCCESS;
}
BOTH(cuStreamGetId, _ptsz, (CUstream stream, unsigned long long *id), (stream, id))

static CUresult sim_cuStreamGetCtx(bool per_thread, CUstream stream, CUcontext *context) {
    struct stream_ref ref;
    CUresult result = stream_resolve(stream, per_thread, &ref);
    if (result || !context)
        return result ? result : CUDA_ERROR_INVALID_VALUE;
    *context = ref.context;
    return CUDA_SUCCESS;
}
BOTH(cuStreamGetCtx, _ptsz, (CUstream stream, CUcontext *context), (stream, context))

static CUresult sim_cuStreamGetCtx_v2(bool per_thread, CUstream stream, CUcontext *context,
                                      void **green) {
    if (green)
        *green = NULL; /* no green contexts here */
    return sim_cuStreamGetCtx(per_thread, stream, context);
}
BOTH(cuStreamGetCtx_v2, _ptsz, (CUstream stream, CUcontext *context, void **green),
     (stream, context, green))

static CUresult sim_cuStreamGetDevice(bool per_thread, CUstream stream, CUdevice *device) {
    struct stream_ref ref;
    CUresult result = stream_resolve(stream, per_thread, &ref);
    if (result || !device)
        return result ? result : CUDA_ERROR_INVALID_VALUE;
    *device = ref.context->device;
    return CUDA_SUCCESS;
}
BOTH(cuStreamGetDevice, _ptsz, (CUstream stream, CUdevice *device), (stream, device))

static CUresult sim_cuStreamGetFlags(bool per_thread, CUstream stream, unsigned *flags) {
    struct stream_ref ref;
    CUresult result = stream_resolve(stream, per_thread, &ref);
    if (result || !flags)
        return result ? result : CUDA_ERROR_INVALID_VALUE;
    *flags = stream > CU_STREAM_PER_THREAD ? stream->flags : CU_STREAM_DEFAULT;
    return CUDA_SUCCESS;
}
BOTH(cuStreamGetFlags, _ptsz, (CUstream stream, unsigned *flags), (stream, flags))

static CUresult sim_cuStreamGetPriority(bool per_thread, CUstream stream, int *priority) {
    struct stream_ref ref;
    CUresult result = stream_resolve(stream, per_thread, &ref);
    if (result || !priority)
        return result ? result : CUDA_ERROR_INVALID_VALUE;
    *priority = stream > CU_STREAM_PER_THREAD ? stream->priority : 0;
    return CUDA_SUCCESS;
}
BOTH(cuStreamGetPriority, _ptsz, (CUstream stream, int *priority), (stream, priority))

/* The wait ends when the record that the event stands for at this moment is reached. */
static CUresult sim_cuStreamWaitEvent(bool per_thread, CUstream stream, CUevent event,
                                      unsigned flags) {
    struct stream_ref ref;
    CUresult result = stream_resolve(stream, per_thread, &ref);
    if (result)
        return result;
    if (!event || event->magic != EVENT_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    if (flags > 1)
        return CUDA_ERROR_INVALID_VALUE;
    bool taken;
    result = capture_wait(&ref, event, &taken);
    if (result || taken || !event->record)
        return result;
    struct sim_op op = {
        .kind = SIM_WAIT_EVENT, .a = event->slot, .b = event->generation, .c = event->position};
    return stream_enqueue(&ref, &op, NULL);
}
BOTH(cuStreamWaitEvent, _ptsz, (CUstream stream, CUevent event, unsigned flags),
     (stream, event, flags))
