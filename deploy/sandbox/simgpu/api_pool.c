/* api_pool.c - memory pools. A pool grows by chunks, keeps what is freed, and gives chunks that are
 * not in use back when it is trimmed or, above its threshold, when the process waits for the GPU.
 */
#include <stdlib.h>
#include "handles.h"
#include "memory.h"
#include "pool.h"

#define POOL_MAGIC 0x73696d5f706f6f6cull
#define CHUNK (32ull << 20)
enum { LOCATION_DEVICE = 1 };

enum pool_attribute { THRESHOLD = 4, RESERVED, RESERVED_HIGH, USED, USED_HIGH };

/* The first members of CUmemPoolProps. */
struct pool_properties {
    int allocation_type, handle_types, location_type, location_id;
};

static struct sim_pool_handle *pools;                      /* under the world's lock */
static CUmemoryPool standing[SIM_GPUS], current[SIM_GPUS]; /* by device */

static CUmemoryPool make(uint32_t gpu, bool on_host, bool stands) {
    CUmemoryPool pool = calloc(1, sizeof *pool);
    if (!pool)
        return NULL;
    *pool = (struct sim_pool_handle){
        .magic = POOL_MAGIC, .gpu = gpu, .on_host = on_host, .standing = stands, .next = pools};
    pools = pool;
    return pool;
}

static CUmemoryPool standing_pool(CUdevice device) {
    world_lock();
    if (!standing[device])
        standing[device] = make(device_minor(device), false, true);
    CUmemoryPool pool = standing[device];
    world_unlock();
    return pool;
}

CUmemoryPool pool_of_device(CUdevice device) {
    return current[device] ? current[device] : standing_pool(device);
}

CUresult pool_check(CUmemoryPool pool) {
    CUresult ready = driver_ready();
    if (ready)
        return ready;
    return pool && pool->magic == POOL_MAGIC && !pool->destroyed ? CUDA_SUCCESS
                                                                 : CUDA_ERROR_INVALID_VALUE;
}

static uint64_t in_chunks(uint64_t bytes) { return (bytes + CHUNK - 1) / CHUNK * CHUNK; }

static uint64_t *account_of(CUmemoryPool pool) {
    return &world->processes[driver_process()].memory_bytes[pool->gpu];
}

static void keep(CUmemoryPool pool, uint64_t least) {
    uint64_t kept = in_chunks(pool->used > least ? pool->used : least);
    if (kept >= pool->reserved)
        return;
    if (!pool->on_host)
        *account_of(pool) -= pool->reserved - kept;
    pool->reserved = kept;
}

CUresult pool_take(CUmemoryPool pool, uint64_t bytes) {
    uint64_t reserved = in_chunks(pool->used + bytes);
    if (reserved > pool->reserved && !pool->on_host) {
        uint64_t more = reserved - pool->reserved;
        if (gpu_memory_used(pool->gpu) + more > world->memory_bytes)
            return CUDA_ERROR_OUT_OF_MEMORY;
        *account_of(pool) += more;
    }
    pool->used += bytes;
    pool->reserved = reserved > pool->reserved ? reserved : pool->reserved;
    pool->used_high = pool->used > pool->used_high ? pool->used : pool->used_high;
    pool->reserved_high =
        pool->reserved > pool->reserved_high ? pool->reserved : pool->reserved_high;
    return CUDA_SUCCESS;
}

void pool_give_back(CUmemoryPool pool, uint64_t bytes) {
    pool->used -= bytes;
    if (pool->destroyed && !pool->used)
        keep(pool, 0);
}

void pools_release(void) {
    if (!pools)
        return;
    world_lock();
    for (CUmemoryPool pool = pools; pool; pool = pool->next)
        if (pool->reserved > pool->threshold)
            keep(pool, pool->threshold);
    world_unlock();
}

EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const struct pool_properties *properties) {
    CUresult ready = driver_ready();
    if (ready)
        return ready;
    if (!pool || !properties)
        return CUDA_ERROR_INVALID_VALUE;
    bool on_host = properties->location_type != LOCATION_DEVICE;
    CUdevice device = on_host ? 0 : properties->location_id;
    if (!device_valid(device))
        return CUDA_ERROR_INVALID_DEVICE;
    world_lock();
    *pool = make(device_minor(device), on_host, false);
    world_unlock();
    return *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Handles stay allocated: allocations name them. */
EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    CUresult bad = pool_check(pool);
    if (bad || pool->standing)
        return bad ? bad : CUDA_ERROR_INVALID_VALUE;
    world_lock();
    for (unsigned i = 0; i < SIM_GPUS; i++)
        current[i] = current[i] == pool ? NULL : current[i];
    pool->destroyed = true;
    if (!pool->used)
        keep(pool, 0);
    world_unlock();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t least) {
    CUresult bad = pool_check(pool);
    if (bad)
        return bad;
    world_lock();
    keep(pool, least);
    world_unlock();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value) {
    CUresult bad = pool_check(pool);
    if (bad || !value)
        return bad ? bad : CUDA_ERROR_INVALID_VALUE;
    if (attribute >= 1 && attribute < THRESHOLD) { /* reuse: always allowed, and never needed */
        *(int *)value = 1;
        return CUDA_SUCCESS;
    }
    world_lock();
    const uint64_t values[] = {pool->threshold, pool->reserved, pool->reserved_high, pool->used,
                               pool->used_high};
    world_unlock();
    if (attribute < THRESHOLD || attribute > USED_HIGH)
        return CUDA_ERROR_INVALID_VALUE;
    *(uint64_t *)value = values[attribute - THRESHOLD];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, const void *value) {
    CUresult bad = pool_check(pool);
    if (bad || !value)
        return bad ? bad : CUDA_ERROR_INVALID_VALUE;
    if (attribute >= 1 && attribute < THRESHOLD)
        return CUDA_SUCCESS;
    if (attribute != THRESHOLD && attribute != RESERVED_HIGH && attribute != USED_HIGH)
        return CUDA_ERROR_INVALID_VALUE;
    world_lock();
    if (attribute == THRESHOLD)
        pool->threshold = *(const uint64_t *)value;
    else if (attribute == RESERVED_HIGH)
        pool->reserved_high = pool->reserved;
    else
        pool->used_high = pool->used;
    world_unlock();
    return CUDA_SUCCESS;
}

static CUresult device_pool(CUmemoryPool *pool, CUdevice device, CUmemoryPool (*which)(CUdevice)) {
    CUresult ready = driver_ready();
    if (ready)
        return ready;
    if (!pool || !device_valid(device))
        return pool ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
    *pool = which(device);
    return *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device) {
    return device_pool(pool, device, standing_pool);
}
EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device) {
    return device_pool(pool, device, pool_of_device);
}
EXPORT CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
    CUresult bad = pool_check(pool);
    if (!bad && (!device_valid(device) || pool->on_host || pool->gpu != device_minor(device)))
        bad = CUDA_ERROR_INVALID_DEVICE;
    if (!bad)
        current[device] = pool;
    return bad;
}
