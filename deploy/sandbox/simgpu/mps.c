/* mps.c - MPS: clients of one server share the GPU at the same time (running.c), and a fault of
 * one is a fault of all. A control daemon is a real process (simmps-control), and so is each
 * server: when it dies its clients fail. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "mps.h"

#define CONNECTION_FAILED 805 /* CUDA_ERROR_MPS_..., as in cuda_types.h */
#define RPC_FAILURE 806
#define SERVER_NOT_READY 807
#define CLIENT_TERMINATED 810
#define CONNECT_NS 5000000000ull /* a server that is asked for comes up within this */
#define LOOK_NS 2000000l

const char *mps_pipe_directory(void) {
    const char *given = getenv("CUDA_MPS_PIPE_DIRECTORY");
    return given && *given ? given : "/tmp/nvidia-mps";
}

int mps_daemon_find(const char *pipe) {
    char real[PATH_MAX];
    if (!realpath(pipe, real))
        return -1;
    for (int i = 0; i < SIM_SERVERS; i++) {
        const struct sim_daemon *d = &world->daemons[i];
        if (d->used && !strcmp(d->pipe, real))
            return process_start_ticks(d->pid) == d->start_ticks ? i : -1;
    }
    return -1;
}

int mps_daemon_add(const char *pipe, bool several_users) {
    char real[PATH_MAX];
    if (!realpath(pipe, real) || strlen(real) >= sizeof world->daemons[0].pipe)
        return -1;
    for (int i = 0; i < SIM_SERVERS; i++) {
        struct sim_daemon *d = &world->daemons[i];
        if (d->used)
            continue;
        memset(d, 0, sizeof *d);
        d->pid = getpid();
        d->start_ticks = process_start_ticks(d->pid);
        d->several_users = several_users;
        strcpy(d->pipe, real);
        d->used = 1;
        return i;
    }
    return -1;
}

void mps_daemon_remove(uint32_t daemon) {
    for (uint32_t i = 0; i < SIM_SERVERS; i++)
        if (world->servers[i].state && world->servers[i].daemon == daemon)
            mps_server_down(i);
    world->daemons[daemon].used = 0;
}

/* Without -M a daemon serves one user at a time. */
int mps_server_want(uint32_t daemon, uint32_t uid) {
    int unused = -1;
    for (int i = 0; i < SIM_SERVERS; i++) {
        const struct sim_server *s = &world->servers[i];
        if (!s->state)
            unused = unused < 0 ? i : unused;
        else if (s->daemon == daemon)
            return world->daemons[daemon].several_users || s->uid == uid ? i : -1;
    }
    if (unused >= 0)
        world->servers[unused] = (struct sim_server){SIM_SERVER_WANTED, daemon, 0, uid, 0};
    return unused;
}

void mps_server_up(uint32_t server, int pid) {
    struct sim_server *s = &world->servers[server];
    s->pid = pid;
    s->start_ticks = process_start_ticks(pid);
    s->state = SIM_SERVER_ACTIVE;
}

void mps_server_down(uint32_t server) {
    for (uint32_t i = 0; i < SIM_PROCESSES; i++)
        if (world->processes[i].used && world->processes[i].server == (int)server)
            process_fault(i, RPC_FAILURE);
    world->servers[server].state = 0;
}

int mps_server_by_pid(uint32_t daemon, int pid) {
    for (int i = 0; i < SIM_SERVERS; i++) {
        const struct sim_server *s = &world->servers[i];
        if (s->state > SIM_SERVER_WANTED && s->daemon == daemon && (!pid || s->pid == pid))
            return i;
    }
    return -1;
}

bool mps_terminate(uint32_t server, int pid) {
    for (uint32_t i = 0; i < SIM_PROCESSES; i++) {
        const struct sim_process *p = &world->processes[i];
        if (p->used && p->server == (int)server && p->pid == pid) {
            process_fault(i, CLIENT_TERMINATED);
            return true;
        }
    }
    return false;
}

static bool has_clients(uint32_t server) {
    for (uint32_t i = 0; i < SIM_PROCESSES; i++)
        if (world->processes[i].used && world->processes[i].server == (int)server)
            return true;
    return false;
}

/* A server that has seen a fault takes no new client until the old ones are gone. */
void mps_reap(void) {
    for (uint32_t i = 0; i < SIM_SERVERS; i++) {
        struct sim_server *s = &world->servers[i];
        if (s->state > SIM_SERVER_WANTED && process_start_ticks(s->pid) != s->start_ticks)
            mps_server_down(i);
        else if (s->state == SIM_SERVER_FAULT && !has_clients(i))
            s->state = SIM_SERVER_ACTIVE;
    }
    for (uint32_t i = 0; i < SIM_SERVERS; i++) {
        struct sim_daemon *d = &world->daemons[i];
        bool serves = false;
        for (uint32_t s = 0; s < SIM_SERVERS; s++)
            serves |= world->servers[s].state && world->servers[s].daemon == i;
        if (d->used && !serves && process_start_ticks(d->pid) != d->start_ticks)
            d->used = 0;
    }
}

static void take_limits(struct sim_process *p) {
    const char *percentage = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    const char *priority = getenv("CUDA_MPS_CLIENT_PRIORITY");
    double share = percentage ? strtod(percentage, NULL) : 100;
    if (share > 0 && share <= 100)
        p->share_ppm = share * 10000 < 1 ? 1 : (uint32_t)(share * 10000);
    p->low_priority = priority && strtol(priority, NULL, 10) == 1;
}

int mps_connect(uint32_t process) {
    const struct timespec look = {0, LOOK_NS};
    uint64_t deadline = sim_now_ns() + CONNECT_NS;
    for (;;) {
        world_lock();
        int daemon = mps_daemon_find(mps_pipe_directory());
        int server = daemon < 0 ? -1 : mps_server_want((uint32_t)daemon, getuid());
        if (server >= 0 && world->servers[server].state == SIM_SERVER_FAULT)
            process_reap(); /* those who saw the fault may be gone by now */
        uint32_t state = server < 0 ? 0 : world->servers[server].state;
        if (state == SIM_SERVER_ACTIVE) {
            world->processes[process].server = server;
            take_limits(&world->processes[process]);
        }
        world_unlock();
        if (daemon < 0 || state == SIM_SERVER_ACTIVE)
            return 0;
        if (server < 0)
            return CONNECTION_FAILED;
        if (state == SIM_SERVER_FAULT)
            return SERVER_NOT_READY;
        if (sim_now_ns() > deadline)
            return CONNECTION_FAILED;
        nanosleep(&look, NULL);
    }
}
