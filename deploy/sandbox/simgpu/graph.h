/* graph.h - graphs, captures and what may be launched of them. One lock for all of it. */
#ifndef SIMGPU_GRAPH_H
#define SIMGPU_GRAPH_H
#include "driver.h"

#define GRAPH_MAGIC 0x73696d5f67726170ull
#define NODE_MAGIC 0x73696d5f6e6f6465ull
#define EXEC_MAGIC 0x73696d5f65786563ull

/* How a kernel was launched; the simulation itself needs only its duration. */
struct launch_shape {
    CUfunction function;
    unsigned grid[3], block[3], shared;
    uint64_t awaited, value; /* address of the word that it spins for, 0 for none */
};

struct sim_node_handle {
    uint64_t magic;
    CUgraph graph;
    CUgraphNode origin; /* in a clone: the node that it was made of */
    int type;
    unsigned index;           /* in its graph */
    struct sim_op op;         /* what a launch puts into a stream */
    struct transfer transfer; /* of copies and sets */
    struct launch_shape shape;
    uint64_t allocates, at;  /* of nodes that allocate: so many bytes, at this address */
    struct node_list before; /* must be over before it starts */
};

struct sim_graph_handle {
    uint64_t magic;
    struct node_list nodes;
};

/* graph.c; all but the first two under the lock */
void graph_lock(void);
void graph_unlock(void);
bool node_list_add(struct node_list *list, CUgraphNode node); /* once; false: out of memory */
bool node_list_copy(struct node_list *to, const struct node_list *from);
void node_list_free(struct node_list *list);
CUgraph graph_make(void);
void graph_free(CUgraph graph);
bool graph_valid(CUgraph graph);
bool node_valid(CUgraphNode node);
/* Bytes that its nodes allocate. */
uint64_t graph_allocates(CUgraph graph);
/* NULL: out of memory. */
CUgraphNode graph_add(CUgraph graph, const struct sim_node_handle *content,
                      const struct node_list *before);
CUgraph graph_clone(CUgraph graph);
void graph_remove(CUgraphNode node); /* with its edges */
/* Are all of the nodes among, or before, the tips? */
bool graph_reaches(CUgraph graph, const struct node_list *tips, const struct node_list *nodes);

/* graph_exec.c */
CUresult exec_make(CUgraph graph, CUcontext context, CUgraphExec *exec);
CUresult exec_update(CUgraphExec exec, CUgraph graph, int *why, CUgraphNode *where);
CUresult exec_launch(CUgraphExec exec, const struct stream_ref *stream);
void exec_free(CUgraphExec exec);
bool exec_valid(CUgraphExec exec);
#endif
