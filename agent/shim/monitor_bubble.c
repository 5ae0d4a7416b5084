/* monitor_bubble.c - when all streams of a GPU are drained a bubble opens on the board; the first
 * launch ends it. */
#include <stddef.h>
#include "monitor.h"

static _Atomic int opening[SFILL_MAX_GPUS]; /* one thread at a time opens */
static _Atomic int recording;               /* records are written one after the other */

bool monitor_drained(unsigned gpu) {
    unsigned used = atomic_load(&monitor_board->slots_used);
    for (unsigned i = 0; i < used; i++) {
        const struct sfill_stream_slot *slot = &monitor_board->slots[i];
        uint32_t state = atomic_load(&slot->state);
        if (state == SFILL_SLOT_FREE || atomic_load(&slot->gpu) != gpu)
            continue;
        if (state != SFILL_SLOT_LIVE || !monitor_slot_drained(slot))
            return false;
    }
    return true;
}

bool monitor_bubble_try_open(unsigned gpu, enum sfill_cause cause) {
    struct sfill_gpu_section *section = &monitor_board->gpus[gpu];
    int free_now = 0;
    if (atomic_load(&section->bubble_seq) & 1)
        return true;
    if (!monitor_drained(gpu) || !atomic_compare_exchange_strong(&opening[gpu], &free_now, 1))
        return false;
    uint64_t sequence = atomic_load(&section->bubble_seq);
    if (!(sequence & 1)) {
        atomic_store(&section->bubble_begin_ns, shim_now_ns());
        monitor_count_launches(); /* they tell where in its rhythm the job stands */
        atomic_store(&section->bubble_cause, (uint32_t)cause);
        atomic_store(&section->bubble_seq, ++sequence);
        /* A launch counts itself, then looks for a bubble. If it looked before the line above,
         * its count is seen here, and the bubble never was. */
        if (!monitor_drained(gpu))
            atomic_compare_exchange_strong(&section->bubble_seq, &sequence, sequence + 1);
    }
    atomic_store(&opening[gpu], 0);
    return atomic_load(&section->bubble_seq) & 1;
}

/* Summed here from the streams, so that no launch pays for it. A stream's counter never goes back
 * and each step of it is taken once, whoever counts: the sum outlives streams. */
void monitor_count_launches(void) {
    static _Atomic uint64_t counted[SFILL_MAX_STREAMS];
    unsigned used = atomic_load(&monitor_board->slots_used);
    for (unsigned i = 0; i < used; i++) {
        const struct sfill_stream_slot *slot = &monitor_board->slots[i];
        unsigned gpu = atomic_load(&slot->gpu);
        uint64_t before = atomic_load(&slot->before);
        uint64_t seen = atomic_load(&counted[i]);
        while (seen < before && !atomic_compare_exchange_weak(&counted[i], &seen, before))
            ;
        if (seen < before && gpu < SFILL_MAX_GPUS)
            atomic_fetch_add(&monitor_board->gpus[gpu].launches, before - seen);
    }
}

static void record(unsigned gpu, uint64_t sequence, uint64_t begin_ns, uint64_t end_ns,
                   uint32_t cause) {
    uint64_t head = atomic_load(&monitor_board->bubble_head);
    monitor_board->bubbles[head % SFILL_BUBBLE_RING] =
        (struct sfill_bubble){.seq = sequence,
                              .begin_ns = begin_ns,
                              .end_ns = end_ns,
                              .launches = atomic_load(&monitor_board->gpus[gpu].launches),
                              .gpu = gpu,
                              .cause = cause};
    atomic_store(&monitor_board->bubble_head, head + 1);
}

/* Has the GPU write down when it is back at training's work; only while a fill could be in the
 * way, since it costs a marker. */
static void note_resume(unsigned gpu, const struct monitor_stream *stream, uint64_t sequence) {
    struct monitor_context *context = stream->context;
    CUdeviceptr board = context ? atomic_load(&context->board_here) : 0;
    if (!board || !atomic_load(&monitor_board->fill_present) || atomic_load(&monitor_exiting))
        return;
    CUdeviceptr at = board + offsetof(struct sfill_training_board, gpus) +
                     gpu * sizeof(struct sfill_gpu_section) +
                     offsetof(struct sfill_gpu_section, resumed_seq);
    struct sfill_gpu_section *section = &monitor_board->gpus[gpu];
    atomic_store(&section->resume_mark_ns, shim_now_ns());
    if (monitor_driver.write64(stream->handle, at, sequence, CU_STREAM_WRITE_VALUE_DEFAULT) !=
        CUDA_SUCCESS)
        monitor_shut(SFILL_SHUT_MARKER, "a resume marker failed");
}

void monitor_bubble_close(unsigned gpu, const struct monitor_stream *stream) {
    struct sfill_gpu_section *section = &monitor_board->gpus[gpu];
    uint64_t sequence = atomic_load(&section->bubble_seq);
    uint64_t begin_ns = atomic_load(&section->bubble_begin_ns);
    uint32_t cause = atomic_load(&section->bubble_cause);
    if (!(sequence & 1) ||
        !atomic_compare_exchange_strong(&section->bubble_seq, &(uint64_t){sequence}, sequence + 1))
        return;
    uint64_t now = shim_now_ns();
    int free_now = 0;
    while (!atomic_compare_exchange_weak(&recording, &free_now, 1))
        free_now = 0;
    if (sequence > atomic_load(&section->resume_seq)) {
        atomic_store(&section->resume_launch_ns, now);
        atomic_store(&section->resume_seq, sequence);
    }
    if (now - begin_ns >= MONITOR_RECORD_NS) {
        monitor_count_launches();
        record(gpu, sequence, begin_ns, now, cause);
    }
    atomic_store(&recording, 0);
    if (stream)
        note_resume(gpu, stream, sequence);
    monitor_helper_wake();
}
