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

void step_environment_fill(spank_t spank, const struct step_role *role) {
    set_preload(spank, role);
    spank_setenv(spank, "SFILL_ROLE", "gate", 1);
    /* Without gres/gpu Slurm sets none of these; what the user's shell brought would mislead. */
    spank_setenv(spank, "CUDA_VISIBLE_DEVICES", role->devices, 1);
    spank_unsetenv(spank, "GPU_DEVICE_ORDINAL");
    spank_unsetenv(spank, "CUDA_DEVICE_ORDER");
}

void step_environment_host(spank_t spank, const struct step_role *role) {
    set_preload(spank, role);
    spank_setenv(spank, "SFILL_ROLE", "monitor", 1);
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
    spank_unsetenv(spank, "SFILL_ROLE");
    spank_unsetenv(spank, "SFILL_SOCKET");
}
