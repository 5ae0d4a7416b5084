/* driver.h - the calling process's side of the simulated driver: handles, and the engine that
 * does in this process's memory what its simulated work has done. */
#ifndef SIMGPU_DRIVER_H
#define SIMGPU_DRIVER_H
#include <pthread.h>
#include "cuda_types.h"
#include "world.h"

#define MAX_CONTEXT_STACK 32

struct sim_context_handle {
    uint32_t slot;
    uint32_t gpu; /* minor number */
    CUdevice device;
    bool alive;
    bool primary;
    unsigned flags;
    uint64_t id;
};

struct node_list {
    CUgraphNode *at;
    unsigned count, room;
};
struct capture;
struct launch_shape;

struct sim_stream_handle {
    uint64_t magic;
    uint32_t slot;
    uint32_t generation;
    CUcontext context;
    unsigned flags;
    int priority;
    struct capture *capture;        /* what it records into; under the graphs' lock */
    struct node_list tips;          /* the nodes that the next one follows */
    struct sim_stream_handle *next; /* per-thread streams of one thread */
};

/* Handles of events stay allocated for ever and are used again: operations name them. */
struct sim_event_handle {
    uint64_t magic;
    CUcontext context;
    unsigned flags;
    uint32_t slot, generation; /* stream of the latest record */
    uint64_t position;
    uint64_t record;               /* counts records; 0 never recorded */
    uint64_t time_record, time_ns; /* which record ended, and when */
    uint64_t capture;              /* id of the capture that it was recorded in last; 0 none */
    struct node_list tips;         /* and the nodes that it stands for there */
    struct sim_event_handle *next_free;
};

struct sim_function_handle {
    uint64_t magic;
    CUmodule module;
    uint32_t name; /* in the world; 0 until first launched */
    bool communication;
    struct sim_function_handle *next;
    char text[];
};

struct sim_module_handle {
    CUcontext context;
    struct sim_function_handle *functions;
};

/* A stream, however it was named by the caller. */
struct stream_ref {
    uint32_t slot;
    uint32_t generation;
    CUcontext context;
    CUstream handle; /* NULL: the legacy default stream */
};

/* What a copy or set does to memory. */
struct transfer {
    void *to;
    const void *from; /* NULL: set */
    size_t bytes;
    uint32_t value;
    uint32_t width; /* bytes of a set's element */
    void *staged;   /* copy of pageable host memory that is read instead, freed afterwards */
};

/* devices.c */
CUresult devices_find(bool all_nodes); /* true: whatever CUDA_VISIBLE_DEVICES says */
unsigned devices_count(void);
uint32_t device_minor(CUdevice device);
bool device_valid(CUdevice device);
void device_uuid(uint32_t minor, CUuuid *uuid);

/* lifetime.c */
CUresult driver_ready(void); /* CUDA_SUCCESS once cuInit worked in this process */
uint32_t driver_process(void);

/* handles.c */
CUcontext context_current(void); /* NULL: none */
CUresult context_required(CUcontext *context);
CUresult context_make(CUdevice device, unsigned flags, bool primary, CUcontext *context);
void context_end(CUcontext context);
CUresult stream_resolve(CUstream stream, bool per_thread, struct stream_ref *ref);
/* Into the stream, or into the graph that it captures; shape: of kernels, else NULL. Captured
 * operations get no position. */
CUresult stream_issue(const struct stream_ref *ref, struct sim_op *op,
                      const struct launch_shape *shape);
CUresult stream_enqueue(const struct stream_ref *ref, struct sim_op *op, uint64_t *position);
CUresult stream_finish(const struct stream_ref *ref); /* waits until all issued is done */
CUresult context_finish(CUcontext context);
void own_stream(uint32_t slot);

/* api_copy.c: all but what is moved where */
struct sim_op copy_op(size_t bytes);
struct sim_op set_op(size_t bytes);

/* inject.c: flags of a kernel that is to misbehave in this launch */
uint16_t injected_flags(const char *kernel);

/* api_launch.c: the operation that such a launch is */
CUresult kernel_op(const struct launch_shape *shape, struct sim_op *op);

/* memory.c */
void memory_release(uint64_t base); /* engine: a free that was ordered in a stream */
bool memory_known(uint64_t address, bool *pageable, bool *read_only);
void memory_forget_context(CUcontext context);

/* engine.c */
void engine_start(void);
void engine_stop(void); /* at exit: nothing of this process is carried out any more */
void engine_lock(void); /* nobody applies effects meanwhile; take before the world's lock */
void engine_unlock(void);
void engine_replan(void);                            /* streams or contexts went away */
bool engine_needs(uint32_t slot, uint64_t position); /* locked: will it be late for this? */
bool engine_done(const struct stream_ref *ref, uint64_t position);
CUresult engine_wait(const struct stream_ref *ref, uint64_t position);
void engine_track(uint32_t slot); /* locked: a stream of this process */

#endif
