/* world.c - making, mapping and locking the simulated machine. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <limits.h>
#include "world.h"

struct sim_world *world;

uint64_t sim_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static void read_boot_id(char *text, size_t size) {
    memset(text, 0, size);
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (!file)
        return;
    if (!fgets(text, (int)size, file))
        text[0] = 0;
    fclose(file);
}

static void initialise(struct sim_world *w) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&w->lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
    read_boot_id(w->boot_id, sizeof w->boot_id);
    w->size_bytes = sizeof *w;
    w->now_ns = sim_now_ns();
    w->slice_ns = settings_number("SIMGPU_SLICE_US", "slice_us", 1000) * 1000;
    w->switch_ns = settings_number("SIMGPU_SWITCH_US", "switch_us", 130) * 1000;
    w->memory_bytes = settings_number("SIMGPU_MEMORY_MB", "memory_mb", 24576) << 20;
    if (!w->slice_ns)
        w->slice_ns = 1000;
    w->names_count = 1;
    strcpy(w->names[0], "(other)");
    for (uint32_t gpu = 0; gpu < SIM_GPUS; gpu++)
        w->gpus[gpu].holder = w->gpus[gpu].next = -1;
    w->magic = SIM_MAGIC;
}

/* No O_CREAT on a file that exists: a sticky directory refuses that to other users. */
static int open_shared(const char *path) {
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0 || errno != ENOENT)
        return fd;
    fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0 && errno == EEXIST)
        return open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0 && fchmod(fd, 0666)) {
        close(fd);
        return -1;
    }
    return fd;
}

/* A state of another boot or layout is of no use: its clock and its processes are gone. */
static bool usable(const struct sim_world *w) {
    char boot_id[sizeof w->boot_id];
    read_boot_id(boot_id, sizeof boot_id);
    return w->magic == SIM_MAGIC && w->size_bytes == sizeof *w && !strcmp(w->boot_id, boot_id);
}

static struct sim_world *map_file(int fd) {
    struct stat status;
    if (flock(fd, LOCK_EX) || fstat(fd, &status))
        return NULL;
    if ((size_t)status.st_size < sizeof(struct sim_world) &&
        ftruncate(fd, sizeof(struct sim_world)))
        return NULL;
    struct sim_world *w = mmap(NULL, sizeof *w, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (w == MAP_FAILED)
        return NULL;
    if (!usable(w)) {
        /* Emptied by truncation, so that the file stays sparse. */
        if (ftruncate(fd, 0) || ftruncate(fd, sizeof *w)) {
            munmap(w, sizeof *w);
            return NULL;
        }
        initialise(w);
    }
    flock(fd, LOCK_UN);
    return w;
}

bool world_open(void) {
    if (world)
        return true;
    char path[PATH_MAX];
    const char *dir = settings_state_dir();
    if (!dir || snprintf(path, sizeof path, "%s/machine.bin", dir) >= (int)sizeof path)
        return false;
    if (!mkdir(dir, 0777) && chmod(dir, 0777)) {
        fprintf(stderr, "simgpu: cannot open the state directory %s to all users: %s\n", dir,
                strerror(errno));
        return false;
    }
    int fd = open_shared(path);
    struct sim_world *w = fd < 0 ? NULL : map_file(fd);
    if (!w)
        fprintf(stderr, "simgpu: cannot use %s: %s\n", path, strerror(errno));
    if (fd >= 0)
        close(fd);
    world = w;
    return w != NULL;
}

void world_lock(void) {
    if (pthread_mutex_lock(&world->lock) == EOWNERDEAD) {
        pthread_mutex_consistent(&world->lock);
        contexts_rebuild();
    }
    uint64_t now = sim_now_ns();
    timeline_advance(now);
    if (now - world->reaped_ns >= SIM_REAP_NS) {
        world->reaped_ns = now;
        process_reap();
    }
}

void world_unlock(void) {
    timeline_advance(world->now_ns); /* what was issued meanwhile starts at once */
    pthread_mutex_unlock(&world->lock);
}

uint32_t world_name(const char *name) {
    for (uint32_t i = 1; i < world->names_count; i++)
        if (!strncmp(world->names[i], name, SIM_NAME_BYTES - 1))
            return i;
    if (world->names_count == SIM_NAMES)
        return 0;
    strncpy(world->names[world->names_count], name, SIM_NAME_BYTES - 1);
    return world->names_count++;
}
