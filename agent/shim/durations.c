/* durations.c - a bounded table of learned run times. The caller holds the GPU's lock. */
#include "durations.h"
#include <stddef.h>

#define PROBES 8               /* places one shape may stand in */
#define WEIGHT 0.125           /* of a new sample in the mean */
#define MEDIAN_STEP 0.03       /* part of the mean by which a disturbed sample moves it at most */
#define FAR_NS 200000.0        /* launch latency and a late look do not add so much */
#define TRIAL_NS 2000000000ull /* held for so long, an upper bound is doubted */
#define TRIAL_SURE_NS 10000000000ull /* ... or what was measured exactly */
#define TRIALS_MOST 8                /* doublings of both */
#define PEAK_SINKS 0.06              /* how fast an old peak is forgotten, per sample */

static struct duration *find(struct durations *table, uint64_t shape) {
    uint64_t at = shape * 0x9e3779b97f4a7c15ull >> 40;
    for (int i = 0; i < PROBES; i++) {
        struct duration *entry = &table->entries[(at + (uint64_t)i) % DURATIONS_ENTRIES];
        if (entry->shape == shape)
            return entry;
    }
    return NULL;
}

/* A free place for the shape, or that of the least recently used one. */
static struct duration *make_room(struct durations *table, uint64_t shape) {
    uint64_t at = shape * 0x9e3779b97f4a7c15ull >> 40;
    struct duration *oldest = &table->entries[at % DURATIONS_ENTRIES];
    for (int i = 0; i < PROBES; i++) {
        struct duration *entry = &table->entries[(at + (uint64_t)i) % DURATIONS_ENTRIES];
        if (entry->shape == 0) {
            oldest = entry;
            break;
        }
        if (entry->used < oldest->used)
            oldest = entry;
    }
    *oldest = (struct duration){.shape = shape};
    return oldest;
}

const struct duration *durations_use(struct durations *table, uint64_t shape) {
    struct duration *entry = shape ? find(table, shape) : NULL;
    if (entry)
        entry->used = ++table->clock;
    return entry;
}

uint64_t duration_mean(const struct duration *known) {
    return known->mean_ns < 1 ? 1 : (uint64_t)known->mean_ns;
}

uint64_t duration_bound(const struct duration *known) {
    bool spread = known->exact && known->peak_ns > known->mean_ns;
    double bound = known->mean_ns + (spread ? (known->peak_ns - known->mean_ns) / 4 : 0);
    return bound < 1 ? 1 : (uint64_t)bound;
}

bool duration_trusted(const struct duration *known) { return known->exact >= 4; }

bool duration_doubted(const struct duration *known, uint64_t held_ns) {
    uint64_t after_ns = duration_trusted(known) ? TRIAL_SURE_NS : TRIAL_NS;
    return held_ns >> (known->trials < TRIALS_MOST ? known->trials : TRIALS_MOST) >= after_ns;
}

void durations_tried(struct durations *table, uint64_t shape) {
    struct duration *entry = shape ? find(table, shape) : NULL;
    if (!entry)
        return;
    entry->trials++;
    entry->exact = 0; /* what it takes now counts */
}

void durations_forget(struct durations *table, uint64_t shape) {
    struct duration *entry = shape ? find(table, shape) : NULL;
    if (entry)
        *entry = (struct duration){0};
}

void durations_changed(struct durations *table, uint64_t shape) {
    struct duration *entry = shape ? find(table, shape) : NULL;
    if (!entry)
        return;
    entry->changed = true;
    entry->exact = entry->loose = entry->trials = 0;
}

void durations_forget_all(struct durations *table) {
    for (int i = 0; i < DURATIONS_ENTRIES; i++)
        table->entries[i] = (struct duration){0};
}

void durations_disturbed(struct durations *table, uint64_t shape, uint64_t ns) {
    struct duration *entry = shape ? find(table, shape) : NULL;
    if (!entry) {
        durations_learn(table, shape, ns, false);
        return;
    }
    double step = entry->mean_ns * MEDIAN_STEP, away = (double)ns - entry->mean_ns;
    entry->mean_ns += away > step ? step : away < -step ? -step : away;
}

void durations_outlasted(struct durations *table, uint64_t shape, uint64_t least_ns,
                         uint64_t most_ns) {
    struct duration *entry = shape ? find(table, shape) : NULL;
    if (!entry || entry->changed || entry->mean_ns >= (double)least_ns) {
        durations_learn(table, shape, most_ns, false);
        return;
    }
    entry->mean_ns = (double)most_ns;
    entry->used = ++table->clock;
    entry->loose++;
}

/* Loose samples have it forgotten too: an operation thought too long to stand behind another is
 * never measured exactly. */
static void sink_peak(struct duration *entry, double sample, bool exact) {
    bool as_usual = exact || sample <= entry->mean_ns + FAR_NS;
    double least = as_usual ? entry->mean_ns : sample;
    if (entry->peak_ns > least)
        entry->peak_ns -= (entry->peak_ns - least) * PEAK_SINKS;
    if (exact && sample > entry->peak_ns)
        entry->peak_ns = sample;
}

void durations_learn(struct durations *table, uint64_t shape, uint64_t ns, bool exact) {
    if (!shape)
        return;
    struct duration *entry = find(table, shape);
    double sample = (double)ns;
    if (!entry) {
        entry = make_room(table, shape);
        entry->changed = true;
    }
    if (entry->changed)
        entry->mean_ns = entry->peak_ns = sample;
    entry->changed = false;
    entry->used = ++table->clock;
    if (sample < entry->mean_ns / 2)
        entry->trials = 0;
    if (exact && entry->exact == 0 && sample < entry->mean_ns)
        entry->mean_ns = sample; /* all before were only upper bounds */
    else if (!exact && entry->exact == 0)
        entry->mean_ns = sample < entry->mean_ns ? sample : entry->mean_ns;
    else if (exact || sample < entry->mean_ns)
        entry->mean_ns += (sample - entry->mean_ns) * WEIGHT;
    else if (sample > entry->mean_ns + FAR_NS) /* it has become longer, not only seen late */
        entry->mean_ns += (sample - entry->mean_ns) * WEIGHT / 4;
    sink_peak(entry, sample, exact);
    if (exact)
        entry->exact++;
    else
        entry->loose++;
}
