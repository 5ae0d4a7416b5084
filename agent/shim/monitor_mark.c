/* monitor_mark.c - markers: a value that the GPU writes into a stream's slot when it gets there. */
#include <sched.h>
#include <stddef.h>
#include "monitor.h"

static bool try_lock(struct monitor_stream *stream) {
    int open = 0;
    return atomic_compare_exchange_strong(&stream->lock, &open, 1);
}

bool monitor_lock_stream(struct monitor_stream *stream, uint64_t most_ns) {
    uint64_t deadline = 0;
    while (!try_lock(stream)) {
        uint64_t now = shim_now_ns();
        if (!deadline)
            deadline = now + most_ns;
        if (now >= deadline)
            return false;
        sched_yield();
    }
    return true;
}

void monitor_unlock_stream(struct monitor_stream *stream) { atomic_store(&stream->lock, 0); }

/* No marker may get into a graph. While a capture is on only a stream's last marker is issued,
 * and only when the driver says that this stream is not part of it. */
static bool capture_forbids(const struct monitor_stream *stream, enum marker by) {
    if (atomic_load(&monitor_captures) == 0)
        return false;
    CUresult (*is_capturing)(CUstream, int *) =
        (CUresult(*)(CUstream, int *))real_symbol("cuStreamIsCapturing");
    int status = CU_CAPTURE_STATUS_ACTIVE;
    return by != MARK_LAST || !is_capturing ||
           is_capturing(stream->handle, &status) != CUDA_SUCCESS ||
           status != CU_CAPTURE_STATUS_NONE;
}

static bool may_mark(const struct monitor_stream *stream, enum marker by) {
    struct monitor_context *context = stream->context;
    if (!stream->handle || !context || atomic_load(&context->state) != CONTEXT_LIVE ||
        atomic_load(&monitor_exiting) || capture_forbids(stream, by))
        return false;
    /* The handle means the stream of whichever thread uses it. */
    if (stream->kind == STREAM_PER_THREAD)
        return by != MARK_BY_HELPER && stream->owner == monitor_thread_id();
    /* A barrier over all blocking streams of the context: only where the program waits anyway. */
    if (stream->kind == STREAM_LEGACY && atomic_load(&context->blocking_streams) > 0)
        return by == MARK_AT_BLOCK;
    return true;
}

static CUresult write_marker(unsigned index, uint64_t value) {
    struct monitor_stream *stream = &monitor_streams[index];
    struct monitor_context *context = stream->context;
    CUcontext current = NULL, popped;
    monitor_driver.context_current(&current);
    bool push = current != context->handle;
    if (push && monitor_driver.context_push(context->handle) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_CONTEXT;
    CUresult result = CUDA_ERROR_NOT_READY;
    if (monitor_context_register(context)) {
        CUdeviceptr at =
            atomic_load(&context->board_here) + offsetof(struct sfill_training_board, slots) +
            index * sizeof(struct sfill_stream_slot) + offsetof(struct sfill_stream_slot, done);
        result = monitor_driver.write64(stream->handle, at, SFILL_WORD(value, SFILL_WORD_DONE),
                                        CU_STREAM_WRITE_VALUE_DEFAULT);
    }
    if (push)
        monitor_driver.context_pop(&popped);
    return result;
}

bool monitor_mark(unsigned index, enum marker by) {
    struct monitor_stream *stream = &monitor_streams[index];
    struct sfill_stream_slot *slot = &monitor_board->slots[index];
    bool waits = by == MARK_AT_BLOCK || by == MARK_LAST;
    if (!(waits ? monitor_lock_stream(stream, 1000000) : try_lock(stream)))
        return false;
    bool marked = false;
    /* Equal counters, the older read first: everything counted has been queued, so a marker
     * queued from here on comes after it. */
    uint64_t after = atomic_load(&slot->after);
    uint64_t before = atomic_load(&slot->before);
    if (after == before && may_mark(stream, by)) {
        marked = atomic_load(&slot->marked) == before;
        if (!marked) {
            CUresult result = write_marker(index, before);
            if (result == CUDA_SUCCESS)
                atomic_store(&slot->marked, before);
            else if (result != CUDA_ERROR_NOT_READY)
                monitor_shut(SFILL_SHUT_MARKER, "a progress marker failed");
            marked = result == CUDA_SUCCESS;
        }
    }
    monitor_unlock_stream(stream);
    return marked;
}

/* A synchronisation has returned: the host knows what the GPU may not have said yet. Only ever
 * forward, since the GPU may have gone further meanwhile. */
void monitor_done_by_host(unsigned index, uint64_t value) {
    struct sfill_stream_slot *slot = &monitor_board->slots[index];
    uint64_t word = SFILL_WORD(value, SFILL_WORD_DONE);
    uint64_t seen = atomic_load(&slot->done);
    while (seen < word && !atomic_compare_exchange_weak(&slot->done, &seen, word))
        ;
}
