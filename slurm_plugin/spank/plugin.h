/* plugin.h - what the dispatcher (plugin.c) asks of the files that do the work, one a context. */
#ifndef SFILL_PLUGIN_H
#define SFILL_PLUGIN_H
#include <slurm/spank.h>
#include <stdbool.h>
#include "arguments.h"

extern struct arguments arguments; /* plugin.c */

enum option { OPTION_FILL = 1, OPTION_FILL_HOST = 2 };

/* allocator.c: sbatch, salloc, srun */
void allocator_start(spank_t spank);
void allocator_option(enum option option, const char *value);
int allocator_options_done(spank_t spank);

/* daemon.c: slurmd */
void daemon_start(void);

/* step.c: slurmstepd */
void step_option(enum option option);
int step_options_done(spank_t spank);
int step_task_privileged(spank_t spank);
int step_task(spank_t spank);
#endif
