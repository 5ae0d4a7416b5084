/* lifetime.c - a process's entry into the simulated driver and its way out. */
#include <stdatomic.h>
#include "driver.h"
#include "mps.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int state; /* CUresult to give, + 1; 0: not initialised yet */
static int process = -1;

uint32_t driver_process(void) { return (uint32_t)process; }

CUresult driver_ready(void) {
    int now = atomic_load_explicit(&state, memory_order_acquire);
    return now ? now - 1 : CUDA_ERROR_NOT_INITIALIZED;
}

/* A forked child has none of its parent's contexts; as with the real driver it cannot begin
 * anew until it has executed another program. */
static void after_fork(void) {
    if (atomic_load(&state) == CUDA_SUCCESS + 1)
        atomic_store(&state, CUDA_ERROR_NOT_INITIALIZED + 1);
}

static CUresult initialise(void) {
    CUresult found = devices_find(false);
    if (found)
        return found;
    if (!world_open())
        return CUDA_ERROR_UNKNOWN;
    world_lock();
    process = process_register();
    world_unlock();
    if (process < 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult connected = mps_connect((uint32_t)process);
    if (connected) {
        world_lock();
        process_remove((uint32_t)process);
        world_unlock();
        return connected;
    }
    engine_start();
    pthread_atfork(NULL, NULL, after_fork);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuInit(unsigned flags) {
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    if (!atomic_load(&state) || atomic_load(&state) == CUDA_ERROR_NO_DEVICE + 1)
        atomic_store(&state, initialise() + 1);
    CUresult result = driver_ready();
    pthread_mutex_unlock(&lock);
    return result;
}

/* An orderly exit gives everything back at once, without waiting for a reaper. */
__attribute__((destructor)) static void leave(void) {
    if (atomic_exchange(&state, CUDA_ERROR_DEINITIALIZED + 1) != CUDA_SUCCESS + 1)
        return;
    engine_stop();
    world_lock();
    process_remove((uint32_t)process);
    world_unlock();
}
