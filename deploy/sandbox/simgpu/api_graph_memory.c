/* api_graph_memory.c - nodes that allocate. Their memory is taken when the graph is instantiated
 * and given back when that ends; nothing is shared between graphs. Nodes that free are not
 * simulated. */
#include <string.h>
#include <sys/mman.h>
#include "graph.h"

struct alloc_node_params {
    char pool_properties[88];
    const void *access;
    size_t access_count, bytes;
    CUdeviceptr at;
};

EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before,
                                       size_t count, struct alloc_node_params *p) {
    CUresult ready = driver_ready();
    if (ready)
        return ready;
    if (!node || !graph_valid(graph) || count || before || !p || !p->bytes)
        return CUDA_ERROR_INVALID_VALUE; /* only at the beginning of a graph */
    void *at = mmap(NULL, p->bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    p->at = (uintptr_t)at;
    struct sim_node_handle content = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC,
                                      .op.kind = SIM_RECORD,
                                      .allocates = p->bytes,
                                      .at = p->at};
    const struct node_list none = {NULL, 0, 0};
    graph_lock();
    *node = graph_add(graph, &content, &none);
    graph_unlock();
    return *node ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, struct alloc_node_params *p) {
    CUresult ready = driver_ready();
    if (ready)
        return ready;
    if (!node_valid(node) || node->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC || !p)
        return CUDA_ERROR_INVALID_VALUE;
    memset(p, 0, sizeof *p);
    p->bytes = node->allocates;
    p->at = node->at;
    return CUDA_SUCCESS;
}
