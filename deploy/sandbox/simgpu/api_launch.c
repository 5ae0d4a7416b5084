/* api_launch.c - modules, functions and launches. A module's image is not looked at: any name is
 * a kernel, and it takes as many microseconds as its grid is wide. Names that begin with nccl
 * are communication; inject.c says which never end or fault. A kernel that is given a buffer of
 * two words (`extra`) spins besides until the 64-bit word at the first is at least the second. */
#include <stdlib.h>
#include <string.h>
#include "graph.h"
#include "handles.h"
#include "memory.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static CUresult load(CUmodule *module) {
    CUcontext context;
    CUresult result = context_required(&context);
    if (result || !module)
        return result ? result : CUDA_ERROR_INVALID_VALUE;
    CUmodule m = calloc(1, sizeof *m);
    if (!m)
        return CUDA_ERROR_OUT_OF_MEMORY;
    m->context = context;
    *module = m;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleLoad(CUmodule *module, const char *path) {
    return path ? load(module) : CUDA_ERROR_INVALID_VALUE;
}
EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    return image ? load(module) : CUDA_ERROR_INVALID_VALUE;
}
EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count,
                                   void *options, void **values) {
    (void)count, (void)options, (void)values;
    return image ? load(module) : CUDA_ERROR_INVALID_VALUE;
}
EXPORT CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image) {
    return image ? load(module) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult unload(CUmodule module) {
    CUresult ready = driver_ready();
    if (ready || !module)
        return ready ? ready : CUDA_ERROR_INVALID_HANDLE;
    for (CUfunction f = module->functions; f;) {
        CUfunction next = f->next;
        f->magic = 0;
        free(f);
        f = next;
    }
    free(module);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleUnload(CUmodule module) { return unload(module); }

/* The same name of one module is one function. */
static CUresult get_function(CUfunction *function, CUmodule module, const char *name) {
    CUresult ready = driver_ready();
    if (ready)
        return ready;
    if (!function || !module || !name || !*name)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    CUfunction f = module->functions;
    while (f && strcmp(f->text, name))
        f = f->next;
    if (!f && (f = calloc(1, sizeof *f + strlen(name) + 1))) {
        strcpy(f->text, name);
        f->magic = FUNCTION_MAGIC;
        f->module = module;
        f->communication = !strncmp(name, "nccl", 4);
        f->next = module->functions;
        module->functions = f;
    }
    pthread_mutex_unlock(&lock);
    *function = f;
    return f ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    return get_function(function, module, name);
}

/* Libraries are modules that need no context; a CUkernel may be launched as a CUfunction. */
EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *code, void *o, void **ov,
                                  unsigned on, void *l, void **lv, unsigned ln) {
    (void)o, (void)ov, (void)on, (void)l, (void)lv, (void)ln;
    CUresult ready = driver_ready();
    if (ready || !library || !code)
        return ready ? ready : CUDA_ERROR_INVALID_VALUE;
    *library = calloc(1, sizeof **library);
    return *library ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
EXPORT CUresult cuLibraryUnload(CUlibrary library) { return unload(library); }
EXPORT CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
    return get_function(kernel, library, name);
}
EXPORT CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library) {
    CUresult ready = driver_ready();
    if (ready || !module || !library)
        return ready ? ready : CUDA_ERROR_INVALID_VALUE;
    *module = library;
    return CUDA_SUCCESS;
}

static CUresult check(const struct sim_function_handle *function, const void *out) {
    CUresult ready = driver_ready();
    if (ready)
        return ready;
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    return function && function->magic == FUNCTION_MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
    CUresult bad = check(kernel, function);
    if (!bad)
        *function = kernel;
    return bad;
}
EXPORT CUresult cuKernelGetName(const char **name, CUkernel kernel) {
    CUresult bad = check(kernel, name);
    if (!bad)
        *name = kernel->text;
    return bad;
}
EXPORT CUresult cuFuncGetName(const char **name, CUfunction function) {
    CUresult bad = check(function, name);
    if (!bad)
        *name = function->text;
    return bad;
}
EXPORT CUresult cuFuncGetModule(CUmodule *module, CUfunction function) {
    CUresult bad = check(function, module);
    if (!bad)
        *module = function->module;
    return bad;
}
EXPORT CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction function) {
    CUresult bad = check(function, value);
    if (!bad)
        *value = attribute == 0 ? 1024 : attribute == 5 || attribute == 6 ? 90 : 0;
    return bad;
}
EXPORT CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value) {
    (void)attribute, (void)value;
    return check(function, function);
}
EXPORT CUresult cuFuncSetCacheConfig(CUfunction function, int config) {
    (void)config;
    return check(function, function);
}
EXPORT CUresult cuFuncLoad(CUfunction function) { return check(function, function); }
EXPORT CUresult cuFuncIsLoaded(int *state, CUfunction function) {
    CUresult bad = check(function, state);
    if (!bad)
        *state = 1;
    return bad;
}
EXPORT CUresult cuModuleGetLoadingMode(int *mode) {
    CUresult ready = driver_ready();
    if (ready || !mode)
        return ready ? ready : CUDA_ERROR_INVALID_VALUE;
    *mode = 1; /* eager */
    return CUDA_SUCCESS;
}

CUresult kernel_op(const struct launch_shape *shape, struct sim_op *op) {
    CUfunction function = shape->function;
    unsigned threads = shape->block[0] * shape->block[1] * shape->block[2];
    CUresult result = check(function, function);
    if (result)
        return result;
    if (!shape->grid[0] || !shape->grid[1] || !shape->grid[2] || !threads || threads > 1024)
        return CUDA_ERROR_INVALID_VALUE;
    if (!function->name) {
        world_lock();
        function->name = world_name(function->text);
        world_unlock();
    }
    *op = (struct sim_op){.kind = SIM_KERNEL,
                          .flags = injected_flags(function->text),
                          .name = function->name,
                          .duration_ns = shape->grid[0] * 1000ull};
    if (function->communication)
        op->flags |= SIM_COMMUNICATION;
    if (shape->awaited) {
        op->flags |= SIM_SPINS | SIM_EFFECT;
        op->a = shape->awaited;
        op->b = shape->value;
    }
    return CUDA_SUCCESS;
}

/* The word that a kernel spins for stands in its argument buffer; it must be in the GPU's reach. */
static CUresult take_arguments(struct launch_shape *shape, void **extra) {
    const uint64_t *buffer = NULL;
    size_t bytes = 0;
    for (; extra && *extra; extra += 2) {
        if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER)
            buffer = extra[1];
        else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE)
            bytes = *(const size_t *)extra[1];
        else
            return CUDA_ERROR_INVALID_VALUE;
    }
    struct allocation a;
    if (!buffer || bytes != 2 * sizeof *buffer)
        return CUDA_SUCCESS;
    if (buffer[0] % 8 || !memory_find(buffer[0], &a) || buffer[0] + 8 > a.base + a.bytes)
        return CUDA_ERROR_INVALID_VALUE;
    shape->awaited = buffer[0];
    shape->value = buffer[1];
    return CUDA_SUCCESS;
}

static CUresult launch(bool per_thread, struct launch_shape *shape, void **extra, CUstream stream) {
    struct stream_ref ref;
    struct sim_op op;
    CUresult result = driver_ready();
    if (!result)
        result = take_arguments(shape, extra);
    if (!result)
        result = kernel_op(shape, &op);
    if (!result)
        result = stream_resolve(stream, per_thread, &ref);
    return result ? result : stream_issue(&ref, &op, shape);
}

#define SHAPE                                                                                      \
    &(struct launch_shape) { f, {x, y, z}, {bx, by, bz}, shared, 0, 0 }

static CUresult sim_cuLaunchKernel(bool per_thread, CUfunction f, unsigned x, unsigned y,
                                   unsigned z, unsigned bx, unsigned by, unsigned bz,
                                   unsigned shared, CUstream stream, void **parameters,
                                   void **extra) {
    (void)parameters;
    return launch(per_thread, SHAPE, extra, stream);
}
BOTH(cuLaunchKernel, _ptsz,
     (CUfunction f, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
      unsigned shared, CUstream stream, void **parameters, void **extra),
     (f, x, y, z, bx, by, bz, shared, stream, parameters, extra))

static CUresult sim_cuLaunchCooperativeKernel(bool per_thread, CUfunction f, unsigned x, unsigned y,
                                              unsigned z, unsigned bx, unsigned by, unsigned bz,
                                              unsigned shared, CUstream stream, void **parameters) {
    (void)parameters;
    return launch(per_thread, SHAPE, NULL, stream);
}
BOTH(cuLaunchCooperativeKernel, _ptsz,
     (CUfunction f, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
      unsigned shared, CUstream stream, void **parameters),
     (f, x, y, z, bx, by, bz, shared, stream, parameters))

static CUresult sim_cuLaunchKernelEx(bool per_thread, const CUlaunchConfig *config, CUfunction f,
                                     void **parameters, void **extra) {
    (void)parameters;
    if (!config)
        return CUDA_ERROR_INVALID_VALUE;
    struct launch_shape shape = {f,
                                 {config->grid_x, config->grid_y, config->grid_z},
                                 {config->block_x, config->block_y, config->block_z},
                                 config->shared_bytes,
                                 0,
                                 0};
    return launch(per_thread, &shape, extra, config->stream);
}
BOTH(cuLaunchKernelEx, _ptsz,
     (const CUlaunchConfig *config, CUfunction f, void **parameters, void **extra),
     (config, f, parameters, extra))

static CUresult sim_cuLaunchHostFunc(bool per_thread, CUstream stream, CUhostFn function,
                                     void *data) {
    struct stream_ref ref;
    CUresult result = stream_resolve(stream, per_thread, &ref);
    if (result || !function)
        return result ? result : CUDA_ERROR_INVALID_VALUE;
    struct sim_op op = {
        .kind = SIM_HOST, .flags = SIM_EFFECT, .a = (uintptr_t)function, .b = (uintptr_t)data};
    return stream_issue(&ref, &op, NULL);
}
BOTH(cuLaunchHostFunc, _ptsz, (CUstream stream, CUhostFn function, void *data),
     (stream, function, data))
