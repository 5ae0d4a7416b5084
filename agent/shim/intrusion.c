/* intrusion.c - estimates the time for which ready training work waited for this process.
 *
 * Known: the stretches in which the GPU worked for us (exact where there are events,
 * flight_exact.c), when the marker before training's first launch after a bubble was asked for
 * (resume_mark_ns), when that launch itself was called and when the call had returned
 * (resume_call_ns, resume_issued_ns), its later bubbles, and when we saw that its GPU had passed
 * that marker (resumed_seq, written by the GPU).
 *
 * The GPU was kept from training during our stretches, during the switch before each that takes
 * it from training, and during the switch after each that gives it back; and at training's
 * return, for as long as a return takes on a GPU that we had left idle. The wait is the part of
 * all that which falls into time in which training had work.
 *
 * The switches are learned. On an idle GPU: from the launch of our first operation in a bubble
 * until its begin, exactly, where its duration is known (training's return is taken to need as
 * long; the upper quartile counts). From our end until training has begun: between two looks, of
 * which the first had not seen it; since looks are late, the least of many tell, and they count
 * only where they say that it took longer than on an idle GPU. The same serves for returns to an
 * idle GPU where there are no events.
 *
 * That a marker has passed does not say that training has the multiprocessors: a GPU writes it
 * before it switches contexts (H200: training's kernels began 165 us after their launch beside a
 * fill that was done, 30 us without; the marker had passed in some us). So where the switch is
 * known, it is charged whole.
 *
 * Assumed: the GPU serves one context at a time (time slicing), and taking it costs what giving
 * it back does; a training process that has work has it all along between two of its bubbles.
 * Copies of ours count as if they kept the multiprocessors. Work of other fill processes is
 * charged by them, but for the switch from an idle one, which each of them charges (the agent
 * counts the longest of what fills tell of one bubble: agent/shared_waits.py). Contexts, modules
 * and allocations are not charged. */
#include "intrusion.h"
#include <string.h>

#define LOAD(x) atomic_load_explicit(&(x), memory_order_acquire)
#define LOOK_BACK 256u              /* later bubbles considered */
#define BLIND_NS 5000000ull         /* longest wait for training's start after our end */
#define COARSE_NS 500000ull         /* looks further apart than that place nothing */
#define DEFAULT_SWITCH_NS 130000ull /* GATE.md, measured; until some have been seen */
#define LEAST_STARTS 4              /* seen from which on they are believed */
#define LEAST_TAKEN 16              /* ... of which some are held up */
#define LEAST_CALLS 2               /* ... of training's launch calls */
#define LEAST_CONTRADICTING 16      /* ... against what is known exactly */
#define VAGUE_NS 150000ull          /* moments less certain than that teach nothing */
#define HELD_BEFORE 4ull            /* one call in so many is held up before it has launched */
#define MARKER_NS 2000ull           /* GATE.md: a marker's call, and its write by the GPU */

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
            watch->noted = watch->busy_before = true;
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

/* End of our first stretch that ended after a moment; 0: none did. */
static uint64_t end_after(const struct intrusion *in, uint64_t moment_ns) {
    uint64_t kept = sooner(in->runs_head, INTRUSION_RUNS), end_ns = 0;
    for (uint64_t i = in->runs_head; i > in->runs_head - kept; i--) {
        const struct busy_run *run = &in->runs[(i - 1) % INTRUSION_RUNS];
        if (run->end_ns <= moment_ns)
            break;
        end_ns = run->end_ns;
    }
    return end_ns;
}

static void note_change(struct changes *changes, uint64_t least_ns, uint64_t most_ns) {
    uint32_t at = changes->count++ % INTRUSION_STARTS;
    changes->least_ns[at] = least_ns;
    changes->most_ns[at] = most_ns;
}

void intrusion_took_over(struct intrusion *in, uint64_t start_ns) {
    note_change(&in->taken, start_ns, start_ns);
}

static void note_start(struct intrusion *in, const struct host_watch *watch) {
    uint64_t end_ns = end_after(in, watch->resume_ns);
    uint64_t since_ns = end_ns ? end_ns : watch->resume_ns;
    if (watch->started_ns <= since_ns || watch->vague_ns > VAGUE_NS)
        return;
    uint64_t most_ns = watch->started_ns - since_ns;
    note_change(end_ns ? &in->working : &in->idle, most_ns - sooner(watch->vague_ns, most_ns),
                most_ns);
}

/* The value of that rank among the lately seen. */
static uint64_t ranked(const uint64_t *values, uint32_t n, uint32_t rank) {
    uint64_t sorted[INTRUSION_STARTS];
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = i;
        for (; at > 0 && sorted[at - 1] > values[i]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = values[i];
    }
    return sorted[rank];
}

static uint32_t kept_changes(const struct changes *changes) {
    return changes->count < INTRUSION_STARTS ? changes->count : INTRUSION_STARTS;
}

static uint64_t median(const struct changes *changes) {
    uint32_t n = kept_changes(changes);
    return ranked(changes->most_ns, n, (n - 1) / 2);
}

/* When the launch that ended the watched bubble stood in its queue. A call that took longer than
 * they do was held up by the machine, before or after that. */
static void find_ready(struct intrusion *in, struct host_watch *watch,
                       const struct sfill_training_board *board) {
    const struct sfill_gpu_section *gpu = &board->gpus[watch->section];
    uint64_t issued_ns = LOAD(gpu->resume_issued_ns);
    uint64_t mark_ns = LOAD(gpu->resume_mark_ns), call_ns = LOAD(gpu->resume_call_ns);
    if (LOAD(gpu->resume_seq) != watch->seq || issued_ns < watch->resume_ns)
        return;
    watch->ready_ns = issued_ns;
    if (mark_ns >= watch->resume_ns && mark_ns <= issued_ns)
        watch->asked_ns = mark_ns + MARKER_NS;
    if (call_ns < watch->resume_ns || call_ns > issued_ns)
        return;
    note_change(&in->calls, issued_ns - call_ns, issued_ns - call_ns);
    uint64_t usual_ns = median(&in->calls);
    if (in->calls.count >= LEAST_CALLS && issued_ns - call_ns > 2 * usual_ns) {
        watch->ready_ns = call_ns + usual_ns;
        watch->held_ns = issued_ns - watch->ready_ns;
    }
}

/* A return as seen: between the least but one of both bounds. */
static uint64_t return_time(const struct changes *changes) {
    uint32_t n = kept_changes(changes);
    if (n < LEAST_STARTS)
        return DEFAULT_SWITCH_NS;
    return (ranked(changes->least_ns, n, 1) + ranked(changes->most_ns, n, 1)) / 2;
}

/* Whether the times that we took to get an idle GPU are enough to tell by. */
static bool knows_taken(const struct intrusion *in) {
    return kept_changes(&in->taken) >= LEAST_TAKEN;
}

/* From the launch until training has a GPU that we had left idle. A launch call of ours whose
 * return the machine held up makes it seem shorter, for a third of the calls at times; nothing
 * makes it seem longer so often. */
static uint64_t idle_switch(const struct intrusion *in) {
    uint32_t n = kept_changes(&in->taken);
    if (knows_taken(in))
        return ranked(in->taken.most_ns, n, (n - 1) * 3 / 4);
    return n ? DEFAULT_SWITCH_NS : return_time(&in->idle);
}

/* From our end until training has the GPU: as long as from the launch on an idle one, unless what
 * was seen says longer. */
static uint64_t working_switch(const struct intrusion *in) {
    uint32_t n = kept_changes(&in->working);
    if (!knows_taken(in))
        return return_time(&in->working);
    uint64_t idle_ns = idle_switch(in);
    bool longer = n >= LEAST_CONTRADICTING && ranked(in->working.least_ns, n, 1) > idle_ns;
    return longer ? return_time(&in->working) : idle_ns;
}

/* When training has a GPU that we had left idle; 0: we had not. */
static uint64_t back_at(const struct intrusion *in, const struct host_watch *watch) {
    if (watch->busy_before || !watch->resume_ns)
        return 0;
    uint64_t at_ns = later(watch->asked_ns, watch->resume_ns) + idle_switch(in);
    bool seen = watch->started_ns && !knows_taken(in);
    return seen ? sooner(at_ns, watch->started_ns) : at_ns;
}

static void watch_start(struct intrusion *in, struct host_watch *watch,
                        const struct sfill_training_board *board, uint64_t now_ns) {
    uint64_t passed = LOAD(board->gpus[watch->section].resumed_seq);
    uint64_t least = later(in->polled_ns, watch->resume_ns);
    if (in->clock) /* this thread may have stood still since now_ns */
        now_ns = in->clock();
    if (passed == watch->seq && now_ns - sooner(least, now_ns) <= COARSE_NS) {
        watch->vague_ns = now_ns - sooner(least, now_ns);
        watch->started_ns = now_ns;
    } else if (passed >= watch->seq || LOAD(board->fill_present) == 0 ||
               now_ns > later(watch->resume_ns, in->last_done_ns) + BLIND_NS) {
        watch->blind = true;
    }
}

/* The call that launched it has still not returned. */
static bool is_late(const struct host_watch *watch, uint64_t now_ns) {
    return watch->busy_before || now_ns > watch->resume_ns + BLIND_NS;
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
        if (watch->resume_ns && !watch->ready_ns)
            find_ready(in, watch, board);
        if (watch->resume_ns && !watch->started_ns && !watch->blind)
            watch_start(in, watch, board, now_ns);
        bool back = watch->started_ns && later(watch->started_ns, back_at(in, watch)) <= now_ns;
        settled &= !watch->resume_ns ||
                   ((back || watch->blind) && (watch->ready_ns || is_late(watch, now_ns)));
    }
    in->polled_ns = now_ns;
    return settled;
}

bool intrusion_handed_back(const struct intrusion *in, uint64_t now_ns) {
    return now_ns >= in->last_done_ns + working_switch(in);
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

/* What of [begin, end] training has been kept waiting for, but for what stands in *upto_ns. */
static uint64_t charge(const struct host_watch *watch, const struct sfill_training_board *board,
                       uint64_t begin_ns, uint64_t end_ns, uint64_t *upto_ns) {
    begin_ns = later(begin_ns, *upto_ns);
    if (end_ns <= begin_ns)
        return 0;
    *upto_ns = end_ns;
    return busy_overlap(watch, board, begin_ns, end_ns);
}

uint64_t intrusion_take(struct intrusion *in, int index, const struct gate_host *hosts, int count,
                        uint64_t now_ns) {
    struct host_watch *watch = &in->watches[index];
    const struct sfill_training_board *board = board_of(hosts, count, watch->board_id);
    if (!board || !watch->resume_ns)
        return 0;
    if (!watch->noted && (watch->started_ns || watch->blind)) {
        if (!watch->blind)
            note_start(in, watch);
        watch->noted = true;
    }
    uint64_t switch_ns = working_switch(in), wait = 0;
    uint64_t back_ns = back_at(in, watch);
    uint64_t ready_ns = later(watch->ready_ns, watch->resume_ns);
    if (ready_ns < back_ns)
        ready_ns += sooner(watch->held_ns, back_ns - ready_ns) / HELD_BEFORE;
    uint64_t upto_ns = later(ready_ns, watch->counted_ns);
    uint64_t kept = sooner(in->runs_head, INTRUSION_RUNS);
    for (uint64_t i = in->runs_head - kept; i < in->runs_head; i++) {
        const struct busy_run *run = &in->runs[i % INTRUSION_RUNS];
        if (run->end_ns + switch_ns <= upto_ns)
            continue;
        if (run->begin_ns > ready_ns)
            wait += charge(watch, board, ready_ns, sooner(back_ns, now_ns), &upto_ns);
        wait += charge(watch, board, run->begin_ns - switch_ns,
                       sooner(run->end_ns + switch_ns, now_ns), &upto_ns);
    }
    wait += charge(watch, board, ready_ns, sooner(back_ns, now_ns), &upto_ns);
    watch->counted_ns = later(now_ns, watch->counted_ns);
    return wait;
}

bool intrusion_goes_on(const struct intrusion *in, const struct gate_host *hosts, int count) {
    for (int i = 0; i < in->count; i++) {
        const struct host_watch *watch = &in->watches[i];
        const struct sfill_training_board *board = board_of(hosts, count, watch->board_id);
        if (!board || !watch->resume_ns)
            continue;
        const struct sfill_gpu_section *gpu = &board->gpus[watch->section];
        uint64_t seq = LOAD(gpu->bubble_seq);
        if (seq % 2 && seq > watch->seq && LOAD(gpu->bubble_begin_ns) < in->last_done_ns)
            return true;
    }
    return false;
}
