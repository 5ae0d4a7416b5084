/* log.h - the log of one simulated GPU: a page of header, then records of 128 bytes, appended in
 * the order in which things ended. truth.py reads it. */
#ifndef SIMGPU_LOG_H
#define SIMGPU_LOG_H
#include <stdatomic.h>
#include <stdint.h>

#define SIM_LOG_MAGIC 0x32474f4c4d495331ull
#define SIM_LOG_HEADER_BYTES 4096

struct sim_log_header {
    uint64_t magic;
    uint32_t gpu;
    uint32_t record_bytes;
    _Atomic uint64_t count;
    char boot_id[40];
};

/* type: enum sim_kind for an operation, else enum sim_record. */
struct sim_log_record {
    uint8_t type;
    uint8_t reserved;
    uint16_t flags;
    uint32_t context; /* number; switch: the context switched to */
    union {
        struct {
            uint32_t name, stream;
            uint64_t id, launch_ns, ready_ns, start_ns, end_ns, bytes;
            uint64_t graph_launch, ran_ns, lost_ns;
        } op;
        struct {
            uint32_t from, reserved;
            uint64_t begin_ns, end_ns;
        } change;
        struct {
            uint64_t kernels; /* queued when their context went: they never ran */
        } dropped;
        struct {
            uint32_t pid, uid, job, gpu;
            uint64_t at_ns, start_ticks;
            char command[16];
            uint32_t server; /* MPS server's process, 0 without */
        } context;
        struct {
            uint32_t name;
            char text[112];
        } name;
        char all[120];
    } is;
};
_Static_assert(sizeof(struct sim_log_record) == 128, "records are 128 bytes");
#endif
