/* gate_glue.c - what tests need around the gate's pure parts: its globals without the hooks, and
 * a training process that issues work on a thread of its own. Built by gate_library.py. */
#include <stdlib.h>
#include <string.h>
#include "gate.h"

struct gate_state gate;

uint64_t memory_limit(const struct gate_gpu *gpu) {
    return policy_memory_limit(&gpu->page, gate.job_id);
}

uint64_t account_sum(const struct gate_gpu *gpu) { return atomic_load(&gpu->face->memory_bytes); }

uint64_t gate_epoch(const struct gate_gpu *gpu) {
    return idle_epoch(gpu->hosts, gpu->hosts_count, gpu->uuid);
}

/* One GPU of a fill. */
struct gate_gpu *glue_new(const char *uuid, uint64_t job_id) {
    struct gate_gpu *gpu = calloc(1, sizeof *gpu);
    gate.board = calloc(1, sizeof *gate.board);
    gate.job_id = job_id;
    gate.evicted = false;
    strncpy(gpu->uuid, uuid, sizeof gpu->uuid - 1);
    gpu->face = &gate.board->gpus[0];
    gpu->flight.durations = &gpu->durations;
    gpu->uses.board = gate.board;
    gpu->uses.uuid = gpu->uuid;
    return gpu;
}

void glue_free(struct gate_gpu *gpu) {
    free(gate.board);
    gate.board = NULL;
    free(gpu);
}

void glue_evict(int evicted) { gate.evicted = evicted; }
void glue_page(struct gate_gpu *gpu, const struct sfill_policy_page *page) {
    policy_map(&gpu->page, page);
}
void glue_poll(struct gate_gpu *gpu, uint64_t now_ns) { policy_poll(&gpu->page, now_ns); }
void glue_host(struct gate_gpu *gpu, uint64_t id, const struct sfill_training_board *board) {
    gpu->hosts[gpu->hosts_count++] = (struct gate_host){id, board};
}
void glue_forget(struct gate_gpu *gpu) { gpu->hosts_count = 0; }
void glue_hold_memory(struct gate_gpu *gpu, uint64_t bytes) {
    atomic_store(&gpu->face->memory_bytes, bytes);
}

int glue_decide(struct gate_gpu *gpu, uint64_t bound_ns, int alone, int weightless,
                uint64_t now_ns) {
    const struct gate_ask ask = {
        .bound_ns = bound_ns, .alone = alone != 0, .weightless = weightless != 0};
    struct idle_view view = {0};
    return gate_decide(gpu, &ask, now_ns, &view);
}

/* Work in flight, on stream 0 with a word of the test's. */
void glue_stream(struct gate_gpu *gpu, uint32_t index, const _Atomic uint64_t *word) {
    gpu->flight.streams[index].word = word;
    if (index >= gpu->flight.streams_used)
        gpu->flight.streams_used = index + 1;
}

uint64_t glue_launch(struct gate_gpu *gpu, uint32_t stream, uint64_t shape, uint64_t now_ns,
                     uint64_t unknown_ns, int idle) {
    const struct duration *known = durations_use(&gpu->durations, shape);
    uint64_t mean = known ? duration_mean(known) : 0;
    struct idle_view view = idle_look(gpu->hosts, gpu->hosts_count, gpu->uuid, now_ns);
    struct flown op = {.shape = shape,
                       .release_ns = now_ns,
                       .mean_ns = mean ? mean : unknown_ns,
                       .bound_ns = known ? duration_bound(known) : unknown_ns,
                       .known = mean != 0,
                       .trusted = known && duration_trusted(known),
                       .alone = mean == 0,
                       .epoch = idle ? view.epoch : 0,
                       .compute = true};
    uint64_t ticket = flight_release(&gpu->flight, &op);
    uses_released(&gpu->uses, gpu->hosts, gpu->hosts_count, &view, true, !idle, now_ns);
    flight_issued(&gpu->flight, ticket, stream, now_ns);
    return gpu->flight.streams[stream].issued;
}

/* A release of no length that rests on a check made at checked_ns. */
void glue_launch_checked(struct gate_gpu *gpu, uint64_t now_ns, uint64_t checked_ns) {
    struct idle_view view = idle_look(gpu->hosts, gpu->hosts_count, gpu->uuid, checked_ns);
    uses_released(&gpu->uses, gpu->hosts, gpu->hosts_count, &view, true, false, now_ns);
}

static void sink(const struct flight_done *done, void *gpu) {
    uses_done(&((struct gate_gpu *)gpu)->uses, done);
}

void glue_look(struct gate_gpu *gpu, uint64_t now_ns) {
    gpu->flight.resume_ns = uses_resume(&gpu->uses, gpu->hosts, gpu->hosts_count, now_ns);
    if (flight_moved(&gpu->flight))
        flight_poll(&gpu->flight, now_ns, gate_epoch(gpu), sink, gpu);
    else
        gpu->flight.polled_ns = now_ns;
    uses_poll(&gpu->uses, gpu->hosts, gpu->hosts_count, gpu->flight.count > 0, now_ns);
}

/* A marker of a stream has an event, which the GPU passes at at_ns; 0: that is never known. */
static bool time_of(struct flight_time *time) {
    time->at_ns = (uint64_t)(uintptr_t)time->event;
    return time->at_ns != 0;
}
void glue_timed(struct gate_gpu *gpu, uint32_t stream, uint64_t value, uint64_t at_ns) {
    gpu->flight.time_of = time_of;
    flight_timed(&gpu->flight.streams[stream], value, (CUevent)(uintptr_t)at_ns, NULL);
}

/* From now on the host's clock, when a look has read a board, shows this. */
static uint64_t host_ns;
static uint64_t host_clock(void) { return host_ns; }
void glue_clock(struct gate_gpu *gpu, uint64_t now_ns) {
    host_ns = now_ns;
    gpu->uses.intrusion.clock = host_clock;
}

/* The GPU took so long to turn from training to us. */
void glue_took_over(struct gate_gpu *gpu, uint64_t start_ns) {
    intrusion_took_over(&gpu->uses.intrusion, start_ns);
}

uint64_t glue_mean(struct gate_gpu *gpu, uint64_t shape) {
    const struct duration *known = durations_use(&gpu->durations, shape);
    return known ? duration_mean(known) : 0;
}
uint64_t glue_bound(struct gate_gpu *gpu, uint64_t shape) {
    const struct duration *known = durations_use(&gpu->durations, shape);
    return known ? duration_bound(known) : 0;
}
void glue_learn(struct gate_gpu *gpu, uint64_t shape, uint64_t ns, int exact) {
    durations_learn(&gpu->durations, shape, ns, exact != 0);
}
int glue_doubted(struct gate_gpu *gpu, uint64_t shape, uint64_t held_ns) {
    const struct duration *known = durations_use(&gpu->durations, shape);
    return known && duration_doubted(known, held_ns);
}
void glue_changed(struct gate_gpu *gpu, uint64_t shape) {
    durations_changed(&gpu->durations, shape);
}
void glue_gone(struct gate_gpu *gpu, uint64_t shape) { durations_forget(&gpu->durations, shape); }
void glue_tried(struct gate_gpu *gpu, uint64_t shape) { durations_tried(&gpu->durations, shape); }
uint64_t glue_in_flight(const struct gate_gpu *gpu) { return gpu->flight.in_flight_ns; }
uint32_t glue_count(const struct gate_gpu *gpu) { return gpu->flight.count; }
const struct sfill_fill_board *glue_board(void) { return gate.board; }

enum { BY_POSITION, BY_CAUSE };

/* Would work of this length outlast the open bubble of a board, says one kind of prediction? */
uint64_t glue_outlasts(const struct sfill_training_board *board, uint32_t cause, int kind,
                       uint64_t age_ns, uint64_t length_ns) {
    static struct predictor predictor;
    if (kind == BY_POSITION)
        predict_refresh(&predictor, (uint64_t)(uintptr_t)board, board, 0, cause);
    else
        predict_by_cause(&predictor, (uint64_t)(uintptr_t)board, board, 0, cause);
    return predict_ends_within(&predictor, age_ns, length_ns);
}

/* A training process: issues and finishes work by the monitor's rules, as fast as it can. What
 * the GPU truly does is told by `truth`: even while it computes, odd while it is idle. */
struct racer {
    struct sfill_training_board *board;
    _Atomic uint64_t truth;
    _Atomic bool stop;
    pthread_t thread;
};

static void iterate(struct racer *racer, uint64_t number) {
    struct sfill_training_board *board = racer->board;
    struct sfill_gpu_section *gpu = &board->gpus[0];
    uint32_t slot = number % 3;
    struct sfill_stream_slot *stream = &board->slots[slot];
    uint64_t seq = atomic_load(&gpu->bubble_seq);
    uint64_t index = atomic_fetch_add(&stream->before, 1) + 1;
    atomic_store(&gpu->resume_seq, seq);
    atomic_store(&gpu->bubble_seq, seq + 1);
    atomic_fetch_add(&racer->truth, 1); /* the launch: from here on it computes */
    atomic_fetch_add(&stream->after, 1);
    for (volatile int spin = 0; spin < (int)(number % 50); spin++)
        ;
    atomic_fetch_add(&racer->truth, 1); /* done */
    atomic_store(&stream->done, SFILL_WORD(index, SFILL_WORD_DONE));
    atomic_store(&gpu->bubble_begin_ns, shim_now_ns());
    atomic_store(&gpu->bubble_seq, seq + 2);
    for (volatile int spin = 0; spin < (int)(number % 37); spin++)
        ;
}

static void *race(void *argument) {
    struct racer *racer = argument;
    for (uint64_t i = 0; !atomic_load(&racer->stop); i++)
        iterate(racer, i);
    return NULL;
}

/* Looks that found idle although training computed from before the look until after it. */
uint64_t glue_race(struct sfill_training_board *board, const char *uuid, uint64_t looks,
                   uint64_t *idle_looks) {
    struct racer racer = {.board = board, .truth = 1};
    const struct gate_host host = {1, board};
    uint64_t wrong = 0;
    *idle_looks = 0;
    if (pthread_create(&racer.thread, NULL, race, &racer) != 0)
        return UINT64_MAX;
    for (uint64_t i = 0; i < looks; i++) {
        uint64_t before = atomic_load(&racer.truth);
        struct idle_view view = idle_look(&host, 1, uuid, 0);
        uint64_t after = atomic_load(&racer.truth);
        if (view.closed != SFILL_OPEN)
            continue;
        ++*idle_looks;
        wrong += before == after && before % 2 == 0;
    }
    atomic_store(&racer.stop, true);
    pthread_join(racer.thread, NULL);
    return wrong;
}
