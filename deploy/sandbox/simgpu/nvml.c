/* nvml.c - a stand-in for libnvidia-ml.so.1: what there is, who uses it and how much. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "driver.h"

typedef int nvmlReturn_t;
enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_UNKNOWN = 999
};

typedef struct sim_nvml_device {
    uint32_t minor;
} * nvmlDevice_t;

struct memory_v1 {
    unsigned long long total, free, used;
};
struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};
struct process_v1 {
    unsigned pid;
    unsigned long long used;
};
struct process_v2 { /* v3 has the same layout */
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};
struct pci {
    char legacy_id[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char id[32];
};

static struct sim_nvml_device devices[SIM_GPUS];
static unsigned starts; /* nested initialisations */
static pthread_mutex_t start_lock = PTHREAD_MUTEX_INITIALIZER;

static nvmlReturn_t start(void) {
    nvmlReturn_t result = NVML_SUCCESS;
    pthread_mutex_lock(&start_lock);
    if (!starts && devices_find(true))
        result = NVML_ERROR_DRIVER_NOT_LOADED;
    else if (!world_open())
        result = NVML_ERROR_UNKNOWN;
    if (!result) {
        starts++;
        for (unsigned i = 0; i < devices_count(); i++)
            devices[i].minor = device_minor((CUdevice)i);
    }
    pthread_mutex_unlock(&start_lock);
    return result;
}

EXPORT nvmlReturn_t nvmlInit_v2(void) { return start(); }
EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    return start();
}

EXPORT nvmlReturn_t nvmlShutdown(void) {
    pthread_mutex_lock(&start_lock);
    nvmlReturn_t result = starts ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
    if (starts)
        starts--;
    pthread_mutex_unlock(&start_lock);
    return result;
}

EXPORT const char *nvmlErrorString(nvmlReturn_t code) {
    switch (code) {
    case NVML_SUCCESS:
        return "Success";
    case NVML_ERROR_UNINITIALIZED:
        return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT:
        return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED:
        return "Not Supported";
    case NVML_ERROR_NOT_FOUND:
        return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE:
        return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED:
        return "Driver Not Loaded";
    default:
        return "Unknown Error";
    }
}

static nvmlReturn_t check(const void *out) {
    if (!starts)
        return NVML_ERROR_UNINITIALIZED;
    return out ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

static nvmlReturn_t check_device(nvmlDevice_t device, const void *out) {
    nvmlReturn_t bad = check(out);
    if (bad)
        return bad;
    return device >= devices && device < devices + devices_count() ? NVML_SUCCESS
                                                                   : NVML_ERROR_INVALID_ARGUMENT;
}

static nvmlReturn_t put(char *text, unsigned size, const char *value) {
    if (strlen(value) >= size)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(text, value);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *text, unsigned size) {
    nvmlReturn_t bad = check(text);
    return bad ? bad : put(text, size, "580.00-simulated");
}
EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *text, unsigned size) {
    nvmlReturn_t bad = check(text);
    return bad ? bad : put(text, size, "13.580.00-simulated");
}
EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    nvmlReturn_t bad = check(version);
    if (!bad)
        *version = 13000;
    return bad;
}
EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) {
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) {
    nvmlReturn_t bad = check(count);
    if (!bad)
        *count = devices_count();
    return bad;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) {
    nvmlReturn_t bad = check(device);
    if (!bad && index >= devices_count())
        bad = NVML_ERROR_INVALID_ARGUMENT;
    if (!bad)
        *device = &devices[index];
    return bad;
}

static void uuid_text(uint32_t minor, char text[48]) {
    snprintf(text, 48, "GPU-00000000-0000-0000-0000-%012u", minor);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    nvmlReturn_t bad = check(device);
    if (bad || !uuid)
        return bad ? bad : NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned i = 0; i < devices_count(); i++) {
        char text[48];
        uuid_text(devices[i].minor, text);
        if (!strcasecmp(text, uuid)) {
            *device = &devices[i];
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *device) {
    unsigned domain, bus;
    nvmlReturn_t bad = check(device);
    if (bad || !id || sscanf(id, "%x:%x", &domain, &bus) != 2)
        return bad ? bad : NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned i = 0; i < devices_count(); i++)
        if (devices[i].minor + 1 == bus) {
            *device = &devices[i];
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *text, unsigned size) {
    char uuid[48];
    nvmlReturn_t bad = check_device(device, text);
    if (bad)
        return bad;
    uuid_text(device->minor, uuid);
    return put(text, size, uuid);
}
EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *text, unsigned size) {
    nvmlReturn_t bad = check_device(device, text);
    return bad ? bad : put(text, size, "Simulated GPU");
}
EXPORT nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *minor) {
    nvmlReturn_t bad = check_device(device, minor);
    if (!bad)
        *minor = device->minor;
    return bad;
}
EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index) {
    nvmlReturn_t bad = check_device(device, index);
    if (!bad)
        *index = (unsigned)(device - devices);
    return bad;
}
EXPORT nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, int *mode) {
    nvmlReturn_t bad = check_device(device, mode);
    if (!bad)
        *mode = 0;
    return bad;
}
EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *now, unsigned *pending) {
    (void)pending;
    nvmlReturn_t bad = check_device(device, now);
    return bad ? bad : NVML_ERROR_NOT_SUPPORTED;
}
EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major,
                                                       int *minor) {
    nvmlReturn_t bad = check_device(device, major);
    if (!bad) {
        *major = 9;
        *minor = 0;
    }
    return bad;
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, struct pci *pci) {
    nvmlReturn_t bad = check_device(device, pci);
    if (bad)
        return bad;
    memset(pci, 0, sizeof *pci);
    pci->bus = device->minor + 1;
    snprintf(pci->legacy_id, sizeof pci->legacy_id, "0000:%02X:00.0", pci->bus);
    snprintf(pci->id, sizeof pci->id, "00000000:%02X:00.0", pci->bus);
    return NVML_SUCCESS;
}

static uint64_t used_now(uint32_t minor) {
    world_lock();
    uint64_t used = gpu_memory_used(minor);
    world_unlock();
    return used;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, struct memory_v1 *memory) {
    nvmlReturn_t bad = check_device(device, memory);
    if (bad)
        return bad;
    uint64_t used = used_now(device->minor);
    *memory = (struct memory_v1){world->memory_bytes, world->memory_bytes - used, used};
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, struct memory_v2 *memory) {
    nvmlReturn_t bad = check_device(device, memory);
    if (bad)
        return bad;
    uint64_t used = used_now(device->minor);
    *memory = (struct memory_v2){memory->version, world->memory_bytes, 0,
                                 world->memory_bytes - used, used};
    return NVML_SUCCESS;
}

static bool has_context(uint32_t process, uint32_t minor) {
    for (uint32_t i = 0; i < world->contexts_top; i++)
        if (world->contexts[i].used && world->contexts[i].process == process &&
            world->contexts[i].gpu == minor)
            return true;
    return false;
}

/* Processes with a context on the device. *count: room on entry, number on return. */
static nvmlReturn_t running(nvmlDevice_t device, unsigned *count, void *out, bool first_version) {
    nvmlReturn_t result = check_device(device, count);
    if (result)
        return result;
    unsigned room = *count, found = 0;
    world_lock();
    process_reap();
    for (uint32_t i = 0; i < SIM_PROCESSES; i++) {
        const struct sim_process *p = &world->processes[i];
        if (!p->used || !has_context(i, device->minor))
            continue;
        uint64_t used = p->memory_bytes[device->minor];
        if (found < room && out && first_version)
            ((struct process_v1 *)out)[found] = (struct process_v1){(unsigned)p->pid, used};
        else if (found < room && out)
            ((struct process_v2 *)out)[found] =
                (struct process_v2){(unsigned)p->pid, used, UINT32_MAX, UINT32_MAX};
        found++;
    }
    world_unlock();
    *count = found;
    return found > room || (found && !out) ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned *count,
                                                         void *out) {
    return running(device, count, out, true);
}
EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned *count,
                                                            void *out) {
    return running(device, count, out, false);
}
EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                            void *out) {
    return running(device, count, out, false);
}
EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                             void *out) {
    (void)out;
    nvmlReturn_t bad = check_device(device, count);
    if (!bad)
        *count = 0;
    return bad;
}

/* Share of time in which the compute engine was busy, over the last tenth of a second or since
 * somebody last asked, whichever is longer. */
EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, unsigned *rates) {
    nvmlReturn_t bad = check_device(device, rates);
    if (bad)
        return bad;
    struct sim_gpu *g = &world->gpus[device->minor];
    world_lock();
    uint64_t span = world->now_ns - g->sample_ns;
    if (span >= 100000000ull) {
        uint64_t busy = g->busy_ns - g->sample_busy_ns;
        g->utilization = g->sample_ns ? busy * 100 / span : 0;
        g->utilization = g->utilization > 100 ? 100 : g->utilization;
        g->sample_ns = world->now_ns;
        g->sample_busy_ns = g->busy_ns;
    }
    rates[0] = (unsigned)g->utilization;
    world_unlock();
    rates[1] = 0;
    return NVML_SUCCESS;
}
