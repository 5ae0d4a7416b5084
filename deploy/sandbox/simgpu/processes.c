/* processes.c - who uses the simulated machine; the dead lose their contexts and memory. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <fcntl.h>
#include "mps.h"
#include "timeline.h"

/* Start time of a process in clock ticks, 0 when it is gone or a zombie. */
uint64_t process_start_ticks(int pid) {
    char path[32], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t size = read(fd, text, sizeof text - 1);
    close(fd);
    if (size <= 0)
        return 0;
    text[size] = 0;
    char *rest = strrchr(text, ')'); /* the name before it may hold anything */
    char state;
    unsigned long long ticks;
    if (!rest || sscanf(rest + 2,
                        "%c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d "
                        "%*d %*d %llu",
                        &state, &ticks) != 2)
        return 0;
    return state == 'Z' || state == 'X' ? 0 : ticks;
}

int process_register(void) {
    for (int i = 0; i < SIM_PROCESSES; i++) {
        struct sim_process *p = &world->processes[i];
        if (p->used)
            continue;
        memset(p, 0, sizeof *p);
        p->pid = getpid();
        p->uid = getuid();
        p->start_ticks = process_start_ticks(p->pid);
        const char *job = getenv("SLURM_JOB_ID");
        p->job = job ? (uint32_t)strtoul(job, NULL, 10) : 0;
        strncpy(p->command, program_invocation_short_name, sizeof p->command - 1);
        p->server = -1;
        p->share_ppm = 1000000;
        p->used = 1;
        return i;
    }
    return -1;
}

void process_remove(uint32_t process) {
    for (uint32_t i = 0; i < world->contexts_top; i++)
        if (world->contexts[i].used && world->contexts[i].process == process)
            context_remove(i);
    world->processes[process].used = 0;
}

void process_fault(uint32_t process, uint32_t code) {
    world->processes[process].fault = code;
    for (uint32_t i = 0; i < world->contexts_top; i++)
        if (world->contexts[i].used && world->contexts[i].process == process)
            context_fault(i, code, false);
}

/* The worst that can come of an MPS client that dies with work on the GPU: a fault for all. */
static void leave_server(uint32_t process) {
    for (uint32_t i = 0; i < world->contexts_top; i++) {
        const struct sim_context *c = &world->contexts[i];
        bool working = false;
        if (!c->used || c->process != process || c->server < 0)
            continue;
        for (uint32_t a = 0; a < c->active_count; a++) {
            const struct sim_op *op = stream_op(c->active[a], world->streams[c->active[a]].head);
            working |= occupies(op) && op->flags & SIM_STARTED;
        }
        if (working)
            context_fault(i, SIM_ERROR_LAUNCH_FAILED, true);
    }
}

void process_reap(void) {
    for (uint32_t i = 0; i < SIM_PROCESSES; i++) {
        const struct sim_process *p = &world->processes[i];
        if (p->used && process_start_ticks(p->pid) != p->start_ticks) {
            leave_server(i);
            process_remove(i);
        }
    }
    mps_reap();
}

uint64_t gpu_memory_used(uint32_t gpu) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < SIM_PROCESSES; i++)
        if (world->processes[i].used)
            bytes += world->processes[i].memory_bytes[gpu];
    return bytes;
}
