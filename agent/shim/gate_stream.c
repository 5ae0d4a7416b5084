/* gate_stream.c - the fill's contexts and streams, and the words by which the GPU tells progress.
 *
 * Each context has a page of words of its own, registered with that context only: registration
 * dies with its context (GATE.md, rule 8). Operations of a stream are counted as they are issued;
 * a marker makes the GPU write the count. One marker serves several short operations. */
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "gate.h"
#include "gate_clock.h"
#include "gate_driver.h"

#define CONTEXTS 32
#define WORD_STRIDE 64     /* bytes: a cache line for each stream */
#define MARK_OP_NS 20000u  /* an operation of this length has a marker of its own */
#define MARK_SUM_NS 50000u /* shorter ones have one for so much GPU time */
#define WORDS_BYTES ((FLIGHT_STREAMS + 1) * WORD_STRIDE) /* the last one is the clock's */

struct stream_key {
    CUstream handle;
    pid_t thread;   /* CU_STREAM_PER_THREAD: whose */
    uint32_t entry; /* in the GPU's flight.streams */
    bool used;
};

struct gate_context {
    CUcontext handle; /* NULL: free */
    struct gate_gpu *gpu;
    unsigned char *words; /* NULL: markers are not possible here */
    CUdeviceptr words_at;
    struct gate_clock clock;
    uint32_t keys_used;
    struct stream_key keys[FLIGHT_STREAMS];
};

static struct gate_context contexts[CONTEXTS];
static pthread_mutex_t contexts_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint64_t generation = 1; /* changes when a context is forgotten */
static __thread struct {
    CUcontext handle;
    struct gate_context *context;
    uint64_t generation;
    pid_t id;
} thread_cache;

/* Streams under capture. The count changes under every GPU's lock, so nobody is marking then. */
static _Atomic int captures;

bool gate_stream_capturing(void) { return atomic_load(&captures) > 0; }

static pid_t thread_id(void) {
    if (!thread_cache.id)
        thread_cache.id = (pid_t)syscall(SYS_gettid);
    return thread_cache.id;
}

/* Words for a context; it must be current. Without them each operation is waited for. */
static void make_words(struct gate_context *context) {
    void *words =
        mmap(NULL, WORDS_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (words == MAP_FAILED)
        return;
    madvise(words, WORDS_BYTES, MADV_DONTFORK);
    memset(words, 0, WORDS_BYTES);
    if (gate_driver.stream_write64 && gate_driver.host_register &&
        gate_driver.host_register(words, WORDS_BYTES, CU_MEMHOSTREGISTER_DEVICEMAP) ==
            CUDA_SUCCESS) {
        if (gate_driver.host_device_pointer(&context->words_at, words, 0) == CUDA_SUCCESS) {
            context->words = words;
            return;
        }
    }
    shim_log(1, "no progress markers in this context: each operation is waited for");
    munmap(words, WORDS_BYTES);
}

static struct gate_context *add(CUcontext handle) {
    CUdevice device;
    if (gate_driver.context_device(&device) != CUDA_SUCCESS)
        return NULL;
    struct gate_gpu *gpu = gate_gpu_of_device(device);
    if (!gpu)
        return NULL;
    for (int i = 0; i < CONTEXTS; i++) {
        struct gate_context *context = &contexts[i];
        if (context->handle)
            continue;
        *context =
            (struct gate_context){.handle = handle, .gpu = gpu, .clock = {.context = handle}};
        make_words(context);
        memory_context_made(gpu);
        return context;
    }
    return NULL;
}

static struct gate_context *lookup(CUcontext handle) {
    struct gate_context *found = NULL;
    uint64_t now = atomic_load_explicit(&generation, memory_order_acquire);
    if (thread_cache.handle == handle && thread_cache.generation == now)
        return thread_cache.context;
    pthread_mutex_lock(&contexts_lock);
    for (int i = 0; i < CONTEXTS && !found; i++)
        if (contexts[i].handle == handle)
            found = &contexts[i];
    if (!found)
        found = add(handle);
    pthread_mutex_unlock(&contexts_lock);
    if (found) {
        thread_cache.handle = handle;
        thread_cache.context = found;
        thread_cache.generation = now;
    }
    return found;
}

bool gate_context_of(CUstream stream, struct gate_context **found) {
    CUcontext handle = NULL, popped;
    bool special = stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
    *found = NULL;
    shim_inside++;
    if (gate_driver.context_current(&handle) == CUDA_SUCCESS && handle) {
        *found = lookup(handle);
    } else if (!special && gate_driver.stream_context &&
               gate_driver.stream_context(stream, &handle) == CUDA_SUCCESS && handle &&
               gate_driver.context_push(handle) == CUDA_SUCCESS) {
        *found = lookup(handle);
        gate_driver.context_pop(&popped);
    }
    shim_inside--;
    return handle != NULL;
}

struct gate_gpu *gate_context_gpu(const struct gate_context *context) {
    return context->gpu;
}

static _Atomic uint64_t *word_of(const struct gate_context *context, uint32_t entry) {
    return (_Atomic uint64_t *)(void *)(context->words + (size_t)entry * WORD_STRIDE);
}

/* A free entry among the GPU's streams; those of destroyed streams are free once empty. */
static int take_entry(struct gate_context *context) {
    struct flight *flight = &context->gpu->flight;
    for (uint32_t i = 0; i < FLIGHT_STREAMS; i++) {
        struct flight_stream *stream = &flight->streams[i];
        if (stream->word && !(stream->closing && stream->pending == 0))
            continue;
        *stream = (struct flight_stream){.word = word_of(context, i)};
        atomic_store(word_of(context, i), 0);
        if (i >= flight->streams_used)
            flight->streams_used = i + 1;
        return (int)i;
    }
    return -1;
}

static struct stream_key *find_key(struct gate_context *context, CUstream handle, bool make) {
    pid_t thread = handle == CU_STREAM_PER_THREAD ? thread_id() : 0;
    struct stream_key *unused = NULL;
    for (uint32_t i = 0; i < context->keys_used; i++) {
        struct stream_key *key = &context->keys[i];
        if (key->used && key->handle == handle && key->thread == thread)
            return key;
        if (!key->used)
            unused = key;
    }
    if (!make || !context->words)
        return NULL;
    if (!unused && context->keys_used < FLIGHT_STREAMS)
        unused = &context->keys[context->keys_used];
    int entry = unused ? take_entry(context) : -1;
    if (entry < 0)
        return NULL;
    if (unused == &context->keys[context->keys_used])
        context->keys_used++;
    *unused = (struct stream_key){
        .handle = handle, .thread = thread, .entry = (uint32_t)entry, .used = true};
    return unused;
}

/* Asking for an event's time, or making one, breaks a capture that another thread has begun in
 * global mode, unless the asking thread is in relaxed mode. The same call puts it back. */
void gate_stream_swap_mode(int *mode) {
    if (gate_stream_capturing() && gate_driver.capture_mode)
        gate_driver.capture_mode(mode);
}

/* Has the GPU write the stream's count. Where that fails, the stream is waited for. */
static void mark(struct gate_context *context, const struct stream_key *key) {
    struct gate_gpu *gpu = context->gpu;
    struct flight_stream *stream = &gpu->flight.streams[key->entry];
    CUdeviceptr at = context->words_at + (CUdeviceptr)key->entry * WORD_STRIDE;
    shim_inside++;
    int mode = CU_CAPTURE_MODE_RELAXED;
    bool room = stream->times_tail - stream->times_head < FLIGHT_TIMES;
    /* Before the marker, so that its time is that of the last operation's end. */
    gate_stream_swap_mode(&mode);
    CUevent event = room ? clock_record(&context->clock, key->handle) : NULL;
    gate_stream_swap_mode(&mode);
    CUresult result = gate_driver.stream_write64(key->handle, at, stream->issued, 0);
    if (result == CUDA_SUCCESS && event)
        flight_timed(stream, stream->issued, event, &context->clock);
    else if (event)
        clock_give_back(&context->clock, event, 0);
    if (result == CUDA_SUCCESS) {
        stream->marker_ns = context->clock.marker_ns;
        stream->marked = stream->issued;
        stream->unmarked_ns = 0;
    } else {
        gate_driver.stream_synchronize(key->handle);
        flight_drained(&gpu->flight, key->entry, shim_now_ns(), gate_epoch(gpu), gate_done_sink,
                       gpu);
    }
    shim_inside--;
}

void gate_stream_issued(struct gate_context *context, struct shim_op *op, uint64_t ticket,
                        uint64_t returned_ns) {
    struct gate_gpu *gpu = context->gpu;
    pthread_mutex_lock(&gpu->lock);
    struct stream_key *key = find_key(context, op->stream, true);
    if (!key) {
        pthread_mutex_unlock(&gpu->lock);
        shim_inside++;
        gate_driver.stream_synchronize(op->stream);
        shim_inside--;
        pthread_mutex_lock(&gpu->lock);
        flight_returned(&gpu->flight, ticket, shim_now_ns(), gate_epoch(gpu), gate_done_sink, gpu);
    } else {
        const struct flown *own = &gpu->flight.ops[ticket % FLIGHT_OPS];
        bool long_enough = own->alone || own->mean_ns >= MARK_OP_NS;
        flight_issued(&gpu->flight, ticket, key->entry, returned_ns);
        if (long_enough || key->thread ||
            gpu->flight.streams[key->entry].unmarked_ns >= MARK_SUM_NS)
            mark(context, key);
    }
    if (gpu->flight.mark_wanted)
        gate_stream_mark_all(gpu, UINT64_MAX);
    pthread_mutex_unlock(&gpu->lock);
}

static void mark_context(struct gate_context *context, uint64_t since_ns) {
    bool pushed = false;
    CUcontext current = NULL;
    for (uint32_t i = 0; i < context->keys_used; i++) {
        const struct stream_key *key = &context->keys[i];
        if (!key->used || key->thread)
            continue; /* those of per-thread streams are marked at once, by their owners */
        const struct flight_stream *stream = &context->gpu->flight.streams[key->entry];
        if (stream->marked == stream->issued || stream->unmarked_since_ns > since_ns)
            continue;
        if (!pushed && gate_driver.context_push(context->handle) != CUDA_SUCCESS)
            return;
        pushed = true;
        mark(context, key);
    }
    if (pushed)
        gate_driver.context_pop(&current);
}

void gate_stream_mark_all(struct gate_gpu *gpu, uint64_t since_ns) {
    if (gpu->flight.count == 0 || gate_stream_capturing())
        return;
    /* GATE.md, rule 1. Whoever has launched makes up for it. */
    bool asked = since_ns == UINT64_MAX; /* the helper comes again by itself */
    if (asked)
        gpu->flight.mark_wanted = gpu->flight.launching > 0;
    if (gpu->flight.launching)
        return;
    shim_inside++;
    for (int i = 0; i < CONTEXTS; i++)
        if (contexts[i].handle && contexts[i].gpu == gpu && contexts[i].words)
            mark_context(&contexts[i], since_ns);
    shim_inside--;
}

bool gate_stream_time(struct flight_time *time) {
    shim_inside++;
    int mode = CU_CAPTURE_MODE_RELAXED;
    gate_stream_swap_mode(&mode);
    bool known = clock_time(time->clock, time->event, &time->at_ns);
    gate_stream_swap_mode(&mode);
    clock_give_back(time->clock, time->event, known ? time->at_ns : 0);
    shim_inside--;
    return known;
}

bool gate_clock_due(const struct gate_context *context, uint64_t now_ns) {
    return context->words && !gate_stream_capturing() && clock_due(&context->clock, now_ns);
}

void gate_clock_anchor(struct gate_context *context) {
    shim_inside++;
    clock_anchor(&context->clock, word_of(context, FLIGHT_STREAMS),
                 context->words_at + (CUdeviceptr)FLIGHT_STREAMS * WORD_STRIDE);
    shim_inside--;
}

/* What another thread launches just now stays unmarked until the last capture has ended; the
 * helper marks it then. */
void gate_stream_capture(int change) {
    uint32_t used = atomic_load(&gate.gpus_used);
    for (uint32_t i = 0; i < used; i++) {
        struct gate_gpu *gpu = atomic_load(&gate.gpus[i]);
        pthread_mutex_lock(&gpu->lock);
        if (change > 0)
            gate_stream_mark_all(gpu, UINT64_MAX);
    }
    if (change > 0 || gate_stream_capturing())
        atomic_fetch_add(&captures, change);
    for (uint32_t i = used; i > 0; i--)
        pthread_mutex_unlock(&atomic_load(&gate.gpus[i - 1])->lock);
}

/* Its entry is kept until what stands in the stream is done. */
static void release_key(struct gate_context *context, struct stream_key *key) {
    context->gpu->flight.streams[key->entry].closing = true;
    key->used = false;
}

void gate_stream_forget(CUstream handle) {
    struct gate_context *context;
    if (!gate_context_of(handle, &context) || !context)
        return;
    pthread_mutex_lock(&context->gpu->lock);
    struct stream_key *key = find_key(context, handle, false);
    if (key) {
        const struct flight_stream *stream = &context->gpu->flight.streams[key->entry];
        if (stream->marked != stream->issued) /* the last chance; nobody may be launching to it */
            mark(context, key);
        release_key(context, key);
    }
    pthread_mutex_unlock(&context->gpu->lock);
}

void gate_context_forget(CUcontext handle) {
    pthread_mutex_lock(&contexts_lock);
    for (int i = 0; i < CONTEXTS; i++) {
        struct gate_context *context = &contexts[i];
        if (!handle || context->handle != handle)
            continue;
        struct gate_gpu *gpu = context->gpu;
        pthread_mutex_lock(&gpu->lock);
        context->clock.reference = NULL; /* its events are gone with it: nothing asks for them */
        for (uint32_t k = 0; k < context->keys_used; k++) {
            if (!context->keys[k].used)
                continue;
            flight_drained(&gpu->flight, context->keys[k].entry, shim_now_ns(), gate_epoch(gpu),
                           gate_done_sink, gpu);
            release_key(context, &context->keys[k]);
        }
        context->handle = NULL;
        atomic_fetch_add(&generation, 1);
        pthread_mutex_unlock(&gpu->lock);
    }
    pthread_mutex_unlock(&contexts_lock);
}
