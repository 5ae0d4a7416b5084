/* hook_launch.c - hooks of kernel launches, and of ways to the GPU that a role may refuse. */
#include "hooks.h"

#define HOOK(symbol, parameters)                                                                   \
    HOOK_EXPORT CUresult symbol parameters;                                                        \
    HOOK_EXPORT CUresult symbol parameters
#define REAL(symbol, parameters) ((CUresult(*) parameters)hook_real(HOOK_##symbol))

/* A kernel's run time depends on which function it is and how many threads it gets. */
static inline uint64_t shape_kernel(CUfunction function, const unsigned grid[3],
                                    const unsigned block[3], unsigned shared_bytes) {
    uint64_t hash = shape_mix(1, (uint64_t)(uintptr_t)function);
    hash = shape_mix(hash, (uint64_t)grid[0] << 32 | grid[1]);
    hash = shape_mix(hash, (uint64_t)grid[2] << 32 | shared_bytes);
    hash = shape_mix(hash, (uint64_t)block[0] << 40 | (uint64_t)block[1] << 20 | block[2]);
    return hash | 1;
}

/* Field by field: clearing the whole, with what is the role's own, would cost more than the rest.
 */
static inline void kernel_op(struct shim_op *op, CUfunction function, const unsigned grid[3],
                             const unsigned block[3], unsigned shared_bytes, CUstream stream) {
    op->kind = SHIM_OP_KERNEL;
    op->stream = stream;
    op->per_thread = op->blocking = op->writes = false;
    op->shape = hook_shapes() ? shape_kernel(function, grid, block, shared_bytes) : 0;
    op->function = function;
    op->bytes = 0;
    op->device = 0;
}

#define KERNEL_PARAMETERS                                                                          \
    (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,     \
     unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream, void **arguments, \
     void **extra)
#define KERNEL_HOOK(symbol, per_thread)                                                            \
    HOOK(symbol, KERNEL_PARAMETERS) {                                                              \
        CUresult(*real) KERNEL_PARAMETERS = REAL(symbol, KERNEL_PARAMETERS);                       \
        if (!real)                                                                                 \
            return hook_missing();                                                                 \
        struct shim_op op;                                                                         \
        kernel_op(&op, function, (unsigned[]){grid_x, grid_y, grid_z},                             \
                  (unsigned[]){block_x, block_y, block_z}, shared_bytes, stream);                  \
        const struct shim_role_ops *role = hook_before(&op, per_thread);                           \
        CUresult result;                                                                           \
        unsigned tries = 0;                                                                        \
        do                                                                                         \
            result = real(function, grid_x, grid_y, grid_z, block_x, block_y, block_z,             \
                          shared_bytes, stream, arguments, extra);                                 \
        while (hook_again(role, result, -1, 0, &tries));                                           \
        hook_after(role, &op, result);                                                             \
        return result;                                                                             \
    }
KERNEL_HOOK(cuLaunchKernel, false)
KERNEL_HOOK(cuLaunchKernel_ptsz, true)

#define COOPERATIVE_PARAMETERS                                                                     \
    (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,     \
     unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream, void **arguments)
#define COOPERATIVE_HOOK(symbol, per_thread)                                                       \
    HOOK(symbol, COOPERATIVE_PARAMETERS) {                                                         \
        CUresult(*real) COOPERATIVE_PARAMETERS = REAL(symbol, COOPERATIVE_PARAMETERS);             \
        if (!real)                                                                                 \
            return hook_missing();                                                                 \
        struct shim_op op;                                                                         \
        kernel_op(&op, function, (unsigned[]){grid_x, grid_y, grid_z},                             \
                  (unsigned[]){block_x, block_y, block_z}, shared_bytes, stream);                  \
        const struct shim_role_ops *role = hook_before(&op, per_thread);                           \
        CUresult result = real(function, grid_x, grid_y, grid_z, block_x, block_y, block_z,        \
                               shared_bytes, stream, arguments);                                   \
        hook_after(role, &op, result);                                                             \
        return result;                                                                             \
    }
COOPERATIVE_HOOK(cuLaunchCooperativeKernel, false)
COOPERATIVE_HOOK(cuLaunchCooperativeKernel_ptsz, true)

#define EX_PARAMETERS                                                                              \
    (const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra)
static inline void config_op(struct shim_op *op, CUfunction function,
                             const CUlaunchConfig *config) {
    kernel_op(op, function, (unsigned[]){config->gridDimX, config->gridDimY, config->gridDimZ},
              (unsigned[]){config->blockDimX, config->blockDimY, config->blockDimZ},
              config->sharedMemBytes, config->hStream);
}
#define EX_HOOK(symbol, per_thread)                                                                \
    HOOK(symbol, EX_PARAMETERS) {                                                                  \
        CUresult(*real) EX_PARAMETERS = REAL(symbol, EX_PARAMETERS);                               \
        if (!real)                                                                                 \
            return hook_missing();                                                                 \
        if (!config) /* the driver's to refuse */                                                  \
            return real(config, function, arguments, extra);                                       \
        struct shim_op op;                                                                         \
        config_op(&op, function, config);                                                          \
        const struct shim_role_ops *role = hook_before(&op, per_thread);                           \
        CUresult result;                                                                           \
        unsigned tries = 0;                                                                        \
        do                                                                                         \
            result = real(config, function, arguments, extra);                                     \
        while (hook_again(role, result, -1, 0, &tries));                                           \
        hook_after(role, &op, result);                                                             \
        return result;                                                                             \
    }
EX_HOOK(cuLaunchKernelEx, false)
EX_HOOK(cuLaunchKernelEx_ptsz, true)

#define MULTI_PARAMETERS (CUDA_LAUNCH_PARAMS * launches, unsigned count, unsigned flags)
enum { MULTI_MOST = 64 };

/* Tells the role of one of several launches with the context of its stream current: each is on
 * another GPU. */
static void before_there(const struct shim_role_ops *role, struct shim_op *op) {
    CUresult (*context_of)(CUstream, CUcontext *) =
        (CUresult(*)(CUstream, CUcontext *))real_symbol("cuStreamGetCtx");
    CUresult (*push)(CUcontext) = (CUresult(*)(CUcontext))real_symbol("cuCtxPushCurrent_v2");
    CUresult (*pop)(CUcontext *) = (CUresult(*)(CUcontext *))real_symbol("cuCtxPopCurrent_v2");
    CUcontext context = NULL, popped;
    bool pushed = context_of && push && pop && context_of(op->stream, &context) == CUDA_SUCCESS &&
                  push(context) == CUDA_SUCCESS;
    role->before(op);
    if (pushed)
        pop(&popped);
}

/* One launch on each of several streams: the role is told of every one, before any starts. */
HOOK(cuLaunchCooperativeKernelMultiDevice, MULTI_PARAMETERS) {
    CUresult(*real) MULTI_PARAMETERS = REAL(cuLaunchCooperativeKernelMultiDevice, MULTI_PARAMETERS);
    if (!real)
        return hook_missing();
    if (count > MULTI_MOST) /* no machine has so many GPUs; the driver would refuse it too */
        return CUDA_ERROR_INVALID_VALUE;
    const struct shim_role_ops *role = hook_enter();
    struct shim_op ops[MULTI_MOST];
    for (unsigned i = 0; role && i < count; i++) {
        const CUDA_LAUNCH_PARAMS *launch = &launches[i];
        kernel_op(&ops[i], launch->function,
                  (unsigned[]){launch->gridDimX, launch->gridDimY, launch->gridDimZ},
                  (unsigned[]){launch->blockDimX, launch->blockDimY, launch->blockDimZ},
                  launch->sharedMemBytes, hook_stream(launch->hStream, false));
        if (role->before)
            before_there(role, &ops[i]);
    }
    CUresult result = real(launches, count, flags);
    for (unsigned i = 0; role && i < count; i++)
        if (role->after)
            role->after(&ops[i], result);
    hook_leave(role);
    return result;
}

#define SEMAPHORE_PARAMETERS (void **made, const void *description)
HOOK(cuImportExternalSemaphore, SEMAPHORE_PARAMETERS) {
    CUresult(*real) SEMAPHORE_PARAMETERS = REAL(cuImportExternalSemaphore, SEMAPHORE_PARAMETERS);
    if (!real)
        return hook_missing();
    return hook_allows(SHIM_EXTERNAL_SEMAPHORE) ? real(made, description)
                                                : CUDA_ERROR_NOT_SUPPORTED;
}

/* Both move all of a process's device memory, whichever process calls. */
#define CHECKPOINT_HOOK(symbol)                                                                    \
    HOOK(symbol, (int process, void *arguments)) {                                                 \
        CUresult (*real)(int, void *) = REAL(symbol, (int, void *));                               \
        if (!real)                                                                                 \
            return hook_missing();                                                                 \
        return hook_allows(SHIM_CHECKPOINT) ? real(process, arguments) : CUDA_ERROR_NOT_SUPPORTED; \
    }
CHECKPOINT_HOOK(cuCheckpointProcessCheckpoint)
CHECKPOINT_HOOK(cuCheckpointProcessRestore)
