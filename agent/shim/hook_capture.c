/* hook_capture.c - follows which streams record a graph. What is launched on such a stream runs
 * nothing, and anything that the shim put there would become part of the graph. Streams join a
 * capture by waiting for its events, so while any capture is on, the driver is asked. */
#include <pthread.h>
#include "hooks.h"

#define HOOK(symbol, parameters)                                                                   \
    HOOK_EXPORT CUresult symbol parameters;                                                        \
    HOOK_EXPORT CUresult symbol parameters
#define REAL(symbol, parameters) ((CUresult(*) parameters)hook_real(HOOK_##symbol))

enum { CAPTURES_MOST = 64 };

_Atomic int hook_captures;
static CUstream capturing[CAPTURES_MOST];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void remember(CUstream stream) {
    pthread_mutex_lock(&lock);
    int count = atomic_load(&hook_captures);
    if (count < CAPTURES_MOST) {
        capturing[count] = stream;
        atomic_store(&hook_captures, count + 1);
    }
    pthread_mutex_unlock(&lock);
}

static bool forget(CUstream stream) {
    bool found = false;
    pthread_mutex_lock(&lock);
    int count = atomic_load(&hook_captures);
    for (int i = 0; i < count && !found; i++) {
        if (capturing[i] == stream) {
            capturing[i] = capturing[count - 1];
            atomic_store(&hook_captures, count - 1);
            found = true;
        }
    }
    pthread_mutex_unlock(&lock);
    return found;
}

bool hook_capturing(CUstream stream) {
    static CUresult (*_Atomic ask)(CUstream, int *);
    if (!atomic_load(&ask))
        atomic_store(&ask, (CUresult(*)(CUstream, int *))real_symbol("cuStreamIsCapturing"));
    CUresult (*is_capturing)(CUstream, int *) = atomic_load(&ask);
    int status = CU_CAPTURE_STATUS_NONE;
    if (!is_capturing)
        return true;
    CUresult result = is_capturing(stream, &status);
    return result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT || status != CU_CAPTURE_STATUS_NONE;
}

static void end(const struct shim_role_ops *role, CUstream stream) {
    if (forget(stream) && role && role->capture_end)
        role->capture_end(stream);
}

/* A stream that dies takes its capture with it. */
void hook_capture_forget(CUstream stream) {
    if (atomic_load(&hook_captures) > 0)
        end(atomic_load(&shim_ops), stream);
}

/* The role hears of a capture before it begins, so that no marker of its helper gets in. */
static const struct shim_role_ops *begin(CUstream stream, int mode) {
    const struct shim_role_ops *role = hook_enter();
    if (!role)
        return NULL;
    remember(stream);
    if (role->capture_begin)
        role->capture_begin(stream, mode);
    return role;
}

static CUresult begun(const struct shim_role_ops *role, CUstream stream, CUresult result) {
    if (role && result != CUDA_SUCCESS)
        end(role, stream);
    hook_leave(role);
    return result;
}

#define BEGIN_HOOK(symbol, per_thread, mode, parameters, arguments)                                \
    HOOK(symbol, parameters) {                                                                     \
        CUresult(*real) parameters = REAL(symbol, parameters);                                     \
        if (!real)                                                                                 \
            return hook_missing();                                                                 \
        CUstream named = hook_stream(stream, per_thread);                                          \
        const struct shim_role_ops *role = begin(named, mode);                                     \
        return begun(role, named, real arguments);                                                 \
    }
BEGIN_HOOK(cuStreamBeginCapture, false, CU_CAPTURE_MODE_GLOBAL, (CUstream stream), (stream))
BEGIN_HOOK(cuStreamBeginCapture_ptsz, true, CU_CAPTURE_MODE_GLOBAL, (CUstream stream), (stream))
BEGIN_HOOK(cuStreamBeginCapture_v2, false, mode, (CUstream stream, int mode), (stream, mode))
BEGIN_HOOK(cuStreamBeginCapture_v2_ptsz, true, mode, (CUstream stream, int mode), (stream, mode))
#define TO_GRAPH_PARAMETERS                                                                        \
    (CUstream stream, CUgraph graph, const void *nodes, const void *edges, size_t count, int mode)
BEGIN_HOOK(cuStreamBeginCaptureToGraph, false, mode, TO_GRAPH_PARAMETERS,
           (stream, graph, nodes, edges, count, mode))
BEGIN_HOOK(cuStreamBeginCaptureToGraph_ptsz, true, mode, TO_GRAPH_PARAMETERS,
           (stream, graph, nodes, edges, count, mode))

#define END_PARAMETERS (CUstream stream, CUgraph * graph)
#define END_HOOK(symbol, per_thread)                                                               \
    HOOK(symbol, END_PARAMETERS) {                                                                 \
        CUresult(*real) END_PARAMETERS = REAL(symbol, END_PARAMETERS);                             \
        if (!real)                                                                                 \
            return hook_missing();                                                                 \
        const struct shim_role_ops *role = hook_enter();                                           \
        CUresult result = real(stream, graph);                                                     \
        /* Only a call from the wrong thread, or with nonsense, leaves a capture going. */         \
        if (result != CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD &&                                    \
            result != CUDA_ERROR_INVALID_VALUE)                                                    \
            end(role, hook_stream(stream, per_thread));                                            \
        hook_leave(role);                                                                          \
        return result;                                                                             \
    }
END_HOOK(cuStreamEndCapture, false)
END_HOOK(cuStreamEndCapture_ptsz, true)
