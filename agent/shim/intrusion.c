/* intrusion.c - estimates the time for which ready training work waited for this process.
 *
 * What is known on any GPU: when training's first launch after a bubble was called and when it
 * stood in its queue (resume_launch_ns, resume_issued_ns), the moment at which its GPU passed the
 * point just before it (resumed_seq, written by the GPU, so it stays behind while the other
 * context holds the GPU), its later bubbles, and the stretches in which the GPU worked for us
 * (inflight.c). The wait of one return of training is the sum of
 *   1. from the launch standing in its queue until its GPU passed that point;
 *   2. after that, each further stretch of ours that falls into time in which training had work
 *      (outside its later bubbles), and two switches for each, to us and back.
 *
 * That moment is seen late, by a look every 25 us or so and by whatever lies between the GPU's
 * write and our view. So it is not used as it is: what passes between our end (or the launch, if
 * we had ended before it) and that moment is, but for that lateness, the same each time, and a
 * low quantile of it is free of it (on a GPU on which we were at work the median, since our own
 * end is seen as late). On the latter a moment later than that by more than LATE_NS was not seen
 * late but was late, and is believed. Where it is not seen at all, the quantile stands for it.
 *
 * Assumed: the GPU serves one context at a time (time slicing); a training process that has work
 * has it all along between two of its bubbles. Copies of ours count as if they kept the
 * multiprocessors. Work of other fill processes is charged by them, but for the switch from an
 * idle one, which each of them may charge. Contexts, modules and allocations are not charged. */
#include "intrusion.h"
#include <string.h>

#define LOAD(x) atomic_load_explicit(&(x), memory_order_acquire)
#define LOOK_BACK 256u              /* later bubbles considered */
#define BLIND_NS 5000000ull         /* longest wait for training's start after our end */
#define COARSE_NS 500000ull         /* looks further apart than that place nothing */
#define DEFAULT_SWITCH_NS 130000ull /* GATE.md, measured */
#define USUAL_START_NS 5000ull      /* from queue to start on a GPU that is free */
#define VAGUE_NS 80000ull           /* moments less certain than that teach nothing */
#define LEAST_SLICE_NS 1000000ull   /* of a GPU's time slicing */
#define LATE_NS 1000000ull
#define SWITCHES_PER_STRETCH 2 /* to us and back */

static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }
static uint64_t sooner(uint64_t a, uint64_t b) { return a < b ? a : b; }

static const struct sfill_training_board *board_of(const struct gate_host *hosts, int count,
                                                   uint64_t board_id) {
    for (int i = 0; i < count; i++)
        if (hosts[i].board_id == board_id)
            return hosts[i].board;
    return NULL;
}

void intrusion_begin(struct intrusion *in, const struct gate_host *hosts, int count,
                     const char *uuid, uint64_t now_ns) {
    in->count = 0;
    for (int i = 0; i < count; i++) {
        int section = idle_section(hosts[i].board, uuid);
        if (section < 0)
            continue;
        uint64_t seq = LOAD(hosts[i].board->gpus[section].bubble_seq);
        struct host_watch *watch = &in->watches[in->count++];
        *watch = (struct host_watch){
            .board_id = hosts[i].board_id, .section = (uint32_t)section, .seq = seq};
        if (seq % 2 == 0) { /* busy already: only when training's state is ignored */
            watch->resume_ns = watch->started_ns = now_ns;
            watch->first_counted = true;
            watch->counted_ns = in->last_done_ns ? sooner(in->last_done_ns, now_ns) : now_ns;
        }
    }
    in->polled_ns = now_ns;
}

void intrusion_ran(struct intrusion *in, uint64_t begin_ns, uint64_t end_ns) {
    in->last_done_ns = later(in->last_done_ns, end_ns);
    if (in->runs_head) {
        struct busy_run *last = &in->runs[(in->runs_head - 1) % INTRUSION_RUNS];
        if (begin_ns <= last->end_ns + 5000) {
            last->end_ns = later(last->end_ns, end_ns);
            return;
        }
    }
    in->runs[in->runs_head++ % INTRUSION_RUNS] = (struct busy_run){begin_ns, end_ns};
}

/* The launch that ended the watched bubble, from the board; 0 while unknown. */
static uint64_t find_resume(const struct host_watch *watch,
                            const struct sfill_training_board *board) {
    const struct sfill_gpu_section *gpu = &board->gpus[watch->section];
    if (LOAD(gpu->resume_seq) == watch->seq) {
        uint64_t at = LOAD(gpu->resume_launch_ns);
        if (LOAD(gpu->resume_seq) == watch->seq)
            return at;
    }
    uint64_t head = LOAD(board->bubble_head);
    for (uint64_t i = head; i > 0 && head - i < LOOK_BACK; i--) {
        const struct sfill_bubble *bubble = &board->bubbles[(i - 1) % SFILL_BUBBLE_RING];
        if (bubble->gpu == watch->section && bubble->seq == watch->seq)
            return bubble->end_ns;
    }
    return 0;
}

/* When the launch that ended the watched bubble stood in its queue; before that, its call. */
static uint64_t find_ready(const struct host_watch *watch,
                           const struct sfill_training_board *board) {
    const struct sfill_gpu_section *gpu = &board->gpus[watch->section];
    uint64_t issued_ns = LOAD(gpu->resume_issued_ns);
    return LOAD(gpu->resume_seq) == watch->seq && issued_ns >= watch->resume_ns ? issued_ns : 0;
}

/* End of our last stretch that began before a moment; 0: none. */
static uint64_t end_before(const struct intrusion *in, uint64_t moment_ns) {
    uint64_t kept = sooner(in->runs_head, INTRUSION_RUNS);
    for (uint64_t i = in->runs_head; i > in->runs_head - kept; i--) {
        const struct busy_run *run = &in->runs[(i - 1) % INTRUSION_RUNS];
        if (run->begin_ns < moment_ns)
            return run->end_ns;
    }
    return 0;
}

/* When our last work before the launch ended, and when the launch was made: the later. */
static uint64_t free_since(const struct intrusion *in, const struct host_watch *watch,
                           bool *at_work) {
    uint64_t end_ns = end_before(in, watch->started_ns ? watch->started_ns : UINT64_MAX);
    *at_work = end_ns > watch->resume_ns;
    return later(end_ns, watch->resume_ns);
}

static void note_start(struct intrusion *in, const struct host_watch *watch) {
    bool at_work;
    uint64_t since_ns = free_since(in, watch, &at_work);
    struct start_delays *delays = at_work ? &in->working : &in->idle;
    if (watch->started_ns <= since_ns || watch->vague_ns > VAGUE_NS)
        return;
    uint64_t delay_ns = watch->started_ns - since_ns;
    if (!at_work) /* what is seen has been so for a while; our own end is seen as late */
        delay_ns -= sooner(watch->vague_ns / 4, delay_ns);
    delays->ns[delays->count++ % INTRUSION_STARTS] = delay_ns;
}

/* The quantile 1 / part of such delays. */
static uint64_t usual_delay(const struct start_delays *delays, uint32_t part, uint64_t otherwise) {
    uint32_t n = delays->count < INTRUSION_STARTS ? delays->count : INTRUSION_STARTS;
    uint64_t sorted[INTRUSION_STARTS];
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = i;
        for (; at > 0 && sorted[at - 1] > delays->ns[i]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = delays->ns[i];
    }
    return n == 0 ? otherwise : sorted[n / part];
}

static uint64_t switch_time(const struct intrusion *in) {
    return usual_delay(&in->working, 2, DEFAULT_SWITCH_NS);
}

static void watch_start(struct intrusion *in, struct host_watch *watch,
                        const struct sfill_training_board *board, uint64_t now_ns) {
    uint64_t passed = LOAD(board->gpus[watch->section].resumed_seq);
    uint64_t least = later(in->polled_ns, watch->resume_ns);
    if (passed == watch->seq && now_ns - sooner(least, now_ns) <= COARSE_NS) {
        watch->vague_ns = now_ns - sooner(least, now_ns);
        watch->started_ns = least + (now_ns - sooner(least, now_ns)) / 2;
    } else if (passed >= watch->seq || LOAD(board->fill_present) == 0 ||
               now_ns > later(watch->resume_ns, in->last_done_ns) + BLIND_NS) {
        watch->blind = true;
    }
}

bool intrusion_poll(struct intrusion *in, const struct gate_host *hosts, int count,
                    uint64_t now_ns) {
    bool settled = true;
    for (int i = 0; i < in->count; i++) {
        struct host_watch *watch = &in->watches[i];
        const struct sfill_training_board *board = board_of(hosts, count, watch->board_id);
        if (!board)
            continue;
        if (!watch->resume_ns && LOAD(board->gpus[watch->section].bubble_seq) != watch->seq) {
            if (!watch->noticed_ns)
                watch->noticed_ns = now_ns;
            watch->resume_ns = find_resume(watch, board);
            if (!watch->resume_ns && now_ns - watch->noticed_ns > COARSE_NS)
                watch->resume_ns = watch->noticed_ns;
            settled &= watch->resume_ns != 0;
        }
        if (watch->resume_ns && watch->ready_ns < watch->resume_ns)
            watch->ready_ns = find_ready(watch, board);
        if (watch->resume_ns && !watch->started_ns && !watch->blind)
            watch_start(in, watch, board, now_ns);
        settled &= !watch->resume_ns || watch->started_ns || watch->blind;
    }
    in->polled_ns = now_ns;
    return settled;
}

bool intrusion_resumed(const struct intrusion *in) {
    for (int i = 0; i < in->count; i++)
        if (in->watches[i].resume_ns)
            return true;
    return false;
}

/* How much of [begin, end] lies outside the bubbles that began after the watched one ended. */
static uint64_t busy_overlap(const struct host_watch *watch,
                             const struct sfill_training_board *board, uint64_t begin_ns,
                             uint64_t end_ns) {
    const struct sfill_gpu_section *gpu = &board->gpus[watch->section];
    uint64_t busy = end_ns - begin_ns, open_seq = LOAD(gpu->bubble_seq);
    uint64_t open_begin = LOAD(gpu->bubble_begin_ns);
    if (open_seq % 2 && open_seq > watch->seq && open_begin < end_ns)
        busy -= end_ns - later(open_begin, begin_ns);
    uint64_t head = LOAD(board->bubble_head);
    for (uint64_t i = head; i > 0 && head - i < LOOK_BACK; i--) {
        const struct sfill_bubble *bubble = &board->bubbles[(i - 1) % SFILL_BUBBLE_RING];
        if (bubble->gpu != watch->section || bubble->seq <= watch->seq || bubble->seq == open_seq)
            continue;
        uint64_t from = later(bubble->begin_ns, begin_ns), to = sooner(bubble->end_ns, end_ns);
        if (to > from)
            busy -= sooner(busy, to - from);
        if (bubble->end_ns < begin_ns)
            break;
    }
    return busy;
}

/* How much the GPU has worked for us since a moment. */
static uint64_t ran_after(const struct intrusion *in, uint64_t moment_ns) {
    uint64_t kept = sooner(in->runs_head, INTRUSION_RUNS), sum = 0;
    for (uint64_t i = in->runs_head; i > in->runs_head - kept; i--) {
        const struct busy_run *run = &in->runs[(i - 1) % INTRUSION_RUNS];
        if (run->end_ns <= moment_ns)
            break;
        sum += run->end_ns - later(run->begin_ns, moment_ns);
    }
    return sum;
}

/* Part 1. *started_ns: from when on part 2 counts. */
static uint64_t first_wait(const struct intrusion *in, const struct host_watch *watch,
                           uint64_t *started_ns) {
    bool at_work;
    uint64_t since_ns = free_since(in, watch, &at_work);
    uint64_t seen_ns = watch->started_ns > since_ns ? watch->started_ns - since_ns : 0;
    uint64_t passed_ns =
        since_ns + (at_work ? switch_time(in) : usual_delay(&in->idle, 24, seen_ns));
    if (at_work && watch->started_ns > passed_ns + LATE_NS)
        passed_ns = watch->started_ns;
    if (watch->started_ns)
        passed_ns = sooner(passed_ns, watch->started_ns); /* it was seen by then */
    /* Nor can it have waited for more than what we still had to run. */
    passed_ns = sooner(passed_ns, watch->resume_ns + ran_after(in, watch->resume_ns) +
                                      later(switch_time(in), DEFAULT_SWITCH_NS));
    *started_ns = later(passed_ns, watch->started_ns);
    uint64_t ready_ns = later(watch->ready_ns, watch->resume_ns) + USUAL_START_NS;
    return passed_ns > ready_ns ? passed_ns - ready_ns : 0;
}

/* Training computes from started_ns on, at least for one slice. Work of ours that seems to have
 * run in it had ended before; our look came late. */
static bool was_seen_late(const struct host_watch *watch, const struct busy_run *run) {
    return watch->started_ns > watch->resume_ns && !watch->blind &&
           watch->counted_ns < watch->started_ns &&
           run->begin_ns < watch->started_ns + LEAST_SLICE_NS &&
           run->end_ns < watch->started_ns + LEAST_SLICE_NS;
}

uint64_t intrusion_take(struct intrusion *in, int index, const struct gate_host *hosts, int count,
                        uint64_t now_ns) {
    struct host_watch *watch = &in->watches[index];
    const struct sfill_training_board *board = board_of(hosts, count, watch->board_id);
    if (!board || !watch->resume_ns)
        return 0;
    uint64_t wait = 0, after = later(watch->resume_ns, watch->counted_ns);
    if (!watch->first_counted && (watch->started_ns || watch->blind)) {
        note_start(in, watch);
        wait = first_wait(in, watch, &after);
        watch->first_counted = true;
    }
    uint64_t kept = sooner(in->runs_head, INTRUSION_RUNS);
    for (uint64_t i = in->runs_head - kept; i < in->runs_head; i++) {
        const struct busy_run *run = &in->runs[i % INTRUSION_RUNS];
        if (run->end_ns <= after || run->begin_ns >= now_ns || was_seen_late(watch, run))
            continue;
        uint64_t begin = later(run->begin_ns, after), end = sooner(run->end_ns, now_ns);
        uint64_t busy = busy_overlap(watch, board, begin, end);
        if (busy == 0)
            continue;
        wait += busy;
        if (run->begin_ns > watch->resume_ns && run->begin_ns >= after)
            wait += SWITCHES_PER_STRETCH * usual_delay(&in->working, 8, DEFAULT_SWITCH_NS);
    }
    watch->counted_ns = later(now_ns, watch->counted_ns);
    return wait;
}
