/* log.c - appends to the GPUs' logs through shared mappings: no system call per record. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "log.h"
#include "world.h"

#define WINDOW_BYTES (1u << 20)
#define WINDOW_RECORDS (WINDOW_BYTES / sizeof(struct sim_log_record))

/* No descriptor stays open: a program may close those that it does not know. */
static struct {
    enum { UNOPENED, OPEN, GIVEN_UP } state;
    uint64_t window;
    char path[PATH_MAX];
    struct sim_log_header *header;
    struct sim_log_record *records;
} logs[SIM_GPUS];

static void give_up(uint32_t gpu) {
    fprintf(stderr, "simgpu: no more log in %s: %s\n", logs[gpu].path, strerror(errno));
    logs[gpu].state = GIVEN_UP;
}

/* Under the world's lock, so only one process makes the file. */
static int open_file(const char *path) {
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0 || errno != ENOENT)
        return fd;
    fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd >= 0 && fchmod(fd, 0666)) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Makes sure that the range has its place on disk and maps it. NULL: errno says why. */
static void *map_range(const char *path, off_t offset, size_t bytes) {
    int fd = open_file(path);
    if (fd < 0)
        return NULL;
    int error = posix_fallocate(fd, offset, (off_t)bytes);
    void *at =
        error ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, offset);
    close(fd);
    if (error)
        errno = error;
    return at == MAP_FAILED ? NULL : at;
}

static bool open_log(uint32_t gpu) {
    if (logs[gpu].state != UNOPENED)
        return logs[gpu].state == OPEN;
    snprintf(logs[gpu].path, PATH_MAX, "%s/log-%u.bin", settings_state_dir(), gpu);
    struct sim_log_header *header = map_range(logs[gpu].path, 0, SIM_LOG_HEADER_BYTES);
    if (!header) {
        give_up(gpu);
        return false;
    }
    if (header->magic != SIM_LOG_MAGIC || strcmp(header->boot_id, world->boot_id)) {
        memset(header, 0, sizeof *header);
        header->gpu = gpu;
        header->record_bytes = sizeof(struct sim_log_record);
        strcpy(header->boot_id, world->boot_id);
        header->magic = SIM_LOG_MAGIC;
    }
    logs[gpu].header = header;
    logs[gpu].window = UINT64_MAX;
    logs[gpu].state = OPEN;
    return true;
}

static bool map_window(uint32_t gpu, uint64_t window) {
    if (logs[gpu].window == window)
        return true;
    if (logs[gpu].records)
        munmap(logs[gpu].records, WINDOW_BYTES);
    off_t offset = SIM_LOG_HEADER_BYTES + (off_t)(window * WINDOW_BYTES);
    logs[gpu].records = map_range(logs[gpu].path, offset, WINDOW_BYTES);
    if (!logs[gpu].records) {
        give_up(gpu);
        return false;
    }
    logs[gpu].window = window;
    return true;
}

static void append(uint32_t gpu, const struct sim_log_record *record) {
    if (!open_log(gpu))
        return;
    uint64_t count = atomic_load(&logs[gpu].header->count);
    if (!map_window(gpu, count / WINDOW_RECORDS))
        return;
    logs[gpu].records[count % WINDOW_RECORDS] = *record;
    atomic_store_explicit(&logs[gpu].header->count, count + 1, memory_order_release);
}

static void append_name(uint32_t gpu, uint32_t name) {
    uint64_t bit = 1ull << (name % 64);
    if (world->gpus[gpu].named[name / 64] & bit)
        return;
    world->gpus[gpu].named[name / 64] |= bit;
    struct sim_log_record record = {.type = SIM_LOG_NAME, .is.name.name = name};
    memcpy(record.is.name.text, world->names[name], SIM_NAME_BYTES);
    append(gpu, &record);
}

void log_op(uint32_t gpu, uint32_t context, const struct sim_op *op, uint32_t stream) {
    if (op->kind == SIM_KERNEL)
        append_name(gpu, op->name);
    struct sim_log_record record = {.type = op->kind,
                                    .flags = op->flags,
                                    .context = world->contexts[context].number,
                                    .is.op = {.name = op->name,
                                              .stream = (uint32_t)world->streams[stream].id,
                                              .id = op->id,
                                              .launch_ns = op->launch_ns,
                                              .ready_ns = op->ready_ns,
                                              .start_ns = op->start_ns,
                                              .end_ns = op->end_ns,
                                              .ran_ns = op->ran_ns,
                                              .lost_ns = op->lost_ns}};
    if (op->kind == SIM_COPY || op->kind == SIM_SET)
        record.is.op.bytes = op->b;
    else if (op->kind == SIM_KERNEL)
        record.is.op.graph_launch = op->c;
    append(gpu, &record);
}

void log_context(uint32_t gpu, uint32_t context) {
    const struct sim_context *c = &world->contexts[context];
    const struct sim_process *p = &world->processes[c->process];
    struct sim_log_record record = {.type = SIM_LOG_CONTEXT,
                                    .context = c->number,
                                    .is.context = {.pid = (uint32_t)p->pid,
                                                   .uid = p->uid,
                                                   .job = p->job,
                                                   .gpu = gpu,
                                                   .at_ns = world->now_ns,
                                                   .start_ticks = p->start_ticks}};
    if (c->server >= 0)
        record.is.context.server = (uint32_t)world->servers[c->server].pid;
    memcpy(record.is.context.command, p->command, sizeof p->command);
    append(gpu, &record);
}

void log_dropped(uint32_t gpu, uint32_t context, uint64_t kernels) {
    struct sim_log_record record = {.type = SIM_LOG_DROPPED,
                                    .context = world->contexts[context].number,
                                    .is.dropped = {.kernels = kernels}};
    append(gpu, &record);
}

void log_switch(uint32_t gpu, uint32_t from, uint32_t to, uint64_t begin, uint64_t end) {
    struct sim_log_record record = {.type = SIM_LOG_SWITCH,
                                    .context = to,
                                    .is.change = {.from = from, .begin_ns = begin, .end_ns = end}};
    append(gpu, &record);
}
