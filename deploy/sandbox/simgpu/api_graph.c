/* api_graph.c - graphs built by hand, and questions about them. */
#include <string.h>
#include "graph.h"
#include "handles.h"

static CUresult check(CUgraph graph, const void *out) {
    CUresult ready = driver_ready();
    if (ready)
        return ready;
    return graph_valid(graph) && out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGraphCreate(CUgraph *graph, unsigned flags) {
    CUresult ready = driver_ready();
    if (ready || !graph || flags)
        return ready ? ready : CUDA_ERROR_INVALID_VALUE;
    *graph = graph_make();
    return *graph ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuGraphDestroy(CUgraph graph) {
    CUresult bad = check(graph, graph);
    if (bad)
        return bad;
    graph_lock();
    graph_free(graph);
    graph_unlock();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphClone(CUgraph *clone, CUgraph graph) {
    CUresult bad = check(graph, clone);
    if (bad)
        return bad;
    graph_lock();
    *clone = graph_clone(graph);
    graph_unlock();
    return *clone ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuGraphNodeFindInClone(CUgraphNode *found, CUgraphNode original, CUgraph clone) {
    CUresult bad = check(clone, found);
    if (bad || !node_valid(original))
        return bad ? bad : CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < clone->nodes.count; i++)
        if (clone->nodes.at[i]->origin == original) {
            *found = clone->nodes.at[i];
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGraphDestroyNode(CUgraphNode node) {
    CUresult ready = driver_ready();
    if (ready || !node_valid(node))
        return ready ? ready : CUDA_ERROR_INVALID_VALUE;
    graph_lock();
    graph_remove(node);
    graph_unlock();
    return CUDA_SUCCESS;
}

static CUresult add(CUgraphNode *node, CUgraph graph, CUgraphNode *before, size_t count,
                    const struct sim_node_handle *content) {
    struct node_list list = {before, (unsigned)count, 0};
    CUresult bad = check(graph, node);
    if (bad || (count && !before))
        return bad ? bad : CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (!node_valid(before[i]) || before[i]->graph != graph)
            return CUDA_ERROR_INVALID_VALUE;
    graph_lock();
    *node = graph_add(graph, content, &list);
    graph_unlock();
    return *node ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult kernel_content(const CUkernelNodeParams *p, CUfunction function,
                               struct sim_node_handle *content) {
    *content = (struct sim_node_handle){.type = CU_GRAPH_NODE_TYPE_KERNEL,
                                        .shape = {function,
                                                  {p->grid_x, p->grid_y, p->grid_z},
                                                  {p->block_x, p->block_y, p->block_z},
                                                  p->shared_bytes,
                                                  0,
                                                  0}};
    return kernel_op(&content->shape, &content->op);
}

EXPORT CUresult cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, CUgraphNode *before,
                                     size_t count, const CUkernelNodeParams *p) {
    struct sim_node_handle content;
    CUresult bad = p ? kernel_content(p, p->function, &content) : CUDA_ERROR_INVALID_VALUE;
    return bad ? bad : add(node, graph, before, count, &content);
}

EXPORT CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, CUgraphNode *before,
                                        size_t count, const CUkernelNodeParams *p) {
    struct sim_node_handle content;
    CUresult bad = p ? kernel_content(p, p->function ? p->function : p->kernel, &content)
                     : CUDA_ERROR_INVALID_VALUE;
    return bad ? bad : add(node, graph, before, count, &content);
}

static uint64_t address(const CUmemcpy3DSide *side) {
    uint64_t base = side->type == CU_MEMORYTYPE_HOST ? (uintptr_t)side->host : side->device;
    return base + side->x + side->y * side->pitch + side->z * side->pitch * side->height;
}

/* Only copies of one piece: rows with gaps between them are not simulated. */
EXPORT CUresult cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, CUgraphNode *before,
                                     size_t count, const CUmemcpy3D *p, CUcontext context) {
    (void)context;
    if (!p || !p->width || !p->height || !p->depth)
        return CUDA_ERROR_INVALID_VALUE;
    bool rows = p->height > 1 || p->depth > 1;
    if (p->from.array || p->to.array ||
        (rows && (p->from.pitch != p->width || p->to.pitch != p->width)))
        return CUDA_ERROR_NOT_SUPPORTED;
    size_t bytes = p->width * p->height * p->depth;
    struct sim_node_handle content = {.type = CU_GRAPH_NODE_TYPE_MEMCPY,
                                      .op = copy_op(bytes),
                                      .transfer = {.to = (void *)(uintptr_t)address(&p->to),
                                                   .from = (void *)(uintptr_t)address(&p->from),
                                                   .bytes = bytes}};
    return add(node, graph, before, count, &content);
}

EXPORT CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, CUgraphNode *before,
                                     size_t count, const CUmemsetNodeParams *p, CUcontext context) {
    (void)context;
    if (!p || !p->width || !p->height ||
        (p->element_bytes != 1 && p->element_bytes != 2 && p->element_bytes != 4))
        return CUDA_ERROR_INVALID_VALUE;
    if (p->height > 1 && p->pitch != p->width * p->element_bytes)
        return CUDA_ERROR_NOT_SUPPORTED;
    size_t bytes = p->width * p->height * p->element_bytes;
    struct sim_node_handle content = {.type = CU_GRAPH_NODE_TYPE_MEMSET,
                                      .op = set_op(bytes),
                                      .transfer = {.to = (void *)(uintptr_t)p->to,
                                                   .bytes = bytes,
                                                   .value = p->value,
                                                   .width = p->element_bytes}};
    return add(node, graph, before, count, &content);
}

EXPORT CUresult cuGraphAddHostNode(CUgraphNode *node, CUgraph graph, CUgraphNode *before,
                                   size_t count, const CUhostNodeParams *p) {
    if (!p || !p->function)
        return CUDA_ERROR_INVALID_VALUE;
    struct sim_node_handle content = {.type = CU_GRAPH_NODE_TYPE_HOST,
                                      .op = {.kind = SIM_HOST,
                                             .flags = SIM_EFFECT,
                                             .a = (uintptr_t)p->function,
                                             .b = (uintptr_t)p->data}};
    return add(node, graph, before, count, &content);
}

EXPORT CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, CUgraphNode *before,
                                    size_t count) {
    struct sim_node_handle content = {.type = CU_GRAPH_NODE_TYPE_EMPTY, .op.kind = SIM_RECORD};
    return add(node, graph, before, count, &content);
}

EXPORT CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from,
                                       const CUgraphNode *to, size_t count) {
    CUresult bad = check(graph, graph);
    if (bad || (count && (!from || !to)))
        return bad ? bad : CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (!node_valid(from[i]) || !node_valid(to[i]) || from[i]->graph != graph ||
            to[i]->graph != graph || from[i] == to[i])
            return CUDA_ERROR_INVALID_VALUE;
    bool room = true;
    graph_lock();
    for (size_t i = 0; room && i < count; i++)
        room = node_list_add(&to[i]->before, from[i]);
    graph_unlock();
    return room ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from,
                                          const CUgraphNode *to, const void *edges, size_t count) {
    (void)edges;
    return cuGraphAddDependencies(graph, from, to, count);
}

EXPORT CUresult cuGraphNodeGetType(CUgraphNode node, int *type) {
    CUresult ready = driver_ready();
    if (ready || !node_valid(node) || !type)
        return ready ? ready : CUDA_ERROR_INVALID_VALUE;
    *type = node->type;
    return CUDA_SUCCESS;
}

/* As all these lists: without room for them only how many there are; places left over are NULL. */
static void hand_out(const struct node_list *list, bool roots_only, CUgraphNode *nodes,
                     size_t *count) {
    size_t found = 0;
    for (unsigned i = 0; i < list->count; i++) {
        if (roots_only && list->at[i]->before.count)
            continue;
        if (nodes && found < *count)
            nodes[found] = list->at[i];
        found++;
    }
    for (size_t i = found; nodes && i < *count; i++)
        nodes[i] = NULL;
    if (!nodes || found < *count)
        *count = found;
}

EXPORT CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    CUresult bad = check(graph, count);
    if (!bad)
        hand_out(&graph->nodes, false, nodes, count);
    return bad;
}

EXPORT CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    CUresult bad = check(graph, count);
    if (!bad)
        hand_out(&graph->nodes, true, nodes, count);
    return bad;
}

EXPORT CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *before, size_t *count) {
    CUresult ready = driver_ready();
    if (ready || !node_valid(node) || !count)
        return ready ? ready : CUDA_ERROR_INVALID_VALUE;
    hand_out(&node->before, false, before, count);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *before, void *edges,
                                              size_t *count) {
    CUresult result = cuGraphNodeGetDependencies(node, before, count);
    if (!result && edges)
        memset(edges, 0, 8 * *count); /* CUgraphEdgeData: none has any */
    return result;
}

EXPORT CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count) {
    CUresult bad = check(graph, count);
    if (bad || !from != !to)
        return bad ? bad : CUDA_ERROR_INVALID_VALUE;
    size_t found = 0;
    for (unsigned i = 0; i < graph->nodes.count; i++)
        for (unsigned b = 0; b < graph->nodes.at[i]->before.count; b++, found++)
            if (from && found < *count) {
                from[found] = graph->nodes.at[i]->before.at[b];
                to[found] = graph->nodes.at[i];
            }
    if (!from || found < *count)
        *count = found;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to, void *edges,
                                   size_t *count) {
    CUresult result = cuGraphGetEdges(graph, from, to, count);
    if (!result && edges)
        memset(edges, 0, 8 * *count);
    return result;
}

static CUresult kernel_params(CUgraphNode node, CUkernelNodeParams *p, size_t bytes) {
    CUresult ready = driver_ready();
    if (ready || !node_valid(node) || !p || node->type != CU_GRAPH_NODE_TYPE_KERNEL)
        return ready ? ready : CUDA_ERROR_INVALID_VALUE;
    const struct launch_shape *s = &node->shape;
    CUkernelNodeParams all = {
        .function = s->function,
        .grid_x = s->grid[0],
        .grid_y = s->grid[1],
        .grid_z = s->grid[2],
        .block_x = s->block[0],
        .block_y = s->block[1],
        .block_z = s->block[2],
        .shared_bytes = s->shared,
    };
    memcpy(p, &all, bytes); /* parameters: simulated kernels have none */
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUkernelNodeParams *p) {
    return kernel_params(node, p, offsetof(CUkernelNodeParams, kernel));
}
EXPORT CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUkernelNodeParams *p) {
    return kernel_params(node, p, sizeof *p);
}
