/* gpu.h - what the C programs of the hardware measurements share: the driver, found at run time as
 * most programs find it, one context, and memory that host and GPU both see.
 *
 * Kernels are PTX text. The simulated GPU does not look at it: there a kernel takes as many
 * microseconds as its grid is wide and writes nothing. */
#ifndef HARDWARE_GPU_H
#define HARDWARE_GPU_H
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "../../agent/shim/cuda_abi.h"

enum { GPU_ABSENT = 3 }; /* exit code: the driver lacks a function */

#define GPU_CALLS(X)                                                                               \
    X(cuInit, (unsigned))                                                                          \
    X(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                           \
    X(cuCtxSetCurrent, (CUcontext))                                                                \
    X(cuStreamCreate, (CUstream *, unsigned))                                                      \
    X(cuStreamSynchronize, (CUstream))                                                             \
    X(cuModuleLoadData, (CUmodule *, const void *))                                                \
    X(cuModuleGetFunction, (CUfunction *, CUmodule, const char *))                                 \
    X(cuMemHostRegister_v2, (void *, size_t, unsigned))                                            \
    X(cuLaunchKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,     \
                       unsigned, CUstream, void **, void **))

#define GPU_DECLARE(name, parameters) static CUresult(*gpu_##name) parameters;
GPU_CALLS(GPU_DECLARE)
static void *gpu_driver;
static CUcontext gpu_context;

static inline void gpu_check(CUresult result, const char *what) {
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "%s: CUDA error %d\n", what, (int)result);
    _exit(1);
}
#define GPU_TRY(name, ...) gpu_check(gpu_##name(__VA_ARGS__), #name)

static inline void *gpu_find(const char *name) {
    void *found = dlsym(gpu_driver, name);
    if (!found) {
        fprintf(stderr, "this driver has no %s\n", name);
        _exit(GPU_ABSENT);
    }
    return found;
}

/* The primary context of the first GPU is current afterwards. */
static inline void gpu_begin(void) {
    gpu_driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!gpu_driver) {
        fprintf(stderr, "%s\n", dlerror());
        _exit(1);
    }
#define GPU_FILL(name, parameters) gpu_##name = gpu_find(#name);
    GPU_CALLS(GPU_FILL)
    GPU_TRY(cuInit, 0);
    GPU_TRY(cuDevicePrimaryCtxRetain, &gpu_context, 0);
    GPU_TRY(cuCtxSetCurrent, gpu_context);
}

static inline CUfunction gpu_kernel(const char *ptx, const char *name) {
    CUmodule module;
    CUfunction function;
    GPU_TRY(cuModuleLoadData, &module, ptx);
    GPU_TRY(cuModuleGetFunction, &function, module, name);
    return function;
}

static inline uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline void rest_us(unsigned us) {
    struct timespec t = {.tv_sec = us / 1000000, .tv_nsec = (long)(us % 1000000) * 1000};
    nanosleep(&t, NULL);
}
#endif
