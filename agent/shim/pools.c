/* pools.c - what the memory pools of this process keep reserved on a GPU.
 *
 * A pool is counted by what the driver says that it has reserved, not by its allocations: it keeps
 * what is freed, up to its release threshold, and gives it back when it is trimmed or when the
 * process waits for the GPU. The driver is asked whenever one of these may have happened.
 * Allocations that are captured into a graph have a pool of the graph's and are counted by
 * themselves. */
#include <pthread.h>
#include "gate.h"
#include "gate_driver.h"

#define POOLS 64
enum pool_attribute { POOL_RESERVED = 5, POOL_USED = 7 };

struct pool {
    CUmemoryPool handle; /* NULL: destroyed, or never one */
    struct gate_gpu *gpu;
    bool on_host;
    uint64_t counted;
    uint64_t live; /* allocations of a destroyed pool; it goes with the last one */
};

/* Before account.c's lock, after memory.c's. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pool pools[POOLS];
static _Atomic int pools_used;

/* False: the driver does not say. */
static bool attribute(CUmemoryPool pool, enum pool_attribute which, uint64_t *value) {
    return gate_driver.pool_attribute(pool, which, value) == CUDA_SUCCESS;
}

/* From here to pools_of() the caller holds the lock. */

static void count(struct pool *pool, uint64_t bytes, uint64_t granted) {
    account_add(pool->gpu, (int64_t)(bytes - pool->counted - granted));
    pool->counted = bytes;
}

static void look(struct pool *pool, uint64_t granted) {
    uint64_t reserved = pool->counted + granted; /* unless the driver knows better */
    if (!pool->handle || pool->on_host)
        return;
    attribute(pool->handle, POOL_RESERVED, &reserved);
    count(pool, reserved, granted);
}

static struct pool *find(CUmemoryPool handle) {
    int used = atomic_load(&pools_used);
    for (int i = 0; i < used; i++)
        if (pools[i].handle == handle)
            return &pools[i];
    return NULL;
}

static struct pool *add(CUmemoryPool handle, struct gate_gpu *gpu, bool on_host) {
    int used = atomic_load(&pools_used), at = 0;
    while (at < used && (pools[at].handle || pools[at].counted))
        at++;
    if (at == POOLS)
        return NULL;
    pools[at] = (struct pool){.handle = handle, .gpu = gpu, .on_host = on_host};
    if (at == used)
        atomic_store(&pools_used, used + 1);
    return &pools[at];
}

/* The pool that a call names, or that it means without naming one. */
static struct pool *pools_of(CUmemoryPool handle, struct gate_gpu *gpu) {
    CUdevice device;
    if (!handle && (gate_driver.context_device(&device) != CUDA_SUCCESS ||
                    gate_driver.device_pool(&handle, device) != CUDA_SUCCESS))
        return NULL;
    struct pool *pool = find(handle);
    return pool ? pool : add(handle, gpu, false);
}

static bool usable(void) {
    return gate_driver.pool_attribute && gate_driver.pool_trim && gate_driver.device_pool &&
           gate_driver.free_async && gate_driver.stream_synchronize;
}

void pools_look(void) {
    if (atomic_load(&pools_used) == 0 || gate_stream_capturing())
        return;
    pthread_mutex_lock(&lock);
    int used = atomic_load(&pools_used);
    for (int i = 0; i < used; i++)
        look(&pools[i], 0);
    pthread_mutex_unlock(&lock);
}

bool pools_trim(struct gate_gpu *gpu) {
    CUmemoryPool handles[POOLS];
    int count_found = 0;
    pthread_mutex_lock(&lock);
    int used = atomic_load(&pools_used);
    for (int i = 0; i < used; i++)
        if (pools[i].handle && pools[i].gpu == gpu && pools[i].counted)
            handles[count_found++] = pools[i].handle;
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < count_found; i++)
        gate_driver.pool_trim(handles[i], 0);
    pools_look();
    return count_found > 0;
}

/* How much a pool has to grow for an allocation, at least. */
static uint64_t growth(struct pool *pool, uint64_t bytes) {
    look(pool, 0);
    uint64_t used;
    bool known = attribute(pool->handle, POOL_USED, &used);
    uint64_t spare = known && pool->counted > used ? pool->counted - used : 0;
    return bytes > spare ? bytes - spare : 0;
}

bool pool_ask(struct shim_pool_call *call) {
    struct gate_context *context;
    call->pooled = false;
    if (!usable() || !gate_context_of(call->stream, &context) || !context)
        return memory_ask(call->bytes);
    uint64_t wanted = 0;
    pthread_mutex_lock(&lock);
    struct pool *pool = pools_of(call->pool, gate_context_gpu(context));
    struct gate_gpu *gpu = pool ? pool->gpu : NULL;
    if (pool) {
        call->pooled = true;
        call->pool = pool->handle;
        wanted = pool->on_host ? 0 : growth(pool, call->bytes);
    }
    pthread_mutex_unlock(&lock);
    return pool ? memory_ask_on(gpu, wanted)
                : memory_ask_on(gate_context_gpu(context), call->bytes);
}

/* Over the limit the gate stays shut, so what was too much goes back to the GPU before we return.
 */
static void take_back(const struct shim_pool_call *call, CUdeviceptr at) {
    gate_driver.free_async(at, call->stream);
    gate_driver.stream_synchronize(call->stream);
    gate_driver.pool_trim(call->pool, 0);
    pools_look();
}

bool pool_took(const struct shim_pool_call *call, CUdeviceptr at) {
    if (!call->pooled) {
        memory_took(at, at ? call->bytes : 0);
        return true;
    }
    uint64_t granted = memory_granted();
    pthread_mutex_lock(&lock);
    struct pool *pool = find(call->pool);
    struct gate_gpu *gpu = pool ? pool->gpu : NULL;
    bool counts = pool && !pool->on_host;
    int index = pool ? (int)(pool - pools) : -1;
    if (counts) /* at once: nobody may come in between */
        look(pool, granted);
    pthread_mutex_unlock(&lock);
    if (!at || !counts)
        return true;
    if (memory_is_over(gpu)) { /* it grew by more than was granted */
        take_back(call, at);
        return false;
    }
    memory_took_from(at, call->bytes, index);
    return true;
}

void pool_freed(int index, uint64_t bytes) {
    pthread_mutex_lock(&lock);
    struct pool *pool = &pools[index];
    if (pool->handle) {
        look(pool, 0);
    } else if (pool->live > bytes) {
        pool->live -= bytes;
    } else { /* the last one */
        pool->live = 0;
        count(pool, 0, 0);
    }
    pthread_mutex_unlock(&lock);
}

void pool_made(CUmemoryPool handle, CUdevice device, bool on_host) {
    struct gate_gpu *gpu = gate_gpu_asked_of(device);
    pthread_mutex_lock(&lock);
    if (gpu)
        add(handle, gpu, on_host);
    pthread_mutex_unlock(&lock);
}

uint64_t pool_left(CUmemoryPool handle) {
    uint64_t used = UINT64_MAX; /* not known: it stays counted */
    pools_look();
    if (usable())
        attribute(handle, POOL_USED, &used);
    return used;
}

/* The driver frees all of it with the last allocation, and says nothing of it meanwhile. */
void pool_gone(CUmemoryPool handle, uint64_t left) {
    pthread_mutex_lock(&lock);
    struct pool *pool = find(handle);
    if (pool) {
        pool->handle = NULL;
        pool->live = left;
        if (!left)
            count(pool, 0, 0);
    }
    pthread_mutex_unlock(&lock);
}
