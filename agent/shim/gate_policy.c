/* gate_policy.c - reading the policy page: fill fails closed.
 *
 * Staleness errs to the safe side. A heartbeat that differs from the one read before was written
 * at some time after that read, and we count its age from there; so a gate that looks rarely
 * finds the page stale rather than fresh. */
#include "gate_policy.h"
#include <stddef.h>

#define LOAD(x) atomic_load_explicit(&(x), memory_order_acquire)

void policy_map(struct gate_page *page, const struct sfill_policy_page *mapped) {
    *page = (struct gate_page){.page = mapped};
}

void policy_poll(struct gate_page *page, uint64_t now_ns) {
    if (!page->page)
        return;
    uint64_t heartbeat = LOAD(page->page->heartbeat);
    if (page->seen && heartbeat != page->heartbeat)
        page->fresh_ns = page->polled_ns;
    page->seen = true;
    page->heartbeat = heartbeat;
    page->polled_ns = now_ns;
}

struct gate_numbers policy_numbers(const struct gate_page *page) {
    const struct sfill_policy_page *p = page->page;
    if (!p)
        return (struct gate_numbers){0};
    return (struct gate_numbers){
        .dwell_ns = LOAD(p->dwell_us) * 1000ull,
        .in_flight_ns = LOAD(p->in_flight_us) * 1000ull,
        .min_bubble_ns = LOAD(p->min_bubble_us) * 1000ull,
        .unknown_op_ns = LOAD(p->unknown_op_us) * 1000ull,
        .max_op_ns = LOAD(p->max_op_us) * 1000ull,
        .turn_ns = LOAD(p->turn_us) * 1000ull,
        .graph_part_ns = LOAD(p->graph_part_us) * 1000ull,
        .ignore_training = (LOAD(p->flags) & SFILL_POLICY_IGNORE_TRAINING) != 0,
        .predict_end = (LOAD(p->flags) & SFILL_POLICY_NO_PREDICTION) == 0,
    };
}

static const struct sfill_policy_fill *own_entry(const struct sfill_policy_page *p,
                                                 uint64_t job_id) {
    for (int i = 0; job_id && i < SFILL_MAX_FILLS; i++)
        if (LOAD(p->fills[i].job_id) == job_id)
            return &p->fills[i];
    return NULL;
}

static bool is_mapped(const struct gate_host *hosts, int count, uint64_t board_id) {
    for (int i = 0; i < count; i++)
        if (hosts[i].board_id == board_id && hosts[i].board)
            return true;
    return false;
}

/* The page's list of boards and what we map must be the same set. */
static bool boards_agree(const struct sfill_policy_page *p, const struct gate_host *hosts,
                         int count) {
    uint64_t sequence = LOAD(p->boards_sequence);
    uint32_t listed = LOAD(p->boards_count);
    if (sequence % 2 || listed > SFILL_MAX_BOARDS || (int)listed != count)
        return false;
    for (uint32_t i = 0; i < listed; i++) {
        uint64_t id = LOAD(p->boards[i]);
        for (uint32_t earlier = 0; earlier < i; earlier++)
            if (LOAD(p->boards[earlier]) == id)
                return false;
        if (!is_mapped(hosts, count, id))
            return false;
    }
    atomic_thread_fence(memory_order_acquire);
    return LOAD(p->boards_sequence) == sequence;
}

/* Whose turn `at` is among `count`. Everybody has one in each round of `count`; where a round
 * begins is scattered, or a training whose iterations last as long as a round would leave some
 * without a bubble for ever. */
static uint64_t whose_turn(uint64_t at, uint32_t count) {
    uint64_t scattered = (at / count + 1) * 0x9e3779b97f4a7c15ull; /* golden ratio, as a fraction */
    scattered = (scattered ^ scattered >> 32) * 0x9e3779b97f4a7c15ull;
    return (at % count + (scattered >> 32) % count) % count;
}

uint64_t policy_turn_left(const struct gate_page *page, const struct sfill_fill_gpu *face,
                          uint64_t job_id, uint64_t now_ns) {
    const struct sfill_policy_page *p = page->page;
    uint32_t turns = LOAD(p->turns), members = LOAD(face->members);
    uint64_t length = LOAD(p->turn_us) * 1000ull;
    if (turns <= 1 && members == 0)
        return UINT64_MAX;
    const struct sfill_policy_fill *own = own_entry(p, job_id);
    if (!own || length == 0)
        return 0;
    uint64_t turn = now_ns / length, round = turns > 1 ? turn / turns : turn;
    if (turns > 1 && whose_turn(turn, turns) != LOAD(own->turn))
        return 0;
    if (members > 0 && whose_turn(round, members) != LOAD(face->member))
        return 0;
    return turns > 1 || members > 1 ? length - now_ns % length : UINT64_MAX;
}

enum sfill_closed policy_permits(const struct gate_page *page, const struct gate_host *hosts,
                                 int count, const struct sfill_fill_gpu *face, uint64_t job_id,
                                 uint64_t now_ns) {
    const struct sfill_policy_page *p = page->page;
    if (!p || page->fresh_ns == 0 || now_ns - page->fresh_ns >= SFILL_STALE_NS)
        return SFILL_CLOSED_STALE;
    const struct sfill_policy_fill *own = own_entry(p, job_id);
    if (!own)
        return SFILL_CLOSED_OFF;
    if (LOAD(own->allowed) != 1) {
        uint32_t reason = LOAD(own->reason);
        bool named = reason > SFILL_OPEN && reason <= SFILL_CLOSED_CALIBRATION;
        return named ? (enum sfill_closed)reason : SFILL_CLOSED_OFF;
    }
    bool ignore = (LOAD(p->flags) & SFILL_POLICY_IGNORE_TRAINING) != 0;
    if (!ignore) {
        if (LOAD(p->unknown_training) != 0)
            return SFILL_CLOSED_UNKNOWN;
        if (!boards_agree(p, hosts, count))
            return SFILL_CLOSED_BOARDS;
        if (count == 0)
            return SFILL_CLOSED_NO_HOST;
    }
    return policy_turn_left(page, face, job_id, now_ns) ? SFILL_OPEN : SFILL_CLOSED_TURN;
}

uint64_t policy_memory_limit(const struct gate_page *page, uint64_t job_id) {
    if (!page->page)
        return 0;
    const struct sfill_policy_fill *own = own_entry(page->page, job_id);
    return own ? LOAD(own->memory_limit_bytes) : 0;
}
