/* inject.c - kernels that misbehave, for tests: by their name, or by the environment of the
 * process: SIMGPU_ENDLESS_KERNEL or SIMGPU_FAULT_KERNEL = NAME, or NAME:N for its Nth launch only.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "driver.h"

struct wish {
    const char *variable;
    const char *always; /* names that begin so */
    uint16_t flags;
    _Atomic unsigned long launches; /* of the kernel that the variable names */
};

static struct wish wishes[] = {{"SIMGPU_ENDLESS_KERNEL", "sim_endless", SIM_SPINS, 0},
                               {"SIMGPU_FAULT_KERNEL", "sim_illegal_address", SIM_FAULTS, 0}};

static bool granted(struct wish *w, const char *name) {
    if (!strncmp(name, w->always, strlen(w->always)))
        return true;
    const char *text = getenv(w->variable);
    if (!text || !*text)
        return false;
    const char *colon = strchr(text, ':');
    size_t length = colon ? (size_t)(colon - text) : strlen(text);
    if (strlen(name) != length || strncmp(name, text, length))
        return false;
    unsigned long launch = atomic_fetch_add(&w->launches, 1) + 1;
    return !colon || launch == strtoul(colon + 1, NULL, 10);
}

uint16_t injected_flags(const char *kernel) {
    uint16_t flags = 0;
    for (size_t i = 0; i < sizeof wishes / sizeof *wishes; i++)
        if (granted(&wishes[i], kernel))
            flags |= wishes[i].flags;
    return flags;
}
