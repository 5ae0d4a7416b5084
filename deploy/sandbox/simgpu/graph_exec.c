/* graph_exec.c - a graph made ready to run. Its nodes stand in an order that heeds all edges, and
 * in lanes: the first is the stream that it is launched into, the others are streams of its own,
 * so that branches do not wait for one another. A launch puts each node into its lane, with waits
 * where an edge goes from one lane to another. */
#include <stdlib.h>
#include <string.h>
#include "graph.h"
#include "handles.h"
#include "memory.h"

#define MAX_LANES 8
#define NO_STEP UINT32_MAX

struct step {
    struct sim_op op;
    struct transfer transfer;
    int type;
    unsigned lane;
    bool awaited;     /* from another lane: its end is recorded */
    unsigned *before; /* steps */
    unsigned before_count;
    uint64_t position; /* of the record, in the launch that is being made */
};

struct sim_exec_handle {
    uint64_t magic;
    CUcontext context;
    uint64_t allocated; /* what its nodes allocate, for as long as it lives */
    struct step *steps;
    unsigned count, lanes;
    CUstream lane[MAX_LANES];   /* [0] is not used */
    unsigned last[MAX_LANES];   /* last step of each lane */
    pthread_mutex_t lock;       /* one launch at a time is made */
    struct stream_ref previous; /* where the launch before ends: launches do not overlap */
    uint64_t previous_end;
    bool launched;
};

bool exec_valid(CUgraphExec exec) { return exec && exec->magic == EXEC_MAGIC; }

static void free_steps(struct step *steps, unsigned count) {
    for (unsigned i = 0; steps && i < count; i++)
        free(steps[i].before);
    free(steps);
}

/* Nodes in an order that heeds the edges; places[index] is a node's place. False: a circle. */
static bool order_nodes(CUgraph graph, CUgraphNode *ordered, unsigned *places) {
    unsigned count = graph->nodes.count, placed = 0;
    for (unsigned i = 0; i < count; i++)
        places[i] = NO_STEP;
    for (unsigned before = NO_STEP; placed < count && placed != before;) {
        before = placed;
        for (unsigned i = 0; i < count; i++) {
            CUgraphNode node = graph->nodes.at[i];
            bool free_to_go = places[i] == NO_STEP;
            for (unsigned b = 0; free_to_go && b < node->before.count; b++)
                free_to_go = places[node->before.at[b]->index] != NO_STEP;
            if (!free_to_go)
                continue;
            ordered[placed] = node;
            places[i] = placed++;
        }
    }
    return placed == count;
}

/* A step goes on in the lane of one that it follows if nothing else has yet, else in a new one. */
static unsigned choose_lane(const struct step *s, unsigned at, const struct step *steps,
                            const unsigned *last, unsigned *lanes) {
    for (unsigned b = 0; b < s->before_count; b++)
        if (last[steps[s->before[b]].lane] == s->before[b])
            return steps[s->before[b]].lane;
    if (!at)
        return 0;
    return *lanes < MAX_LANES ? (*lanes)++ : at % MAX_LANES;
}

static void lay_out(struct step *steps, unsigned count, unsigned *last, unsigned *lanes) {
    *lanes = 1;
    for (unsigned i = 0; i < MAX_LANES; i++)
        last[i] = NO_STEP;
    for (unsigned i = 0; i < count; i++) {
        struct step *s = &steps[i];
        s->lane = choose_lane(s, i, steps, last, lanes);
        last[s->lane] = i;
        for (unsigned b = 0; b < s->before_count; b++)
            if (steps[s->before[b]].lane != s->lane)
                steps[s->before[b]].awaited = true;
    }
    for (unsigned lane = 1; lane < *lanes; lane++)
        steps[last[lane]].awaited = true;
}

static struct step *make_steps(CUgraph graph, CUresult *result) {
    unsigned count = graph->nodes.count;
    CUgraphNode *ordered = malloc((count + 1) * sizeof *ordered);
    unsigned *places = malloc((count + 1) * sizeof *places);
    struct step *steps = calloc(count + 1, sizeof *steps);
    *result = ordered && places && steps ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    if (!*result && !order_nodes(graph, ordered, places))
        *result = CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; !*result && i < count; i++) {
        const struct node_list *before = &ordered[i]->before;
        steps[i].op = ordered[i]->op;
        steps[i].transfer = ordered[i]->transfer;
        steps[i].type = ordered[i]->type;
        steps[i].before_count = before->count;
        steps[i].before = malloc((before->count + 1) * sizeof *steps[i].before);
        if (!steps[i].before)
            *result = CUDA_ERROR_OUT_OF_MEMORY;
        for (unsigned b = 0; !*result && b < before->count; b++)
            steps[i].before[b] = places[before->at[b]->index];
    }
    free(ordered);
    free(places);
    if (!*result)
        return steps;
    free_steps(steps, count);
    return NULL;
}

CUresult exec_make(CUgraph graph, CUcontext context, CUgraphExec *exec) {
    CUresult result;
    CUgraphExec e = calloc(1, sizeof *e);
    if (!e)
        return CUDA_ERROR_OUT_OF_MEMORY;
    e->context = context;
    e->count = graph->nodes.count;
    e->steps = make_steps(graph, &result);
    if (!result)
        lay_out(e->steps, e->count, e->last, &e->lanes);
    for (unsigned lane = 1; !result && lane < e->lanes; lane++)
        result = stream_make(context, CU_STREAM_NON_BLOCKING, 0, &e->lane[lane]);
    uint64_t bytes = graph_allocates(graph);
    if (!result && bytes)
        result = memory_count(context, bytes, false);
    if (result) {
        exec_free(e);
        return result;
    }
    e->allocated = bytes;
    pthread_mutex_init(&e->lock, NULL);
    e->magic = EXEC_MAGIC;
    *exec = e;
    return CUDA_SUCCESS;
}

/* What is still queued of it runs on. */
void exec_free(CUgraphExec exec) {
    exec->magic = 0;
    if (exec->allocated && exec->context->alive)
        memory_count(exec->context, exec->allocated, true);
    for (unsigned lane = 1; lane < MAX_LANES; lane++)
        if (exec->lane[lane])
            stream_close(exec->lane[lane]);
    free_steps(exec->steps, exec->count);
    free(exec);
}

static bool same_edges(const struct step *a, const struct step *b) {
    return a->before_count == b->before_count &&
           !memcmp(a->before, b->before, a->before_count * sizeof *a->before);
}

/* Only parameters may differ, not the graph's form. */
CUresult exec_update(CUgraphExec exec, CUgraph graph, int *why, CUgraphNode *where) {
    CUresult result;
    struct step *steps = make_steps(graph, &result);
    if (!steps)
        return result;
    *why = graph->nodes.count == exec->count ? CU_GRAPH_EXEC_UPDATE_SUCCESS
                                             : CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    *where = NULL;
    pthread_mutex_lock(&exec->lock);
    for (unsigned i = 0; !*why && i < exec->count; i++) {
        if (!same_edges(&steps[i], &exec->steps[i]))
            *why = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
        else if (steps[i].type != exec->steps[i].type)
            *why = CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
    }
    for (unsigned i = 0; !*why && i < exec->count; i++) {
        exec->steps[i].op = steps[i].op;
        exec->steps[i].transfer = steps[i].transfer;
    }
    pthread_mutex_unlock(&exec->lock);
    free_steps(steps, graph->nodes.count);
    return *why ? CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE : CUDA_SUCCESS;
}

static CUresult wait_for(const struct stream_ref *stream, const struct stream_ref *other,
                         uint64_t position) {
    struct sim_op op = {
        .kind = SIM_WAIT_EVENT, .a = other->slot, .b = other->generation, .c = position};
    return stream_enqueue(stream, &op, NULL);
}

static CUresult mark_end(const struct stream_ref *stream, uint64_t *position) {
    struct sim_op op = {.kind = SIM_RECORD};
    return stream_enqueue(stream, &op, position);
}

static CUresult put(const struct step *s, const struct stream_ref *stream, uint64_t launch) {
    struct sim_op op = s->op;
    op.flags |= SIM_GRAPH;
    if (op.kind == SIM_KERNEL) {
        op.c = launch;
    } else if (op.kind == SIM_COPY || op.kind == SIM_SET) {
        struct transfer *t = malloc(sizeof *t);
        if (!t)
            return CUDA_ERROR_OUT_OF_MEMORY;
        *t = s->transfer;
        op.a = (uintptr_t)t;
    }
    return stream_enqueue(stream, &op, NULL);
}

static CUresult put_all(CUgraphExec exec, const struct stream_ref *refs, uint64_t launch) {
    CUresult result = CUDA_SUCCESS;
    for (unsigned i = 0; !result && i < exec->count; i++) {
        struct step *s = &exec->steps[i];
        for (unsigned b = 0; !result && b < s->before_count; b++) {
            const struct step *before = &exec->steps[s->before[b]];
            if (before->lane != s->lane)
                result = wait_for(&refs[s->lane], &refs[before->lane], before->position);
        }
        if (!result)
            result = put(s, &refs[s->lane], launch);
        if (!result && s->awaited)
            result = mark_end(&refs[s->lane], &s->position);
    }
    return result;
}

static CUresult launch(CUgraphExec exec, const struct stream_ref *refs, uint64_t number) {
    CUresult result = CUDA_SUCCESS;
    uint64_t begin;
    if (exec->launched && exec->previous.slot != refs[0].slot)
        result = wait_for(&refs[0], &exec->previous, exec->previous_end);
    if (!result)
        result = mark_end(&refs[0], &begin);
    for (unsigned lane = 1; !result && lane < exec->lanes; lane++)
        result = wait_for(&refs[lane], &refs[0], begin);
    if (!result)
        result = put_all(exec, refs, number);
    for (unsigned lane = 1; !result && lane < exec->lanes; lane++)
        result = wait_for(&refs[0], &refs[lane], exec->steps[exec->last[lane]].position);
    if (!result)
        result = mark_end(&refs[0], &exec->previous_end);
    exec->previous = refs[0];
    exec->launched = !result;
    return result;
}

CUresult exec_launch(CUgraphExec exec, const struct stream_ref *stream) {
    struct stream_ref refs[MAX_LANES] = {*stream};
    if (!exec->context->alive)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    for (unsigned lane = 1; lane < exec->lanes; lane++)
        refs[lane] = (struct stream_ref){exec->lane[lane]->slot, exec->lane[lane]->generation,
                                         exec->context, exec->lane[lane]};
    world_lock();
    uint64_t number = ++world->next_launch;
    world_unlock();
    pthread_mutex_lock(&exec->lock);
    CUresult result = launch(exec, refs, number);
    pthread_mutex_unlock(&exec->lock);
    return result;
}
