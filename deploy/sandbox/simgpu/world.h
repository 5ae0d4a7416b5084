/* world.h - the simulated machine: one file in the state directory, mapped by every process.
 *
 * Its lock is a robust process-shared mutex. Whoever takes it advances the simulation to now
 * (timeline.c), so what happened when does not depend on when threads were scheduled. A stream's
 * operations stand in a ring of their own, appended and taken by moving one counter, so that a
 * process killed while it holds the lock leaves nothing half linked.
 *
 * One file for all GPUs, not one each: streams of one process may wait for events of another
 * GPU, and one lock keeps their order exact. */
#ifndef SIMGPU_WORLD_H
#define SIMGPU_WORLD_H
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define SIM_MAGIC 0x32304d4953555047ull
#define SIM_GPUS 32
#define SIM_PROCESSES 128
#define SIM_CONTEXTS 128
#define SIM_STREAMS 1024
#define SIM_RING 1024 /* operations a stream holds; a launch beyond waits, as on a real GPU */
#define SIM_NAMES 2048
#define SIM_SERVERS 32
#define SIM_RUNNING 64 /* operations that a GPU works on at once */
#define SIM_NAME_BYTES 112
#define SIM_NEVER UINT64_MAX
#define SIM_MARK_NS 1000         /* GPU time of a stream write (GATE.md: 0.8 to 1.2 us) */
#define SIM_COPY_LATENCY_NS 2000 /* a copy's fixed cost */
#define SIM_COPY_BYTES_PER_US 20000
#define SIM_SET_BYTES_PER_US 1000000
#define SIM_CONTEXT_BYTES (256ull << 20)
#define SIM_REAP_NS 20000000ull /* how often dead processes are looked for */

/* Kinds up to SIM_SET occupy the GPU's one compute engine; the others pass in its front end.
 * a, b and c are the owner's; copies and sets: a = struct transfer, b = bytes. */
enum sim_kind {
    SIM_KERNEL = 1,
    SIM_COPY = 2,
    SIM_SET = 3,
    SIM_MARK = 4,       /* write a value: a = address, b = value, c = bytes */
    SIM_RECORD = 5,     /* event: a = handle, b = its record number; a = 0: free c (memory) */
    SIM_WAIT_EVENT = 6, /* a = stream, b = its generation, c = position of the record there */
    SIM_WAIT_VALUE = 7, /* a = address, b = value, c = comparison */
    SIM_HOST = 8        /* a = function, b = argument */
};
enum sim_op_flag {
    SIM_STARTED = 1,
    SIM_RELEASED = 2,      /* the owner found the value, or the host function returned */
    SIM_EFFECT = 4,        /* the owner must do something at its end, on time */
    SIM_COMMUNICATION = 8, /* kernel name begins with nccl */
    SIM_KILLED = 16,       /* its process died while it ran */
    SIM_WIDE = 32,         /* value of 64 bits, not 32 */
    SIM_GRAPH = 64,        /* node of a graph; kernels: c = number of the launch */
    SIM_SPINS = 128, /* kernel: ends when its time is over and the value at a is b or more; a = 0:
                      * never. It can be stopped to make room, and goes on later */
    SIM_FAULTS = 256 /* ends with an illegal address */
};

struct sim_op {
    uint8_t kind;
    uint8_t reserved;
    uint16_t flags;
    uint32_t name;        /* kernels: index into the world's names */
    uint64_t order;       /* order of issue in the context */
    uint64_t id;          /* unique in the world */
    uint64_t launch_ns;   /* when the host issued it */
    uint64_t duration_ns; /* GPU time it takes */
    uint64_t total_ns;    /* sum of durations of this stream up to and with it */
    uint64_t ready_ns;    /* when it could have run had its context had the GPU to itself */
    uint64_t start_ns;
    uint64_t end_ns;
    uint64_t a, b, c;
    uint64_t left_ns;  /* GPU time still to go, had it the GPU to itself */
    uint64_t ran_ns;   /* time on the GPU */
    uint64_t lost_ns;  /* of it to other contexts beside it */
    uint32_t rate_ppm; /* speed now, and without other contexts */
    uint32_t alone_ppm;
};

enum sim_stream_flag { SIM_NON_BLOCKING = 1, SIM_LEGACY = 2, SIM_CLOSING = 4 };

/* Positions count for ever; ring index = position % SIM_RING. done <= head <= tail. */
struct sim_stream {
    uint32_t used;
    uint32_t flags;
    uint32_t context;
    uint32_t generation; /* changes when the slot is freed */
    int32_t priority;    /* lower goes first */
    uint64_t id;
    uint64_t tail;        /* next to be issued */
    uint64_t head;        /* first that the GPU has not finished */
    uint64_t done;        /* first whose effects the owner has not carried out */
    uint64_t issued_ns;   /* sum of durations issued */
    uint64_t passed_ns;   /* sum of durations finished */
    uint64_t previous_ns; /* when what came before the head was done, as ready_ns counts */
};

struct sim_context {
    uint32_t used;
    uint32_t process;
    uint32_t gpu;
    uint32_t legacy_stream;
    uint32_t number; /* in the log */
    uint32_t active_count;
    int32_t server;        /* MPS server that it is a client of; -1 none */
    uint32_t fault;        /* result that every call gives from now on; 0 none */
    uint32_t share_ppm;    /* of the GPU that it may use */
    uint32_t low_priority; /* under MPS */
    uint64_t next_order;
    uint16_t active[SIM_STREAMS]; /* streams with unfinished operations */
};

struct sim_process {
    uint32_t used;
    int32_t pid;
    uint32_t uid;
    uint32_t job; /* SLURM_JOB_ID, 0 without */
    uint64_t start_ticks;
    char command[16];
    int32_t server; /* MPS server that it is a client of; -1 none */
    uint32_t fault; /* what making a context gives; 0 none */
    uint32_t share_ppm, low_priority;
    uint64_t memory_bytes[SIM_GPUS];
};

/* An MPS control daemon: a process, known by its pipe directory. */
struct sim_daemon {
    uint32_t used;
    int32_t pid;
    uint64_t start_ticks;
    uint32_t several_users, quit;
    char pipe[512];
};

enum sim_server_state { SIM_SERVER_WANTED = 1, SIM_SERVER_ACTIVE = 2, SIM_SERVER_FAULT = 3 };
struct sim_server {
    uint32_t state; /* 0: the place is free */
    uint32_t daemon;
    int32_t pid;
    uint32_t uid;
    uint64_t start_ticks;
};

/* Holder and next are contexts, or SIM_CONTEXTS + an MPS server; -1 none. */
struct sim_gpu {
    uint32_t used;
    int32_t holder;
    int32_t next; /* being switched to */
    uint32_t running_count, stale;
    uint32_t running[SIM_RUNNING]; /* streams whose heads are worked on */
    uint64_t rated_ns;             /* their speeds are from then; stale: must be set anew */
    uint64_t preempt_ns;           /* when a kernel that spins must make room */
    uint64_t last_held_ns[SIM_CONTEXTS + SIM_SERVERS];
    uint32_t ever_held;
    uint32_t left_context; /* number of the context last switched from */
    uint64_t switch_begin_ns, switch_end_ns;
    uint64_t slice_begin_ns;
    uint64_t memory_bytes;
    uint64_t busy_ns, busy_until_ns;                 /* time in which it worked */
    uint64_t sample_ns, sample_busy_ns, utilization; /* for the management library */
    uint64_t named[SIM_NAMES / 64];                  /* kernel names that its log has */
};

struct sim_world {
    uint64_t magic;
    uint64_t size_bytes;
    char boot_id[40];
    pthread_mutex_t lock;
    uint64_t now_ns; /* the simulation stands here */
    uint64_t reaped_ns;
    uint64_t slice_ns, switch_ns, memory_bytes;
    uint64_t next_id;
    uint64_t next_stream_id;
    uint64_t next_launch; /* of graphs */
    uint32_t next_context_number;
    uint32_t names_count;
    uint32_t gpus_top, contexts_top, streams_top; /* slots ever used lie below */
    char names[SIM_NAMES][SIM_NAME_BYTES];
    struct sim_gpu gpus[SIM_GPUS];
    struct sim_process processes[SIM_PROCESSES];
    struct sim_daemon daemons[SIM_SERVERS];
    struct sim_server servers[SIM_SERVERS];
    struct sim_context contexts[SIM_CONTEXTS];
    struct sim_stream streams[SIM_STREAMS];
    struct sim_op ops[SIM_STREAMS][SIM_RING];
};

extern struct sim_world *world; /* NULL until world_open() */

/* world.c */
bool world_open(void); /* maps the state, making it if need be; false says why on stderr */
void world_lock(void); /* locks and advances to now */
void world_unlock(void);
uint64_t sim_now_ns(void);
uint32_t world_name(const char *name); /* index of a kernel name; call locked */

/* settings.c: environment first, then simgpu.conf in the state directory, then the default */
const char *settings_state_dir(void);
const char *settings_device_dir(void);
uint64_t settings_number(const char *environment, const char *key, uint64_t otherwise);

/* processes.c; call locked */
int process_register(void); /* index of the calling process, -1 when the table is full */
void process_remove(uint32_t process);
void process_fault(uint32_t process, uint32_t code); /* it alone; the others go on */
uint64_t process_start_ticks(int pid);               /* 0: gone, or a zombie */
void process_reap(void);                             /* removes processes that are gone */
uint64_t gpu_memory_used(uint32_t gpu);

/* contexts.c; call locked */
#define SIM_ERROR_ILLEGAL_ADDRESS 700 /* CUDA_ERROR_ILLEGAL_ADDRESS */
#define SIM_ERROR_LAUNCH_FAILED 719   /* CUDA_ERROR_LAUNCH_FAILED */
int context_add(uint32_t process, uint32_t gpu);
/* Drops its work; under MPS, if it spreads, that of all clients of the server on this GPU. */
void context_fault(uint32_t context, uint32_t code, bool spreads);
void context_remove(uint32_t context);
int stream_add(uint32_t context, uint32_t flags);
void stream_free(uint32_t stream);
uint64_t stream_push(uint32_t stream, const struct sim_op *op); /* position it got */
void contexts_rebuild(void); /* after a process died in the lock */

static inline struct sim_op *stream_op(uint32_t stream, uint64_t position) {
    return &world->ops[stream][position % SIM_RING];
}

/* timeline.c; call locked */
void timeline_advance(uint64_t now);
void timeline_drop_context(uint32_t context); /* its GPU goes on without it */
bool timeline_event_passed(uint64_t stream, uint64_t generation, uint64_t position);
uint64_t timeline_earliest_end(uint32_t stream, uint64_t position); /* lower bound, or SIM_NEVER */

/* log.c; call locked */
enum sim_record {
    SIM_LOG_CONTEXT = 64,
    SIM_LOG_NAME = 65,
    SIM_LOG_SWITCH = 66,
    SIM_LOG_DROPPED = 67
};
void log_op(uint32_t gpu, uint32_t context, const struct sim_op *op, uint32_t stream);
void log_context(uint32_t gpu, uint32_t context);
void log_dropped(uint32_t gpu, uint32_t context, uint64_t kernels);
void log_switch(uint32_t gpu, uint32_t from, uint32_t to, uint64_t begin, uint64_t end);
#endif
