/* graph.c - graphs as lists of nodes, each with the nodes before it. */
#include <stdlib.h>
#include <string.h>
#include "graph.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void graph_lock(void) { pthread_mutex_lock(&lock); }
void graph_unlock(void) { pthread_mutex_unlock(&lock); }

static bool grow(struct node_list *list) {
    unsigned room = list->room ? 2 * list->room : 4;
    CUgraphNode *at = realloc(list->at, room * sizeof *at);
    if (!at)
        return false;
    list->at = at;
    list->room = room;
    return true;
}

/* One that cannot be in the list yet need not be looked for. */
static bool append(struct node_list *list, CUgraphNode node) {
    if (list->count == list->room && !grow(list))
        return false;
    list->at[list->count++] = node;
    return true;
}

bool node_list_add(struct node_list *list, CUgraphNode node) {
    for (unsigned i = 0; i < list->count; i++)
        if (list->at[i] == node)
            return true;
    return append(list, node);
}

bool node_list_copy(struct node_list *to, const struct node_list *from) {
    to->count = 0;
    for (unsigned i = 0; i < from->count; i++)
        if (!node_list_add(to, from->at[i]))
            return false;
    return true;
}

void node_list_free(struct node_list *list) {
    free(list->at);
    *list = (struct node_list){NULL, 0, 0};
}

bool graph_valid(CUgraph graph) { return graph && graph->magic == GRAPH_MAGIC; }
bool node_valid(CUgraphNode node) { return node && node->magic == NODE_MAGIC; }

CUgraph graph_make(void) {
    CUgraph graph = calloc(1, sizeof *graph);
    if (graph)
        graph->magic = GRAPH_MAGIC;
    return graph;
}

void graph_free(CUgraph graph) {
    for (unsigned i = 0; i < graph->nodes.count; i++) {
        CUgraphNode node = graph->nodes.at[i];
        node->magic = 0;
        node_list_free(&node->before);
        free(node);
    }
    node_list_free(&graph->nodes);
    graph->magic = 0;
    free(graph);
}

CUgraphNode graph_add(CUgraph graph, const struct sim_node_handle *content,
                      const struct node_list *before) {
    CUgraphNode node = malloc(sizeof *node);
    if (!node)
        return NULL;
    *node = *content;
    node->magic = NODE_MAGIC;
    node->graph = graph;
    node->index = graph->nodes.count;
    node->before = (struct node_list){NULL, 0, 0};
    if (!node_list_copy(&node->before, before) || !append(&graph->nodes, node)) {
        node_list_free(&node->before);
        free(node);
        return NULL;
    }
    return node;
}

/* Nodes keep their index, so a clone's edges follow from it. */
CUgraph graph_clone(CUgraph graph) {
    static const struct node_list none;
    CUgraph clone = graph_make();
    if (!clone)
        return NULL;
    for (unsigned i = 0; i < graph->nodes.count; i++) {
        CUgraphNode node = graph_add(clone, graph->nodes.at[i], &none);
        if (!node) {
            graph_free(clone);
            return NULL;
        }
        node->origin = graph->nodes.at[i];
    }
    for (unsigned i = 0; i < graph->nodes.count; i++) {
        const struct node_list *before = &graph->nodes.at[i]->before;
        for (unsigned b = 0; b < before->count; b++)
            if (!node_list_add(&clone->nodes.at[i]->before,
                               clone->nodes.at[before->at[b]->index])) {
                graph_free(clone);
                return NULL;
            }
    }
    return clone;
}

static void take_out(struct node_list *list, CUgraphNode node) {
    unsigned kept = 0;
    for (unsigned i = 0; i < list->count; i++)
        if (list->at[i] != node)
            list->at[kept++] = list->at[i];
    list->count = kept;
}

void graph_remove(CUgraphNode node) {
    CUgraph graph = node->graph;
    take_out(&graph->nodes, node);
    for (unsigned i = 0; i < graph->nodes.count; i++) {
        graph->nodes.at[i]->index = i;
        take_out(&graph->nodes.at[i]->before, node);
    }
    node->magic = 0;
    node_list_free(&node->before);
    free(node);
}

uint64_t graph_allocates(CUgraph graph) {
    uint64_t bytes = 0;
    for (unsigned i = 0; i < graph->nodes.count; i++)
        bytes += graph->nodes.at[i]->allocates;
    return bytes;
}

bool graph_reaches(CUgraph graph, const struct node_list *tips, const struct node_list *nodes) {
    unsigned count = graph->nodes.count, depth = 0;
    bool *seen = calloc(count + 1, sizeof *seen);
    CUgraphNode *stack = malloc((count + 1) * sizeof *stack);
    bool all = seen && stack;
    for (unsigned i = 0; all && i < tips->count; i++)
        if (!seen[tips->at[i]->index]) {
            seen[tips->at[i]->index] = true;
            stack[depth++] = tips->at[i];
        }
    while (all && depth) {
        const struct node_list *before = &stack[--depth]->before;
        for (unsigned i = 0; i < before->count; i++)
            if (!seen[before->at[i]->index]) {
                seen[before->at[i]->index] = true;
                stack[depth++] = before->at[i];
            }
    }
    for (unsigned i = 0; all && i < nodes->count; i++)
        all = seen[nodes->at[i]->index];
    free(seen);
    free(stack);
    return all;
}
