/* api_graph_exec.c - graphs made ready to run, launched and changed. */
#include "capture.h"
#include "handles.h"

static CUresult instantiate(CUgraphExec *exec, CUgraph graph, uint64_t flags) {
    CUcontext context;
    CUresult result = context_required(&context);
    if (result)
        return result;
    if (!exec || !graph_valid(graph) || flags > 15)
        return CUDA_ERROR_INVALID_VALUE;
    if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH)
        return CUDA_ERROR_NOT_SUPPORTED;
    graph_lock();
    result = exec_make(graph, context, exec);
    graph_unlock();
    return result;
}

EXPORT CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node,
                                   char *log, size_t log_bytes) {
    if (error_node)
        *error_node = NULL;
    if (log && log_bytes)
        *log = 0;
    return instantiate(exec, graph, 0);
}

EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node,
                                      char *log, size_t log_bytes) {
    return cuGraphInstantiate(exec, graph, error_node, log, log_bytes);
}

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph,
                                            unsigned long long flags) {
    return instantiate(exec, graph, flags);
}

/* The forms for legacy and per-thread default streams differ in what a NULL upload stream is. */
static CUresult sim_cuGraphInstantiateWithParams(bool per_thread, CUgraphExec *exec, CUgraph graph,
                                                 CUgraphInstantiateParams *p) {
    (void)per_thread;
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = instantiate(exec, graph, p->flags);
    p->error_node = NULL;
    p->result = result ? 1 : 0; /* CUDA_GRAPH_INSTANTIATE_ERROR, or _SUCCESS */
    return result;
}
BOTH(cuGraphInstantiateWithParams, _ptsz,
     (CUgraphExec * exec, CUgraph graph, CUgraphInstantiateParams *p), (exec, graph, p))

EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec) {
    CUresult ready = driver_ready();
    if (ready || !exec_valid(exec))
        return ready ? ready : CUDA_ERROR_INVALID_VALUE;
    exec_free(exec);
    return CUDA_SUCCESS;
}

/* A stream that captures takes no graph: that would be a graph within a graph. */
static CUresult resolve(bool per_thread, CUgraphExec exec, CUstream stream,
                        struct stream_ref *ref) {
    CUresult result = stream_resolve(stream, per_thread, ref);
    if (result)
        return result;
    return exec_valid(exec) ? capture_refuse(ref) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult sim_cuGraphLaunch(bool per_thread, CUgraphExec exec, CUstream stream) {
    struct stream_ref ref;
    CUresult result = resolve(per_thread, exec, stream, &ref);
    return result ? result : exec_launch(exec, &ref);
}
BOTH(cuGraphLaunch, _ptsz, (CUgraphExec exec, CUstream stream), (exec, stream))

static CUresult sim_cuGraphUpload(bool per_thread, CUgraphExec exec, CUstream stream) {
    struct stream_ref ref;
    return resolve(per_thread, exec, stream, &ref); /* graphs take no time to get to the GPU */
}
BOTH(cuGraphUpload, _ptsz, (CUgraphExec exec, CUstream stream), (exec, stream))

EXPORT CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateInfo *info) {
    CUresult ready = driver_ready();
    if (ready || !exec_valid(exec) || !graph_valid(graph) || !info)
        return ready ? ready : CUDA_ERROR_INVALID_VALUE;
    info->error_from = NULL;
    graph_lock();
    CUresult result = exec_update(exec, graph, &info->result, &info->error_node);
    graph_unlock();
    return result;
}

EXPORT CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *error_node,
                                  int *why) {
    CUgraphExecUpdateInfo info = {0, NULL, NULL};
    CUresult result = cuGraphExecUpdate_v2(exec, graph, &info);
    if (error_node)
        *error_node = info.error_node;
    if (why)
        *why = info.result;
    return result;
}
