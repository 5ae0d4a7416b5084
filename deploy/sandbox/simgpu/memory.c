/* memory.c - device and pinned memory. Device memory is host memory of this process, reserved
 * and not touched until something is copied there; what it counts for is the GPU's account. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "handles.h"
#include "memory.h"
#include "pool.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct allocation *allocations;
static uint64_t next_id;

bool memory_find(uint64_t address, struct allocation *found) {
    pthread_mutex_lock(&lock);
    struct allocation *a = allocations;
    while (a && (address < a->base || address >= a->base + a->bytes))
        a = a->next;
    if (a)
        *found = *a;
    pthread_mutex_unlock(&lock);
    return a != NULL;
}

static CUresult add(struct allocation a) {
    struct allocation *copy = malloc(sizeof *copy);
    if (!copy)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    a.id = ++next_id;
    a.next = allocations;
    *copy = a;
    allocations = copy;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

/* Unlinks the allocation that begins at base and is of one of the kinds. */
static struct allocation *take(uint64_t base, unsigned kinds) {
    pthread_mutex_lock(&lock);
    struct allocation **at = &allocations;
    while (*at && !((*at)->base == base && (*at)->kind & kinds))
        at = &(*at)->next;
    struct allocation *a = *at;
    if (a)
        *at = a->next;
    pthread_mutex_unlock(&lock);
    return a;
}

CUresult memory_count(CUcontext context, uint64_t bytes, bool take_back) {
    uint64_t *held = &world->processes[driver_process()].memory_bytes[context->gpu];
    CUresult result = CUDA_SUCCESS;
    world_lock();
    if (take_back)
        *held -= bytes;
    else if (gpu_memory_used(context->gpu) + bytes > world->memory_bytes)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    else
        *held += bytes;
    world_unlock();
    return result;
}

/* What the allocation was counted for. */
static void uncount(const struct allocation *a) {
    if (!(a->kind & (MEMORY_DEVICE | MEMORY_MANAGED)))
        return;
    if (!a->pool) {
        memory_count(a->context, a->bytes, true);
        return;
    }
    world_lock();
    pool_give_back(a->pool, a->bytes);
    world_unlock();
}

static void *reserve(size_t bytes) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

CUresult memory_allocate(CUdeviceptr *pointer, size_t bytes, CUcontext context, unsigned kind) {
    if (!pointer || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (kind != MEMORY_HOST && memory_count(context, bytes, false))
        return CUDA_ERROR_OUT_OF_MEMORY;
    void *at = reserve(bytes);
    CUresult result =
        at ? add((struct allocation){
                 .base = (uintptr_t)at, .bytes = bytes, .kind = kind, .context = context})
           : CUDA_ERROR_OUT_OF_MEMORY;
    if (!result) {
        *pointer = (uintptr_t)at;
    } else {
        if (at)
            munmap(at, bytes);
        if (kind != MEMORY_HOST)
            memory_count(context, bytes, true);
    }
    return result;
}

CUresult memory_allocate_from(CUmemoryPool pool, CUdeviceptr *pointer, size_t bytes,
                              CUcontext context) {
    if (!pointer || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    world_lock();
    CUresult result = pool_take(pool, bytes);
    world_unlock();
    if (result)
        return result;
    void *at = reserve(bytes);
    struct allocation a = {.base = (uintptr_t)at,
                           .bytes = bytes,
                           .kind = MEMORY_DEVICE,
                           .context = context,
                           .pool = pool};
    result = at ? add(a) : CUDA_ERROR_OUT_OF_MEMORY;
    if (!result) {
        *pointer = (uintptr_t)at;
        return CUDA_SUCCESS;
    }
    if (at)
        munmap(at, bytes);
    uncount(&a);
    return result;
}

static void give_back(struct allocation *a) {
    if (a->kind != MEMORY_REGISTERED)
        munmap((void *)(uintptr_t)a->base, a->bytes);
    free(a);
}

CUresult memory_free(uint64_t base, unsigned kinds) {
    struct allocation *a = take(base, kinds);
    if (!a)
        return CUDA_ERROR_INVALID_VALUE;
    if (a->context->alive || a->pool)
        uncount(a);
    give_back(a);
    return CUDA_SUCCESS;
}

/* Called by the engine with the world locked: a free that was ordered in a stream. */
void memory_release(uint64_t base) {
    struct allocation *a = take(base, MEMORY_DEVICE);
    if (!a)
        return;
    if (a->pool)
        pool_give_back(a->pool, a->bytes);
    else if (a->context->alive)
        world->processes[driver_process()].memory_bytes[a->context->gpu] -= a->bytes;
    give_back(a);
}

/* Memory and registrations go with their context. */
void memory_forget_context(CUcontext context) {
    for (;;) {
        pthread_mutex_lock(&lock);
        struct allocation **at = &allocations;
        while (*at && (*at)->context != context)
            at = &(*at)->next;
        struct allocation *a = *at;
        if (a)
            *at = a->next;
        pthread_mutex_unlock(&lock);
        if (!a)
            return;
        uncount(a);
        give_back(a);
    }
}

/* Is the whole range mapped, and writable? As the real driver finds when it pins the pages. */
static bool mapped(uint64_t base, uint64_t bytes, bool writable) {
    FILE *maps = fopen("/proc/self/maps", "re");
    if (!maps)
        return false;
    char line[512], mode[8];
    uint64_t at = base;
    unsigned long from, to;
    while (at < base + bytes && fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx %7s", &from, &to, mode) == 3 && from <= at && at < to &&
            mode[0] == 'r' && (!writable || mode[1] == 'w'))
            at = to;
    fclose(maps);
    return at >= base + bytes;
}

CUresult memory_register(void *base, size_t bytes, unsigned flags, CUcontext context) {
    struct allocation found;
    if (!base || !bytes || flags & ~0xfu)
        return CUDA_ERROR_INVALID_VALUE;
    if (memory_find((uintptr_t)base, &found) || memory_find((uintptr_t)base + bytes - 1, &found))
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    bool read_only = flags & CU_MEMHOSTREGISTER_READ_ONLY;
    if (!mapped((uintptr_t)base, bytes, !read_only))
        return CUDA_ERROR_INVALID_VALUE;
    return add((struct allocation){.base = (uintptr_t)base,
                                   .bytes = bytes,
                                   .kind = MEMORY_REGISTERED,
                                   .read_only = read_only,
                                   .context = context});
}
