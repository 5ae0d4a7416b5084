/* monitor_memory.c - memory that a fill holds is training's as soon as training wants it.
 *
 * A call that fails for lack of memory while fills are about asks the agent, which kills the fills
 * of that GPU and answers when they are gone; the call is then made again. Without an agent, with
 * a slow one or without fills the program gets the driver's error as it is. */
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "monitor.h"

#define ASK_MS 50             /* longest wait for a figure */
#define KEPT_NS 50000000ull   /* a figure is good for so long */
#define AGAIN_MS 5            /* between tries: a driver frees a killed process's memory late */
#define TRIES_MOST 100u       /* half a second of them */
#define RESCUE_MOST_MS 120000 /* whatever an agent says */

static uint64_t rescue_ms;

void monitor_rescue_within(uint64_t most_ms) {
    rescue_ms = most_ms < RESCUE_MOST_MS ? most_ms : RESCUE_MOST_MS;
}

/* -1: the GPU of the current context. */
static bool name_gpu(int device, char name[SFILL_UUID_BYTES]) {
    CUuuid uuid;
    if (device < 0 && monitor_driver.context_device(&device) != CUDA_SUCCESS)
        return false;
    if (monitor_driver.device_uuid(&uuid, device) != CUDA_SUCCESS)
        return false;
    monitor_format_uuid(name, &uuid);
    return true;
}

static bool answer_is(const char *text, const char *verb) {
    size_t length = strlen(verb);
    return strncmp(text, verb, length) == 0 && (text[length] == '\n' || text[length] == 0);
}

bool monitor_memory_short(int device, uint64_t bytes, unsigned tries) {
    char text[512], uuid[SFILL_UUID_BYTES];
    if (tries > 0) {
        poll(NULL, 0, AGAIN_MS);
        return tries < TRIES_MOST;
    }
    /* A process that makes its first context there is not known to use the GPU yet: the agent
     * says at once if there is no fill. */
    bool known = device < 0;
    if (!rescue_ms || (known && !atomic_load(&monitor_board->fill_present)) ||
        atomic_load(&monitor_exiting) || !name_gpu(device, uuid))
        return false;
    snprintf(text, sizeof text, "rescue\nuuid=%s\nbytes=%llu\n", uuid, (unsigned long long)bytes);
    bool freed = shim_ask(text, sizeof text, (int)rescue_ms) && answer_is(text, "ok");
    if (freed)
        shim_log(2, "memory was short: fill has left %s", uuid);
    return freed;
}

/* What fills hold on the GPU of the current context; 0 when nobody says. */
static uint64_t fill_bytes(void) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static uint64_t asked_ns, figure;
    static char asked_uuid[SFILL_UUID_BYTES];
    char text[512], uuid[SFILL_UUID_BYTES];
    if (!name_gpu(-1, uuid))
        return 0;
    pthread_mutex_lock(&lock);
    uint64_t now_ns = shim_now_ns();
    if (strcmp(uuid, asked_uuid) != 0 || now_ns - asked_ns > KEPT_NS) {
        snprintf(text, sizeof text, "fill_memory\nuuid=%s\n", uuid);
        bool answered = shim_ask(text, sizeof text, ASK_MS) && answer_is(text, "fill_memory");
        const char *bytes = answered ? strstr(text, "\nbytes=") : NULL;
        figure = bytes ? strtoull(bytes + 7, NULL, 10) : 0;
        asked_ns = now_ns;
        memcpy(asked_uuid, uuid, sizeof uuid);
    }
    uint64_t found = figure;
    pthread_mutex_unlock(&lock);
    return found;
}

void monitor_memory_info(size_t *free_bytes, size_t *total_bytes) {
    if (!rescue_ms || !atomic_load(&monitor_board->fill_present))
        return;
    uint64_t held = fill_bytes(), used = *total_bytes - *free_bytes;
    *free_bytes += held < used ? held : used;
}
