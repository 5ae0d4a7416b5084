/* hook_graph.c - launches, lives and changes of graphs. Making one allocates and may upload; a
 * changed one takes another time; a handle is used again when its graph is gone. */
#include "graph_memory.h"
#include "hooks.h"

#define HOOK(symbol, parameters)                                                                   \
    HOOK_EXPORT CUresult symbol parameters;                                                        \
    HOOK_EXPORT CUresult symbol parameters
#define REAL(symbol, parameters) ((CUresult(*) parameters)hook_real(HOOK_##symbol))

static bool fits(const struct shim_role_ops *role, uint64_t bytes) {
    return !role || !bytes || !role->memory_ask || role->memory_ask(bytes);
}

static void took(const struct shim_role_ops *role, uint64_t bytes, CUresult result,
                 const CUgraphExec *made) {
    if (role && bytes && role->memory_took)
        role->memory_took(result ? 0 : graph_memory_handle(*made), result ? 0 : bytes);
}

static void tell_made(const struct shim_role_ops *role, CUresult result, const CUgraphExec *made,
                      CUgraph from, unsigned long long flags) {
    if (role && role->graph_made && result == CUDA_SUCCESS)
        role->graph_made(*made, from, flags);
}

/* The frame of a call that makes a graph: `operation` is what the role is told. */
#define MAKE_HOOK(symbol, per_thread, with, operation, parameters, arguments)                      \
    HOOK(symbol, parameters) {                                                                     \
        CUresult(*real) parameters = REAL(symbol, parameters);                                     \
        if (!real)                                                                                 \
            return hook_missing();                                                                 \
        unsigned long long own_flags = (with);                                                     \
        if (own_flags & CU_GRAPH_INSTANTIATE_DEVICE_LAUNCH &&                                      \
            !hook_allows(SHIM_DEVICE_GRAPH_LAUNCH))                                                \
            return CUDA_ERROR_NOT_SUPPORTED;                                                       \
        struct shim_op op = operation;                                                             \
        const struct shim_role_ops *role = hook_before(&op, per_thread);                           \
        uint64_t bytes = role && role->memory_ask ? graph_memory_bytes(graph) : 0;                 \
        CUresult result = CUDA_ERROR_OUT_OF_MEMORY;                                                \
        if (fits(role, bytes)) {                                                                   \
            result = real arguments;                                                               \
            took(role, bytes, result, made);                                                       \
            tell_made(role, result, made, graph, own_flags);                                       \
        }                                                                                          \
        hook_after(role, &op, result);                                                             \
        return result;                                                                             \
    }

static struct shim_op setup_here(void) {
    return (struct shim_op){.kind = SHIM_OP_SETUP, .device = -1};
}

#define PLAIN_PARAMETERS                                                                           \
    (CUgraphExec * made, CUgraph graph, void *error_node, char *text, size_t text_bytes)
MAKE_HOOK(cuGraphInstantiate, false, 0, setup_here(), PLAIN_PARAMETERS,
          (made, graph, error_node, text, text_bytes))
MAKE_HOOK(cuGraphInstantiate_v2, false, 0, setup_here(), PLAIN_PARAMETERS,
          (made, graph, error_node, text, text_bytes))
MAKE_HOOK(cuGraphInstantiateWithFlags, false, flags, setup_here(),
          (CUgraphExec * made, CUgraph graph, unsigned long long flags), (made, graph, flags))

/* With the flag for it the graph is uploaded at once, on a stream that the caller names. */
static struct shim_op instantiate_op(const CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
    if (!parameters || !(parameters->flags & CU_GRAPH_INSTANTIATE_UPLOAD))
        return setup_here();
    return (struct shim_op){.kind = SHIM_OP_COPY, .stream = parameters->hUploadStream};
}

#define WITH_PARAMS_HOOK(symbol, per_thread)                                                       \
    MAKE_HOOK(symbol, per_thread, parameters ? parameters->flags : 0, instantiate_op(parameters),  \
              (CUgraphExec * made, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS * parameters),     \
              (made, graph, parameters))
WITH_PARAMS_HOOK(cuGraphInstantiateWithParams, false)
WITH_PARAMS_HOOK(cuGraphInstantiateWithParams_ptsz, true)

/* The role hears of it before the driver acts: no launch can come in between that is judged by
 * what the graph was. */
#define CHANGE_HOOK(symbol, gone, parameters, arguments)                                           \
    HOOK(symbol, parameters) {                                                                     \
        CUresult(*real) parameters = REAL(symbol, parameters);                                     \
        if (!real)                                                                                 \
            return hook_missing();                                                                 \
        const struct shim_role_ops *role = hook_enter();                                           \
        if (role && role->graph_changing)                                                          \
            role->graph_changing(graph, gone);                                                     \
        CUresult result = real arguments;                                                          \
        if (role && (gone) && result == CUDA_SUCCESS && role->memory_freed)                        \
            role->memory_freed(graph_memory_handle(graph));                                        \
        hook_leave(role);                                                                          \
        return result;                                                                             \
    }
CHANGE_HOOK(cuGraphExecDestroy, true, (CUgraphExec graph), (graph))
CHANGE_HOOK(cuGraphExecUpdate, false,
            (CUgraphExec graph, CUgraph source, void **error_node, int *outcome),
            (graph, source, error_node, outcome))
CHANGE_HOOK(cuGraphExecUpdate_v2, false, (CUgraphExec graph, CUgraph source, void *outcome),
            (graph, source, outcome))
#define NODE_PARAMETERS (CUgraphExec graph, CUgraphNode node, const void *parameters)
CHANGE_HOOK(cuGraphExecKernelNodeSetParams, false, NODE_PARAMETERS, (graph, node, parameters))
CHANGE_HOOK(cuGraphExecKernelNodeSetParams_v2, false, NODE_PARAMETERS, (graph, node, parameters))
CHANGE_HOOK(cuGraphExecNodeSetParams, false, NODE_PARAMETERS, (graph, node, parameters))
CHANGE_HOOK(cuGraphExecChildGraphNodeSetParams, false,
            (CUgraphExec graph, CUgraphNode node, CUgraph child), (graph, node, child))
#define COPY_PARAMETERS                                                                            \
    (CUgraphExec graph, CUgraphNode node, const void *parameters, CUcontext context)
CHANGE_HOOK(cuGraphExecMemcpyNodeSetParams, false, COPY_PARAMETERS,
            (graph, node, parameters, context))
CHANGE_HOOK(cuGraphExecMemsetNodeSetParams, false, COPY_PARAMETERS,
            (graph, node, parameters, context))
CHANGE_HOOK(cuGraphNodeSetEnabled, false, (CUgraphExec graph, CUgraphNode node, unsigned enabled),
            (graph, node, enabled))

#define LAUNCH_PARAMETERS (CUgraphExec graph, CUstream stream)
typedef CUresult(*launch_function) LAUNCH_PARAMETERS;

/* One graph, or one part: an operation of its own to the role. */
static CUresult launch_one(launch_function real, CUgraphExec graph, CUstream stream,
                           bool per_thread) {
    struct shim_op op = {.kind = SHIM_OP_GRAPH, .stream = stream, .shape = shape_graph(graph)};
    const struct shim_role_ops *role = hook_before(&op, per_thread);
    CUresult result;
    unsigned tries = 0;
    do
        result = real(graph, stream);
    while (hook_again(role, result, -1, 0, &tries));
    hook_after(role, &op, result);
    return result;
}

/* What is launched into a stream that records becomes a node of another graph: whole. */
static void tell_launching(struct shim_graph_launch *launch) {
    const struct shim_role_ops *role = hook_enter();
    bool records = atomic_load_explicit(&hook_captures, memory_order_acquire) > 0 &&
                   hook_capturing(launch->stream);
    if (role && role->graph_launching && !records)
        role->graph_launching(launch);
    hook_leave(role);
}

static void tell_launched(const struct shim_graph_launch *launch) {
    const struct shim_role_ops *role = launch->cookie ? hook_enter() : NULL;
    if (role && role->graph_launched)
        role->graph_launched(launch);
    hook_leave(role);
}

#define LAUNCH_HOOK(symbol, per_thread)                                                            \
    HOOK(symbol, LAUNCH_PARAMETERS) {                                                              \
        launch_function real = REAL(symbol, LAUNCH_PARAMETERS);                                    \
        if (!real)                                                                                 \
            return hook_missing();                                                                 \
        struct shim_graph_launch launch = {                                                        \
            .graph = graph, .stream = hook_stream(stream, per_thread), .count = 1};                \
        launch.parts = &launch.graph;                                                              \
        tell_launching(&launch);                                                                   \
        CUresult result = CUDA_SUCCESS;                                                            \
        for (unsigned i = 0; i < launch.count && result == CUDA_SUCCESS; i++)                      \
            result = launch_one(real, launch.parts[i], stream, per_thread);                        \
        tell_launched(&launch);                                                                    \
        return result;                                                                             \
    }
LAUNCH_HOOK(cuGraphLaunch, false)
LAUNCH_HOOK(cuGraphLaunch_ptsz, true)
