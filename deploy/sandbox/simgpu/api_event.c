/* api_event.c - events. */
#include <stdlib.h>
#include "capture.h"
#include "handles.h"
#include "pool.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUevent unused;

EXPORT CUresult cuEventCreate(CUevent *event, unsigned flags) {
    CUcontext context;
    CUresult result = context_required(&context);
    if (result)
        return result;
    if (!event || flags & ~7u)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    CUevent e = unused;
    if (e)
        unused = e->next_free;
    pthread_mutex_unlock(&lock);
    if (!e && !(e = calloc(1, sizeof *e)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    *e = (struct sim_event_handle){.magic = EVENT_MAGIC, .context = context, .flags = flags};
    *event = e;
    return CUDA_SUCCESS;
}

static bool valid(CUevent event) { return event && event->magic == EVENT_MAGIC; }

EXPORT CUresult cuEventDestroy_v2(CUevent event) {
    CUresult ready = driver_ready();
    if (ready)
        return ready;
    if (!valid(event))
        return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&lock);
    event->magic = 0;
    node_list_free(&event->tips);
    event->next_free = unused;
    unused = event;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

static CUresult record(bool per_thread, CUevent event, CUstream stream) {
    static _Atomic uint64_t records; /* never the same twice, whoever gets the handle next */
    struct stream_ref ref;
    CUresult result = stream_resolve(stream, per_thread, &ref);
    if (result)
        return result;
    if (!valid(event) || event->context != ref.context)
        return CUDA_ERROR_INVALID_HANDLE;
    bool taken;
    result = capture_record(&ref, event, &taken);
    if (result || taken)
        return result;
    uint64_t number = ++records;
    struct sim_op op = {.kind = SIM_RECORD, .a = (uintptr_t)event, .b = number};
    event->record = number;
    event->slot = ref.slot;
    event->generation = ref.generation;
    return stream_enqueue(&ref, &op, &event->position);
}

static CUresult sim_cuEventRecord(bool per_thread, CUevent event, CUstream stream) {
    return record(per_thread, event, stream);
}
BOTH(cuEventRecord, _ptsz, (CUevent event, CUstream stream), (event, stream))

static CUresult sim_cuEventRecordWithFlags(bool per_thread, CUevent event, CUstream stream,
                                           unsigned flags) {
    return flags > 1 ? CUDA_ERROR_INVALID_VALUE : record(per_thread, event, stream);
}
BOTH(cuEventRecordWithFlags, _ptsz, (CUevent event, CUstream stream, unsigned flags),
     (event, stream, flags))

static CUresult check(CUevent event) {
    CUresult ready = driver_ready();
    if (ready)
        return ready;
    return valid(event) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuEventQuery(CUevent event) {
    CUresult bad = check(event);
    if (!bad)
        bad = capture_event(event);
    if (bad || !event->record)
        return bad;
    struct stream_ref ref = {event->slot, event->generation, event->context, NULL};
    return engine_done(&ref, event->position) ? context_usable(event->context)
                                              : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuEventSynchronize(CUevent event) {
    CUresult bad = check(event);
    if (!bad)
        bad = capture_event(event);
    if (bad || !event->record)
        return bad;
    struct stream_ref ref = {event->slot, event->generation, event->context, NULL};
    CUresult result = engine_wait(&ref, event->position);
    pools_release();
    return result;
}

static CUresult elapsed(float *milliseconds, CUevent start, CUevent end) {
    CUresult bad = check(start);
    bad = bad ? bad : check(end);
    if (bad)
        return bad;
    if (!milliseconds)
        return CUDA_ERROR_INVALID_VALUE;
    if (!start->record || !end->record || (start->flags | end->flags) & CU_EVENT_DISABLE_TIMING)
        return CUDA_ERROR_INVALID_HANDLE;
    if (cuEventQuery(start) || cuEventQuery(end))
        return CUDA_ERROR_NOT_READY;
    *milliseconds = (float)((double)(int64_t)(end->time_ns - start->time_ns) / 1e6);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    return elapsed(milliseconds, start, end);
}
EXPORT CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end) {
    return elapsed(milliseconds, start, end);
}
