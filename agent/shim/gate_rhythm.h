/* gate_rhythm.h - where in its rhythm a host's bubble stands, from the launches between bubbles. */
#ifndef SFILL_GATE_RHYTHM_H
#define SFILL_GATE_RHYTHM_H
#include <stdbool.h>
#include <stdint.h>
#include "board.h"

#define RHYTHM_LEAST 4 /* bubbles seen at one position from which on it is known */
#define RHYTHM_NEW 2   /* ... after the lengths there have changed */

enum rhythm_place {
    RHYTHM_NONE = 0,   /* the job shows none, or too little has been seen */
    RHYTHM_KNOWN = 1,  /* the lengths are those of earlier bubbles at this position */
    RHYTHM_STRANGE = 2 /* the job has a rhythm, and this bubble is not part of it */
};

/* Looks for earlier bubbles at the position at which the GPU is idle now, and gives the lengths of
 * the newest `most` of them, newest first. `head` is the ring's. */
enum rhythm_place rhythm_find(const struct sfill_training_board *board, uint64_t head,
                              uint32_t section, uint64_t *lengths_ns, int most, int *count);
#endif
