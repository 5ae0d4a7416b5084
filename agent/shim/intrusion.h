/* intrusion.h - how long ready training work had to wait for this process's work. */
#ifndef SFILL_INTRUSION_H
#define SFILL_INTRUSION_H
#include <stdbool.h>
#include <stdint.h>
#include "board.h"
#include "gate_idle.h"

#define INTRUSION_RUNS 512  /* stretches of our own GPU use remembered */
#define INTRUSION_STARTS 32 /* starts of training remembered, of each kind */

/* A stretch in which the GPU worked for us without a break. */
struct busy_run {
    uint64_t begin_ns, end_ns;
};

/* One training process while a bubble of its GPU is in use. */
struct host_watch {
    uint64_t board_id;
    uint32_t section;
    uint64_t seq;        /* its bubble */
    uint64_t noticed_ns; /* when the end of that bubble was first seen */
    uint64_t resume_ns;  /* host time of the first launch after it; 0: not yet */
    uint64_t asked_ns;   /* when the GPU had been given the first of it and turned to training */
    uint64_t ready_ns;   /* when that launch stood in its queue: from then on it waits */
    uint64_t held_ns;    /* ... or so much later */
    uint64_t started_ns; /* when its GPU was seen past the point before that launch; 0: not yet */
    uint64_t vague_ns;   /* between the looks before and after that moment */
    bool blind;          /* that moment will not be seen any more */
    bool noted;          /* how long that took has been learned from */
    bool busy_before;    /* it had work when we began */
    uint64_t counted_ns; /* waits up to here stand in records already */
};

/* Times that a change of the GPU's hands took; each lies between two bounds. */
struct changes {
    uint64_t least_ns[INTRUSION_STARTS], most_ns[INTRUSION_STARTS];
    uint32_t count;
};

struct intrusion {
    struct host_watch watches[SFILL_MAX_BOARDS];
    int count;
    struct busy_run runs[INTRUSION_RUNS];
    uint64_t runs_head;
    uint64_t last_done_ns;
    uint64_t polled_ns;
    struct changes taken;         /* from training to us, on a GPU that was idle */
    struct changes working, idle; /* back, from our end or from the launch's call */
    struct changes calls;         /* training's launch calls at its returns */
    uint64_t (*clock)(void);      /* NULL: a look takes no time */
};

void intrusion_begin(struct intrusion *in, const struct gate_host *hosts, int count,
                     const char *uuid, uint64_t now_ns);
void intrusion_ran(struct intrusion *in, uint64_t begin_ns, uint64_t end_ns);
/* Our first operation since training had the GPU began so long after its launch. */
void intrusion_took_over(struct intrusion *in, uint64_t start_ns);
/* Looks at training's boards. True once every process that came back has been seen to start
 * (or cannot be seen). */
bool intrusion_poll(struct intrusion *in, const struct gate_host *hosts, int count,
                    uint64_t now_ns);
/* The GPU is back at training, as far as that is known: until then the wait is not over. */
bool intrusion_handed_back(const struct intrusion *in, uint64_t now_ns);
bool intrusion_resumed(const struct intrusion *in);
/* Training came back and is idle again, and our last work ran in that later bubble: its end is
 * to be watched as well. */
bool intrusion_goes_on(const struct intrusion *in, const struct gate_host *hosts, int count);
/* What one watched process waited since the last count, up to now_ns; counts it as told. */
uint64_t intrusion_take(struct intrusion *in, int watch, const struct gate_host *hosts, int count,
                        uint64_t now_ns);
#endif
