/* gate_predict.h - how long will this bubble last? From the host's own recent bubbles: those at the
 * same position of its rhythm where that is known, else those of the same cause. */
#ifndef SFILL_GATE_PREDICT_H
#define SFILL_GATE_PREDICT_H
#include <stdbool.h>
#include <stdint.h>
#include "board.h"
#include "gate_rhythm.h"

#define PREDICT_SAMPLES 32 /* recent bubbles that a prediction rests on */
#define PREDICT_LEAST 4    /* fewer longer ones than that: the remainder is unknown */
#define PREDICT_STEADY 8   /* samples of a cause from which they are believed */

/* Lengths of the host's recent bubbles on one GPU that are like the present one, sorted. */
struct predictor {
    uint64_t board_id;
    uint64_t head;
    uint64_t launches;
    enum rhythm_place place;
    int least; /* samples from which they are believed */
    uint32_t section;
    uint32_t cause;
    int count;
    uint64_t sorted_ns[PREDICT_SAMPLES];
};

/* Takes in what the board's ring has gained since the last call; cheap when nothing. */
void predict_refresh(struct predictor *predictor, uint64_t board_id,
                     const struct sfill_training_board *board, uint32_t section, uint32_t cause);

/* The same from the bubbles of one cause alone, whatever their position. */
void predict_by_cause(struct predictor *predictor, uint64_t board_id,
                      const struct sfill_training_board *board, uint32_t section, uint32_t cause);

/* Remainder of a bubble of this age: 25th percentile over the longer ones. False: unknown. */
bool predict_remainder(const struct predictor *predictor, uint64_t age_ns, uint64_t *left_ns);

/* Remainder where that is unknown: it grows with the age, so that whatever a fill has to run gets
 * its turn when a training pauses. */
uint64_t predict_unforeseen(uint64_t age_ns);

/* Would work of this length probably outlast the bubble? By the 12th percentile of the remainder,
 * so that a job with a rhythm finds its GPU free when it comes back. A bubble that has just
 * outlived all seen is expected to end any moment. One that is strange to the rhythm is not
 * expected to last much longer than it has lasted already. False while too few are known. */
bool predict_ends_within(const struct predictor *predictor, uint64_t age_ns, uint64_t length_ns);

/* The same as a length: what is very likely left of a bubble of this age; 0: nothing is known. */
uint64_t predict_left(const struct predictor *predictor, uint64_t age_ns);

/* Median length; 0 while too few are known. */
uint64_t predict_median(const struct predictor *predictor);
#endif
