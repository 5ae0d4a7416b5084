/* monitor_context.c - follows the process's contexts: which GPU each is on, and where its GPU
 * sees the board. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "monitor.h"

struct monitor_context monitor_contexts[MONITOR_CONTEXTS];
static pthread_mutex_t follow = PTHREAD_MUTEX_INITIALIZER;

void monitor_follow_lock(void) { pthread_mutex_lock(&follow); }
void monitor_follow_unlock(void) { pthread_mutex_unlock(&follow); }

void monitor_format_uuid(char out[SFILL_UUID_BYTES], const CUuuid *uuid) {
    const unsigned char *b = (const unsigned char *)uuid->bytes;
    snprintf(out, SFILL_UUID_BYTES,
             "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1],
             b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14],
             b[15]);
}

static void announce(const char *uuid) {
    char text[SFILL_UUID_BYTES + 16];
    snprintf(text, sizeof text, "gpu\nuuid=%s\n", uuid);
    if (shim_send(text) != 0)
        shim_log(2, "the agent could not be told of %s", uuid);
}

void monitor_announce_gpus(void) {
    for (unsigned gpu = 0; gpu < atomic_load(&monitor_board->gpus_used); gpu++)
        announce(monitor_board->gpus[gpu].uuid);
}

/* The section of the GPU of the current context; SFILL_MAX_GPUS when there is none. */
static unsigned section_of_current(void) {
    CUdevice device = 0;
    CUuuid uuid, whole;
    if (monitor_driver.context_device(&device) != CUDA_SUCCESS ||
        monitor_driver.device_uuid(&uuid, device) != CUDA_SUCCESS ||
        monitor_driver.device_uuid_whole(&whole, device) != CUDA_SUCCESS)
        return SFILL_MAX_GPUS;
    if (memcmp(&uuid, &whole, sizeof uuid) != 0) {
        monitor_shut(SFILL_SHUT_UNSUPPORTED, "MIG instances are not lent");
        return SFILL_MAX_GPUS;
    }
    int can_write = 0;
    monitor_driver.device_attribute(&can_write, CU_ATTRIBUTE_64_BIT_STREAM_MEM_OPS, device);
    if (!can_write)
        monitor_shut(SFILL_SHUT_UNSUPPORTED, "the GPU has no 64-bit stream memory operations");

    char name[SFILL_UUID_BYTES];
    monitor_format_uuid(name, &uuid);
    unsigned used = atomic_load(&monitor_board->gpus_used);
    for (unsigned gpu = 0; gpu < used; gpu++)
        if (strcmp(monitor_board->gpus[gpu].uuid, name) == 0)
            return gpu;
    if (used == SFILL_MAX_GPUS) {
        monitor_shut(SFILL_SHUT_GPUS, "the process uses more GPUs than a board has room for");
        return SFILL_MAX_GPUS;
    }
    struct sfill_gpu_section *section = &monitor_board->gpus[used];
    memcpy(section->uuid, name, sizeof name);
    atomic_store(&section->used, 1);
    atomic_store(&monitor_board->gpus_used, used + 1);
    announce(name);
    return used;
}

static struct monitor_context *find(CUcontext handle) {
    for (unsigned i = 0; i < MONITOR_CONTEXTS; i++)
        if (atomic_load(&monitor_contexts[i].state) != CONTEXT_FREE &&
            monitor_contexts[i].handle == handle)
            return &monitor_contexts[i];
    return NULL;
}

static struct monitor_context *add_current(CUcontext handle) {
    static bool exit_noted;
    if (!exit_noted) /* here and not earlier: after the driver has noted its own end */
        exit_noted = atexit(monitor_at_exit) == 0;
    struct monitor_context *context = NULL;
    for (unsigned i = 0; i < MONITOR_CONTEXTS && !context; i++)
        if (atomic_load(&monitor_contexts[i].state) == CONTEXT_FREE)
            context = &monitor_contexts[i];
    unsigned gpu = section_of_current();
    if (!context || gpu == SFILL_MAX_GPUS)
        return NULL;
    context->handle = handle;
    context->gpu = gpu;
    context->view = NULL;
    atomic_store(&context->board_here, 0);
    atomic_store(&context->blocking_streams, 0);
    atomic_store(&context->state, CONTEXT_LIVE);
    monitor_helper_wake();
    return context;
}

struct monitor_context *monitor_context_follow(CUcontext handle) {
    struct monitor_context *context = find(handle);
    if (context)
        return context;
    CUcontext current = NULL, popped;
    monitor_driver.context_current(&current);
    bool push = current != handle;
    if (push && monitor_driver.context_push(handle) != CUDA_SUCCESS)
        return NULL;
    context = add_current(handle);
    if (context)
        monitor_context_register(context);
    if (push)
        monitor_driver.context_pop(&popped);
    return context;
}

static bool register_board(struct monitor_context *context) {
    void *view = monitor_board_view();
    CUdeviceptr here = 0;
    CUresult result = view ? monitor_driver.host_register(view, monitor_board_bytes(),
                                                          CU_MEMHOSTREGISTER_DEVICEMAP)
                           : CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS)
        result = monitor_driver.host_device_pointer(&here, view, 0);
    if (result != CUDA_SUCCESS) {
        monitor_shut(SFILL_SHUT_UNSUPPORTED, "the board cannot be registered with the GPU");
        if (view)
            munmap(view, monitor_board_bytes());
        return false;
    }
    context->view = view;
    atomic_store(&context->board_here, here);
    return true;
}

/* Never during a capture: registering memory is one of the calls that break one. */
bool monitor_context_register(struct monitor_context *context) {
    if (atomic_load(&context->board_here))
        return true;
    int free_now = 0;
    if (atomic_load(&monitor_captures) > 0 ||
        !atomic_compare_exchange_strong(&context->registering, &free_now, 1))
        return false;
    bool done = atomic_load(&context->board_here) || register_board(context);
    atomic_store(&context->registering, 0);
    return done;
}

void monitor_context_created(CUcontext handle) {
    monitor_follow_lock();
    if (!monitor_context_follow(handle))
        shim_log(2, "a context could not be followed yet");
    monitor_follow_unlock();
}

/* While a context ends its streams count as busy, and nobody marks them. */
void monitor_context_destroying(CUcontext handle) {
    monitor_follow_lock();
    struct monitor_context *context = find(handle);
    if (context) {
        atomic_store(&context->state, CONTEXT_DYING);
        for (unsigned i = 0; i < atomic_load(&monitor_board->slots_used); i++) {
            struct monitor_stream *stream = &monitor_streams[i];
            if (stream->context != context)
                continue;
            stream->held = true;
            atomic_fetch_add(&monitor_board->slots[i].before, 1);
            if (monitor_lock_stream(stream, 1000000000ull))
                monitor_unlock_stream(stream);
            else
                monitor_shut(SFILL_SHUT_TEARDOWN, "a marker is stuck in a context that ends");
        }
        monitor_bubble_close(context->gpu, NULL);
    }
    monitor_follow_unlock();
}

void monitor_context_destroyed(CUcontext handle, bool gone) {
    monitor_follow_lock();
    struct monitor_context *context = find(handle);
    if (context && gone) {
        monitor_streams_of_context_end(context);
        if (context->view)
            munmap(context->view, monitor_board_bytes());
        context->view = NULL;
        context->handle = NULL;
        atomic_store(&context->state, CONTEXT_FREE);
    } else if (context) {
        for (unsigned i = 0; i < atomic_load(&monitor_board->slots_used); i++) {
            if (monitor_streams[i].context != context || !monitor_streams[i].held)
                continue;
            monitor_streams[i].held = false;
            atomic_fetch_add(&monitor_board->slots[i].after, 1);
        }
        atomic_store(&context->state, CONTEXT_LIVE);
    }
    monitor_follow_unlock();
    monitor_helper_wake();
}
