/* simmps-control - MPS's control program for the simulated machine: -d starts the daemon of the
 * pipe directory (-M: for several users at once), otherwise commands come on standard input. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "mps.h"

#define LOOK_NS 2000000l
#define QUIT_LOOKS 2500 /* 5 s */

static volatile sig_atomic_t stop;
static void on_stop(int number) {
    (void)number;
    stop = 1;
}

static void pause_a_little(void) {
    const struct timespec look = {0, LOOK_NS};
    nanosleep(&look, NULL);
}

static void pid_path(char *path, size_t bytes) {
    snprintf(path, bytes, "%s/nvidia-cuda-mps-control.pid", mps_pipe_directory());
}

static int start_server(void) {
    int parent = getpid();
    int child = fork();
    if (child)
        return child;
    signal(SIGTERM, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    prctl(PR_SET_NAME, "simmps-server");
    if (getppid() == parent)
        for (;;)
            pause();
    _exit(0);
}

/* Under the lock only the table is touched: a fork there would leave a child with half of it. */
static void serve(uint32_t daemon) {
    for (uint32_t i = 0; i < SIM_SERVERS; i++) {
        world_lock();
        bool wanted =
            world->servers[i].state == SIM_SERVER_WANTED && world->servers[i].daemon == daemon;
        stop |= world->daemons[daemon].quit;
        world_unlock();
        int pid = wanted ? start_server() : -1;
        if (pid <= 0)
            continue;
        world_lock();
        mps_server_up(i, pid);
        world_unlock();
    }
    while (waitpid(-1, NULL, WNOHANG) > 0)
        ;
}

static void end(uint32_t daemon) {
    char path[PATH_MAX];
    int pids[SIM_SERVERS];
    unsigned count = 0;
    world_lock();
    for (uint32_t i = 0; i < SIM_SERVERS; i++)
        if (world->servers[i].state > SIM_SERVER_WANTED && world->servers[i].daemon == daemon)
            pids[count++] = world->servers[i].pid;
    mps_daemon_remove(daemon);
    world_unlock();
    for (unsigned i = 0; i < count; i++)
        kill(pids[i], SIGKILL);
    pid_path(path, sizeof path);
    unlink(path);
}

static int run_daemon(bool several_users) {
    char path[PATH_MAX];
    mkdir(mps_pipe_directory(), 0755);
    world_lock();
    bool there = mps_daemon_find(mps_pipe_directory()) >= 0;
    world_unlock();
    if (there) {
        fprintf(stderr, "An instance of this daemon is already running\n");
        return 1;
    }
    int child = fork();
    if (child)
        return child < 0;
    setsid();
    struct sigaction action = {.sa_handler = on_stop};
    sigaction(SIGTERM, &action, NULL);
    int null = open("/dev/null", O_RDWR);
    for (int fd = 0; null >= 0 && fd < 3; fd++)
        dup2(null, fd);
    world_lock();
    int daemon = mps_daemon_add(mps_pipe_directory(), several_users);
    world_unlock();
    pid_path(path, sizeof path);
    FILE *file = daemon < 0 ? NULL : fopen(path, "we");
    if (!file || fprintf(file, "%d\n", getpid()) < 0 || fclose(file))
        return 1;
    while (!stop) {
        serve((uint32_t)daemon);
        pause_a_little();
    }
    end((uint32_t)daemon);
    return 0;
}

static void list_servers(uint32_t daemon) {
    for (uint32_t i = 0; i < SIM_SERVERS; i++)
        if (world->servers[i].state > SIM_SERVER_WANTED && world->servers[i].daemon == daemon)
            printf("%d\n", world->servers[i].pid);
}

static void list_clients(int server) {
    for (uint32_t i = 0; i < SIM_PROCESSES; i++)
        if (world->processes[i].used && world->processes[i].server == server)
            printf("%d\n", world->processes[i].pid);
}

static int no_server(const char *command) {
    fprintf(stderr, "%s: no such server\n", command);
    return 1;
}

/* One command; locked. */
static int obey(uint32_t daemon, const char *line) {
    static const char *const states[] = {"", "INITIALIZING", "ACTIVE", "FAULT"};
    char word[32] = "";
    long first = 0, second = 0;
    sscanf(line, "%31s", word);
    if (sscanf(line, "start_server -uid %ld", &first) == 1)
        return mps_server_want(daemon, (uint32_t)first) < 0 ? no_server(word) : 0;
    if (!strcmp(word, "get_server_list")) {
        list_servers(daemon);
        return 0;
    }
    if (!strcmp(word, "quit")) {
        world->daemons[daemon].quit = 1;
        return 0;
    }
    int words = sscanf(line, "%*s %ld %ld", &first, &second);
    int server = words >= 1 ? mps_server_by_pid(daemon, (int)first) : -1;
    if (!strcmp(word, "get_server_status") && words == 1) {
        printf("%s\n", server < 0 ? "" : states[world->servers[server].state]);
        return 0;
    }
    if (!strcmp(word, "get_client_list") && words == 1) {
        list_clients(server);
        return server < 0 ? no_server(word) : 0;
    }
    if (!strcmp(word, "terminate_client") && words == 2)
        return server < 0 || !mps_terminate((uint32_t)server, (int)second) ? no_server(word) : 0;
    fprintf(stderr, "simmps-control: \"%s\" is no command that it knows\n", word);
    return 1;
}

static bool gone(void) {
    world_lock();
    bool is_gone = mps_daemon_find(mps_pipe_directory()) < 0;
    world_unlock();
    return is_gone;
}

int main(int count, char **words) {
    bool start = false, several_users = false;
    for (int i = 1; i < count; i++) {
        start |= !strcmp(words[i], "-d");
        several_users |= !strcmp(words[i], "-M") || !strcmp(words[i], "-multiuser-server");
    }
    if (!world_open())
        return 1;
    if (start)
        return run_daemon(several_users);
    char line[256];
    int result = 0;
    while (fgets(line, sizeof line, stdin)) {
        if (line[strspn(line, " \n")] == 0)
            continue;
        world_lock();
        int daemon = mps_daemon_find(mps_pipe_directory());
        int failed = daemon < 0 ? 1 : obey((uint32_t)daemon, line);
        bool quit = daemon >= 0 && world->daemons[daemon].quit;
        world_unlock();
        if (daemon < 0) {
            fprintf(stderr, "Cannot find MPS control daemon process\n");
            return 1;
        }
        result |= failed;
        for (int look = 0; quit && look < QUIT_LOOKS && !gone(); look++)
            pause_a_little();
    }
    return result;
}
