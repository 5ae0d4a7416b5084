/* pool.h - memory pools: what the process keeps reserved on a GPU, and how much of it is in use. */
#ifndef SIMGPU_POOL_H
#define SIMGPU_POOL_H
#include "driver.h"

struct sim_pool_handle {
    uint64_t magic;
    uint32_t gpu;   /* minor number */
    bool on_host;   /* takes no memory of a GPU */
    bool standing;  /* a device's own: never destroyed */
    bool destroyed; /* goes with its last allocation */
    uint64_t threshold, reserved, reserved_high, used, used_high;
    struct sim_pool_handle *next;
};

CUresult pool_check(CUmemoryPool pool);
CUmemoryPool pool_of_device(CUdevice device); /* the one that cuMemAllocAsync takes from */
/* The world is locked for these two. */
CUresult pool_take(CUmemoryPool pool, uint64_t bytes);
void pool_give_back(CUmemoryPool pool, uint64_t bytes);
/* After a wait: what exceeds a pool's threshold and is not in use goes back to the GPU. */
void pools_release(void);
#endif
