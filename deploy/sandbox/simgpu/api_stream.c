/* api_stream.c - streams: making, asking and waiting. Nothing is ever captured here: graphs are
 * not simulated. */
#include <stdlib.h>
#include "handles.h"

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
    return create(stream, flags, priority);
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
    return result ? result : stream_finish(&ref);
}
BOTH(cuStreamSynchronize, _ptsz, (CUstream stream), (stream))

static CUresult sim_cuStreamQuery(bool per_thread, CUstream stream) {
    struct stream_ref ref;
    CUresult result = stream_resolve(stream, per_thread, &ref);
    if (result)
        return result;
    world_lock();
    uint64_t tail = world->streams[ref.slot].tail;
    world_unlock();
    return !tail || engine_done(&ref, tail - 1) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
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

static CUresult sim_cuStreamIsCapturing(bool per_thread, CUstream stream, int *status) {
    struct stream_ref ref;
    CUresult result = stream_resolve(stream, per_thread, &ref);
    if (result || !status)
        return result ? result : CUDA_ERROR_INVALID_VALUE;
    *status = 0;
    return CUDA_SUCCESS;
}
BOTH(cuStreamIsCapturing, _ptsz, (CUstream stream, int *status), (stream, status))

static CUresult sim_cuStreamGetCaptureInfo_v2(bool per_thread, CUstream stream, int *status,
                                              uint64_t *id, void **graph, const void **nodes,
                                              size_t *count) {
    CUresult result = sim_cuStreamIsCapturing(per_thread, stream, status);
    if (id)
        *id = 0;
    if (graph)
        *graph = NULL;
    if (nodes)
        *nodes = NULL;
    if (count)
        *count = 0;
    return result;
}
BOTH(cuStreamGetCaptureInfo_v2, _ptsz,
     (CUstream stream, int *status, uint64_t *id, void **graph, const void **nodes, size_t *count),
     (stream, status, id, graph, nodes, count))

static CUresult sim_cuStreamGetCaptureInfo_v3(bool per_thread, CUstream stream, int *status,
                                              uint64_t *id, void **graph, const void **nodes,
                                              const void **edges, size_t *count) {
    if (edges)
        *edges = NULL;
    return sim_cuStreamGetCaptureInfo_v2(per_thread, stream, status, id, graph, nodes, count);
}
BOTH(cuStreamGetCaptureInfo_v3, _ptsz,
     (CUstream stream, int *status, uint64_t *id, void **graph, const void **nodes,
      const void **edges, size_t *count),
     (stream, status, id, graph, nodes, edges, count))

static CUresult sim_cuStreamBeginCapture_v2(bool per_thread, CUstream stream, int mode) {
    struct stream_ref ref;
    (void)mode;
    CUresult result = stream_resolve(stream, per_thread, &ref);
    return result ? result : CUDA_ERROR_NOT_SUPPORTED;
}
BOTH(cuStreamBeginCapture_v2, _ptsz, (CUstream stream, int mode), (stream, mode))

static CUresult sim_cuStreamEndCapture(bool per_thread, CUstream stream, void **graph) {
    struct stream_ref ref;
    CUresult result = stream_resolve(stream, per_thread, &ref);
    if (graph)
        *graph = NULL;
    return result ? result : CUDA_ERROR_NOT_SUPPORTED;
}
BOTH(cuStreamEndCapture, _ptsz, (CUstream stream, void **graph), (stream, graph))

EXPORT CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
    static __thread int current; /* global, as a new thread's is */
    if (!mode || *mode < 0 || *mode > 2)
        return CUDA_ERROR_INVALID_VALUE;
    int before = current;
    current = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

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
    if (!event->record)
        return CUDA_SUCCESS;
    struct sim_op op = {
        .kind = SIM_WAIT_EVENT, .a = event->slot, .b = event->generation, .c = event->position};
    return stream_issue(&ref, &op, NULL);
}
BOTH(cuStreamWaitEvent, _ptsz, (CUstream stream, CUevent event, unsigned flags),
     (stream, event, flags))
