/* gate_device.c - which GPU is meant: by uuid, as the agent names GPUs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "gate_driver.h"
#include "gate.h"

static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;

struct gate_gpu *gate_gpu_known(const char *uuid) {
    uint32_t used = atomic_load_explicit(&gate.gpus_used, memory_order_acquire);
    for (uint32_t i = 0; i < used; i++) {
        struct gate_gpu *gpu = atomic_load(&gate.gpus[i]);
        if (gpu && strncmp(gpu->uuid, uuid, SFILL_UUID_BYTES) == 0)
            return gpu;
    }
    return NULL;
}

/* Two megabytes a GPU, mostly untouched: straight from the kernel, not from the program's heap. */
static struct gate_gpu *make(const char *uuid, uint32_t index) {
    struct gate_gpu *gpu =
        mmap(NULL, sizeof *gpu, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (gpu == MAP_FAILED)
        return NULL;
    pthread_mutex_init(&gpu->lock, NULL);
    snprintf(gpu->uuid, sizeof gpu->uuid, "%s", uuid);
    gpu->index = index;
    gpu->face = &gate.board->gpus[index];
    gpu->flight.durations = &gpu->durations;
    gpu->flight.time_of = gate_stream_time;
    gpu->uses.board = gate.board;
    gpu->uses.gpu = index;
    gpu->uses.uuid = gpu->uuid;
    gpu->uses.intrusion.clock = shim_now_ns;
    memcpy(gpu->face->uuid, gpu->uuid, sizeof gpu->uuid);
    atomic_store(&gpu->face->closed_reason, SFILL_CLOSED_STALE);
    return gpu;
}

struct gate_gpu *gate_gpu_named(const char *uuid) {
    if (!gate.board || !uuid[0])
        return NULL;
    struct gate_gpu *gpu = gate_gpu_known(uuid);
    if (gpu)
        return gpu;
    pthread_mutex_lock(&making);
    gpu = gate_gpu_known(uuid);
    uint32_t used = atomic_load(&gate.gpus_used);
    if (!gpu && used < SFILL_MAX_GPUS && (gpu = make(uuid, used))) {
        atomic_store(&gate.gpus[used], gpu);
        atomic_store_explicit(&gate.gpus_used, used + 1, memory_order_release);
        atomic_store_explicit(&gate.board->gpus_used, used + 1, memory_order_release);
    }
    pthread_mutex_unlock(&making);
    return gpu;
}

static void tell(const struct gate_gpu *gpu) {
    char text[96];
    snprintf(text, sizeof text, "gpu\nuuid=%s\n", gpu->uuid);
    shim_send(text);
}

void gate_gpus_tell(void) {
    uint32_t used = atomic_load(&gate.gpus_used);
    for (uint32_t i = 0; i < used; i++)
        if (atomic_load(&atomic_load(&gate.gpus[i])->used))
            tell(atomic_load(&gate.gpus[i]));
}

struct gate_gpu *gate_gpu_asked_of(int device) {
    CUuuid id;
    char uuid[SFILL_UUID_BYTES];
    if (!gate_driver.device_uuid || gate_driver.device_uuid(&id, device) != CUDA_SUCCESS)
        return NULL;
    const unsigned char *b = (const unsigned char *)id.bytes;
    snprintf(uuid, sizeof uuid,
             "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1],
             b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14],
             b[15]);
    return gate_gpu_named(uuid);
}

struct gate_gpu *gate_gpu_of_device(int device) {
    struct gate_gpu *gpu = gate_gpu_asked_of(device);
    if (gpu && !atomic_exchange(&gpu->used, true))
        tell(gpu);
    return gpu;
}
