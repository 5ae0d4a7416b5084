/* capture.h - streams that record a graph instead of running what they are given. */
#ifndef SIMGPU_CAPTURE_H
#define SIMGPU_CAPTURE_H
#include "graph.h"

enum capture_mode { CAPTURE_GLOBAL = 0, CAPTURE_THREAD_LOCAL = 1, CAPTURE_RELAXED = 2 };

struct capture_state {
    int status; /* CUstreamCaptureStatus */
    uint64_t id;
    CUgraph graph;
    const struct node_list *tips;
};

bool capture_any(void); /* cheap: is any capture on in this process? */
CUresult capture_begin(CUstream stream, int mode, CUgraph into, const struct node_list *tips);
CUresult capture_end(CUstream stream, CUgraph *graph);
CUresult capture_ask(const struct stream_ref *ref, struct capture_state *state);
CUresult capture_set_tips(CUstream stream, const struct node_list *tips, bool replace);

/* A call that is about to put op into the stream. *taken: it became a node of a graph. */
CUresult capture_issue(const struct stream_ref *ref, const struct sim_op *op,
                       const struct launch_shape *shape, bool *taken);
/* The stream cannot do this while it captures: that ends in an invalid graph. */
CUresult capture_refuse(const struct stream_ref *ref);
/* A call that CUDA holds unsafe while a capture is on (allocation, waiting, asking an event). */
CUresult capture_unsafe(void);
CUresult capture_refuse_context(CUcontext context); /* waits for all its streams */

/* The host is about to wait for the stream, or asks how far it is. */
static inline CUresult capture_refuse_wait(const struct stream_ref *ref) {
    CUresult result = capture_refuse(ref);
    return result ? result : capture_unsafe();
}

/* Events: *taken as above; capture_event says whether one may be waited for by the host. */
CUresult capture_record(const struct stream_ref *ref, CUevent event, bool *taken);
CUresult capture_wait(const struct stream_ref *ref, CUevent event, bool *taken);
CUresult capture_event(CUevent event);

void capture_forget(CUstream stream); /* it is being destroyed */
int capture_exchange_mode(int mode);  /* of the calling thread */
#endif
