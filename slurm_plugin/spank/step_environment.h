/* step_environment.h - the environment that makes a task's processes play their role. */
#ifndef SFILL_STEP_ENVIRONMENT_H
#define SFILL_STEP_ENVIRONMENT_H
#include <limits.h>
#include <slurm/spank.h>

enum role_kind { ROLE_UNKNOWN, ROLE_NONE, ROLE_HOST, ROLE_FILL, ROLE_REFUSED };

struct step_role {
    enum role_kind kind;
    char preload[PATH_MAX]; /* libspecinf.so */
    char socket[PATH_MAX];
    char devices[1024];      /* UUIDs for CUDA_VISIBLE_DEVICES (fill) */
    char mps_pipe[PATH_MAX]; /* MPS daemon of the training; empty: time slicing */
    char mps_threads[8];     /* fill: per cent of the GPU's threads */
    int mps_gpus;            /* host: GPUs that its daemon serves */
    char reason[256];        /* refused: why */
};

const char *step_role_name(enum role_kind kind);
void step_environment_fill(spank_t spank, const struct step_role *role);
void step_environment_host(spank_t spank, const struct step_role *role);
/* Clears what a submission from within another job may have brought along. */
void step_environment_none(spank_t spank, const struct step_role *role);
#endif
