/* gate_predict.c - quantiles of a host's recent bubbles. The caller holds the GPU's lock. */
#include "gate_predict.h"
#include <string.h>

#define LOAD(x) atomic_load_explicit(&(x), memory_order_acquire)
/* How far back in the ring samples are looked for. Far less than the ring, so that the monitor
 * cannot overwrite what is being read. */
#define LOOK_BACK 256u
/* A bubble that is longer than all seen by this part of the longest has left the rhythm. */
#define OUTLIVES_PART 32
#define FEW_PART 16
/* Where nothing that was learned holds: of bubbles of all lengths alike, nine in ten that have
 * lasted so long last this part of it longer. */
#define STRANGE_PART 8

static void insert_sorted(struct predictor *predictor, uint64_t length_ns) {
    int at = predictor->count++;
    while (at > 0 && predictor->sorted_ns[at - 1] > length_ns) {
        predictor->sorted_ns[at] = predictor->sorted_ns[at - 1];
        at--;
    }
    predictor->sorted_ns[at] = length_ns;
}

void predict_by_cause(struct predictor *predictor, uint64_t board_id,
                      const struct sfill_training_board *board, uint32_t section, uint32_t cause) {
    uint64_t head = LOAD(board->bubble_head);
    *predictor = (struct predictor){.board_id = board_id,
                                    .head = head,
                                    .launches = LOAD(board->gpus[section].launches),
                                    .least = PREDICT_STEADY,
                                    .section = section,
                                    .cause = cause};
    uint64_t oldest = head > LOOK_BACK ? head - LOOK_BACK : 0;
    for (uint64_t i = head; i > oldest && predictor->count < PREDICT_SAMPLES; i--) {
        const struct sfill_bubble *bubble = &board->bubbles[(i - 1) % SFILL_BUBBLE_RING];
        if (bubble->gpu == section && bubble->cause == cause && bubble->end_ns > bubble->begin_ns)
            insert_sorted(predictor, bubble->end_ns - bubble->begin_ns);
    }
}

void predict_refresh(struct predictor *predictor, uint64_t board_id,
                     const struct sfill_training_board *board, uint32_t section, uint32_t cause) {
    uint64_t head = LOAD(board->bubble_head), launches = LOAD(board->gpus[section].launches);
    if (predictor->board_id == board_id && predictor->head == head &&
        predictor->section == section && predictor->cause == cause &&
        predictor->launches == launches)
        return;
    uint64_t lengths_ns[PREDICT_SAMPLES];
    int count;
    predict_by_cause(predictor, board_id, board, section, cause);
    predictor->launches = launches;
    predictor->place = rhythm_find(board, head, section, lengths_ns, PREDICT_SAMPLES, &count);
    if (predictor->place != RHYTHM_KNOWN)
        return;
    predictor->least = RHYTHM_NEW;
    predictor->count = 0;
    for (int i = 0; i < count; i++)
        insert_sorted(predictor, lengths_ns[i]);
    /* A few lengths do not show how short the next may be. */
    if (count < PREDICT_STEADY)
        insert_sorted(predictor, predictor->sorted_ns[0] - predictor->sorted_ns[0] / FEW_PART);
}

/* Index of the first sample longer than the age. */
static int first_longer(const struct predictor *predictor, uint64_t age_ns) {
    int first = 0;
    while (first < predictor->count && predictor->sorted_ns[first] <= age_ns)
        first++;
    return first;
}

bool predict_remainder(const struct predictor *predictor, uint64_t age_ns, uint64_t *left_ns) {
    int first = first_longer(predictor, age_ns);
    int longer = predictor->count - first;
    if (longer < PREDICT_LEAST)
        return false;
    *left_ns = predictor->sorted_ns[first + (longer - 1) / 4] - age_ns;
    return true;
}

uint64_t predict_unforeseen(uint64_t age_ns) { return age_ns / STRANGE_PART; }

/* 12th percentile of the remainder over the longer ones; `first` is the first of them. */
static uint64_t low_remainder(const struct predictor *predictor, int first, uint64_t age_ns) {
    int steps = predictor->count - first - 1;
    int place = steps / 8, eighths = steps % 8;
    uint64_t low = predictor->sorted_ns[first + place];
    if (eighths)
        low += (predictor->sorted_ns[first + place + 1] - low) * (uint64_t)eighths / 8;
    return low - age_ns;
}

static bool strange_ends_within(const struct predictor *predictor, uint64_t age_ns,
                                uint64_t length_ns) {
    return predictor->place == RHYTHM_STRANGE && predict_unforeseen(age_ns) < length_ns;
}

bool predict_ends_within(const struct predictor *predictor, uint64_t age_ns, uint64_t length_ns) {
    int count = predictor->count;
    if (strange_ends_within(predictor, age_ns, length_ns))
        return true;
    if (count < predictor->least)
        return false;
    int first = first_longer(predictor, age_ns);
    uint64_t longest = predictor->sorted_ns[count - 1];
    if (first == count)
        return age_ns < longest + longest / OUTLIVES_PART;
    return low_remainder(predictor, first, age_ns) < length_ns;
}

uint64_t predict_left(const struct predictor *predictor, uint64_t age_ns) {
    int first = first_longer(predictor, age_ns);
    if (predictor->count < predictor->least || first == predictor->count)
        return 0;
    uint64_t left_ns = low_remainder(predictor, first, age_ns);
    uint64_t most_ns = predict_unforeseen(age_ns);
    return predictor->place == RHYTHM_STRANGE && most_ns < left_ns ? most_ns : left_ns;
}

uint64_t predict_median(const struct predictor *predictor) {
    return predictor->count < predictor->least ? 0 : predictor->sorted_ns[predictor->count / 2];
}
