/* hook_nvml.c - NVML's figures of a GPU's memory, in a fill: what its job may take, and has left.
 *
 * Programs that never make a context ask as well (nvidia-smi), and programs that fork before they
 * make one. So asking decides no role: a process that has none yet puts its question to the agent.
 * In a training NVML answers as it is. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "connect.h"
#include "hooks.h"
#include "real.h"

#define ASK_MS 50
enum { NVML_SUCCESS = 0, NVML_ERROR_UNINITIALIZED = 1 };

typedef struct nvml_device *nvml_device;
struct nvml_memory {
    unsigned long long total, free, used;
};
struct nvml_memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

HOOK_EXPORT int nvmlDeviceGetMemoryInfo(nvml_device device, struct nvml_memory *memory);
HOOK_EXPORT int nvmlDeviceGetMemoryInfo_v2(nvml_device device, struct nvml_memory_v2 *memory);

void *nvml_hook(const char *name) {
    if (strcmp(name, "nvmlDeviceGetMemoryInfo") == 0)
        return (void *)nvmlDeviceGetMemoryInfo;
    if (strcmp(name, "nvmlDeviceGetMemoryInfo_v2") == 0)
        return (void *)nvmlDeviceGetMemoryInfo_v2;
    return NULL;
}

void *nvml_real(const char *name) {
    /* Never loads it. What the program has loaded it may unload, so nothing is kept. */
    void *library = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_NOLOAD);
    void *found = library ? real_dlsym()(library, name) : NULL;
    if (library)
        dlclose(library);
    return found;
}

static bool ask_agent(const char *uuid, uint64_t *limit_bytes, uint64_t *held_bytes) {
    char text[512];
    const char *role = getenv("SFILL_ROLE");
    if (!role || strcmp(role, "gate") != 0)
        return false;
    snprintf(text, sizeof text, "memory\nuuid=%s\n", uuid);
    if (!shim_ask(text, sizeof text, ASK_MS))
        return false;
    *limit_bytes = connect_number(text, "limit_bytes");
    *held_bytes = connect_number(text, "held_bytes");
    return *limit_bytes > 0;
}

/* The limit of this process's job on a device, and what the job holds; false: not for us to say. */
static bool limit_of(nvml_device device, uint64_t *limit_bytes, uint64_t *held_bytes) {
    char uuid[96] = "";
    int (*name)(nvml_device, char *, unsigned) =
        (int (*)(nvml_device, char *, unsigned))nvml_real("nvmlDeviceGetUUID");
    if (!name || name(device, uuid, sizeof uuid) != NVML_SUCCESS)
        return false;
    const struct shim_role_ops *role = atomic_load_explicit(&shim_ops, memory_order_acquire);
    if (role && role->memory_of_gpu && role->memory_of_gpu(uuid, limit_bytes, held_bytes))
        return true;
    return role != &monitor_ops && ask_agent(uuid, limit_bytes, held_bytes);
}

static void narrow(nvml_device device, struct nvml_memory *memory) {
    uint64_t limit, held;
    if (!limit_of(device, &limit, &held))
        return;
    memory->total = memory->total < limit ? memory->total : limit;
    memory->used = held < memory->total ? held : memory->total;
    uint64_t left = memory->total - memory->used;
    memory->free = memory->free < left ? memory->free : left;
}

int nvmlDeviceGetMemoryInfo(nvml_device device, struct nvml_memory *memory) {
    int (*real)(nvml_device, struct nvml_memory *) =
        (int (*)(nvml_device, struct nvml_memory *))nvml_real("nvmlDeviceGetMemoryInfo");
    int result = real ? real(device, memory) : NVML_ERROR_UNINITIALIZED;
    if (result == NVML_SUCCESS)
        narrow(device, memory);
    return result;
}

int nvmlDeviceGetMemoryInfo_v2(nvml_device device, struct nvml_memory_v2 *memory) {
    int (*real)(nvml_device, struct nvml_memory_v2 *) =
        (int (*)(nvml_device, struct nvml_memory_v2 *))nvml_real("nvmlDeviceGetMemoryInfo_v2");
    int result = real ? real(device, memory) : NVML_ERROR_UNINITIALIZED;
    if (result != NVML_SUCCESS)
        return result;
    struct nvml_memory plain = {memory->total, memory->free, memory->used};
    narrow(device, &plain);
    if (plain.total != memory->total)
        memory->reserved = 0; /* the driver's own share is none of the job's */
    memory->total = plain.total;
    memory->free = plain.free;
    memory->used = plain.used;
    return result;
}
