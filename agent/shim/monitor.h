/* monitor.h - what the files of the role "monitor" share. The board says what the GPU has
 * reached; beside each slot of the board stands a private half that only this process sees. */
#ifndef SFILL_MONITOR_H
#define SFILL_MONITOR_H
#include "shim.h"

enum {
    MONITOR_CONTEXTS = 64,
    /* A stream without a marker for so many launches gets one in line, about 1 us in 256. */
    MONITOR_INLINE_EVERY = 256,
    /* The helper leaves a stream alone whose queue may be this long: its marker could block
     * inside the driver while the launch that others wait for stands behind it. */
    MONITOR_AHEAD_MOST = 768,
    /* A stream untouched for so long is taken to have got all that comes for now. */
    MONITOR_QUIET_NS = 50000,
    /* Bubbles shorter than this are not worth a record. */
    MONITOR_RECORD_NS = 20000
};

enum context_state { CONTEXT_FREE = 0, CONTEXT_LIVE = 1, CONTEXT_DYING = 2 };

/* A context of the process. Written under the follow lock; read by launches and the helper. */
struct monitor_context {
    _Atomic int state; /* enum context_state */
    CUcontext handle;
    unsigned gpu;                   /* index into the board's gpus[] */
    _Atomic int blocking_streams;   /* streams that the legacy default stream is a barrier to */
    _Atomic CUdeviceptr board_here; /* the board as this context's GPU sees it; 0: not yet */
    _Atomic int registering;
    void *view; /* the mapping registered here: registering one address in two contexts fails */
};

enum stream_kind { STREAM_PLAIN = 0, STREAM_LEGACY = 1, STREAM_PER_THREAD = 2 };

/* The private half of slot i. */
struct monitor_stream {
    _Atomic int lock;         /* held while a marker is issued, and while what follows changes */
    _Atomic(CUstream) handle; /* what to mark by; NULL once destroyed */
    struct monitor_context *_Atomic context;
    _Atomic int kind;  /* enum stream_kind */
    uint64_t owner;    /* thread whose default stream it is */
    bool held;         /* counted busy while its context may be ending; under the follow lock */
    _Atomic bool gone; /* destroyed: the slot is free as soon as its work is done */
};

extern struct sfill_training_board *monitor_board;
extern struct monitor_context monitor_contexts[MONITOR_CONTEXTS];
extern struct monitor_stream monitor_streams[SFILL_MAX_STREAMS];
extern _Atomic int monitor_captures; /* captures that are on: no markers meanwhile */
extern _Atomic int monitor_blocked;  /* threads inside blocking calls */
extern _Atomic uint64_t monitor_block_began_ns, monitor_block_ended_ns; /* the latest of them */
extern _Atomic bool monitor_exiting; /* the process ends: the driver is left alone */

/* The driver's functions that the monitor itself uses. */
struct monitor_driver {
    CUresult (*context_current)(CUcontext *);
    CUresult (*context_push)(CUcontext);
    CUresult (*context_pop)(CUcontext *);
    CUresult (*context_device)(CUdevice *);
    CUresult (*device_uuid)(CUuuid *, CUdevice);
    CUresult (*device_uuid_whole)(CUuuid *, CUdevice); /* of the whole GPU, also under MIG */
    CUresult (*device_attribute)(int *, int, CUdevice);
    CUresult (*stream_context)(CUstream, CUcontext *);
    CUresult (*stream_id)(CUstream, unsigned long long *);
    CUresult (*stream_flags)(CUstream, unsigned *);
    CUresult (*write64)(CUstream, CUdeviceptr, uint64_t, unsigned);
    CUresult (*host_register)(void *, size_t, unsigned);
    CUresult (*host_device_pointer)(CUdeviceptr *, void *, unsigned);
    CUresult (*capture_mode)(int *);
};
extern struct monitor_driver monitor_driver;

/* monitor.c */
void monitor_shut(enum sfill_shut why, const char *what);
void monitor_at_exit(void);
void *monitor_board_view(void); /* one more mapping of the board; NULL: none to be had */
size_t monitor_board_bytes(void);
int monitor_board_descriptor(void);

/* monitor_context.c */
struct monitor_context *monitor_context_follow(CUcontext handle); /* NULL: cannot be followed */
bool monitor_context_register(struct monitor_context *context);   /* context must be current */
void monitor_context_created(CUcontext handle);
void monitor_context_destroying(CUcontext handle);
void monitor_context_destroyed(CUcontext handle, bool gone);
void monitor_announce_gpus(void); /* tells a (new) agent which GPUs the process uses */
void monitor_format_uuid(char out[SFILL_UUID_BYTES], const CUuuid *uuid);
void monitor_follow_lock(void);
void monitor_follow_unlock(void);

/* monitor_stream.c: slot index of a stream, -1 when it cannot be followed (board is shut then) */
int monitor_stream_slot(CUstream stream);
void monitor_streams_start(void);
void monitor_stream_created(CUstream stream, unsigned flags);
void monitor_stream_destroying(CUstream stream);
void monitor_streams_of_context_end(struct monitor_context *context);
void monitor_stream_free(unsigned index);
uint64_t monitor_thread_id(void);

/* monitor_mark.c */
enum marker { MARK_BY_LAUNCHER, MARK_BY_HELPER, MARK_AT_BLOCK, MARK_LAST };
bool monitor_mark(unsigned index, enum marker by); /* true: the stream's end carries a marker */
void monitor_done_by_host(unsigned index, uint64_t value);
bool monitor_lock_stream(struct monitor_stream *stream, uint64_t most_ns);
void monitor_unlock_stream(struct monitor_stream *stream);

/* monitor_bubble.c */
void monitor_count_launches(void); /* brings the GPU sections' launches up to date */
bool monitor_drained(unsigned gpu);
bool monitor_bubble_try_open(unsigned gpu, enum sfill_cause cause); /* true: one is open */
/* Ends an open bubble of the slot's GPU; tells the GPU to note when it gets there, on request. */
void monitor_bubble_close(unsigned gpu, const struct monitor_stream *stream);

/* monitor_memory.c: see struct shim_role_ops */
void monitor_rescue_within(uint64_t most_ms); /* 0: never asks */
bool monitor_memory_short(int device, uint64_t bytes, unsigned tries);
void monitor_memory_info(size_t *free_bytes, size_t *total_bytes);

/* monitor_helper.c */
void monitor_helper_run(void);
void monitor_helper_wake(void);
void monitor_helper_wake_after_block(void);
bool monitor_helper_leave_driver(uint64_t most_ns); /* false: it is still inside */
bool monitor_helper_enter_driver(void);
void monitor_helper_left_driver(void);

static inline bool monitor_slot_drained(const struct sfill_stream_slot *slot) {
    /* done first: if no operation has begun by the time `before` is read, all is done. */
    uint64_t done = atomic_load(&slot->done);
    uint64_t after = atomic_load(&slot->after);
    uint64_t before = atomic_load(&slot->before);
    return before == after && done == SFILL_WORD(before, SFILL_WORD_DONE);
}
#endif
