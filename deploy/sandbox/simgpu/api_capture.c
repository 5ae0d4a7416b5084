/* api_capture.c - stream capture, as callers ask for it. */
#include "capture.h"
#include "handles.h"

/* The legacy default stream cannot be captured; the calling thread's own can. */
static CUresult resolve(bool per_thread, CUstream stream, struct stream_ref *ref) {
    CUresult result = stream_resolve(stream, per_thread, ref);
    return result || ref->handle ? result : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

static CUresult begin(bool per_thread, CUstream stream, int mode, CUgraph into,
                      const struct node_list *tips) {
    struct stream_ref ref;
    CUresult result = resolve(per_thread, stream, &ref);
    if (result)
        return result;
    if (mode < CAPTURE_GLOBAL || mode > CAPTURE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    return capture_begin(ref.handle, mode, into, tips);
}

static CUresult sim_cuStreamBeginCapture(bool per_thread, CUstream stream) {
    return begin(per_thread, stream, CAPTURE_GLOBAL, NULL, NULL);
}
BOTH(cuStreamBeginCapture, _ptsz, (CUstream stream), (stream))

static CUresult sim_cuStreamBeginCapture_v2(bool per_thread, CUstream stream, int mode) {
    return begin(per_thread, stream, mode, NULL, NULL);
}
BOTH(cuStreamBeginCapture_v2, _ptsz, (CUstream stream, int mode), (stream, mode))

static CUresult sim_cuStreamBeginCaptureToGraph(bool per_thread, CUstream stream, CUgraph graph,
                                                CUgraphNode *nodes, const void *edges, size_t count,
                                                int mode) {
    struct node_list tips = {nodes, (unsigned)count, 0};
    (void)edges;
    if (!graph_valid(graph) || (count && !nodes))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (!node_valid(nodes[i]) || nodes[i]->graph != graph)
            return CUDA_ERROR_INVALID_VALUE;
    return begin(per_thread, stream, mode, graph, &tips);
}
BOTH(cuStreamBeginCaptureToGraph, _ptsz,
     (CUstream stream, CUgraph graph, CUgraphNode *nodes, const void *edges, size_t count,
      int mode),
     (stream, graph, nodes, edges, count, mode))

static CUresult sim_cuStreamEndCapture(bool per_thread, CUstream stream, CUgraph *graph) {
    struct stream_ref ref;
    CUresult result = resolve(per_thread, stream, &ref);
    if (!graph)
        return result ? result : CUDA_ERROR_INVALID_VALUE;
    *graph = NULL;
    return result ? result : capture_end(ref.handle, graph);
}
BOTH(cuStreamEndCapture, _ptsz, (CUstream stream, CUgraph *graph), (stream, graph))

static CUresult ask(bool per_thread, CUstream stream, int *status, struct capture_state *state) {
    struct stream_ref ref;
    CUresult result = stream_resolve(stream, per_thread, &ref);
    if (result || !status)
        return result ? result : CUDA_ERROR_INVALID_VALUE;
    result = capture_ask(&ref, state);
    *status = state->status;
    return result;
}

static CUresult sim_cuStreamIsCapturing(bool per_thread, CUstream stream, int *status) {
    struct capture_state state;
    return ask(per_thread, stream, status, &state);
}
BOTH(cuStreamIsCapturing, _ptsz, (CUstream stream, int *status), (stream, status))

static CUresult sim_cuStreamGetCaptureInfo_v2(bool per_thread, CUstream stream, int *status,
                                              uint64_t *id, CUgraph *graph,
                                              const CUgraphNode **nodes, size_t *count) {
    struct capture_state state;
    CUresult result = ask(per_thread, stream, status, &state);
    if (result)
        return result;
    if (id)
        *id = state.id;
    if (graph)
        *graph = state.graph;
    if (nodes)
        *nodes = state.tips->at;
    if (count)
        *count = state.tips->count;
    return CUDA_SUCCESS;
}
BOTH(cuStreamGetCaptureInfo_v2, _ptsz,
     (CUstream stream, int *status, uint64_t *id, CUgraph *graph, const CUgraphNode **nodes,
      size_t *count),
     (stream, status, id, graph, nodes, count))

static CUresult sim_cuStreamGetCaptureInfo(bool per_thread, CUstream stream, int *status,
                                           uint64_t *id) {
    return sim_cuStreamGetCaptureInfo_v2(per_thread, stream, status, id, NULL, NULL, NULL);
}
BOTH(cuStreamGetCaptureInfo, _ptsz, (CUstream stream, int *status, uint64_t *id),
     (stream, status, id))

static CUresult sim_cuStreamGetCaptureInfo_v3(bool per_thread, CUstream stream, int *status,
                                              uint64_t *id, CUgraph *graph,
                                              const CUgraphNode **nodes, const void **edges,
                                              size_t *count) {
    if (edges)
        *edges = NULL; /* none has data */
    return sim_cuStreamGetCaptureInfo_v2(per_thread, stream, status, id, graph, nodes, count);
}
BOTH(cuStreamGetCaptureInfo_v3, _ptsz,
     (CUstream stream, int *status, uint64_t *id, CUgraph *graph, const CUgraphNode **nodes,
      const void **edges, size_t *count),
     (stream, status, id, graph, nodes, edges, count))

static CUresult sim_cuStreamUpdateCaptureDependencies(bool per_thread, CUstream stream,
                                                      CUgraphNode *nodes, size_t count,
                                                      unsigned flags) {
    struct stream_ref ref;
    struct node_list tips = {nodes, (unsigned)count, 0};
    CUresult result = resolve(per_thread, stream, &ref);
    if (result)
        return result;
    if (flags > 1 || (count && !nodes))
        return CUDA_ERROR_INVALID_VALUE;
    return capture_set_tips(ref.handle, &tips, flags == 1);
}
BOTH(cuStreamUpdateCaptureDependencies, _ptsz,
     (CUstream stream, CUgraphNode *nodes, size_t count, unsigned flags),
     (stream, nodes, count, flags))

static CUresult sim_cuStreamUpdateCaptureDependencies_v2(bool per_thread, CUstream stream,
                                                         CUgraphNode *nodes, const void *edges,
                                                         size_t count, unsigned flags) {
    (void)edges;
    return sim_cuStreamUpdateCaptureDependencies(per_thread, stream, nodes, count, flags);
}
BOTH(cuStreamUpdateCaptureDependencies_v2, _ptsz,
     (CUstream stream, CUgraphNode *nodes, const void *edges, size_t count, unsigned flags),
     (stream, nodes, edges, count, flags))

EXPORT CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
    if (!mode || *mode < CAPTURE_GLOBAL || *mode > CAPTURE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    *mode = capture_exchange_mode(*mode);
    return CUDA_SUCCESS;
}
