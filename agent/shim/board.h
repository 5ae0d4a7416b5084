/* board.h - the one definition of the memory that training, fill and agent share.
 *
 * Every object here lives in a memfd that the agent makes and hands over its unix socket.
 *   board (training)  monitor writes, agent writes the fields marked [agent], fills read
 *   board (fill)      gate writes, agent reads
 *   policy page       agent writes, fills read: one for each GPU
 *   account page      the processes of one fill job write, each in its place; agent writes the
 *                     fields marked [agent]: one for each fill job and GPU
 * Times are CLOCK_MONOTONIC in nanoseconds. agent/board.py mirrors the layout; a test compares
 * both through build/shim/board_layout. A torn, stale, overflowing or unknown state means shut. */
#ifndef SFILL_BOARD_H
#define SFILL_BOARD_H
#include <stdatomic.h>
#include <stdint.h>

#define SFILL_MAGIC_TRAINING 0x3152544e4c494653ull /* "SFILNTR1" */
#define SFILL_MAGIC_FILL 0x31524c464e4c4653ull
#define SFILL_MAGIC_POLICY 0x31594c504e4c4653ull
#define SFILL_MAGIC_ACCOUNT 0x314343414e4c4653ull
#define SFILL_LAYOUT_VERSION 5u

#define SFILL_MAX_STREAMS 512 /* streams one training process may use at once; more: shut */
#define SFILL_MAX_GPUS 16     /* GPUs one process may use */
#define SFILL_BUBBLE_RING 1024
#define SFILL_USE_RING 2048
#define SFILL_MAX_BOARDS 64  /* training boards on one GPU */
#define SFILL_MAX_FILLS 16   /* fill jobs on one GPU */
#define SFILL_MAX_PLACES 256 /* processes of one fill job on one GPU */
#define SFILL_UUID_BYTES 48  /* "GPU-xxxxxxxx-...", NUL-terminated */

/* Why a training board is shut for good; 0 = not shut. */
enum sfill_shut {
    SFILL_SHUT_NO = 0,
    SFILL_SHUT_STREAMS = 1,     /* more streams than slots */
    SFILL_SHUT_MARKER = 2,      /* a marker failed */
    SFILL_SHUT_UNSUPPORTED = 3, /* no stream memory operations, registration refused, MIG ... */
    SFILL_SHUT_TEARDOWN = 4,    /* process exits or context is gone while work may run */
    SFILL_SHUT_GPUS = 5         /* more GPUs than sections */
};

/* What began a bubble. */
enum sfill_cause {
    SFILL_CAUSE_HOST = 1,         /* queue ran dry: the host issued nothing */
    SFILL_CAUSE_TAIL = 2,         /* host was blocked in a synchronising call when work ended */
    SFILL_CAUSE_WAIT = 3,         /* stream stands in a wait for something unreached */
    SFILL_CAUSE_COMMUNICATION = 4 /* only communication kernels run (bubble under MPS only) */
};

/* State in the two low bits of a GPU-written progress word; the rest is the operation index. */
enum sfill_word_state { SFILL_WORD_DONE = 0, SFILL_WORD_WAIT = 1, SFILL_WORD_COMM = 2 };
#define SFILL_WORD(index, state) (((uint64_t)(index) << 2) | (uint64_t)(state))

enum sfill_slot_state {
    SFILL_SLOT_FREE = 0,
    SFILL_SLOT_LIVE = 1,
    SFILL_SLOT_BUSY = 2 /* cannot be marked safely (GATE.md rule 7): counts as busy */
};

/* One stream of a training process. Drained means done == SFILL_WORD(before, DONE) and
 * before == after. */
struct sfill_stream_slot {
    /* line 0: host-written */
    _Atomic uint64_t before;        /* operations about to be issued, counted before the call */
    _Atomic uint64_t after;         /* operations issued, counted after the call */
    _Atomic uint64_t marked;        /* index that the last marker carries */
    _Atomic uint64_t last_issue_ns; /* time of the latest issue */
    _Atomic uint64_t context;       /* CUcontext, as a number: identity only */
    _Atomic uint64_t stream_id;     /* cuStreamGetId */
    _Atomic uint32_t state;         /* enum sfill_slot_state */
    _Atomic uint32_t gpu;           /* index into the board's gpus[] */
    uint64_t reserved0;
    /* line 1: GPU-written */
    _Atomic uint64_t done; /* SFILL_WORD(index, state) */
    uint64_t reserved1[7];
};

/* What a training process does on one GPU. bubble_seq is odd while a bubble is open. */
struct sfill_gpu_section {
    char uuid[SFILL_UUID_BYTES];
    _Atomic uint32_t used; /* 1: the process has had a context here */
    _Atomic uint32_t bubble_cause;
    _Atomic uint64_t bubble_seq;
    _Atomic uint64_t bubble_begin_ns;  /* begin of the bubble bubble_seq names */
    _Atomic uint64_t resume_seq;       /* bubble_seq (odd) that the latest resume ended */
    _Atomic uint64_t resume_launch_ns; /* host time of the first launch after that bubble */
    _Atomic uint64_t launches;         /* launches seen, for rates */
    _Atomic uint64_t resume_issued_ns; /* host time when that launch had been issued */
    _Atomic uint64_t resume_mark_ns;   /* ... just before the GPU was asked to write resumed_seq */
    _Atomic uint64_t resume_call_ns;   /* ... after that, just before the driver's launch call */
    uint64_t reserved0;
    /* GPU-written: resume_seq as the GPU passes the point just before that first launch. Asked
     * for only while fill_present. Line of its own. */
    _Atomic uint64_t resumed_seq;
    uint64_t reserved1[7];
};

struct sfill_bubble {
    uint64_t seq; /* odd bubble_seq */
    uint64_t begin_ns;
    uint64_t end_ns;
    uint64_t launches; /* operations issued on this GPU when it ended: counts up, never back */
    uint32_t gpu;      /* index into gpus[] */
    uint32_t cause;
};

struct sfill_board_head {
    uint64_t magic;
    uint32_t version;
    uint32_t size_bytes;
    uint64_t board_id;     /* [agent] unique on the node while the agent runs */
    uint32_t process_id;   /* [agent] */
    _Atomic uint32_t shut; /* enum sfill_shut */
};

struct sfill_training_board {
    struct sfill_board_head head;
    _Atomic uint32_t lend;         /* 1: lends; 0: the program asked for a pause */
    _Atomic uint32_t fill_present; /* [agent] 1: a fill is attached on one of its GPUs */
    _Atomic uint32_t ready;        /* 1 once the monitor follows every context and stream */
    _Atomic uint32_t slots_used;   /* slots [0, slots_used) may be live */
    _Atomic uint32_t gpus_used;    /* sections [0, gpus_used) are named */
    _Atomic uint32_t drained;      /* [agent] bubbles read so far, low bits: survives its restart */
    _Atomic uint64_t bubble_head;  /* records written so far; ring index = head % ring */
    struct sfill_gpu_section gpus[SFILL_MAX_GPUS] __attribute__((aligned(64)));
    struct sfill_stream_slot slots[SFILL_MAX_STREAMS] __attribute__((aligned(64)));
    struct sfill_bubble bubbles[SFILL_BUBBLE_RING];
};

/* One use of one bubble by one fill process. */
struct sfill_use {
    uint64_t host_board_id;
    uint64_t bubble_seq;
    uint64_t bubble_begin_ns;
    uint64_t bubble_end_ns;    /* host time of training's first launch after it; 0: still open */
    uint64_t first_release_ns; /* first operation released in it */
    uint64_t last_done_ns;     /* last operation released in it seen complete */
    uint64_t gpu_time_ns;      /* GPU time of its operations, measured */
    uint64_t intrusion_ns;     /* how long ready training work had to wait for them */
    uint32_t kernels;          /* kernels and graphs released */
    uint32_t copies;           /* memory copies and sets released */
    uint32_t gpu;              /* index into the fill board's gpus[] */
    uint32_t cause;            /* of the bubble */
    uint32_t check_age_max_ns; /* oldest idle check on which a release rested */
    uint32_t reserved0;
};

struct sfill_fill_gpu {
    char uuid[SFILL_UUID_BYTES];
    _Atomic uint32_t wants;         /* 1: an operation waits for the gate right now */
    _Atomic uint32_t open;          /* 1: the gate is open as the gate sees it */
    _Atomic uint32_t closed_reason; /* enum sfill_closed: why it was last shut */
    /* [agent] The processes of its job that have work for this GPU have the job's turns one after
     * another: its place, of how many. Without work its place is `members`. 0, 0: alone. */
    _Atomic uint16_t member;
    _Atomic uint16_t members;
    _Atomic uint64_t released; /* operations released in all */
    _Atomic uint64_t last_release_ns;
    _Atomic uint64_t in_flight_ns;  /* estimated GPU time released and not seen done */
    _Atomic uint64_t memory_bytes;  /* device memory the process holds, counted by the shim */
    _Atomic uint64_t held_too_long; /* operations longer than any bubble seen (told in the log) */
    _Atomic uint64_t wait_ns;       /* time operations waited for the gate, in all */
    _Atomic uint64_t open_gpu_ns;   /* GPU time of work that is done and in no record yet */
    _Atomic uint64_t done_ns;       /* when the last work that was seen done had ended */
    _Atomic uint64_t recorded;      /* operations in the uses written so far */
};

struct sfill_fill_board {
    struct sfill_board_head head;
    _Atomic uint32_t gpus_used;
    _Atomic uint32_t drained;  /* [agent] uses on its disk so far, low bits: survives its restart */
    _Atomic uint64_t use_head; /* records written so far; ring index = head % ring */
    _Atomic uint64_t use_lost; /* records overwritten before the agent read them [agent] */
    struct sfill_fill_gpu gpus[SFILL_MAX_GPUS] __attribute__((aligned(64)));
    struct sfill_use uses[SFILL_USE_RING];
};

enum sfill_closed {
    SFILL_OPEN = 0,
    SFILL_CLOSED_STALE = 1,     /* the agent's heartbeat is old, or no policy page yet */
    SFILL_CLOSED_OFF = 2,       /* `sfill off`, draining or eviction */
    SFILL_CLOSED_BUDGET = 3,    /* the host job's slowdown budget is spent */
    SFILL_CLOSED_UNKNOWN = 4,   /* a training process without a board is on the GPU */
    SFILL_CLOSED_BOARDS = 5,    /* the gate does not yet map all training boards, or one is shut */
    SFILL_CLOSED_BUSY = 6,      /* training is busy */
    SFILL_CLOSED_DWELL = 7,     /* idle, but not for long enough yet */
    SFILL_CLOSED_IN_FLIGHT = 8, /* enough fill work is in flight */
    SFILL_CLOSED_TOO_LONG = 9,  /* the operation is longer than what is left of the bubble */
    SFILL_CLOSED_TURN = 10,     /* another fill's turn */
    SFILL_CLOSED_NO_HOST = 11,  /* no training on this GPU: nothing to lend */
    SFILL_CLOSED_CALIBRATION = 12 /* hold-out: what training does without fill is measured */
};

/* The agent's word on one fill job on this GPU. */
struct sfill_policy_fill {
    _Atomic uint64_t job_id;  /* 0: free entry */
    _Atomic uint32_t allowed; /* 1: may run */
    _Atomic uint32_t reason;  /* enum sfill_closed when not allowed */
    _Atomic uint64_t memory_limit_bytes;
    _Atomic uint32_t turn; /* position among turns (0 .. turns - 1) */
    uint32_t reserved0;
};

struct sfill_policy_page {
    uint64_t magic;
    uint32_t version;
    uint32_t size_bytes;
    char uuid[SFILL_UUID_BYTES];
    _Atomic uint64_t heartbeat;       /* counts up; a reader times it on its own clock */
    _Atomic uint64_t boards_sequence; /* odd while boards[] changes; also changes with it */
    _Atomic uint32_t boards_count;
    _Atomic uint32_t unknown_training;         /* processes on the GPU that no board speaks for */
    _Atomic uint64_t boards[SFILL_MAX_BOARDS]; /* ids of the training boards on this GPU */
    _Atomic uint32_t dwell_us;                 /* idle for so long before the first release */
    _Atomic uint32_t in_flight_us;             /* GPU time in flight at most (all fills share it) */
    _Atomic uint32_t min_bubble_us; /* expected bubbles shorter than this are left alone */
    _Atomic uint32_t unknown_op_us; /* what an operation never seen counts as */
    _Atomic uint32_t max_op_us;     /* longer operations never start; 0: no such limit */
    _Atomic uint32_t turn_us;       /* length of one turn when several fills want the GPU */
    _Atomic uint32_t turns;         /* fills that take turns */
    _Atomic uint32_t flags;         /* SFILL_POLICY_* */
    _Atomic uint32_t graph_part_us; /* long graphs start in parts of about that; 0: whole */
    uint32_t reserved0;
    struct sfill_policy_fill fills[SFILL_MAX_FILLS];
};
#define SFILL_POLICY_MPS 4u /* the GPU is shared by MPS; gates make nothing of it yet */
/* Bench only, never in a site's settings. */
#define SFILL_POLICY_IGNORE_TRAINING 1u /* peers and loosened gates */
#define SFILL_POLICY_NO_PREDICTION 2u   /* a bubble's end is not foretold: training has to wait */

/* One process of a fill job. */
struct sfill_account_place {
    _Atomic uint64_t board_id; /* [agent] whose place it is; 0: nobody's */
    _Atomic uint64_t bytes;    /* device memory that process holds or is about to take */
};

/* The device memory of a fill job on one GPU. A process that wants more writes its own sum first
 * and then adds up all places: of two that ask at once, one at least sees the other. */
struct sfill_account_page {
    uint64_t magic;
    uint32_t version;
    uint32_t size_bytes;
    char uuid[SFILL_UUID_BYTES];
    _Atomic uint64_t job_id;
    _Atomic uint32_t complete;    /* [agent] 1: whoever of the job holds memory here has a place */
    _Atomic uint32_t places_used; /* [agent] places [0, places_used) may be taken */
    struct sfill_account_place places[SFILL_MAX_PLACES];
};

#define SFILL_STALE_NS 500000000ull /* a heartbeat older than this shuts the gate */
#endif
