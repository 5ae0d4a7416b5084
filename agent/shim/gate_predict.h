/* gate_predict.h - how long will this bubble last? From the host's own recent bubbles. */
#ifndef SFILL_GATE_PREDICT_H
#define SFILL_GATE_PREDICT_H
#include <stdbool.h>
#include <stdint.h>
#include "board.h"

#define PREDICT_SAMPLES 32 /* recent bubbles of one cause that a prediction rests on */
#define PREDICT_LEAST 4    /* fewer longer ones than that: the remainder is unknown */
#define PREDICT_STEADY 8   /* samples from which a rhythm is believed */

/* Lengths of the host's recent bubbles of one cause on one GPU, sorted. */
struct predictor {
    uint64_t board_id;
    uint64_t head;
    uint32_t section;
    uint32_t cause;
    int count;
    uint64_t sorted_ns[PREDICT_SAMPLES];
};

/* Takes in what the board's ring has gained since the last call; cheap when nothing. */
void predict_refresh(struct predictor *predictor, uint64_t board_id,
                     const struct sfill_training_board *board, uint32_t section, uint32_t cause);

/* Remainder of a bubble of this age: 25th percentile over the longer ones. False: unknown. */
bool predict_remainder(const struct predictor *predictor, uint64_t age_ns, uint64_t *left_ns);

/* Would work of this length probably outlast the bubble? By the 12th percentile of the remainder,
 * so that a job with a rhythm finds its GPU free when it comes back. A bubble that has just
 * outlived all seen is expected to end any moment. False while fewer than PREDICT_STEADY are
 * known. */
bool predict_ends_within(const struct predictor *predictor, uint64_t age_ns, uint64_t length_ns);

/* The same as a length: what is very likely left of a bubble of this age; 0: nothing is known. */
uint64_t predict_left(const struct predictor *predictor, uint64_t age_ns);

/* Median length; 0 while fewer than PREDICT_STEADY are known. */
uint64_t predict_median(const struct predictor *predictor);
#endif
