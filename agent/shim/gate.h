/* gate.h - the gate's own state: one struct for each GPU that this fill process may use. */
#ifndef SFILL_GATE_H
#define SFILL_GATE_H
#include <pthread.h>
#include "durations.h"
#include "gate_idle.h"
#include "gate_policy.h"
#include "gate_predict.h"
#include "inflight.h"
#include "shim.h"
#include "uses.h"

struct gate_gpu {
    pthread_mutex_t lock; /* over all below; never held while waiting */
    char uuid[SFILL_UUID_BYTES];
    uint32_t index;    /* on the fill board */
    _Atomic bool used; /* a context is made or about to be made there */
    struct sfill_fill_gpu *face;
    struct gate_page page;
    struct gate_host hosts[SFILL_MAX_BOARDS];
    int hosts_count;
    struct predictor predictor;
    struct flight flight;
    struct uses uses;
    struct durations durations;
    uint64_t overhead_bytes; /* allowance for the context's own memory */
    /* account.c: what this process holds, and the page of its job; that is mapped and unmapped
     * under `lock` and account.c's own */
    uint64_t held_bytes;
    struct sfill_account_page *account; /* NULL: none */
    uint32_t account_place;
    uint64_t held_logged; /* operations too long for any bubble: already in the agent's log */
    uint64_t helped_ns;   /* the helper's latest look */
    /* first come, first served: callers take a number */
    _Atomic uint32_t next_number;
    _Atomic uint32_t serving;
};

struct gate_state {
    struct sfill_fill_board *board; /* NULL: none, everything waits */
    uint64_t job_id;
    uint64_t memory_limit_bytes;
    struct gate_gpu *_Atomic gpus[SFILL_MAX_GPUS];
    _Atomic uint32_t gpus_used;
    _Atomic bool evicted;
};
extern struct gate_state gate;

/* What the caller wants to start, as the decision sees it. */
struct gate_ask {
    uint64_t bound_ns; /* estimated GPU time */
    bool alone;        /* unknown: only with nothing else in flight */
    bool weightless;   /* takes no GPU time of its own: contexts, modules, allocations */
    bool copy;         /* keeps no multiprocessors */
    bool stalled;      /* nothing in flight has moved for long although training is idle */
    uint64_t held_ns;  /* for how long it has been too long for the bubbles */
};

/* gate_decide.c: may it start now? The caller holds the lock. */
enum sfill_closed gate_decide(struct gate_gpu *gpu, const struct gate_ask *ask, uint64_t now_ns,
                              struct idle_view *view);

/* gate_device.c: the GPU of a uuid, made at need (NULL: too many); of the current context. */
struct gate_gpu *gate_gpu_named(const char *uuid);
struct gate_gpu *gate_gpu_of_device(int device);   /* it is going to be used */
struct gate_gpu *gate_gpu_asked_of(int device);    /* somebody reads about it */
struct gate_gpu *gate_gpu_known(const char *uuid); /* NULL: not made yet */
/* Tells the agent of every GPU in use: it has forgotten. */
void gate_gpus_tell(void);

/* gate_stream.c: contexts, streams and the words that the GPU writes. */
struct gate_context;
/* The current context, or that of the stream when none is current. False: there is none at all;
 * true with *found NULL: there is one, but its GPU cannot be followed. */
bool gate_context_of(CUstream stream, struct gate_context **found);
struct gate_gpu *gate_context_gpu(const struct gate_context *context);
void gate_context_forget(CUcontext context);
void gate_stream_forget(CUstream stream);
/* The operation has been issued: counts it on its stream and marks the stream where due. */
void gate_stream_issued(struct gate_context *context, struct shim_op *op, uint64_t ticket,
                        uint64_t returned_ns);
/* When the GPU passed the event; gives it back. The caller holds the lock. */
bool gate_stream_time(struct flight_time *time);
/* The GPU's and the host's clock have to be compared, as soon as nothing is in flight; does it. */
bool gate_clock_due(const struct gate_context *context, uint64_t now_ns);
void gate_clock_anchor(struct gate_context *context);
/* Marks every stream of the GPU whose first unmarked operation is older. The caller holds the
 * lock. Does nothing while a stream is being captured. */
void gate_stream_mark_all(struct gate_gpu *gpu, uint64_t since_ns);
void gate_stream_capture(int change); /* +1: a capture begins, -1: it has ended */
bool gate_stream_capturing(void);
/* While a stream is being captured: puts the thread into this mode, and the one before into it. */
void gate_stream_swap_mode(int *mode);

/* gate_wait.c */
void gate_poll(struct gate_gpu *gpu, uint64_t now_ns); /* the caller holds the lock */
uint64_t gate_epoch(const struct gate_gpu *gpu);
void gate_done_sink(const struct flight_done *done, void *gpu);
void gate_show(struct gate_gpu *gpu, enum sfill_closed closed);
/* On a machine of few cores a thread that spins or wakes often takes a working one's. */
bool gate_cores_to_spare(void);
/* Waits until the operation may start and takes it in; returns its ticket. */
uint64_t gate_wait(struct gate_context *context, const struct shim_op *op);
/* Waits only until the gate is open: contexts, modules, allocations. */
void gate_wait_open(struct gate_gpu *gpu);

/* gate_forget.c: what was learned of handles that end or change. */
void gate_forget_functions(CUmodule module);
void gate_forget_graph(CUgraphExec graph, bool gone);

/* gate_graph.c: long graphs are launched in parts. */
void gate_graph_made(CUgraphExec made, CUgraph from, unsigned long long flags);
void gate_graph_launching(struct shim_graph_launch *launch);
void gate_graph_launched(const struct shim_graph_launch *launch);
void gate_graph_changing(CUgraphExec graph, bool gone);
void gate_graph_context_gone(CUcontext context);

/* gate_helper.c: the helper thread. */
bool gate_helper_start(void);
void gate_helper_wake(void);

/* account.c: device memory, summed over the processes of the job. */
enum account_answer {
    ACCOUNT_GRANTED,
    ACCOUNT_OVER,   /* more than the limit */
    ACCOUNT_UNKNOWN /* nobody knows yet what the job holds: ask again */
};
/* Counts so much more if the job then stays within the limit (0: none). */
enum account_answer account_take(struct gate_gpu *gpu, uint64_t bytes, uint64_t limit);
void account_add(struct gate_gpu *gpu, int64_t bytes); /* counts more or less, whatever the limit */
uint64_t account_sum(const struct gate_gpu *gpu); /* the job's; the caller holds the GPU's lock */
/* A page from the agent, NULL: no longer any; takes the mapping over. */
void account_map(struct gate_gpu *gpu, struct sfill_account_page *page);
void account_show(struct gate_gpu *gpu); /* writes the count again: the board is a new one */

/* pools.c: memory pools, by what the driver has reserved for them. */
bool pool_ask(struct shim_pool_call *call);
bool pool_took(const struct shim_pool_call *call, CUdeviceptr at);
void pool_freed(int index, uint64_t bytes); /* an allocation that memory_took_from() noted */
void pool_made(CUmemoryPool pool, CUdevice device, bool on_host);
uint64_t pool_left(CUmemoryPool pool);
void pool_gone(CUmemoryPool pool, uint64_t left);
void pools_look(void);                 /* something may have been given back */
bool pools_trim(struct gate_gpu *gpu); /* false: there is none that holds memory */

/* memory.c */
bool memory_ask(uint64_t bytes);
bool memory_ask_on(struct gate_gpu *gpu, uint64_t bytes);
uint64_t memory_granted(void); /* hands over what this thread was granted: no longer memory.c's */
void memory_took_from(uint64_t handle, uint64_t bytes, int pool); /* counted by its pool */
bool memory_is_over(struct gate_gpu *gpu); /* the job holds more than its limit */
bool memory_context_fits(CUdevice device); /* counts the context that is about to be made */
void memory_took(uint64_t handle, uint64_t bytes);
void memory_freed(uint64_t handle);
void memory_info(size_t *free_bytes, size_t *total_bytes);
bool memory_of_gpu(const char *uuid, uint64_t *limit_bytes, uint64_t *held_bytes);
void memory_total(CUdevice device, size_t *bytes);
void memory_context_made(struct gate_gpu *gpu);
uint64_t memory_limit(const struct gate_gpu *gpu);

/* reader.c: what the agent sends. */
bool reader_adopt(const struct shim_answer *answer);
int reader_board_fd(void);        /* our own board's, -1: none yet */
bool reader_take(int timeout_ms); /* false: the connection is gone */
void reader_forget_all(void);
#endif
