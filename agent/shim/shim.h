/* shim.h - what the interposer's parts ask of each other. Hooks (mechanism) know nothing of
 * bubbles; they call the role that the process plays. */
#ifndef SFILL_SHIM_H
#define SFILL_SHIM_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "board.h"
#include "cuda_abi.h"

enum shim_role { SHIM_ASIDE = 0, SHIM_MONITOR = 1, SHIM_GATE = 2 };

enum shim_op_kind {
    SHIM_OP_KERNEL = 1,
    SHIM_OP_GRAPH = 2,
    SHIM_OP_COPY = 3,
    SHIM_OP_SET = 4,
    SHIM_OP_WAIT = 5,  /* stream waits for an event or a value */
    SHIM_OP_OTHER = 6, /* host functions, prefetch, event records: progress, no GPU compute */
    SHIM_OP_SETUP = 7  /* makes a context, loads a module: driver work that may stop the GPU */
};

/* One operation at its launch call. */
struct shim_op {
    enum shim_op_kind kind;
    CUstream stream; /* as the caller gave it */
    bool per_thread; /* called by the per-thread-default-stream variant of the API */
    bool blocking;   /* the call returns only when the operation is done (cuMemcpy ...) */
    uint64_t shape;  /* hash of function or graph identity and launch shape or bytes; 0 unknown */
    CUfunction function; /* kernels */
    uint64_t bytes;      /* copies and sets */
    int device;          /* SHIM_OP_SETUP: ordinal of the GPU; -1: that of the current context */
    uint64_t cookie[4];  /* the role's own, from before() to after() */
};

/* A role's answer to what the process does. before() may hold the caller (gate only). */
struct shim_role_ops {
    void (*before)(struct shim_op *op);
    void (*after)(struct shim_op *op, CUresult result);
    /* Entry and return of a call that blocks the host until the GPU has done something. */
    void (*block_begin)(CUstream stream, bool whole_context);
    void (*block_end)(CUstream stream, bool whole_context);
    void (*context_created)(CUcontext context);
    void (*context_destroying)(CUcontext context);
    void (*stream_created)(CUstream stream, unsigned flags);
    void (*stream_destroying)(CUstream stream);
    void (*capture_begin)(CUstream stream, int mode);
    void (*capture_end)(CUstream stream);
    void (*module_unloading)(CUmodule module);
    /* Memory: may hold the caller (gate). False refuses; the hook then answers
     * CUDA_ERROR_OUT_OF_MEMORY. */
    bool (*memory_ask)(uint64_t bytes);
    void (*memory_took)(uint64_t handle, uint64_t bytes);
    void (*memory_freed)(uint64_t handle);
    /* cuMemGetInfo's answer may be narrowed. */
    void (*memory_info)(size_t *free_bytes, size_t *total_bytes);
};

extern const struct shim_role_ops monitor_ops; /* monitor.c */
extern const struct shim_role_ops gate_ops;    /* gate.c */
/* NULL until the first CUDA call has decided the role, and for good when stepping aside. */
extern const struct shim_role_ops *_Atomic shim_ops;

/* connect.c: the agent's socket. */
struct shim_answer {
    enum shim_role role;
    int board_fd;
    uint64_t board_id;
    uint64_t size_bytes;
    uint64_t job_id;
    uint64_t memory_limit_bytes;
};
enum shim_role shim_attach(struct shim_answer *answer); /* decides the role, once a process */
int shim_connection(void);                              /* the socket, -1 when none */
int shim_receive(char *text, size_t size, int *fd, int timeout_ms); /* one message; fd -1: none */
int shim_send(const char *text);

/* role start, called once by shim.c after attaching */
bool monitor_start(const struct shim_answer *answer);
bool gate_start(const struct shim_answer *answer);

/* real.c: the driver's own functions, never ours. NULL when the driver lacks one. */
void *real_symbol(const char *name);
/* True while the calling thread is inside the shim's own use of the driver: hooks pass through. */
extern __thread int shim_inside;

/* log.c: one line on stderr when SFILL_LOG asks for it (0 quiet, 1 problems, 2 all). */
void shim_log(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));

static inline uint64_t shim_now_ns(void);
#include <time.h>
static inline uint64_t shim_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}
#endif
