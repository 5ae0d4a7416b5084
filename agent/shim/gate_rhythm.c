/* gate_rhythm.c - positions in a job's iteration.
 *
 * A position is the number of launches since the last long bubble, or, where that is not known,
 * the launches between the last three. An iteration launches the same each time, so a short bubble
 * (the optimizer's gap) and a long one (waiting for data) stand at positions of their own and are
 * not mixed. Long is what is at least half as long as the eighth longest of the recent bubbles: a
 * single checkpoint does not count, and an iteration may have some thirty bubbles.
 *
 * Where the newest lengths at a position all differ from the older ones (another batch size), the
 * older are dropped. A position never seen in a job that otherwise keeps its rhythm (evaluation,
 * checkpoint) is strange: nothing that was learned holds there. */
#include "gate_rhythm.h"
#include <stddef.h>

#define LOAD(x) atomic_load_explicit(&(x), memory_order_acquire)
/* Far less than the ring, so that the monitor cannot overwrite what is being read. */
#define LOOK_BACK 256
#define LONGEST 8 /* the one of these that comes last tells what is long */
#define RHYTHM_RECENT                                                                              \
    8                 /* so many bubbles tell whether there is a rhythm: half of them at least     \
                       */
#define SHIFT_LEAST 4 /* older lengths that the newest are compared with */

/* Launches that lead up to a bubble. */
struct position {
    uint64_t since_long;   /* since the last long bubble */
    uint64_t since_last;   /* since the bubble before it */
    uint64_t since_second; /* from the bubble before that one to that one */
};

/* What of it must be the same. */
enum key { KEY_LONG, KEY_STEPS };

struct past {
    uint64_t length_ns;
    uint64_t launches; /* at its end */
    struct position position;
    bool after_long, after_two; /* there were such bubbles before it */
};

/* Launches of threads that overlap a bubble's edge, and of what a loader does now and then. */
static bool alike(uint64_t one, uint64_t other) {
    uint64_t apart = one > other ? one - other : other - one;
    return apart <= 2 + one / 64;
}

static bool same_position(const struct position *one, const struct position *other, enum key key) {
    if (key == KEY_LONG)
        return alike(one->since_long, other->since_long);
    return alike(one->since_last, other->since_last) &&
           alike(one->since_second, other->since_second);
}

static uint64_t long_from(const struct past *past, int count) {
    uint64_t top[LONGEST] = {0};
    for (int i = 0; i < count; i++) {
        uint64_t length = past[i].length_ns;
        for (int k = 0; k < LONGEST; k++)
            if (length > top[k]) {
                uint64_t pushed = top[k];
                top[k] = length;
                length = pushed;
            }
    }
    return top[LONGEST - 1] / 2;
}

/* Reads the ring, oldest first. */
static int read_past(const struct sfill_training_board *board, uint64_t head, uint32_t section,
                     struct past past[LOOK_BACK]) {
    int count = 0;
    for (uint64_t i = head > LOOK_BACK ? head - LOOK_BACK : 0; i < head; i++) {
        const struct sfill_bubble *bubble = &board->bubbles[i % SFILL_BUBBLE_RING];
        if (bubble->gpu == section && bubble->end_ns > bubble->begin_ns)
            past[count++] = (struct past){.length_ns = bubble->end_ns - bubble->begin_ns,
                                          .launches = bubble->launches};
    }
    return count;
}

/* Places what is past, and says where the bubble stands that comes after so many launches. */
static struct position place(struct past *past, int count, uint64_t launches) {
    uint64_t least_long = long_from(past, count), anchor = 0;
    bool anchored = false;
    struct position position = {0};
    for (int i = 0; i <= count; i++) {
        uint64_t now = i < count ? past[i].launches : launches;
        position.since_long = now - anchor;
        position.since_last = now - (i > 0 ? past[i - 1].launches : 0);
        position.since_second = i > 1 ? past[i - 1].launches - past[i - 2].launches : 0;
        if (i == count)
            break;
        past[i].position = position;
        past[i].after_long = anchored;
        past[i].after_two = i > 1;
        if (past[i].length_ns >= least_long) {
            anchored = true;
            anchor = now;
        }
    }
    return position;
}

/* Lengths at a position, newest first; only counted where `lengths_ns` is NULL. */
static int find(const struct past *past, int count, const struct position *position, enum key key,
                uint64_t *lengths_ns, int most) {
    int found = 0;
    for (int i = count - 1; i >= 0 && found < most; i--) {
        bool placed = key == KEY_LONG ? past[i].after_long : past[i].after_two;
        if (!placed || !same_position(position, &past[i].position, key))
            continue;
        if (lengths_ns)
            lengths_ns[found] = past[i].length_ns;
        found++;
    }
    return found;
}

static bool has_rhythm(const struct past *past, int count) {
    int recent = 0;
    for (int i = count - RHYTHM_RECENT; i < count; i++)
        recent +=
            i >= 0 && past[i].after_two &&
            find(past, count, &past[i].position, KEY_STEPS, NULL, RHYTHM_LEAST + 1) > RHYTHM_LEAST;
    return recent >= RHYTHM_RECENT / 2;
}

/* Are `newer` lengths all shorter, or all longer, than all before them? */
static bool shifted(const uint64_t *lengths, int newer, int count) {
    uint64_t least = UINT64_MAX, most = 0;
    for (int i = newer; i < count; i++) {
        least = lengths[i] < least ? lengths[i] : least;
        most = lengths[i] > most ? lengths[i] : most;
    }
    bool shorter = true, longer = true;
    for (int i = 0; i < newer; i++) {
        shorter &= lengths[i] < least - least / 8;
        longer &= lengths[i] > most + most / 8;
    }
    return shorter || longer;
}

/* How many of the lengths, newest first, still hold. */
static int still_valid(const uint64_t *lengths, int count) {
    for (int newer = RHYTHM_NEW; newer + SHIFT_LEAST <= count; newer++)
        if (shifted(lengths, newer, count))
            return newer;
    return count;
}

enum rhythm_place rhythm_find(const struct sfill_training_board *board, uint64_t head,
                              uint32_t section, uint64_t *lengths_ns, int most, int *count) {
    struct past past[LOOK_BACK];
    int known = read_past(board, head, section, past);
    *count = 0;
    if (known < LONGEST)
        return RHYTHM_NONE;
    /* Records count the launch that ended them; here it has not come yet. */
    struct position here = place(past, known, LOAD(board->gpus[section].launches) + 1);
    for (enum key key = KEY_LONG; key <= KEY_STEPS; key++) {
        int found = find(past, known, &here, key, lengths_ns, most);
        if (found < RHYTHM_LEAST)
            continue;
        *count = still_valid(lengths_ns, found);
        return RHYTHM_KNOWN;
    }
    return has_rhythm(past, known) ? RHYTHM_STRANGE : RHYTHM_NONE;
}
