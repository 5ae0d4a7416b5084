/* timeline.h - what the files that compute the simulation share; all is called locked. */
#ifndef SIMGPU_TIMELINE_H
#define SIMGPU_TIMELINE_H
#include "world.h"

static inline bool occupies(const struct sim_op *op) { return op->kind <= SIM_SET; }

/* Who shares the GPU's time: a context by itself, or the clients of an MPS server as one. */
static inline int group_of(uint32_t context) {
    int server = world->contexts[context].server;
    return server < 0 ? (int)context : SIM_CONTEXTS + server;
}

/* timeline.c */
uint64_t timeline_next_step(uint32_t gpu); /* when this GPU next does something by itself */

/* ready.c */
uint64_t ready_time(const struct sim_context *c, const struct sim_stream *s,
                    const struct sim_op *op); /* when all that it waits for was over */
bool runnable(const struct sim_context *c, const struct sim_stream *s,
              const struct sim_op *op); /* can it go on, had its context the GPU? */

/* running.c: the operations that a GPU works on, and how fast */
bool running_add(struct sim_gpu *g, uint32_t stream, uint64_t t); /* starts, or goes on */
void running_remove(struct sim_gpu *g, uint32_t index, uint64_t t);
void running_rate(struct sim_gpu *g, uint64_t t);  /* anew, if the set has changed */
void running_pause(struct sim_gpu *g, uint64_t t); /* takes all off the GPU */
bool running_on(const struct sim_gpu *g, uint32_t stream);
bool running_only_spins(const struct sim_gpu *g); /* nothing that must end before a switch */
uint64_t running_left(const struct sim_gpu *g, uint32_t stream, uint64_t t); /* least GPU time */
#endif
