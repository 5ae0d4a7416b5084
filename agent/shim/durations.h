/* durations.h - how long does an operation of this shape run on the GPU? Learned as it runs. */
#ifndef SFILL_DURATIONS_H
#define SFILL_DURATIONS_H
#include <stdbool.h>
#include <stdint.h>

#define DURATIONS_ENTRIES 4096 /* shapes remembered; more: the least recently used go */

/* What is known of one shape. Times in ns of GPU time. */
struct duration {
    uint64_t shape; /* 0: free */
    uint64_t used;  /* turn of the table's clock at the latest use */
    double mean_ns;
    double peak_ns;  /* largest lately; sinks towards the mean */
    uint32_t exact;  /* samples that began when an earlier operation ended */
    uint32_t trials; /* that have found it as long as was thought, since it last ran short */
    uint32_t loose;  /* samples that hold launch latency too: upper bounds */
    bool changed;    /* it is another one now; the next sample replaces all before */
};

struct durations {
    uint64_t clock;
    struct duration entries[DURATIONS_ENTRIES];
};

/* Mean in ns, or 0 when the shape has not been seen. */
uint64_t durations_mean(struct durations *table, uint64_t shape);

/* What the shape may well take, in ns, for budgets; 0 when it has not been seen. */
uint64_t durations_bound(struct durations *table, uint64_t shape);

/* Learned from exact measurements? */
bool durations_trusted(struct durations *table, uint64_t shape);

/* Held as too long for so long: is the estimate to be doubted? The operation is then tried as one
 * never seen. Ever more rarely while trials find that it is true. */
bool durations_doubted(struct durations *table, uint64_t shape, uint64_t held_ns);
void durations_tried(struct durations *table, uint64_t shape);

/* Takes in one measurement. Loose ones only lower the mean once exact ones exist. */
void durations_learn(struct durations *table, uint64_t shape, uint64_t ns, bool exact);
/* Takes in a measurement that may hold time of others: moves the mean towards its median. */
void durations_disturbed(struct durations *table, uint64_t shape, uint64_t ns);

/* The shape is no more what it was. forget: nothing is known of it; changed: its next sample is
 * all that is known, until then it counts as what it was. */
void durations_forget(struct durations *table, uint64_t shape);
void durations_changed(struct durations *table, uint64_t shape);
void durations_forget_all(struct durations *table);
#endif
