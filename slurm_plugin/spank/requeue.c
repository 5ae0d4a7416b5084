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

bool requeue_now(const char *scontrol, uint32_t job_id) {
    char id[16];
    snprintf(id, sizeof id, "%u", job_id);
    const char *words[] = {scontrol, "requeue", id, NULL};
    return command(words, NULL, 0);
}

static bool job_says(const char *scontrol, const char *id, const char *field) {
    char text[16384];
    const char *words[] = {scontrol, "-o", "show", "job", id, NULL};
    return command(words, text, sizeof text) && strstr(text, field);
}

/* scontrol's folder also holds scancel. */
static void cancel_job(const char *scontrol, uint32_t job_id, const char *reason) {
    char id[16], job[32], comment[300], scancel[4096];
    const char *slash = strrchr(scontrol, '/');
    snprintf(id, sizeof id, "%u", job_id);
    snprintf(job, sizeof job, "JobId=%u", job_id);
    snprintf(comment, sizeof comment, "Comment=sfill: this fill job can't run now: %s", reason);
    snprintf(scancel, sizeof scancel, "%.*sscancel", slash ? (int)(slash - scontrol + 1) : 0,
             scontrol);
    const char *notify[] = {scontrol, "notify", id, comment + strlen("Comment="), NULL};
    const char *note[] = {scontrol, "update", job, comment, NULL};
    const char *cancel[] = {scancel, id, NULL};
    command(notify, NULL, 0); /* to the user's terminal */
    command(note, NULL, 0);
    command(cancel, NULL, 0);
}

static void requeue_job(const char *scontrol, uint32_t job_id, unsigned delay_s,
                        const char *reason) {
    char id[16], job[32], when[48];
    snprintf(id, sizeof id, "%u", job_id);
    snprintf(job, sizeof job, "JobId=%u", job_id);
    snprintf(when, sizeof when, "EligibleTime=now+%useconds", delay_s);
    const char *set[] = {scontrol, "update", job, when, NULL};
    if (!requeue_now(scontrol, job_id) && job_says(scontrol, id, " Requeue=0 ")) {
        cancel_job(scontrol, job_id, reason); /* submitted with --no-requeue */
        return;
    }
    for (int i = 0; i < PENDING_TRIES; i++) {
        if (job_says(scontrol, id, " JobState=PENDING ") && command(set, NULL, 0))
            return;
        pause_ms(PENDING_PAUSE_MS);
    }
}

void requeue_later(const char *scontrol, uint32_t job_id, bool batch, unsigned delay_s,
                   const char *reason) {
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
    else
        cancel_job(scontrol, job_id, reason);
    _exit(0);
}
