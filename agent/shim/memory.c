/* memory.c - the device memory that this process holds, and its limit.
 *
 * Counted: every allocation that the hooks report, by handle, and for each GPU with a context an
 * allowance for what the context itself takes (CONTEXT_BYTES: a driver of today takes 300 to
 * 600 MiB; it cannot be asked beforehand). The limit is the fill job's on that GPU; account.c sums
 * over its processes. */
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
#include "gate.h"

#define CONTEXT_BYTES (512ull << 20)
#define ACCOUNT_POLL_US 1000

struct held {
    uint64_t handle; /* 0: free, 1: was used */
    uint64_t bytes;
    struct gate_gpu *gpu;
    int pool; /* pools.c counts it; -1: it is counted here */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct held *table;      /* open addressing */
static size_t capacity, filled; /* filled counts used-before places too */

/* What this thread has asked for and not reported yet, so that two askers cannot share room. */
static __thread uint64_t asked_bytes;
static __thread struct gate_gpu *asked_gpu;

static struct held *place(struct held *in, size_t size, uint64_t handle) {
    size_t at = handle * 0x9e3779b97f4a7c15ull >> 20;
    for (size_t i = 0; i < size; i++) {
        struct held *held = &in[(at + i) % size];
        if (held->handle == handle || held->handle == 0)
            return held;
    }
    return NULL;
}

static bool grow(void) {
    size_t size = capacity ? capacity * 2 : 1024, live = 0;
    struct held *bigger = calloc(size, sizeof *bigger);
    if (!bigger)
        return false;
    for (size_t i = 0; i < capacity; i++) {
        if (table[i].handle <= 1)
            continue;
        *place(bigger, size, table[i].handle) = table[i];
        live++;
    }
    free(table);
    table = bigger;
    capacity = size;
    filled = live;
    return true;
}

uint64_t memory_limit(const struct gate_gpu *gpu) {
    uint64_t own = policy_memory_limit(&gpu->page, gate.job_id);
    return own ? own : gate.memory_limit_bytes;
}

static uint64_t limit_of(struct gate_gpu *gpu) {
    pthread_mutex_lock(&gpu->lock);
    uint64_t limit = memory_limit(gpu);
    pthread_mutex_unlock(&gpu->lock);
    return limit;
}

/* What pools keep in reserve goes before anything is refused. */
static enum account_answer try(struct gate_gpu *gpu, uint64_t bytes, uint64_t limit) {
    enum account_answer answer = account_take(gpu, bytes, limit);
    return answer == ACCOUNT_OVER && pools_trim(gpu) ? account_take(gpu, bytes, limit) : answer;
}

/* Counts what is about to be taken on a GPU whose gate is open. An agent that has only just begun
 * may not know yet what the job holds: then it waits. */
static bool take(struct gate_gpu *gpu, uint64_t bytes) {
    for (;;) {
        uint64_t limit = limit_of(gpu);
        enum account_answer answer = try(gpu, bytes, limit);
        if (answer == ACCOUNT_OVER)
            shim_log(1, "allocation of %llu bytes refused: the job's limit is %llu bytes",
                     (unsigned long long)bytes, (unsigned long long)limit);
        if (answer != ACCOUNT_UNKNOWN)
            return answer == ACCOUNT_GRANTED;
        usleep(ACCOUNT_POLL_US);
    }
}

/* Whether the context of a GPU has yet to be counted; counts it. */
static bool first_context(struct gate_gpu *gpu) {
    pthread_mutex_lock(&lock);
    bool first = !gpu->overhead_bytes;
    gpu->overhead_bytes = CONTEXT_BYTES;
    pthread_mutex_unlock(&lock);
    return first;
}

bool memory_context_fits(CUdevice device) {
    shim_inside++;
    struct gate_gpu *gpu = gate_gpu_of_device(device);
    shim_inside--;
    if (!gpu || !first_context(gpu))
        return true;
    bool fits = take(gpu, CONTEXT_BYTES);
    if (!fits) {
        pthread_mutex_lock(&lock);
        gpu->overhead_bytes = 0;
        pthread_mutex_unlock(&lock);
    }
    return fits;
}

void memory_context_made(struct gate_gpu *gpu) {
    if (first_context(gpu))
        account_add(gpu, CONTEXT_BYTES);
}

/* Gives back what an earlier request reserved and no allocation followed. */
static void settle(void) {
    if (asked_bytes)
        account_add(asked_gpu, -(int64_t)asked_bytes);
    asked_bytes = 0;
}

bool memory_ask(uint64_t bytes) {
    struct gate_context *context;
    if (!gate_context_of(NULL, &context) || !context)
        return true; /* without a context the driver refuses by itself */
    return memory_ask_on(gate_context_gpu(context), bytes);
}

bool memory_ask_on(struct gate_gpu *gpu, uint64_t bytes) {
    settle();
    /* What is too much now is refused now, and not only when the gate opens. */
    enum account_answer answer = try(gpu, bytes, limit_of(gpu));
    if (answer != ACCOUNT_OVER && !gate_stream_capturing())
        gate_wait_open(gpu);
    if (answer != ACCOUNT_GRANTED && !take(gpu, bytes))
        return false;
    asked_bytes = bytes;
    asked_gpu = gpu;
    return true;
}

uint64_t memory_granted(void) {
    uint64_t granted = asked_bytes;
    asked_bytes = 0;
    return granted;
}

bool memory_is_over(struct gate_gpu *gpu) {
    pthread_mutex_lock(&gpu->lock);
    uint64_t limit = memory_limit(gpu);
    bool over = limit && account_sum(gpu) > limit;
    pthread_mutex_unlock(&gpu->lock);
    return over;
}

/* The caller holds the lock. */
static void end(struct held *held) {
    if (held->pool >= 0)
        pool_freed(held->pool, held->bytes);
    else
        account_add(held->gpu, -(int64_t)held->bytes);
}

/* The caller holds the lock. What finds no room in the table stays counted for good. */
static void note(struct held entry) {
    bool room = filled * 2 < capacity || grow();
    struct held *held = room ? place(table, capacity, entry.handle) : NULL;
    if (!held)
        return;
    if (held->handle == entry.handle) /* a free we did not see */
        end(held);
    else
        filled++;
    *held = entry;
}

void memory_took_from(uint64_t handle, uint64_t bytes, int pool) {
    pthread_mutex_lock(&lock);
    note((struct held){.handle = handle, .bytes = bytes, .pool = pool});
    pthread_mutex_unlock(&lock);
}

void memory_took(uint64_t handle, uint64_t bytes) {
    if (handle <= 1) { /* the driver refused */
        settle();
        return;
    }
    struct gate_gpu *gpu = asked_bytes ? asked_gpu : NULL;
    struct gate_context *context;
    if (!gpu && gate_context_of(NULL, &context) && context)
        gpu = gate_context_gpu(context);
    if (!gpu)
        return;
    pthread_mutex_lock(&lock);
    account_add(gpu, (int64_t)(bytes - asked_bytes)); /* at once: nobody may come in between */
    asked_bytes = 0;
    note((struct held){handle, bytes, gpu, -1});
    pthread_mutex_unlock(&lock);
}

void memory_freed(uint64_t handle) {
    pthread_mutex_lock(&lock);
    struct held *held = capacity && handle > 1 ? place(table, capacity, handle) : NULL;
    if (held && held->handle == handle) {
        end(held);
        held->handle = 1;
    }
    pthread_mutex_unlock(&lock);
}

static void look(struct gate_gpu *gpu, uint64_t *limit_bytes, uint64_t *held_bytes) {
    pools_look();
    pthread_mutex_lock(&gpu->lock);
    *limit_bytes = memory_limit(gpu);
    *held_bytes = account_sum(gpu);
    pthread_mutex_unlock(&gpu->lock);
}

void memory_info(size_t *free_bytes, size_t *total_bytes) {
    struct gate_context *context;
    if (!gate_context_of(NULL, &context) || !context)
        return;
    uint64_t limit, held;
    look(gate_context_gpu(context), &limit, &held);
    if (!limit)
        return;
    uint64_t left = held < limit ? limit - held : 0;
    if (*total_bytes > limit)
        *total_bytes = limit;
    if (*free_bytes > left)
        *free_bytes = left;
}

bool memory_of_gpu(const char *uuid, uint64_t *limit_bytes, uint64_t *held_bytes) {
    struct gate_gpu *gpu = gate_gpu_known(uuid);
    if (!gpu)
        return false;
    look(gpu, limit_bytes, held_bytes);
    return *limit_bytes > 0;
}

void memory_total(CUdevice device, size_t *bytes) {
    struct gate_gpu *gpu = gate_gpu_asked_of(device);
    uint64_t limit = gpu ? limit_of(gpu) : 0;
    if (limit && *bytes > limit)
        *bytes = limit;
}
