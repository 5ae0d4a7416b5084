/* handles.c - from the caller's contexts and streams to those of the simulated machine. */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "capture.h"
#include "handles.h"

#define CONTEXT_CREATION_NS 30000000l /* host time that a context costs */

static __thread struct {
    CUcontext stack[MAX_CONTEXT_STACK];
    unsigned depth;
    struct sim_stream_handle *streams; /* this thread's default stream in each context */
} mine;

CUcontext context_current(void) { return mine.depth ? mine.stack[mine.depth - 1] : NULL; }

/* Once it has faulted nothing but its end is possible. */
CUresult context_usable(CUcontext context) {
    if (!context->alive)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return (CUresult)world->contexts[context->slot].fault;
}

CUresult context_required(CUcontext *context) {
    CUresult ready = driver_ready();
    if (ready)
        return ready;
    *context = context_current();
    if (!*context)
        return CUDA_ERROR_INVALID_CONTEXT;
    return context_usable(*context);
}

CUresult context_push(CUcontext context) {
    if (mine.depth == MAX_CONTEXT_STACK)
        return CUDA_ERROR_INVALID_VALUE;
    mine.stack[mine.depth++] = context;
    return CUDA_SUCCESS;
}

CUcontext context_pop(void) { return mine.depth ? mine.stack[--mine.depth] : NULL; }

void own_stream(uint32_t slot) { engine_track(slot); }

/* Handles of contexts are never given back to the allocator: threads may still hold them. */
CUresult context_make(CUdevice device, unsigned flags, bool primary, CUcontext *context) {
    struct timespec pause = {0, CONTEXT_CREATION_NS};
    uint32_t gpu = device_minor(device);
    CUcontext c = calloc(1, sizeof *c);
    if (!c)
        return CUDA_ERROR_OUT_OF_MEMORY;
    nanosleep(&pause, NULL);
    world_lock();
    CUresult fault = (CUresult)world->processes[driver_process()].fault;
    int slot = fault || gpu_memory_used(gpu) + SIM_CONTEXT_BYTES > world->memory_bytes
                   ? -1
                   : context_add(driver_process(), gpu);
    if (slot >= 0) {
        *c = (struct sim_context_handle){
            (uint32_t)slot, gpu, device, true, primary, flags, world->contexts[slot].number};
        own_stream(world->contexts[slot].legacy_stream);
    }
    world_unlock();
    if (slot < 0) {
        free(c);
        return fault ? fault : CUDA_ERROR_OUT_OF_MEMORY;
    }
    *context = c;
    return CUDA_SUCCESS;
}

/* Work still queued is dropped, as when a real context is destroyed under it. */
void context_end(CUcontext context) {
    engine_lock();
    world_lock();
    context->alive = false;
    engine_forget(context->slot);
    context_remove(context->slot);
    world_unlock();
    engine_unlock();
    memory_forget_context(context);
    engine_replan();
}

bool stream_valid(CUstream stream) { return stream && stream->magic == STREAM_MAGIC; }

CUresult stream_make(CUcontext context, unsigned flags, int priority, CUstream *stream) {
    struct sim_stream_handle *s = calloc(1, sizeof *s);
    if (!s)
        return CUDA_ERROR_OUT_OF_MEMORY;
    world_lock();
    int slot = stream_add(context->slot, flags & CU_STREAM_NON_BLOCKING ? SIM_NON_BLOCKING : 0);
    if (slot >= 0) {
        world->streams[slot].priority = priority;
        *s = (struct sim_stream_handle){.magic = STREAM_MAGIC,
                                        .slot = (uint32_t)slot,
                                        .generation = world->streams[slot].generation,
                                        .context = context,
                                        .flags = flags,
                                        .priority = priority};
        own_stream((uint32_t)slot);
    }
    world_unlock();
    if (slot < 0) {
        free(s);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *stream = s;
    return CUDA_SUCCESS;
}

/* Queued work still runs; the machine's stream goes when it is over. */
void stream_close(CUstream stream) {
    capture_forget(stream);
    world_lock();
    if (world->streams[stream->slot].generation == stream->generation)
        world->streams[stream->slot].flags |= SIM_CLOSING;
    world_unlock();
    engine_replan();
    stream->magic = 0;
    free(stream);
}

/* A thread that ends gives back its default streams. */
static void close_streams(void *unused) {
    (void)unused;
    struct sim_stream_handle *s = mine.streams;
    mine.streams = NULL;
    while (s) {
        struct sim_stream_handle *next = s->next;
        if (!driver_ready())
            stream_close(s);
        else
            free(s);
        s = next;
    }
}

static pthread_key_t thread_end;
static void make_key(void) { pthread_key_create(&thread_end, close_streams); }

static CUresult per_thread_stream(CUcontext context, CUstream *stream) {
    for (struct sim_stream_handle *s = mine.streams; s; s = s->next)
        if (s->context == context) {
            *stream = s;
            return CUDA_SUCCESS;
        }
    CUresult made = stream_make(context, CU_STREAM_DEFAULT, 0, stream);
    if (!made) {
        static pthread_once_t once = PTHREAD_ONCE_INIT;
        pthread_once(&once, make_key);
        pthread_setspecific(thread_end, &mine);
        (*stream)->next = mine.streams;
        mine.streams = *stream;
    }
    return made;
}

CUresult stream_resolve(CUstream stream, bool per_thread, struct stream_ref *ref) {
    CUcontext context;
    if (stream > CU_STREAM_PER_THREAD) {
        CUresult ready = driver_ready();
        if (ready)
            return ready;
        if (!stream_valid(stream))
            return CUDA_ERROR_INVALID_HANDLE;
        *ref = (struct stream_ref){stream->slot, stream->generation, stream->context, stream};
        return context_usable(stream->context);
    }
    CUresult result = context_required(&context);
    if (result)
        return result;
    if (stream == CU_STREAM_PER_THREAD || (!stream && per_thread)) {
        result = per_thread_stream(context, &stream);
        if (!result)
            *ref = (struct stream_ref){stream->slot, stream->generation, context, stream};
        return result;
    }
    uint32_t slot = world->contexts[context->slot].legacy_stream;
    *ref = (struct stream_ref){slot, world->streams[slot].generation, context, NULL};
    return CUDA_SUCCESS;
}

/* Operations with no effect in memory need no engine to be taken off the ring. */
static void trim(uint32_t slot) {
    struct sim_stream *s = &world->streams[slot];
    while (s->done != s->head) {
        uint8_t kind = stream_op(slot, s->done)->kind;
        if (kind == SIM_MARK || kind == SIM_RECORD || kind == SIM_COPY || kind == SIM_SET)
            return;
        s->done++;
    }
}

CUresult stream_issue(const struct stream_ref *ref, struct sim_op *op,
                      const struct launch_shape *shape) {
    bool taken;
    CUresult result = capture_issue(ref, op, shape, &taken);
    return result || taken ? result : stream_enqueue(ref, op, NULL);
}

CUresult stream_enqueue(const struct stream_ref *ref, struct sim_op *op, uint64_t *position) {
    struct sim_stream *s = &world->streams[ref->slot];
    world_lock();
    trim(ref->slot);
    while (s->generation == ref->generation && s->tail - s->done >= SIM_RING - 1) {
        uint64_t room_at = s->done; /* full: as on a real GPU the host waits for room */
        world_unlock();
        CUresult waited = engine_wait(ref, room_at);
        if (waited)
            return waited;
        world_lock();
    }
    CUresult fault = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (s->generation == ref->generation)
        fault = (CUresult)world->contexts[s->context].fault;
    if (fault) {
        world_unlock();
        return fault;
    }
    uint64_t at = stream_push(ref->slot, op);
    timeline_advance(world->now_ns);
    bool wake = op->flags & SIM_EFFECT && engine_needs(ref->slot, at);
    world_unlock();
    if (wake)
        engine_replan();
    if (position)
        *position = at;
    return CUDA_SUCCESS;
}

CUresult stream_finish(const struct stream_ref *ref) {
    world_lock();
    uint64_t tail = world->streams[ref->slot].tail;
    bool empty = world->streams[ref->slot].done == tail;
    world_unlock();
    return empty ? context_usable(ref->context) : engine_wait(ref, tail - 1);
}

/* All streams of the context, as far as they were issued when the call was made. */
CUresult context_finish(CUcontext context) {
    static __thread struct {
        struct stream_ref ref;
        uint64_t tail;
    } waits[SIM_STREAMS];
    unsigned count = 0;
    world_lock();
    for (uint32_t i = 0; i < world->streams_top; i++) {
        const struct sim_stream *s = &world->streams[i];
        if (!s->used || s->context != context->slot || s->done == s->tail)
            continue;
        waits[count].ref = (struct stream_ref){i, s->generation, context, NULL};
        waits[count++].tail = s->tail;
    }
    world_unlock();
    for (unsigned i = 0; i < count; i++) {
        CUresult result = engine_wait(&waits[i].ref, waits[i].tail - 1);
        if (result)
            return result;
    }
    return CUDA_SUCCESS;
}
