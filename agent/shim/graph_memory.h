/* graph_memory.h - the device memory that a graph allocates by itself. */
#ifndef SFILL_GRAPH_MEMORY_H
#define SFILL_GRAPH_MEMORY_H
#include "shim.h"

/* What the nodes of a graph allocate in all; UINT64_MAX: they cannot be read. */
uint64_t graph_memory_bytes(CUgraph graph);
/* What a role knows the memory of an instantiated graph by. */
uint64_t graph_memory_handle(CUgraphExec graph);
#endif
