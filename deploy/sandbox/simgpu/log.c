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

static struct {
    int fd; /* 0: not opened, -1: cannot be */
    uint64_t window;
    struct sim_log_header *header;
    struct sim_log_record *records;
} logs[SIM_GPUS];

static void give_up(uint32_t gpu, const char *what) {
    fprintf(stderr, "simgpu: no more log of GPU %u: %s: %s\n", gpu, what, strerror(errno));
    logs[gpu].fd = -1;
}

/* Under the world's lock, so only one process makes the file. */
static bool open_log(uint32_t gpu) {
    if (logs[gpu].fd)
        return logs[gpu].fd > 0;
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/log-%u.bin", settings_state_dir(), gpu);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) {
        fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0 && fchmod(fd, 0666))
            give_up(gpu, path);
    }
    struct stat status;
    if (fd < 0 || fstat(fd, &status) ||
        (status.st_size < SIM_LOG_HEADER_BYTES && ftruncate(fd, SIM_LOG_HEADER_BYTES))) {
        give_up(gpu, path);
        return false;
    }
    struct sim_log_header *header =
        mmap(NULL, SIM_LOG_HEADER_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (header == MAP_FAILED) {
        give_up(gpu, path);
        return false;
    }
    if (header->magic != SIM_LOG_MAGIC || strcmp(header->boot_id, world->boot_id)) {
        memset(header, 0, sizeof *header);
        header->gpu = gpu;
        header->record_bytes = sizeof(struct sim_log_record);
        strcpy(header->boot_id, world->boot_id);
        header->magic = SIM_LOG_MAGIC;
    }
    logs[gpu].fd = fd;
    logs[gpu].header = header;
    logs[gpu].window = UINT64_MAX;
    return true;
}

static bool map_window(uint32_t gpu, uint64_t window) {
    if (logs[gpu].window == window)
        return true;
    off_t offset = SIM_LOG_HEADER_BYTES + (off_t)(window * WINDOW_BYTES);
    int error = posix_fallocate(logs[gpu].fd, offset, WINDOW_BYTES);
    if (error) {
        errno = error;
        give_up(gpu, "no space");
        return false;
    }
    if (logs[gpu].records)
        munmap(logs[gpu].records, WINDOW_BYTES);
    void *at = mmap(NULL, WINDOW_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, logs[gpu].fd, offset);
    logs[gpu].records = at == MAP_FAILED ? NULL : at;
    if (at == MAP_FAILED) {
        give_up(gpu, "cannot map");
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
                                              .end_ns = op->end_ns}};
    if (op->kind == SIM_COPY || op->kind == SIM_SET)
        record.is.op.bytes = op->b;
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
    memcpy(record.is.context.command, p->command, sizeof p->command);
    append(gpu, &record);
}

void log_switch(uint32_t gpu, uint32_t from, uint32_t to, uint64_t begin, uint64_t end) {
    struct sim_log_record record = {.type = SIM_LOG_SWITCH,
                                    .context = to,
                                    .is.change = {.from = from, .begin_ns = begin, .end_ns = end}};
    append(gpu, &record);
}
