/* effects.h - what the engine has done in its process's memory. */
#ifndef SIMGPU_EFFECTS_H
#define SIMGPU_EFFECTS_H
#include "driver.h"

bool effect_value_reached(const struct sim_op *op); /* what it waits or spins for is there */
/* Both locks held; a copy or set lets the world's go meanwhile. */
void effect_apply(const struct sim_op *op);
#endif
