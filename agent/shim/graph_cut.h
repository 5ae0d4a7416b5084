/* graph_cut.h - a graph that can be launched, made anew as several shorter ones. */
#ifndef SFILL_GRAPH_CUT_H
#define SFILL_GRAPH_CUT_H
#include "shim.h"

#define CUT_NODES_MOST 8192

/* A copy that can be cut; NULL: its nodes are not all of kinds that may be (kernels, copies, sets,
 * empty ones), or there is one or more than CUT_NODES_MOST of them. *nodes: how many. */
CUgraph cut_copy(CUgraph graph, size_t *nodes);
void cut_drop(CUgraph copy);

/* Makes `parts` graphs of a copy. Launched into one stream, one after the other, they do what the
 * whole does. flags: of cuGraphInstantiateWithFlags. False: none was made. */
bool cut_make(CUgraph copy, unsigned parts, unsigned long long flags, CUgraphExec *made);
void cut_free(CUgraphExec *parts, unsigned count);
#endif
