/* graph_memory.c - the device memory that a graph allocates by itself, by nodes of its own.
 *
 * The driver takes it when the graph is made ready or first runs, and may let graphs that don't run
 * at the same time share it. The sum over the nodes of each instantiated graph is the most it can
 * be. */
#include <stdlib.h>
#include "graph_memory.h"

enum { NODE_GRAPH = 4, NODE_MEMORY_ALLOCATION = 10, DEPTH_MOST = 8 };
#define GRAPH_TAG 3ull /* apart from the handles of hook_memory.c */

struct allocation_node {
    int allocation_type, handle_types;
    CUmemLocation location;
    char more_of_pool[72];
    const void *access;
    size_t access_count, bytes;
    CUdeviceptr at;
    uint64_t room[16]; /* for what a newer driver may add */
};

/* What is asked of the driver. */
struct questions {
    CUresult (*nodes)(CUgraph, CUgraphNode *, size_t *);
    CUresult (*type)(CUgraphNode, int *);
    CUresult (*child)(CUgraphNode, CUgraph *);
    CUresult (*allocation)(CUgraphNode, struct allocation_node *);
};

static uint64_t plus(uint64_t a, uint64_t b) {
    uint64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

static uint64_t bytes_of(const struct questions *ask, CUgraph graph, int depth);

static uint64_t node_bytes(const struct questions *ask, CUgraphNode node, int depth) {
    int type;
    if (ask->type(node, &type) != CUDA_SUCCESS)
        return UINT64_MAX;
    if (type == NODE_GRAPH) {
        CUgraph child;
        bool read = ask->child && ask->child(node, &child) == CUDA_SUCCESS;
        return read ? bytes_of(ask, child, depth + 1) : UINT64_MAX;
    }
    if (type != NODE_MEMORY_ALLOCATION)
        return 0;
    struct allocation_node allocation = {0};
    bool read = ask->allocation && ask->allocation(node, &allocation) == CUDA_SUCCESS;
    return read ? allocation.bytes : UINT64_MAX;
}

static uint64_t bytes_of(const struct questions *ask, CUgraph graph, int depth) {
    size_t count = 0;
    if (depth > DEPTH_MOST || ask->nodes(graph, NULL, &count) != CUDA_SUCCESS)
        return UINT64_MAX;
    CUgraphNode *nodes = malloc((count + 1) * sizeof(CUgraphNode));
    uint64_t sum = 0;
    if (!nodes || ask->nodes(graph, nodes, &count) != CUDA_SUCCESS)
        sum = UINT64_MAX;
    for (size_t i = 0; sum != UINT64_MAX && i < count; i++)
        sum = plus(sum, node_bytes(ask, nodes[i], depth));
    free(nodes);
    return sum;
}

uint64_t graph_memory_bytes(CUgraph graph) {
    struct questions ask = {
        .nodes = (CUresult(*)(CUgraph, CUgraphNode *, size_t *))real_symbol("cuGraphGetNodes"),
        .type = (CUresult(*)(CUgraphNode, int *))real_symbol("cuGraphNodeGetType"),
        .child = (CUresult(*)(CUgraphNode, CUgraph *))real_symbol("cuGraphChildGraphNodeGetGraph"),
        .allocation = (CUresult(*)(CUgraphNode, struct allocation_node *))real_symbol(
            "cuGraphMemAllocNodeGetParams"),
    };
    /* A driver without these has no such nodes, and one that refuses a graph will not make it. */
    return ask.nodes && ask.type && graph ? bytes_of(&ask, graph, 0) : 0;
}

uint64_t graph_memory_handle(CUgraphExec graph) {
    return GRAPH_TAG << 60 ^ (uint64_t)(uintptr_t)graph;
}
