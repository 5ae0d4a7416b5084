/* gate_idle.c - the idle check: GATE.md rules 1, 3 and 5, from the reader's side.
 *
 * One look walks all boards. A stream is drained when its two counters are equal and the word
 * that the GPU itself wrote carries the same index. `before` only grows and the monitor raises
 * it before it calls the driver, so two looks with equal counters mean that nothing was issued
 * between the end of the first and the begin of the second. */
#include "gate_idle.h"
#include <string.h>

#define LOAD(x) atomic_load_explicit(&(x), memory_order_acquire)

static inline void mix(uint64_t *hash, uint64_t value) {
    *hash = (*hash ^ value) * 0x9e3779b97f4a7c15ull;
    *hash ^= *hash >> 29;
}

int idle_section(const struct sfill_training_board *board, const char *uuid) {
    uint32_t used = LOAD(board->gpus_used);
    if (used > SFILL_MAX_GPUS)
        return -1;
    for (uint32_t i = 0; i < used; i++)
        if (strncmp(board->gpus[i].uuid, uuid, SFILL_UUID_BYTES) == 0)
            return (int)i;
    return -1;
}

/* Every stream of the board on this GPU drained? Adds what it saw to the hash. */
static bool streams_drained(const struct sfill_training_board *board, uint32_t section,
                            uint64_t *hash) {
    uint32_t used = LOAD(board->slots_used);
    if (used > SFILL_MAX_STREAMS)
        return false;
    mix(hash, used);
    for (uint32_t i = 0; i < used; i++) {
        const struct sfill_stream_slot *slot = &board->slots[i];
        uint32_t state = LOAD(slot->state);
        if (state == SFILL_SLOT_FREE)
            continue;
        if (LOAD(slot->gpu) != section)
            continue;
        uint64_t before = LOAD(slot->before);
        if (state != SFILL_SLOT_LIVE || LOAD(slot->after) != before ||
            LOAD(slot->done) != SFILL_WORD(before, SFILL_WORD_DONE))
            return false;
        mix(hash, (uint64_t)i << 32 | state);
        mix(hash, before);
    }
    return true;
}

/* One board in one look. */
static enum sfill_closed look_at(const struct sfill_training_board *board, const char *uuid,
                                 uint32_t *section, uint64_t *bubble, uint64_t *hash) {
    if (!board || LOAD(board->head.shut) != SFILL_SHUT_NO)
        return SFILL_CLOSED_BOARDS;
    int found = idle_section(board, uuid);
    if (found < 0 || LOAD(board->ready) != 1 || LOAD(board->lend) != 1)
        return SFILL_CLOSED_BUSY;
    const struct sfill_gpu_section *gpu = &board->gpus[found];
    uint64_t seq = LOAD(gpu->bubble_seq);
    if (LOAD(gpu->used) != 1 || seq % 2 == 0)
        return SFILL_CLOSED_BUSY;
    mix(hash, seq);
    *bubble = seq;
    if (!streams_drained(board, (uint32_t)found, hash))
        return SFILL_CLOSED_BUSY;
    *section = (uint32_t)found;
    return SFILL_OPEN;
}

/* What an epoch's number begins with. */
static uint64_t epoch_of(int count) { return 0x5f111e90c4ull + (uint64_t)count; }

/* One walk over all boards: the hash covers all that the answer rests on. */
static enum sfill_closed walk(const struct gate_host *hosts, int count, const char *uuid,
                              struct idle_view *view, uint64_t *hash) {
    view->epoch = epoch_of(count);
    view->since_ns = 0;
    for (int i = 0; i < count; i++) {
        const struct sfill_training_board *board = hosts[i].board;
        uint32_t section = 0;
        uint64_t bubble = 0;
        enum sfill_closed closed = look_at(board, uuid, &section, &bubble, hash);
        if (closed != SFILL_OPEN)
            return closed;
        mix(&view->epoch, bubble);
        const struct sfill_gpu_section *gpu = &board->gpus[section];
        uint64_t begin = LOAD(gpu->bubble_begin_ns);
        mix(hash, begin);
        if (i == 0 || begin > view->since_ns) {
            view->since_ns = begin;
            view->host = i;
            view->section = section;
            view->cause = LOAD(gpu->bubble_cause);
            view->bubble_seq = bubble;
        }
    }
    return SFILL_OPEN;
}

static uint64_t never_zero(uint64_t epoch) { return epoch ? epoch : 1; }

struct idle_view idle_look(const struct gate_host *hosts, int count, const char *uuid,
                           uint64_t now_ns) {
    struct idle_view view = {.closed = SFILL_CLOSED_NO_HOST, .checked_ns = now_ns};
    if (count <= 0)
        return view;
    uint64_t first = 0, second = 0;
    view.closed = walk(hosts, count, uuid, &view, &first);
    if (view.closed != SFILL_OPEN) {
        view.epoch = 0;
        return view;
    }
    atomic_thread_fence(memory_order_seq_cst);
    view.closed = walk(hosts, count, uuid, &view, &second);
    if (view.closed == SFILL_OPEN && (first != second || view.since_ns == 0))
        view.closed = SFILL_CLOSED_BUSY;
    view.epoch = view.closed == SFILL_OPEN ? never_zero(view.epoch) : 0;
    return view;
}

uint64_t idle_epoch(const struct gate_host *hosts, int count, const char *uuid) {
    uint64_t hash = epoch_of(count);
    for (int i = 0; i < count; i++) {
        int section = idle_section(hosts[i].board, uuid);
        mix(&hash, section < 0 ? 0 : LOAD(hosts[i].board->gpus[section].bubble_seq));
    }
    return never_zero(hash);
}
