/* intrusion.c - estimates the time for which ready training work waited for this process.
 *
 * What is known on any GPU: the host time of training's first launch after a bubble
 * (resume_launch_ns), the moment at which its GPU passed the point just before that launch
 * (resumed_seq, written by the GPU, so it stays behind while the other context holds the GPU),
 * its later bubbles, and the stretches in which the GPU worked for us (inflight.c).
 *
 * The wait of one return of training is the sum of
 *   1. from its launch until its GPU passed that point, less what the same takes undisturbed,
 *      if work of ours was on the GPU at or just before the launch;
 *   2. after that moment, each further stretch of ours that falls into time in which training
 *      had work (outside its later bubbles), and for each such stretch the time of the switches
 *      around it, learned from 1 as the time between our end and training's start.
 * Where that moment is not seen, 1 is our stretch after the launch and one switch.
 *
 * Assumed: the GPU serves one context at a time (time slicing); a training process that has
 * work has it all along between two of its bubbles. Copies of ours count as if they kept the
 * multiprocessors. Work of other fill processes is charged by them, not by us. */
#include "intrusion.h"
#include <string.h>

#define LOAD(x) atomic_load_explicit(&(x), memory_order_acquire)
#define LOOK_BACK 256u      /* later bubbles considered */
#define BLIND_NS 5000000ull /* longest wait for training's start after our end */
#define COARSE_NS 500000ull /* looks further apart than that place nothing */
#define DEFAULT_SWITCH_NS 100000.0
#define DEFAULT_START_NS 10000ull /* launch to start undisturbed, until learned */
#define SWITCHES_PER_STRETCH 2    /* to us and back */

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

static void note_start(struct intrusion *in, const struct host_watch *watch) {
    if (in->last_done_ns + 2 * COARSE_NS > watch->resume_ns)
        return;
    in->starts_ns[in->starts_count++ % INTRUSION_STARTS] = watch->started_ns - watch->resume_ns;
}

/* Launch to start without us: a low quantile, because looks come late. */
static uint64_t undisturbed_start(const struct intrusion *in) {
    uint32_t n = in->starts_count < INTRUSION_STARTS ? in->starts_count : INTRUSION_STARTS;
    uint64_t least = UINT64_MAX, second = UINT64_MAX;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t sample = in->starts_ns[i];
        if (sample < least) {
            second = least;
            least = sample;
        } else if (sample < second) {
            second = sample;
        }
    }
    return n < 8 ? DEFAULT_START_NS : sooner(second, 5 * DEFAULT_START_NS);
}

static void watch_start(struct intrusion *in, struct host_watch *watch,
                        const struct sfill_training_board *board, uint64_t now_ns) {
    uint64_t passed = LOAD(board->gpus[watch->section].resumed_seq);
    uint64_t least = later(in->polled_ns, watch->resume_ns);
    if (passed == watch->seq && now_ns - sooner(least, now_ns) <= COARSE_NS) {
        watch->started_ns = least + (now_ns - sooner(least, now_ns)) / 2;
        note_start(in, watch);
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

/* Part 1: the wait from launch to start. Learns what a switch takes. */
static uint64_t first_wait(struct intrusion *in, const struct host_watch *watch,
                           uint64_t last_end_ns) {
    uint64_t usual = undisturbed_start(in);
    if (last_end_ns > watch->resume_ns && last_end_ns < watch->started_ns) {
        double sample = (double)(watch->started_ns - last_end_ns) - (double)usual;
        if (sample > 0 && sample < 2e6)
            in->switch_ns += (sample - in->switch_ns) * 0.1;
    }
    uint64_t took = watch->started_ns - watch->resume_ns;
    return took > usual ? took - usual : 0;
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

uint64_t intrusion_take(struct intrusion *in, int index, const struct gate_host *hosts, int count,
                        uint64_t now_ns) {
    struct host_watch *watch = &in->watches[index];
    const struct sfill_training_board *board = board_of(hosts, count, watch->board_id);
    if (!board || !watch->resume_ns)
        return 0;
    if (in->switch_ns == 0)
        in->switch_ns = DEFAULT_SWITCH_NS;
    uint64_t wait = 0, after = later(watch->resume_ns, watch->counted_ns);
    if (watch->started_ns && watch->counted_ns < watch->started_ns) {
        uint64_t end = end_before(in, watch->started_ns);
        if (end + (uint64_t)in->switch_ns > watch->resume_ns)
            wait = first_wait(in, watch, end);
        after = watch->started_ns;
    }
    uint64_t kept = sooner(in->runs_head, INTRUSION_RUNS);
    for (uint64_t i = in->runs_head - kept; i < in->runs_head; i++) {
        const struct busy_run *run = &in->runs[i % INTRUSION_RUNS];
        if (run->end_ns <= after || run->begin_ns >= now_ns)
            continue;
        uint64_t begin = later(run->begin_ns, after), end = sooner(run->end_ns, now_ns);
        uint64_t busy = busy_overlap(watch, board, begin, end);
        if (busy == 0)
            continue;
        bool first = run->begin_ns <= watch->resume_ns;
        wait += busy + (uint64_t)(in->switch_ns * (first ? 1 : SWITCHES_PER_STRETCH));
    }
    watch->counted_ns = later(now_ns, watch->counted_ns);
    return wait;
}
