/* requeue.c - see requeue.h. Found on a real Slurm: a requeued job waits two minutes unless its
 * EligibleTime is set, and one that starts again within the second on the same node may end in
 * "Job credential revoked" and count as failed; hence now+2 s and no sooner. */
#include "requeue.h"
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <time.h>

#define COMMAND_S 5 /* for one scontrol */
#define PENDING_TRIES 100
#define PENDING_PAUSE_MS 200

static void pause_ms(unsigned ms) {
    struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};
    nanosleep(&t, NULL);
}

static void child_output(int output) {
    int null = open("/dev/null", O_RDWR);
    dup2(null, STDIN_FILENO);
    dup2(output >= 0 ? output : null, STDOUT_FILENO);
    dup2(null, STDERR_FILENO);
    signal(SIGALRM, SIG_DFL);
    alarm(COMMAND_S); /* survives exec: a command that hangs is ended by it */
}

/* Runs words[0] with what it prints in `text` (may be NULL). True when it exits with 0. */
static bool command(const char *const words[], char *text, size_t size) {
    int ends[2] = {-1, -1}, status = -1;
    if (text && pipe2(ends, O_CLOEXEC) != 0)
        return false;
    pid_t pid = fork();
    if (pid == 0) {
        child_output(ends[1]);
        execvp(words[0], (char *const *)words);
        _exit(127);
    }
    if (text) {
        size_t used = 0;
        ssize_t n = 0;
        close(ends[1]);
        while (pid > 0 && used + 1 < size && (n = read(ends[0], text + used, size - 1 - used)) > 0)
            used += (size_t)n;
        text[used] = 0;
        close(ends[0]);
    }
    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) &&
           WEXITSTATUS(status) == 0;
}

bool requeue_now(const char *scontrol, const char *job) {
    const char *words[] = {scontrol, "requeue", job, NULL};
    return command(words, NULL, 0);
}

/* scontrol's folder also holds squeue and scancel. */
static void beside(const char *scontrol, const char *program, char path[4096]) {
    const char *slash = strrchr(scontrol, '/');
    snprintf(path, 4096, "%.*s%s", slash ? (int)(slash - scontrol + 1) : 0, scontrol, program);
}

/* What slurmctld says of a job, and what its commands call this one task of an array: the number
 * alone may mean all of them. Only what the job's owner cannot choose is asked for. */
struct asked {
    char name[80], state[32];
    int requeue;
};

static bool ask(const char *scontrol, uint32_t job_id, struct asked *job) {
    char id[16], squeue[4096], text[16384];
    snprintf(id, sizeof id, "%u", job_id);
    beside(scontrol, "squeue", squeue);
    const char *words[] = {squeue, "-har", "-t", "all",
                           "-j",   id,     "-O", "JobID:24,JobArrayID:80,State:32,Requeue:12",
                           NULL};
    if (!command(words, text, sizeof text))
        return false;
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        unsigned found;
        if (sscanf(line, "%u %79s %31s %d", &found, job->name, job->state, &job->requeue) == 4 &&
            found == job_id) {
            if (!strchr(job->name, '_') || strchr(job->name, '['))
                snprintf(job->name, sizeof job->name, "%u", job_id);
            return true;
        }
    }
    return false;
}

static void cancel_job(const char *scontrol, const char *name, const char *reason) {
    char job[128], comment[300], scancel[4096];
    beside(scontrol, "scancel", scancel);
    snprintf(job, sizeof job, "JobId=%s", name);
    snprintf(comment, sizeof comment, "Comment=sfill: this fill job can't run now: %s", reason);
    const char *notify[] = {scontrol, "notify", name, comment + strlen("Comment="), NULL};
    const char *note[] = {scontrol, "update", job, comment, NULL};
    const char *cancel[] = {scancel, name, NULL};
    command(notify, NULL, 0); /* to the user's terminal */
    command(note, NULL, 0);
    command(cancel, NULL, 0);
}

static void requeue_job(const char *scontrol, uint32_t job_id, unsigned delay_s,
                        const char *reason) {
    struct asked job;
    char which[128], when[48];
    snprintf(when, sizeof when, "EligibleTime=now+%useconds", delay_s);
    bool known = ask(scontrol, job_id, &job);
    for (int i = 0; i < PENDING_TRIES && !known; i++) {
        pause_ms(PENDING_PAUSE_MS);
        known = ask(scontrol, job_id, &job);
    }
    if (!known)
        return;
    snprintf(which, sizeof which, "JobId=%s", job.name);
    const char *set[] = {scontrol, "update", which, when, NULL};
    if (!requeue_now(scontrol, job.name) && !job.requeue) {
        cancel_job(scontrol, job.name, reason); /* submitted with --no-requeue */
        return;
    }
    for (int i = 0; i < PENDING_TRIES; i++) {
        if (ask(scontrol, job_id, &job) && !strcmp(job.state, "PENDING") && command(set, NULL, 0))
            return;
        pause_ms(PENDING_PAUSE_MS);
    }
}

void requeue_later(const char *scontrol, uint32_t job_id, bool batch, unsigned delay_s,
                   const char *reason) {
    struct asked job;
    pid_t pid = fork();
    if (pid > 0)
        waitpid(pid, NULL, 0);
    if (pid != 0)
        return;
    setsid(); /* slurmd ends the prolog's process group when the prolog is done */
    if (fork() != 0)
        _exit(0);
    child_output(-1);
    alarm(0);
    if (batch)
        requeue_job(scontrol, job_id, delay_s, reason);
    else if (ask(scontrol, job_id, &job))
        cancel_job(scontrol, job.name, reason);
    _exit(0);
}
