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
    SHIM_OP_OTHER = 6, /* host functions, value writes: progress, no GPU compute */
    SHIM_OP_SETUP = 7, /* makes a context, loads a module: driver work that may stop the GPU */
    SHIM_OP_EVENT = 8  /* an event record: no GPU work of its own */
};

/* One operation at its launch call. */
struct shim_op {
    enum shim_op_kind kind;
    CUstream stream; /* NULL never: CU_STREAM_LEGACY or CU_STREAM_PER_THREAD instead */
    bool per_thread; /* called by the per-thread-default-stream variant of the API */
    bool blocking;   /* the call returns only when the operation is done (cuMemcpy ...) */
    bool writes;     /* SHIM_OP_WAIT, SHIM_OP_OTHER: has the GPU write or map a few words */
    uint64_t shape;  /* hash of function or graph identity and launch shape or bytes; 0 unknown */
    CUfunction function; /* kernels */
    uint64_t bytes;      /* copies and sets */
    int device;          /* SHIM_OP_SETUP: ordinal of the GPU; -1: that of the current context */
    uint64_t cookie[4];  /* the role's own, from before() to after() */
};

/* What a role may have to refuse as a whole. */
enum shim_feature {
    SHIM_MANAGED_MEMORY = 1,      /* cuMemAllocManaged */
    SHIM_DEVICE_GRAPH_LAUNCH = 2, /* instantiating a graph that kernels may launch */
    SHIM_EXTERNAL_SEMAPHORE = 3,  /* cuImportExternalSemaphore */
    SHIM_UNKNOWN_FORM = 4,        /* a hooked name in an ABI newer than the table, or a launch call
                                   * that the table lacks: goes unseen */
    SHIM_CHECKPOINT = 5           /* cuCheckpointProcessCheckpoint, ...Restore */
};

/* What a blocking call waits for. */
enum shim_block {
    SHIM_BLOCK_STREAM = 1,  /* all work of one stream */
    SHIM_BLOCK_CONTEXT = 2, /* all work of the current context */
    SHIM_BLOCK_EVENT = 3,   /* an event on a stream that the call does not name */
    SHIM_BLOCK_QUERY = 4    /* returned at once with "not ready": the caller polls */
};

/* An allocation from a memory pool, at its call. */
struct shim_pool_call {
    CUmemoryPool pool; /* NULL: the device's current one */
    CUstream stream;   /* NULL never, as for operations */
    uint64_t bytes;
    bool pooled; /* the role's own */
};

/* A launch of a graph. */
struct shim_graph_launch {
    CUgraphExec graph;
    CUstream stream;          /* NULL never, as for operations */
    const CUgraphExec *parts; /* what is launched, in this order: the graph itself, or its parts */
    unsigned count;
    void *cookie; /* the role's own; NULL: it need not hear of the end */
};

/* A role's answer to what the process does. before() may hold the caller (gate only). Any member
 * may be NULL. Streams come with NULL replaced by CU_STREAM_LEGACY or CU_STREAM_PER_THREAD.
 * Operations on a capturing stream run nothing and are not reported. */
struct shim_role_ops {
    bool shapes; /* wants to know the operations' shapes; else kernels have none */
    void (*before)(struct shim_op *op);
    void (*after)(struct shim_op *op, CUresult result);
    /* Entry and return of a call that blocks the host until the GPU has done something; stream
     * only for SHIM_BLOCK_STREAM. A query has block_begin only. */
    void (*block_begin)(CUstream stream, enum shim_block scope);
    void (*block_end)(CUstream stream, enum shim_block scope, CUresult result);
    /* Whether a context may be made on a GPU: it takes memory. False: CUDA_ERROR_OUT_OF_MEMORY. */
    bool (*context_fits)(CUdevice device);
    void (*context_created)(CUcontext context);
    /* Before a context is destroyed, or a primary context released or reset; then after it, with
     * whether it is gone (a primary context lives on while others hold it). */
    void (*context_destroying)(CUcontext context);
    void (*context_destroyed)(CUcontext context, bool gone);
    void (*stream_created)(CUstream stream, unsigned flags);
    void (*stream_destroying)(CUstream stream);
    void (*capture_begin)(CUstream stream, int mode);
    void (*capture_end)(CUstream stream);
    /* Before a module or (then NULL) a library ends: handles of functions will be used again. */
    void (*module_unloading)(CUmodule module);
    /* A graph has been made ready, with these flags. */
    void (*graph_made)(CUgraphExec made, CUgraph from, unsigned long long flags);
    /* Before a launch of one and after it: the role may have it launched in parts. */
    void (*graph_launching)(struct shim_graph_launch *launch);
    void (*graph_launched)(const struct shim_graph_launch *launch);
    /* Before one changes or ends. */
    void (*graph_changing)(CUgraphExec graph, bool gone);
    /* Memory: may hold the caller (gate). False refuses; the hook then answers
     * CUDA_ERROR_OUT_OF_MEMORY. What was granted is followed by memory_took, with handle 0 if the
     * driver refused. */
    bool (*memory_ask)(uint64_t bytes);
    void (*memory_took)(uint64_t handle, uint64_t bytes);
    void (*memory_freed)(uint64_t handle);
    /* The same for what a pool hands out. pool_took: `at` 0 if the driver refused; false gives the
     * allocation back and refuses after all. */
    bool (*pool_ask)(struct shim_pool_call *call);
    bool (*pool_took)(const struct shim_pool_call *call, CUdeviceptr at);
    void (*pool_made)(CUmemoryPool pool, CUdevice device, bool on_host);
    /* Before a pool is destroyed: what is allocated from it. pool_gone gets that afterwards. */
    uint64_t (*pool_left)(CUmemoryPool pool);
    void (*pool_gone)(CUmemoryPool pool, uint64_t left);
    void (*pools_changed)(void); /* one was trimmed */
    /* A call failed with CUDA_ERROR_OUT_OF_MEMORY on a GPU (-1: that of the current context). True:
     * worth the same call again; asked with `tries` counting up from 0 until it succeeds or this
     * says no. */
    bool (*memory_short)(int device, uint64_t bytes, unsigned tries);
    /* Managed memory, device-launched graphs ... : false refuses (CUDA_ERROR_NOT_SUPPORTED). */
    bool (*allows)(enum shim_feature feature);
    /* A function that the table lacks has been called: work may start that no hook saw. */
    void (*unseen)(void);
    /* cuMemGetInfo's answer may be narrowed. */
    void (*memory_info)(size_t *free_bytes, size_t *total_bytes);
    /* The memory that this job may take on a GPU, and what it holds; false: nothing to say of it.
     */
    bool (*memory_of_gpu)(const char *uuid, uint64_t *limit_bytes, uint64_t *held_bytes);
    /* cuDeviceTotalMem's answer may be narrowed. */
    void (*memory_total)(CUdevice device, size_t *bytes);
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
    uint64_t rescue_ms; /* longest wait for fills to leave when memory is short */
};
enum shim_role shim_attach(struct shim_answer *answer); /* decides the role, once a process */
/* Connects afresh and offers the board (-1: none yet); false when there is no agent. Then
 * answer->board_fd is -1 (board adopted) or a new board. Waits timeout_ms at most. */
bool shim_reattach(enum shim_role role, int board_fd, struct shim_answer *answer, int timeout_ms);
int shim_connection(void); /* the socket, -1 when none */
/* One message: its length, 0 when none came in time, -1 when the connection is gone (then also
 * shim_connection() is -1). *fd: the descriptor that came with it, else -1. */
int shim_receive(char *text, size_t size, int *fd, int timeout_ms);
/* One question on a connection of its own, so that any thread may ask: false when no answer came
 * in time. text: the question, then the answer. */
bool shim_ask(char *text, size_t size, int timeout_ms);
int shim_send(const char *text); /* 0, or -1 when it could not be sent at once */

/* thread.c: a detached thread, all signals blocked, small timer slack, never joined. */
bool shim_thread(void (*run)(void), const char *name);

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
