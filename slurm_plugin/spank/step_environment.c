/* step_environment.c - see step_environment.h */
#include "step_environment.h"
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PRELOAD_SIZE 16384

const char *step_role_name(enum role_kind kind) {
    static const char *names[] = {"unknown", "none", "host", "fill", "refused"};
    return names[kind];
}

/* The user's LD_PRELOAD without our library, wherever it stood in the list. */
static void others(spank_t spank, const char *own, char out[PRELOAD_SIZE]) {
    char list[PRELOAD_SIZE];
    size_t used = 0;
    out[0] = 0;
    if (spank_getenv(spank, "LD_PRELOAD", list, sizeof list) != ESPANK_SUCCESS)
        return;
    for (char *save = NULL, *word = strtok_r(list, ": ", &save); word;
         word = strtok_r(NULL, ": ", &save))
        if (strcmp(word, own))
            used +=
                (size_t)snprintf(out + used, PRELOAD_SIZE - used, "%s%s", used ? ":" : "", word);
}

static void set_preload(spank_t spank, const struct step_role *role) {
    char list[PRELOAD_SIZE], whole[PRELOAD_SIZE + PATH_MAX + 1];
    others(spank, role->preload, list);
    snprintf(whole, sizeof whole, "%s%s%s", role->preload, *list ? ":" : "", list);
    spank_setenv(spank, "LD_PRELOAD", whole, 1);
    spank_setenv(spank, "SFILL_SOCKET", role->socket, 1);
}

/* What a submission from within another job has brought along: that job's daemon. */
static void clear_mps(spank_t spank) {
    char pipe[PATH_MAX], own[PATH_MAX];
    if (spank_getenv(spank, "SFILL_MPS_PIPE", own, sizeof own) != ESPANK_SUCCESS)
        return;
    spank_unsetenv(spank, "SFILL_MPS_PIPE");
    if (spank_getenv(spank, "CUDA_MPS_PIPE_DIRECTORY", pipe, sizeof pipe) == ESPANK_SUCCESS &&
        !strcmp(pipe, own))
        spank_unsetenv(spank, "CUDA_MPS_PIPE_DIRECTORY");
}

static void set_mps(spank_t spank, const struct step_role *role) {
    spank_setenv(spank, "CUDA_MPS_PIPE_DIRECTORY", role->mps_pipe, 1);
    spank_setenv(spank, "SFILL_MPS_PIPE", role->mps_pipe, 1);
}

/* A daemon counts the GPUs of its job from 0, as Slurm does where it constrains devices. Where it
 * does not, a task's numbers are the node's: under MPS they would mean other GPUs, or none. */
static bool counts_as_daemon(spank_t spank, const struct step_role *role) {
    char list[1024];
    if (spank_getenv(spank, "CUDA_VISIBLE_DEVICES", list, sizeof list) != ESPANK_SUCCESS)
        return true;
    for (char *save = NULL, *word = strtok_r(list, ",", &save); word;
         word = strtok_r(NULL, ",", &save)) {
        char *end;
        long index = strtol(word, &end, 10);
        if (*end == 0 && end != word && index >= role->mps_gpus)
            return false;
    }
    return true;
}

void step_environment_fill(spank_t spank, const struct step_role *role) {
    set_preload(spank, role);
    spank_setenv(spank, "SFILL_ROLE", "gate", 1);
    /* Without gres/gpu Slurm sets none of these; what the user's shell brought would mislead. */
    spank_setenv(spank, "CUDA_VISIBLE_DEVICES", role->devices, 1);
    spank_unsetenv(spank, "GPU_DEVICE_ORDINAL");
    spank_unsetenv(spank, "CUDA_DEVICE_ORDER");
    clear_mps(spank);
    if (!*role->mps_pipe) { /* a fill chooses no MPS daemon of its own */
        spank_unsetenv(spank, "CUDA_MPS_PIPE_DIRECTORY");
        return;
    }
    set_mps(spank, role);
    spank_setenv(spank, "CUDA_MPS_CLIENT_PRIORITY", "1", 1); /* below the training's */
    spank_setenv(spank, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", role->mps_threads, 1);
}

void step_environment_host(spank_t spank, const struct step_role *role) {
    set_preload(spank, role);
    spank_setenv(spank, "SFILL_ROLE", "monitor", 1);
    clear_mps(spank);
    if (!*role->mps_pipe)
        return;
    if (counts_as_daemon(spank, role))
        set_mps(spank, role);
    else
        slurm_error("spank_fill: a task runs without MPS: its CUDA_VISIBLE_DEVICES counts the "
                    "node's GPUs; MPS needs ConstrainDevices=yes in cgroup.conf");
}

void step_environment_none(spank_t spank, const struct step_role *role) {
    char before[PRELOAD_SIZE], list[PRELOAD_SIZE];
    if (*role->preload &&
        spank_getenv(spank, "LD_PRELOAD", before, sizeof before) == ESPANK_SUCCESS &&
        strstr(before, role->preload)) {
        others(spank, role->preload, list);
        if (*list)
            spank_setenv(spank, "LD_PRELOAD", list, 1);
        else
            spank_unsetenv(spank, "LD_PRELOAD");
    }
    clear_mps(spank);
    spank_unsetenv(spank, "SFILL_ROLE");
    spank_unsetenv(spank, "SFILL_SOCKET");
}
