/* paths.h - the ways to the GPU that paths.c goes, and what they share. */
#ifndef HARDWARE_PATHS_H
#define HARDWARE_PATHS_H
#include <stdint.h>
#include "../../agent/shim/cuda_abi.h"

/* Page 0 of the file that a prover and a program share. proof_page.py has the same. */
struct page {
    uint64_t tried;    /* times that the path was about to be gone */
    uint64_t returned; /* times that its call came back */
    uint64_t where;    /* WHERE_* */
    uint64_t stop;     /* written by the prover */
};
enum { WHERE_ELSE = 0, WHERE_CALL = 1 };

enum trace { TRACE_KERNEL, TRACE_DESTINATION, TRACE_WATCHED };
enum needs { NEEDS_NOTHING, NEEDS_ARRAY, NEEDS_GRAPH };

struct path {
    const char *symbol;
    const char *suffix; /* of the form for the per-thread default stream; NULL: there is none */
    CUresult (*go)(uint64_t time);
    enum trace trace;
    enum needs needs;
};
extern const struct path paths[]; /* ends with a symbol of NULL */

extern struct paths_machine {
    void *call; /* the function under test */
    CUresult (*set_block_shape)(CUfunction, int, int, int);
    CUstream stream;   /* NULL for the default stream */
    CUcontext context; /* current */
    CUfunction count;  /* counts in seen */
    CUgraphExec graph; /* runs it once */
    CUarray array;     /* 8 bytes each: 0, 1, 2 ... */
    CUdeviceptr table; /* the same as plain device memory */
    CUdeviceptr word;  /* 8 bytes of device memory */
    uint64_t *numbers; /* the same in the host's */
    char *seen;        /* the host's memory that the GPU writes and the prover sees */
    CUdeviceptr seen_at;
    char *source; /* pinned memory to copy from */
} m;
#endif
