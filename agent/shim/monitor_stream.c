/* monitor_stream.c - which slot a stream has. Streams are known by (context, cuStreamGetId):
 * handles are used again, and NULL is another stream in every context. A small cache in each
 * thread spares the driver's answer on the launch path. */
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "monitor.h"

struct monitor_stream monitor_streams[SFILL_MAX_STREAMS];
/* Goes up whenever a stream or context ends: what threads remember of handles is void then. */
static _Atomic uint32_t generation = 1;

enum { CACHE_ENTRIES = 8, LOCK_MOST_NS = 1000000000 };
struct cache_entry {
    uint64_t key;
    uint32_t generation;
    uint32_t slot;
};
static __thread struct cache_entry cache[CACHE_ENTRIES];
static __thread uint64_t thread_id;

uint64_t monitor_thread_id(void) {
    if (!thread_id)
        thread_id = (uint64_t)syscall(SYS_gettid);
    return thread_id;
}

static pthread_key_t thread_end;
static bool thread_end_known;

/* A thread ends, and with it its default streams: their slots are free once all is done. The
 * driver is not called here, since its own part of the thread may be gone already; what is not
 * marked counts as busy until a synchronisation of the context proves it done. */
static void at_thread_end(void *data) {
    (void)data;
    if (atomic_load(&shim_ops) != &monitor_ops)
        return; /* a forked child */
    uint64_t self = monitor_thread_id();
    monitor_follow_lock();
    for (unsigned i = 0; i < atomic_load(&monitor_board->slots_used); i++) {
        struct monitor_stream *own = &monitor_streams[i];
        if (own->kind != STREAM_PER_THREAD || own->owner != self || !own->context ||
            atomic_exchange(&own->gone, true))
            continue;
        atomic_fetch_sub(&own->context->blocking_streams, 1);
        own->handle = NULL;
    }
    monitor_follow_unlock();
    monitor_helper_wake();
}

void monitor_streams_start(void) {
    thread_end_known = pthread_key_create(&thread_end, at_thread_end) == 0;
}

static enum stream_kind kind_of(CUstream stream) {
    return stream == CU_STREAM_LEGACY       ? STREAM_LEGACY
           : stream == CU_STREAM_PER_THREAD ? STREAM_PER_THREAD
                                            : STREAM_PLAIN;
}

static int free_slot(void) {
    unsigned used = atomic_load(&monitor_board->slots_used);
    for (unsigned i = 0; i < used; i++) {
        struct sfill_stream_slot *slot = &monitor_board->slots[i];
        if (atomic_load(&monitor_streams[i].gone) && monitor_slot_drained(slot))
            monitor_stream_free(i); /* the helper has not come round yet */
        if (atomic_load(&slot->state) == SFILL_SLOT_FREE)
            return (int)i;
    }
    if (used == SFILL_MAX_STREAMS)
        return -1;
    return (int)used;
}

static int take_slot(struct monitor_context *context, CUstream stream, uint64_t stream_id) {
    int index = free_slot();
    if (index < 0) {
        monitor_shut(SFILL_SHUT_STREAMS, "more streams than a board has room for");
        return -1;
    }
    struct monitor_stream *own = &monitor_streams[index];
    if (!monitor_lock_stream(own, LOCK_MOST_NS)) {
        monitor_shut(SFILL_SHUT_MARKER, "a marker is stuck in the driver");
        return -1;
    }
    own->handle = stream;
    own->context = context;
    own->held = false;
    own->kind = kind_of(stream);
    own->owner = own->kind == STREAM_PER_THREAD ? monitor_thread_id() : 0;
    atomic_store(&own->gone, false);
    monitor_unlock_stream(own);
    if (own->kind == STREAM_PER_THREAD) {
        atomic_fetch_add(&context->blocking_streams, 1);
        if (thread_end_known)
            pthread_setspecific(thread_end, own);
    }

    /* The counters go on from the stream that had the slot before: whoever still holds one of its
     * values, as a proof or a look, then holds one that is old, not one that is wrong. */
    struct sfill_stream_slot *slot = &monitor_board->slots[index];
    atomic_store(&slot->context, (uint64_t)(uintptr_t)context->handle);
    atomic_store(&slot->stream_id, stream_id);
    atomic_store(&slot->gpu, context->gpu);
    atomic_store(&slot->state, SFILL_SLOT_LIVE);
    if ((unsigned)index == atomic_load(&monitor_board->slots_used))
        atomic_store(&monitor_board->slots_used, (uint32_t)index + 1);
    return index;
}

/* Asks the driver; under the follow lock. */
static int look_up(CUstream stream) {
    CUcontext handle = NULL;
    if (kind_of(stream) != STREAM_PLAIN ||
        monitor_driver.stream_context(stream, &handle) != CUDA_SUCCESS || !handle)
        monitor_driver.context_current(&handle);
    if (!handle)
        return -1; /* no context: the driver will refuse the call */
    struct monitor_context *context = monitor_context_follow(handle);
    unsigned long long id = 0;
    CUresult result = context ? monitor_driver.stream_id(stream, &id) : CUDA_ERROR_INVALID_CONTEXT;
    if (result != CUDA_SUCCESS) {
        if (context && result != CUDA_ERROR_INVALID_HANDLE)
            monitor_shut(SFILL_SHUT_STREAMS, "the driver does not say which stream this is");
        else if (!context)
            monitor_shut(SFILL_SHUT_UNSUPPORTED, "a context cannot be followed");
        return -1;
    }
    unsigned used = atomic_load(&monitor_board->slots_used);
    for (unsigned i = 0; i < used; i++) {
        const struct sfill_stream_slot *slot = &monitor_board->slots[i];
        if (atomic_load(&slot->state) != SFILL_SLOT_FREE &&
            !atomic_load(&monitor_streams[i].gone) && monitor_streams[i].context == context &&
            atomic_load(&slot->stream_id) == id)
            return (int)i;
    }
    return take_slot(context, stream, id);
}

/* Kept out of line, as what is rare: else every launch saves registers for it. */
static __attribute__((noinline)) int remember(CUstream stream, struct cache_entry *entry,
                                              uint64_t key, uint32_t now) {
    monitor_follow_lock();
    int index = look_up(stream);
    monitor_follow_unlock();
    if (index >= 0)
        *entry = (struct cache_entry){key, now, (uint32_t)index};
    return index;
}

static inline int slot_by_key(CUstream stream, uint64_t key) {
    struct cache_entry *entry = &cache[(key >> 4 ^ key >> 9 ^ key) % CACHE_ENTRIES];
    uint32_t now = atomic_load_explicit(&generation, memory_order_acquire);
    if (__builtin_expect(entry->key == key && entry->generation == now, 1))
        return (int)entry->slot;
    return remember(stream, entry, key, now);
}

/* Default streams are one per context (and thread). */
static __attribute__((noinline)) int slot_of_default(CUstream stream) {
    CUcontext current = NULL;
    if (monitor_driver.context_current(&current) != CUDA_SUCCESS || !current)
        return -1;
    return slot_by_key(stream, (uint64_t)(uintptr_t)stream + (uint64_t)(uintptr_t)current);
}

int monitor_stream_slot(CUstream stream) {
    uint64_t key = (uint64_t)(uintptr_t)stream;
    return key > 2 ? slot_by_key(stream, key) : slot_of_default(stream);
}

void monitor_stream_created(CUstream stream, unsigned flags) {
    if (flags & CU_STREAM_NON_BLOCKING)
        return;
    CUcontext handle = NULL;
    if (monitor_driver.stream_context(stream, &handle) != CUDA_SUCCESS || !handle)
        return;
    monitor_follow_lock();
    struct monitor_context *context = monitor_context_follow(handle);
    if (context)
        atomic_fetch_add(&context->blocking_streams, 1);
    monitor_follow_unlock();
}

static int slot_of_handle(CUstream stream) {
    for (unsigned i = 0; i < atomic_load(&monitor_board->slots_used); i++)
        if (atomic_load(&monitor_board->slots[i].state) != SFILL_SLOT_FREE &&
            monitor_streams[i].handle == stream && monitor_streams[i].kind == STREAM_PLAIN &&
            !atomic_load(&monitor_streams[i].gone))
            return (int)i;
    return -1;
}

/* Work that is still queued goes on after the call: the last marker goes in before it, and the
 * slot stays until that marker has been reached. */
void monitor_stream_destroying(CUstream stream) {
    monitor_follow_lock();
    unsigned flags = CU_STREAM_NON_BLOCKING;
    CUcontext handle = NULL;
    int index = slot_of_handle(stream);
    if (monitor_driver.stream_flags(stream, &flags) == CUDA_SUCCESS &&
        !(flags & CU_STREAM_NON_BLOCKING) &&
        monitor_driver.stream_context(stream, &handle) == CUDA_SUCCESS && handle) {
        struct monitor_context *context = monitor_context_follow(handle);
        if (context)
            atomic_fetch_sub(&context->blocking_streams, 1);
    }
    if (index >= 0) {
        struct monitor_stream *own = &monitor_streams[index];
        if (!monitor_slot_drained(&monitor_board->slots[index]) &&
            !monitor_mark((unsigned)index, MARK_LAST))
            monitor_shut(SFILL_SHUT_MARKER, "a stream ended without its last marker");
        atomic_store(&own->gone, true);
        if (monitor_lock_stream(own, LOCK_MOST_NS)) {
            own->handle = NULL;
            monitor_unlock_stream(own);
        }
    }
    atomic_fetch_add(&generation, 1);
    monitor_follow_unlock();
    monitor_helper_wake();
}

void monitor_stream_free(unsigned index) {
    struct monitor_stream *own = &monitor_streams[index];
    struct sfill_stream_slot *slot = &monitor_board->slots[index];
    if (!monitor_lock_stream(own, LOCK_MOST_NS)) {
        monitor_shut(SFILL_SHUT_MARKER, "a marker is stuck in the driver");
        return;
    }
    atomic_store(&slot->state, SFILL_SLOT_FREE);
    own->handle = NULL;
    own->context = NULL;
    atomic_store(&own->gone, false);
    monitor_unlock_stream(own);
    /* All that was counted is done, or gone with its context. */
    uint64_t before = atomic_load(&slot->before);
    atomic_store(&slot->after, before);
    atomic_store(&slot->marked, before);
    atomic_store(&slot->done, SFILL_WORD(before, SFILL_WORD_DONE));
}

/* The context is gone and so is all its work. Under the follow lock. */
void monitor_streams_of_context_end(struct monitor_context *context) {
    atomic_fetch_add(&generation, 1);
    for (unsigned i = 0; i < atomic_load(&monitor_board->slots_used); i++)
        if (monitor_streams[i].context == context)
            monitor_stream_free(i);
}
