/* gate_decide.c - may an operation start now? Rules only; the numbers are the agent's. */
#include "gate.h"

#define LEAST_WAIT_FOR_COPY_NS 2000000000ull
/* From the end of our last kernel until training has the GPU: a switch of contexts takes about
 * 130 us on an H200 (GATE.md), and looks come a little late. */
#define HAND_BACK_NS 150000ull
#define UNFORESEEN_TIMES 4 /* budgets that may start where no end can be foretold */
#define FAR_PART 16        /* of what is likely left may be in flight ... */
#define FAR_TIMES 4        /* ... but never more than so many times the budget */
#define TURN_PART 4        /* of a turn: operations longer than that may outlast it */

/* Is it worth, and safe, to start so much in a bubble of this age? */
static enum sfill_closed fits_bubble(struct gate_gpu *gpu, const struct gate_ask *ask,
                                     const struct gate_numbers *numbers, uint64_t age_ns,
                                     uint64_t now_ns) {
    uint64_t median = predict_median(&gpu->predictor), left = 0;
    uint64_t need_ns = flight_left(&gpu->flight, now_ns) + ask->bound_ns + HAND_BACK_NS;
    bool opens = !gpu->uses.live;
    if (opens && need_ns < numbers->min_bubble_ns)
        need_ns = numbers->min_bubble_ns;
    if (ask->weightless || !numbers->predict_end)
        return SFILL_OPEN;
    if (ask->copy && ask->held_ns > LEAST_WAIT_FOR_COPY_NS && (!median || age_ns <= median / 4))
        return SFILL_OPEN; /* longer than any bubble, but it leaves the multiprocessors alone */
    if (predict_ends_within(&gpu->predictor, age_ns, need_ns))
        return SFILL_CLOSED_TOO_LONG;
    if (ask->bound_ns <= numbers->in_flight_ns)
        return SFILL_OPEN;
    if (predict_remainder(&gpu->predictor, age_ns, &left))
        return ask->bound_ns <= left ? SFILL_OPEN : SFILL_CLOSED_TOO_LONG;
    /* A bubble that has left all that is known behind: a training that pauses. */
    bool fits = ask->bound_ns <= UNFORESEEN_TIMES * numbers->in_flight_ns ||
                ask->bound_ns <= predict_unforeseen(age_ns);
    return fits ? SFILL_OPEN : SFILL_CLOSED_TOO_LONG;
}

static enum sfill_closed training_idle(struct gate_gpu *gpu, const struct gate_ask *ask,
                                       const struct gate_numbers *numbers, uint64_t now_ns,
                                       struct idle_view *view) {
    *view = idle_look(gpu->hosts, gpu->hosts_count, gpu->uuid, now_ns);
    if (view->closed != SFILL_OPEN)
        return view->closed;
    uint64_t age_ns = now_ns > view->since_ns ? now_ns - view->since_ns : 0;
    if (age_ns < numbers->dwell_ns)
        return SFILL_CLOSED_DWELL;
    /* Work left over from an earlier bubble is charged to that one first. */
    if (gpu->uses.live && gpu->flight.count && gpu->uses.epoch != view->epoch)
        return SFILL_CLOSED_IN_FLIGHT;
    const struct gate_host *host = &gpu->hosts[view->host];
    predict_refresh(&gpu->predictor, host->board_id, host->board, view->section, view->cause);
    return fits_bubble(gpu, ask, numbers, age_ns, now_ns);
}

/* GPU time that may be in flight. Far from the end that the host's history foretells more may be:
 * a deeper queue bridges the stretches in which the program launches slower than the GPU works. */
static uint64_t in_flight_most(const struct gate_gpu *gpu, const struct gate_numbers *numbers,
                               const struct idle_view *view, uint64_t now_ns) {
    uint64_t most_ns = numbers->in_flight_ns;
    if (numbers->ignore_training || now_ns <= view->since_ns)
        return most_ns;
    uint64_t part_ns = predict_left(&gpu->predictor, now_ns - view->since_ns) / FAR_PART;
    if (part_ns > FAR_TIMES * most_ns)
        return FAR_TIMES * most_ns;
    return part_ns > most_ns ? part_ns : most_ns;
}

static bool has_room(const struct gate_gpu *gpu, const struct gate_ask *ask, uint64_t most_ns,
                     uint64_t now_ns) {
    return flight_has_room(&gpu->flight, ask->bound_ns, ask->alone, most_ns, now_ns);
}

/* What is not done when our turn ends would run beside another fill's work, and neither would be
 * known to have had the GPU for how long. What takes a good part of a turn has to be let off. */
static bool fits_turn(const struct gate_gpu *gpu, const struct gate_ask *ask,
                      const struct gate_numbers *numbers, uint64_t now_ns) {
    uint64_t left_ns = policy_turn_left(&gpu->page, gpu->face, gate.job_id, now_ns);
    if (left_ns == UINT64_MAX || ask->bound_ns > numbers->turn_ns / TURN_PART)
        return true;
    return flight_left(&gpu->flight, now_ns) + ask->bound_ns <= left_ns;
}

enum sfill_closed gate_decide(struct gate_gpu *gpu, const struct gate_ask *ask, uint64_t now_ns,
                              struct idle_view *view) {
    policy_poll(&gpu->page, now_ns);
    if (atomic_load_explicit(&gate.evicted, memory_order_relaxed))
        return SFILL_CLOSED_OFF;
    enum sfill_closed closed =
        policy_permits(&gpu->page, gpu->hosts, gpu->hosts_count, gpu->face, gate.job_id, now_ns);
    if (closed != SFILL_OPEN)
        return closed;
    struct gate_numbers numbers = policy_numbers(&gpu->page);
    uint64_t limit = memory_limit(gpu);
    if (limit && account_sum(gpu) > limit)
        return SFILL_CLOSED_OFF; /* the limit was lowered below what is held */
    if (numbers.max_op_ns && ask->bound_ns > numbers.max_op_ns)
        return SFILL_CLOSED_TOO_LONG;
    if (!numbers.ignore_training) {
        closed = training_idle(gpu, ask, &numbers, now_ns, view);
        if (closed != SFILL_OPEN)
            return closed;
    }
    if (ask->weightless || ask->stalled)
        return SFILL_OPEN;
    if (!fits_turn(gpu, ask, &numbers, now_ns))
        return SFILL_CLOSED_TURN;
    bool room = has_room(gpu, ask, numbers.in_flight_ns, now_ns) ||
                has_room(gpu, ask, in_flight_most(gpu, &numbers, view, now_ns), now_ns);
    return room ? SFILL_OPEN : SFILL_CLOSED_IN_FLIGHT;
}
