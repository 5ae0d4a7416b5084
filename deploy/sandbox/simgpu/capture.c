/* capture.c - stream capture with CUDA's rules: what a capturing stream is given becomes a node;
 * other streams join by waiting for an event recorded in the capture; what may not be done
 * meanwhile fails and makes the graph invalid. */
#include <stdatomic.h>
#include <stdlib.h>
#include "capture.h"

struct capture {
    uint64_t id;
    int mode;
    bool invalid;
    bool given_graph; /* the caller's own, not ours to free */
    pthread_t owner;
    CUgraph graph;
    CUstream origin;
    CUstream streams[SIM_STREAMS]; /* all that take part */
    unsigned stream_count;
    struct capture *next;
};

static struct capture *captures; /* under the graphs' lock */
static _Atomic unsigned on;
static __thread int thread_mode; /* global, as a new thread's is */

bool capture_any(void) { return atomic_load(&on) > 0; }

int capture_exchange_mode(int mode) {
    int before = thread_mode;
    thread_mode = mode;
    return before;
}

static struct capture *by_id(uint64_t id) {
    struct capture *c = captures;
    while (c && c->id != id)
        c = c->next;
    return c;
}

/* The legacy default stream waits for all blocking streams: it may not be used while one of the
 * same context captures. */
static struct capture *in_the_way_of_legacy(CUcontext context) {
    for (struct capture *c = captures; c; c = c->next)
        for (unsigned i = 0; i < c->stream_count; i++)
            if (c->streams[i]->context == context &&
                !(c->streams[i]->flags & CU_STREAM_NON_BLOCKING))
                return c;
    return NULL;
}

/* What keeps the call from this stream; invalidates the capture. *capture: what it records into. */
static CUresult enter(const struct stream_ref *ref, struct capture **capture) {
    *capture = ref->handle ? ref->handle->capture : NULL;
    if (ref->handle)
        return *capture && (*capture)->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                                               : CUDA_SUCCESS;
    struct capture *other = in_the_way_of_legacy(ref->context);
    if (!other)
        return CUDA_SUCCESS;
    other->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

static bool join(struct capture *c, CUstream stream, const struct node_list *tips) {
    if (c->stream_count == SIM_STREAMS || !node_list_copy(&stream->tips, tips))
        return false;
    stream->capture = c;
    c->streams[c->stream_count++] = stream;
    return true;
}

static void finish(struct capture *c) {
    for (unsigned i = 0; i < c->stream_count; i++) {
        c->streams[i]->capture = NULL;
        node_list_free(&c->streams[i]->tips);
    }
    struct capture **at = &captures;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    atomic_fetch_sub(&on, 1);
    free(c);
}

CUresult capture_begin(CUstream stream, int mode, CUgraph into, const struct node_list *tips) {
    static const struct node_list none;
    static uint64_t ids;
    struct capture *c = calloc(1, sizeof *c);
    if (!c)
        return CUDA_ERROR_OUT_OF_MEMORY;
    graph_lock();
    CUresult result = stream->capture ? CUDA_ERROR_ILLEGAL_STATE : CUDA_SUCCESS;
    if (!result) {
        c->id = ++ids;
        c->mode = mode;
        c->owner = pthread_self();
        c->given_graph = into != NULL;
        c->graph = into ? into : graph_make();
        c->origin = stream;
        if (!c->graph || !join(c, stream, tips ? tips : &none))
            result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!result) {
        c->next = captures;
        captures = c;
        atomic_fetch_add(&on, 1);
    } else {
        free(c);
    }
    graph_unlock();
    return result;
}

static bool joined(const struct capture *c) {
    for (unsigned i = 0; i < c->stream_count; i++)
        if (c->streams[i] != c->origin &&
            !graph_reaches(c->graph, &c->origin->tips, &c->streams[i]->tips))
            return false;
    return true;
}

static CUresult end(struct capture *c, CUstream stream, CUgraph *graph) {
    if (c->origin != stream) {
        c->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    if (c->mode != CAPTURE_RELAXED && !pthread_equal(c->owner, pthread_self()))
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    CUresult result = c->invalid   ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                      : !joined(c) ? CUDA_ERROR_STREAM_CAPTURE_UNJOINED
                                   : CUDA_SUCCESS;
    if (!result)
        *graph = c->graph;
    else if (!c->given_graph)
        graph_free(c->graph);
    finish(c);
    return result;
}

CUresult capture_end(CUstream stream, CUgraph *graph) {
    *graph = NULL;
    graph_lock();
    CUresult result =
        stream->capture ? end(stream->capture, stream, graph) : CUDA_ERROR_ILLEGAL_STATE;
    graph_unlock();
    return result;
}

CUresult capture_ask(const struct stream_ref *ref, struct capture_state *state) {
    static const struct node_list none;
    *state = (struct capture_state){CU_STREAM_CAPTURE_STATUS_NONE, 0, NULL, &none};
    if (!capture_any())
        return CUDA_SUCCESS;
    graph_lock();
    CUresult result = CUDA_SUCCESS;
    if (!ref->handle && in_the_way_of_legacy(ref->context)) {
        result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT; /* asking alone makes nothing invalid */
    } else if (ref->handle && ref->handle->capture) {
        const struct capture *c = ref->handle->capture;
        state->id = c->id;
        state->status =
            c->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
        if (!c->invalid) {
            state->graph = c->graph;
            state->tips = &ref->handle->tips;
        }
    }
    graph_unlock();
    return result;
}

CUresult capture_set_tips(CUstream stream, const struct node_list *tips, bool replace) {
    graph_lock();
    struct capture *c = stream->capture;
    CUresult result = !c           ? CUDA_ERROR_ILLEGAL_STATE
                      : c->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                                   : CUDA_SUCCESS;
    for (unsigned i = 0; !result && i < tips->count; i++)
        if (!node_valid(tips->at[i]) || tips->at[i]->graph != c->graph)
            result = CUDA_ERROR_INVALID_VALUE;
    if (!result && replace)
        stream->tips.count = 0;
    for (unsigned i = 0; !result && i < tips->count; i++)
        if (!node_list_add(&stream->tips, tips->at[i]))
            result = CUDA_ERROR_OUT_OF_MEMORY;
    graph_unlock();
    return result;
}

static int node_type(uint8_t kind) {
    switch (kind) {
    case SIM_KERNEL:
        return CU_GRAPH_NODE_TYPE_KERNEL;
    case SIM_COPY:
        return CU_GRAPH_NODE_TYPE_MEMCPY;
    case SIM_SET:
        return CU_GRAPH_NODE_TYPE_MEMSET;
    case SIM_HOST:
        return CU_GRAPH_NODE_TYPE_HOST;
    default:
        return CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
    }
}

/* A copy's source is read when the graph runs, not now. */
static CUresult add(struct capture *c, CUstream stream, const struct sim_op *op,
                    const struct launch_shape *shape) {
    struct sim_node_handle content = {.type = node_type(op->kind), .op = *op};
    bool moves = op->kind == SIM_COPY || op->kind == SIM_SET;
    struct transfer *t = moves ? (void *)(uintptr_t)op->a : NULL;
    if (shape)
        content.shape = *shape;
    if (t) {
        content.transfer = *t;
        content.transfer.staged = NULL;
    }
    CUgraphNode node = graph_add(c->graph, &content, &stream->tips);
    stream->tips.count = 0;
    if (!node || !node_list_add(&stream->tips, node)) {
        c->invalid = true;
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (t) {
        free(t->staged);
        free(t);
    }
    return CUDA_SUCCESS;
}

CUresult capture_issue(const struct stream_ref *ref, const struct sim_op *op,
                       const struct launch_shape *shape, bool *taken) {
    *taken = false;
    if (!capture_any())
        return CUDA_SUCCESS;
    struct capture *c;
    graph_lock();
    CUresult result = enter(ref, &c);
    if (!result && c) {
        *taken = true;
        result = add(c, ref->handle, op, shape);
    }
    graph_unlock();
    return result;
}

CUresult capture_refuse(const struct stream_ref *ref) {
    if (!capture_any())
        return CUDA_SUCCESS;
    struct capture *c;
    graph_lock();
    CUresult result = enter(ref, &c);
    if (!result && c) {
        c->invalid = true;
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    graph_unlock();
    return result;
}

CUresult capture_refuse_context(CUcontext context) {
    CUresult result = CUDA_SUCCESS;
    if (!capture_any())
        return CUDA_SUCCESS;
    graph_lock();
    for (struct capture *c = captures; c; c = c->next)
        for (unsigned i = 0; i < c->stream_count; i++)
            if (c->streams[i]->context == context) {
                c->invalid = true;
                result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
            }
    graph_unlock();
    return result;
}

/* As cuThreadExchangeStreamCaptureMode is documented: a thread in relaxed mode may do anything;
 * else its own captures that are not relaxed are in its way, and for a thread in global mode
 * those of other threads that were begun in global mode too. */
static bool forbids(const struct capture *c) {
    if (thread_mode == CAPTURE_RELAXED)
        return false;
    if (pthread_equal(c->owner, pthread_self()))
        return c->mode != CAPTURE_RELAXED;
    return thread_mode == CAPTURE_GLOBAL && c->mode == CAPTURE_GLOBAL;
}

CUresult capture_unsafe(void) {
    CUresult result = CUDA_SUCCESS;
    if (!capture_any())
        return CUDA_SUCCESS;
    graph_lock();
    for (struct capture *c = captures; c; c = c->next)
        if (forbids(c)) {
            c->invalid = true;
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    graph_unlock();
    return result;
}

CUresult capture_record(const struct stream_ref *ref, CUevent event, bool *taken) {
    *taken = false;
    if (!capture_any() && !event->capture)
        return CUDA_SUCCESS;
    struct capture *c;
    graph_lock();
    CUresult result = enter(ref, &c);
    if (!result)
        event->capture = 0;
    if (!result && c) {
        *taken = true;
        event->capture = c->id;
        if (!node_list_copy(&event->tips, &ref->handle->tips))
            result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    graph_unlock();
    return result;
}

/* The stream joins the capture that the event was recorded in. */
static CUresult follow(const struct stream_ref *ref, CUevent event, struct capture *mine) {
    struct capture *theirs = by_id(event->capture);
    if (!theirs)
        return CUDA_ERROR_CAPTURED_EVENT; /* that capture is over */
    if (theirs->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (!ref->handle) {
        theirs->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    if (mine && mine != theirs) {
        mine->invalid = theirs->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    if (!mine)
        return join(theirs, ref->handle, &event->tips) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    for (unsigned i = 0; i < event->tips.count; i++)
        if (!node_list_add(&ref->handle->tips, event->tips.at[i]))
            return CUDA_ERROR_OUT_OF_MEMORY;
    return CUDA_SUCCESS;
}

CUresult capture_wait(const struct stream_ref *ref, CUevent event, bool *taken) {
    *taken = false;
    if (!capture_any() && !event->capture)
        return CUDA_SUCCESS;
    struct capture *c;
    graph_lock();
    CUresult result = enter(ref, &c);
    if (!result && event->capture) {
        *taken = true;
        result = follow(ref, event, c);
    } else if (!result && c) {
        *taken = true; /* an event that was never recorded is no dependency */
        if (event->record) {
            c->invalid = true;
            result = CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
        }
    }
    graph_unlock();
    return result;
}

CUresult capture_event(CUevent event) {
    CUresult result = capture_unsafe();
    if (result || !event->capture)
        return result;
    graph_lock();
    struct capture *c = by_id(event->capture);
    if (c)
        c->invalid = true;
    graph_unlock();
    return CUDA_ERROR_CAPTURED_EVENT;
}

void capture_forget(CUstream stream) {
    if (!stream->capture)
        return;
    graph_lock();
    struct capture *c = stream->capture;
    if (c && c->origin == stream) {
        if (!c->given_graph)
            graph_free(c->graph);
        finish(c);
    } else if (c) {
        c->invalid = true;
        for (unsigned i = 0; i < c->stream_count; i++)
            if (c->streams[i] == stream)
                c->streams[i] = c->streams[--c->stream_count];
        node_list_free(&stream->tips);
    }
    graph_unlock();
}
