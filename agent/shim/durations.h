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

/* What is known of a shape about to be used; NULL when it has not been seen. */
const struct duration *durations_use(struct durations *table, uint64_t shape);

uint64_t duration_mean(const struct duration *known);  /* in ns, never 0 */
uint64_t duration_bound(const struct duration *known); /* what it may well take, for budgets */
bool duration_trusted(const struct duration *known);   /* learned from exact measurements */

/* Held as too long for so long: is the estimate to be doubted? The operation is then tried as one
 * never seen. Ever more rarely while trials find that it is true. */
bool duration_doubted(const struct duration *known, uint64_t held_ns);
void durations_tried(struct durations *table, uint64_t shape);

/* Takes in one measurement. Loose ones only lower the mean once exact ones exist. */
void durations_learn(struct durations *table, uint64_t shape, uint64_t ns, bool exact);
/* Takes in a measurement that may hold time of others: moves the mean towards its median. */
void durations_disturbed(struct durations *table, uint64_t shape, uint64_t ns);
/* Takes in one that had not ended after least_ns, and had at most_ns with others beside it: what
 * was thought to take less is thought to take the most, or else it would outlast every bubble. */
void durations_outlasted(struct durations *table, uint64_t shape, uint64_t least_ns,
                         uint64_t most_ns);

/* The shape is no more what it was. forget: nothing is known of it; changed: its next sample is
 * all that is known, until then it counts as what it was. */
void durations_forget(struct durations *table, uint64_t shape);
void durations_changed(struct durations *table, uint64_t shape);
void durations_forget_all(struct durations *table);
#endif
