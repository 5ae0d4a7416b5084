/* graph_cut.c - cuts a graph along its own order.
 *
 * The nodes are put in an order that heeds every edge, and each part takes a stretch of it. All
 * that a node needs stands in its own part or in an earlier one, and parts run one after the other
 * in a stream, so every edge is heeded; only branches that lay beside each other across a cut no
 * longer overlap. A part is a clone without the others' nodes: that keeps all attributes. */
#include "graph_cut.h"
#include <pthread.h>
#include <stdlib.h>

enum {
    NODE_KERNEL = 0,
    NODE_COPY = 1,
    NODE_SET = 2,
    NODE_EMPTY = 5,
    ATTRIBUTE_DEVICE_UPDATABLE = 13,
    ATTRIBUTE_BYTES = 64,
    EDGE_DATA_BYTES = 8
};

static struct {
    CUresult (*clone)(CUgraph *, CUgraph);
    CUresult (*destroy)(CUgraph);
    CUresult (*nodes)(CUgraph, CUgraphNode *, size_t *);
    CUresult (*edges)(CUgraph, CUgraphNode *, CUgraphNode *, size_t *);
    CUresult (*edges_v2)(CUgraph, CUgraphNode *, CUgraphNode *, void *, size_t *);
    CUresult (*type)(CUgraphNode, int *);
    CUresult (*attribute)(CUgraphNode, int, void *);
    CUresult (*in_clone)(CUgraphNode *, CUgraphNode, CUgraph);
    CUresult (*remove)(CUgraphNode);
    CUresult (*instantiate)(CUgraphExec *, CUgraph, unsigned long long);
    CUresult (*free)(CUgraphExec);
} driver;

static void find_driver(void) {
#define FIND(member, name) *(void **)&driver.member = real_symbol(name)
    FIND(clone, "cuGraphClone");
    FIND(destroy, "cuGraphDestroy");
    FIND(nodes, "cuGraphGetNodes");
    FIND(edges, "cuGraphGetEdges");
    FIND(edges_v2, "cuGraphGetEdges_v2");
    FIND(type, "cuGraphNodeGetType");
    FIND(attribute, "cuGraphKernelNodeGetAttribute");
    FIND(in_clone, "cuGraphNodeFindInClone");
    FIND(remove, "cuGraphDestroyNode");
    FIND(instantiate, "cuGraphInstantiateWithFlags");
    FIND(free, "cuGraphExecDestroy");
#undef FIND
}

static bool can_cut(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_driver);
    return driver.clone && driver.destroy && driver.nodes && driver.edges && driver.type &&
           driver.in_clone && driver.remove && driver.instantiate && driver.free;
}

/* Nodes that the program could change afterwards without passing a hook, that own memory, or that
 * belong to one instantiation alone, stay whole. */
static bool may_be_cut(CUgraphNode node) {
    union {
        char bytes[ATTRIBUTE_BYTES];
        int updatable;
    } value = {{0}};
    int type;
    if (driver.type(node, &type) != CUDA_SUCCESS)
        return false;
    if (type == NODE_COPY || type == NODE_SET || type == NODE_EMPTY)
        return true;
    if (type != NODE_KERNEL)
        return false;
    bool told = driver.attribute &&
                driver.attribute(node, ATTRIBUTE_DEVICE_UPDATABLE, &value) == CUDA_SUCCESS;
    return !told || !value.updatable; /* drivers that don't know the attribute have no such nodes */
}

static CUgraphNode *list_nodes(CUgraph graph, size_t *count) {
    *count = 0;
    if (driver.nodes(graph, NULL, count) != CUDA_SUCCESS || *count < 2 || *count > CUT_NODES_MOST)
        return NULL;
    CUgraphNode *nodes = malloc(*count * sizeof *nodes);
    if (nodes && driver.nodes(graph, nodes, count) == CUDA_SUCCESS)
        return nodes;
    free(nodes);
    return NULL;
}

CUgraph cut_copy(CUgraph graph, size_t *count) {
    if (!graph || !can_cut())
        return NULL;
    CUgraphNode *nodes = list_nodes(graph, count);
    CUgraph copy = NULL;
    bool fit = nodes != NULL;
    for (size_t i = 0; fit && i < *count; i++)
        fit = may_be_cut(nodes[i]);
    free(nodes);
    return fit && driver.clone(&copy, graph) == CUDA_SUCCESS ? copy : NULL;
}

void cut_drop(CUgraph copy) {
    if (copy)
        driver.destroy(copy);
}

/* A node by its handle, and where it stands. */
struct place {
    CUgraphNode node;
    size_t index;
};

static int by_handle(const void *a, const void *b) {
    uintptr_t left = (uintptr_t)((const struct place *)a)->node;
    uintptr_t right = (uintptr_t)((const struct place *)b)->node;
    return left < right ? -1 : left > right;
}

struct edges {
    CUgraphNode *from, *to;
    void *data;
    size_t count;
};

static bool read_edges(CUgraph graph, struct edges *edges) {
    bool newest = driver.edges_v2 != NULL;
    size_t count = 0;
    CUresult result = newest ? driver.edges_v2(graph, NULL, NULL, NULL, &count)
                             : driver.edges(graph, NULL, NULL, &count);
    if (result != CUDA_SUCCESS)
        return false;
    edges->from = malloc((count + 1) * sizeof *edges->from);
    edges->to = malloc((count + 1) * sizeof *edges->to);
    edges->data = malloc((count + 1) * EDGE_DATA_BYTES);
    edges->count = count;
    if (!edges->from || !edges->to || !edges->data)
        return false;
    if (!count)
        return true;
    result = newest ? driver.edges_v2(graph, edges->from, edges->to, edges->data, &edges->count)
                    : driver.edges(graph, edges->from, edges->to, &edges->count);
    return result == CUDA_SUCCESS && edges->count == count;
}

static size_t index_of(const struct place *places, size_t count, CUgraphNode node) {
    struct place wanted = {.node = node};
    const struct place *found = bsearch(&wanted, places, count, sizeof *places, by_handle);
    return found ? found->index : count;
}

/* Edges as lists: those of node i go to after[first[i]] ... after[first[i + 1] - 1]. */
struct lists {
    size_t *first, *after, *missing; /* missing[i]: nodes before i that are not placed yet */
};

static bool make_lists(const struct edges *edges, const CUgraphNode *nodes, size_t count,
                       struct lists *lists) {
    struct place *places = malloc(count * sizeof *places);
    bool known = places != NULL;
    for (size_t i = 0; known && i < count; i++)
        places[i] = (struct place){nodes[i], i};
    if (known)
        qsort(places, count, sizeof *places, by_handle);
    for (size_t e = 0; known && e < edges->count; e++) {
        size_t from = index_of(places, count, edges->from[e]);
        size_t to = index_of(places, count, edges->to[e]);
        known = from < count && to < count;
        if (known) {
            lists->first[from + 1]++;
            lists->missing[to]++;
        }
    }
    for (size_t i = 0; known && i < count; i++)
        lists->first[i + 1] += lists->first[i];
    for (size_t e = edges->count; known && e > 0; e--) {
        size_t from = index_of(places, count, edges->from[e - 1]);
        lists->after[--lists->first[from + 1]] = index_of(places, count, edges->to[e - 1]);
    }
    free(places);
    return known; /* first[i + 1] is now where the list of i begins */
}

/* Places nodes in the order in which they were made as far as edges allow: that of a capture. */
static bool place_nodes(const struct lists *lists, size_t edges, size_t count, size_t *order) {
    size_t placed = 0, before;
    do {
        before = placed;
        for (size_t i = 0; i < count; i++) {
            if (lists->missing[i])
                continue;
            lists->missing[i] = SIZE_MAX; /* placed */
            order[placed++] = i;
            size_t end = i + 2 <= count ? lists->first[i + 2] : edges;
            for (size_t e = lists->first[i + 1]; e < end; e++)
                lists->missing[lists->after[e]]--;
        }
    } while (placed < count && placed > before);
    return placed == count;
}

/* Indices of the nodes in an order that heeds every edge; NULL: it cannot be told. */
static size_t *sort_nodes(CUgraph graph, const CUgraphNode *nodes, size_t count) {
    struct edges edges = {0};
    size_t *order = malloc(count * sizeof *order);
    bool sorted = order && read_edges(graph, &edges);
    struct lists lists = {.first = calloc(count + 2, sizeof *lists.first),
                          .after = calloc(edges.count + 1, sizeof *lists.after),
                          .missing = calloc(count, sizeof *lists.missing)};
    sorted = sorted && lists.first && lists.after && lists.missing &&
             make_lists(&edges, nodes, count, &lists) &&
             place_nodes(&lists, edges.count, count, order);
    free(lists.first);
    free(lists.after);
    free(lists.missing);
    free(edges.from);
    free(edges.to);
    free(edges.data);
    if (sorted)
        return order;
    free(order);
    return NULL;
}

/* One part: the nodes from `begin` up to `end` of the order. */
static bool make_part(CUgraph copy, const CUgraphNode *nodes, const size_t *order, size_t count,
                      size_t begin, size_t end, unsigned long long flags, CUgraphExec *made) {
    CUgraph part = NULL;
    CUgraphNode *others = malloc(count * sizeof *others);
    bool done = others && driver.clone(&part, copy) == CUDA_SUCCESS;
    size_t other = 0;
    for (size_t i = 0; done && i < count; i++)
        if (i < begin || i >= end)
            done = driver.in_clone(&others[other++], nodes[order[i]], part) == CUDA_SUCCESS;
    for (size_t i = 0; done && i < other; i++)
        done = driver.remove(others[i]) == CUDA_SUCCESS;
    done = done && driver.instantiate(made, part, flags) == CUDA_SUCCESS;
    free(others);
    if (part)
        driver.destroy(part);
    return done;
}

bool cut_make(CUgraph copy, unsigned parts, unsigned long long flags, CUgraphExec *made) {
    size_t count;
    CUgraphNode *nodes = list_nodes(copy, &count);
    size_t *order = nodes ? sort_nodes(copy, nodes, count) : NULL;
    unsigned done = 0;
    while (order && done < parts &&
           make_part(copy, nodes, order, count, count * done / parts, count * (done + 1) / parts,
                     flags, &made[done]))
        done++;
    free(order);
    free(nodes);
    if (done == parts)
        return true;
    cut_free(made, done);
    return false;
}

void cut_free(CUgraphExec *parts, unsigned count) {
    for (unsigned i = 0; i < count; i++)
        driver.free(parts[i]);
}
