/* gate_graph.c - a graph that runs long is launched in parts, so that it fits bubbles, ends soon
 * after training comes back, and is never long alone in the budget of what may be in flight.
 *
 * A graph is kept as a copy until it has been seen how long it runs. Launches of one graph run one
 * after another wherever they are launched; those of its parts would only do so part by part.
 * Hence an event behind each launch, for which one in another stream waits. */
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "gate.h"
#include "gate_driver.h"
#include "graph_cut.h"
#include "shapes.h"

#define BUCKETS 256
#define COPIES_NODES_MOST 65536 /* of all copies that are kept; other graphs stay whole */
#define PARTS_MOST 128
#define PARTS_ALL_MOST 1024 /* of all graphs: each takes device memory of its own */
#define CLONED_MOST 262144  /* nodes of all parts together while they are made */
#define FIRST_MOST_NS 1000000000ull
#define SHORT_SURE 32   /* launches after which a short one is let off for good */
#define PARTS_SETTLED 8 /* launches in parts after which their number is judged */
#define FLAGS_KEPT 8ull /* CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY */

/* One graph that is, or may be, launched in parts. */
struct split {
    CUgraphExec whole;
    CUcontext context;
    CUgraph copy; /* NULL: no more to be cut */
    size_t nodes;
    unsigned long long flags;
    unsigned launches; /* as it is now: whole or in so many parts */
    CUgraphExec *parts;
    unsigned count; /* 0: whole */
    bool stale;     /* the graph has been changed since: its parts have not */
    CUevent end;    /* behind the latest launch; NULL: nothing to wait for */
    CUstream last;  /* where that was */
    pid_t thread;   /* ... and whose, for CU_STREAM_PER_THREAD */
    struct split *next;
};

static struct split *graphs[BUCKETS];
static struct split *retired; /* parts to be freed once their last launch is done */
static _Atomic unsigned known;
static size_t copied_nodes, parts_made;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* over the lists; never while waiting */

static struct split **place_of(CUgraphExec whole) {
    struct split **at = &graphs[shape_graph(whole) / 2 % BUCKETS];
    while (*at && (*at)->whole != whole)
        at = &(*at)->next;
    return at;
}

static CUcontext current_context(void) {
    CUcontext context = NULL;
    return gate_driver.context_current(&context) == CUDA_SUCCESS ? context : NULL;
}

/* The caller holds the lock. */
static void drop_copy(struct split *own) {
    if (!own->copy)
        return;
    copied_nodes -= own->nodes;
    cut_drop(own->copy);
    own->copy = NULL;
}

static void free_parts(struct split *own) {
    for (unsigned i = 0; i < own->count; i++)
        gate_forget_graph(own->parts[i], true);
    cut_free(own->parts, own->count);
    parts_made -= own->count;
    if (own->end)
        gate_driver.event_destroy(own->end);
    free(own->parts);
    free(own);
}

/* Frees what the GPU is done with. The caller holds the lock. */
static void sweep(void) {
    int mode = CU_CAPTURE_MODE_RELAXED;
    gate_stream_swap_mode(&mode);
    CUcontext context = retired ? current_context() : NULL;
    for (struct split **at = &retired; *at;) {
        struct split *own = *at;
        bool done = own->context == context &&
                    (!own->end || gate_driver.event_query(own->end) == CUDA_SUCCESS);
        if (!done) {
            at = &own->next;
            continue;
        }
        *at = own->next;
        free_parts(own);
    }
    gate_stream_swap_mode(&mode);
}

/* Its parts end with their last launch; the graph is whole again. The caller holds the lock. */
static void retire_parts(struct split *own) {
    struct split *gone = malloc(sizeof *gone);
    if (gone) { /* else they stay for good */
        *gone = *own;
        gone->copy = NULL;
        gone->next = retired;
        retired = gone;
    }
    own->parts = NULL;
    own->end = NULL;
    own->count = own->launches = 0;
    own->stale = false;
}

void gate_graph_made(CUgraphExec made, CUgraph from, unsigned long long flags) {
    CUcontext context = current_context();
    size_t nodes;
    if (!context || !gate_driver.event_create || !gate_driver.event_record ||
        !gate_driver.event_query || !gate_driver.event_destroy || !gate_driver.stream_wait_event)
        return;
    struct split *own = calloc(1, sizeof *own);
    CUgraph copy = own ? cut_copy(from, &nodes) : NULL;
    if (!copy) {
        free(own);
        return;
    }
    *own = (struct split){.whole = made,
                          .context = context,
                          .copy = copy,
                          .nodes = nodes,
                          .flags = flags & FLAGS_KEPT};
    pthread_mutex_lock(&lock);
    sweep();
    bool room = copied_nodes + nodes <= COPIES_NODES_MOST;
    struct split **at = place_of(made);
    room &= !*at;
    if (room) {
        copied_nodes += nodes;
        *at = own;
        atomic_fetch_add(&known, 1);
    }
    pthread_mutex_unlock(&lock);
    if (room)
        return;
    cut_drop(copy);
    free(own);
}

/* What the graph takes as it is launched now; 0: that is not known. */
static uint64_t length_ns(struct gate_gpu *gpu, const struct split *own) {
    uint64_t sum_ns = 0;
    const CUgraphExec *parts = own->count ? own->parts : &own->whole;
    pthread_mutex_lock(&gpu->lock);
    for (unsigned i = 0; i < (own->count ? own->count : 1); i++) {
        const struct duration *learned = durations_use(&gpu->durations, shape_graph(parts[i]));
        if (!learned || (own->count && !duration_trusted(learned))) {
            sum_ns = 0;
            break;
        }
        sum_ns += duration_mean(learned);
    }
    pthread_mutex_unlock(&gpu->lock);
    return sum_ns;
}

/* The second launch waits until the first is measured: whole, it might have to be held for long. */
static uint64_t await_first(struct gate_gpu *gpu, const struct split *own) {
    uint64_t begin_ns = shim_now_ns(), now_ns = begin_ns, length = 0;
    while (!length && now_ns - begin_ns < FIRST_MOST_NS) {
        usleep(200);
        now_ns = shim_now_ns();
        pthread_mutex_lock(&gpu->lock);
        gate_poll(gpu, now_ns);
        pthread_mutex_unlock(&gpu->lock);
        length = length_ns(gpu, own);
    }
    return length;
}

/* Until they are measured each counts as its share. */
static void foresee(struct gate_gpu *gpu, const struct split *own, uint64_t length) {
    pthread_mutex_lock(&gpu->lock);
    for (unsigned i = 0; i < own->count; i++)
        durations_learn(&gpu->durations, shape_graph(own->parts[i]), length / own->count, false);
    pthread_mutex_unlock(&gpu->lock);
}

static bool may_make(unsigned parts) {
    pthread_mutex_lock(&lock);
    bool room = parts_made + parts <= PARTS_ALL_MOST;
    parts_made += room ? parts : 0;
    pthread_mutex_unlock(&lock);
    return room;
}

static void cut(struct gate_gpu *gpu, struct split *own, unsigned parts, uint64_t length) {
    bool room = may_make(parts);
    CUgraphExec *made = room ? calloc(parts, sizeof *made) : NULL;
    int mode = CU_CAPTURE_MODE_RELAXED;
    gate_wait_open(gpu); /* as for any graph that is made */
    gate_stream_swap_mode(&mode);
    bool done = made && cut_make(own->copy, parts, own->flags, made);
    gate_stream_swap_mode(&mode);
    if (!done) {
        free(made);
        shim_log(1, "a graph of %llu us could not be cut: it is launched whole",
                 (unsigned long long)length / 1000);
        pthread_mutex_lock(&lock);
        parts_made -= room ? parts : 0;
        drop_copy(own);
        pthread_mutex_unlock(&lock);
        return;
    }
    shim_log(2, "a graph of %llu us is launched in %u parts", (unsigned long long)length / 1000,
             parts);
    own->parts = made;
    own->count = parts;
    own->launches = 0;
    foresee(gpu, own, length);
}

static unsigned parts_wanted(uint64_t length, uint64_t part_ns, size_t nodes) {
    uint64_t parts = length < 2 * part_ns ? 1 : length / part_ns;
    uint64_t most = CLONED_MOST / nodes < PARTS_MOST ? CLONED_MOST / nodes : PARTS_MOST;
    parts = parts > most ? most : parts;
    return (unsigned)(parts > nodes ? nodes : parts);
}

/* Stands the stream behind the launch before, and lets its parts go. */
static void leave_parts(struct split *own, CUstream stream) {
    if (own->end)
        gate_driver.stream_wait_event(stream, own->end, 0);
    pthread_mutex_lock(&lock);
    retire_parts(own);
    pthread_mutex_unlock(&lock);
}

/* In how many parts? Judged by how long it runs, and once more by how long its parts do. */
static void judge(struct gate_gpu *gpu, struct split *own, CUstream stream, uint64_t part_ns) {
    bool first = own->count == 0;
    if (!own->copy || own->launches < (first ? 1 : PARTS_SETTLED) || gate_stream_capturing())
        return;
    uint64_t length = length_ns(gpu, own);
    if (!length && first && own->launches == 1)
        length = await_first(gpu, own);
    unsigned parts = length ? parts_wanted(length, part_ns, own->nodes) : 0;
    if (!parts)
        return;
    bool settled = first ? parts == 1 && own->launches >= SHORT_SURE
                         : 2 * parts < 3 * own->count && 2 * own->count < 3 * parts;
    if (!settled && !first)
        leave_parts(own, stream);
    if (!settled && parts > 1)
        cut(gpu, own, parts, length);
    if (!settled && first)
        return;
    pthread_mutex_lock(&lock);
    drop_copy(own);
    pthread_mutex_unlock(&lock);
}

static bool elsewhere(const struct split *own, CUstream stream) {
    bool shared = own->last == CU_STREAM_PER_THREAD && own->thread != (pid_t)syscall(SYS_gettid);
    return own->last != stream || shared;
}

void gate_graph_launching(struct shim_graph_launch *launch) {
    if (!atomic_load_explicit(&known, memory_order_acquire))
        return;
    CUcontext context = current_context();
    pthread_mutex_lock(&lock);
    struct split *own = *place_of(launch->graph);
    if (retired)
        sweep();
    pthread_mutex_unlock(&lock);
    if (!own || own->context != context)
        return; /* a program may launch a graph from one thread at a time only: `own` is ours */
    struct gate_context *followed;
    if (!gate_context_of(launch->stream, &followed) || !followed)
        return;
    struct gate_gpu *gpu = gate_context_gpu(followed);
    pthread_mutex_lock(&gpu->lock);
    uint64_t part_ns = policy_numbers(&gpu->page).graph_part_ns;
    pthread_mutex_unlock(&gpu->lock);
    if (own->stale || (own->count && !part_ns))
        leave_parts(own, launch->stream);
    else if (own->end && elsewhere(own, launch->stream))
        gate_driver.stream_wait_event(launch->stream, own->end, 0);
    if (part_ns)
        judge(gpu, own, launch->stream, part_ns);
    if (own->count) {
        launch->parts = own->parts;
        launch->count = own->count;
    }
    if (own->copy || own->count)
        launch->cookie = own;
}

void gate_graph_launched(const struct shim_graph_launch *launch) {
    struct split *own = launch->cookie;
    own->launches++;
    if (!own->end && gate_driver.event_create(&own->end, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
        own->end = NULL;
    if (own->end && gate_driver.event_record(own->end, launch->stream) == CUDA_SUCCESS) {
        own->last = launch->stream;
        own->thread = (pid_t)syscall(SYS_gettid);
        return;
    }
    gate_driver.stream_synchronize(launch->stream); /* then there is nothing to wait for */
}

void gate_graph_changing(CUgraphExec graph, bool gone) {
    gate_forget_graph(graph, gone);
    pthread_mutex_lock(&lock);
    struct split **at = place_of(graph), *own = *at;
    if (own) {
        drop_copy(own);
        own->stale = own->count > 0;
    }
    if (own && gone) {
        *at = own->next;
        own->next = retired;
        retired = own;
        atomic_fetch_sub(&known, 1);
    }
    sweep();
    pthread_mutex_unlock(&lock);
}

static void forget_in(struct split **at, CUcontext context, bool counted) {
    while (*at) {
        struct split *own = *at;
        if (own->context != context) {
            at = &own->next;
            continue;
        }
        *at = own->next;
        drop_copy(own);
        parts_made -= own->count;
        if (counted)
            atomic_fetch_sub(&known, 1);
        free(own->parts); /* their graphs and the event are gone with it */
        free(own);
    }
}

void gate_graph_context_gone(CUcontext context) {
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < BUCKETS; i++)
        forget_in(&graphs[i], context, true);
    forget_in(&retired, context, false);
    pthread_mutex_unlock(&lock);
}
