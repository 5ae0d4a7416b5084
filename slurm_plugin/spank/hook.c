/* hook.c - sfill-hook, called by prolog and epilog as root: tells the agent that a job begins or
 * has ended. Exits with 0 whatever happens, because a prolog that fails drains the node, and keeps
 * within its bounds, because training waits for it.
 *
 *   sfill-hook begin|end [key=value ...]     (keys: the arguments of spank_fill.so)
 */
#include "agent_client.h"
#include "arguments.h"
#include "job_record.h"
#include "requeue.h"
#include "spec.h"
#include <ctype.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#define BEGIN_FILL_MS 2000
#define BEGIN_HOST_MS 1000
#define BEGIN_MPS_MS 6000 /* more, when the agent says that it starts MPS for the training */
#define BEGIN_OTHER_MS 200
#define END_HOST_MS 15000   /* until fills are off the GPUs */
#define SILENT_MS 1000      /* an agent that is at work says so four times a second */
#define END_OTHER_MS 1000   /* nothing depends on it */
#define END_RESTART_MS 3000 /* for an agent that is being restarted */
#define AGAIN_MS 100
#define REFUSED_DELAY_S 2 /* another node may have room */
#define RETRY_MAX_S 3600  /* most that the agent may name instead */
#define ABSENT_DELAY_S 30 /* this node will be asked again until its agent is back */

struct job {
    uint32_t job_id;
    enum job_kind kind;
    bool batch;
    const char *node;
    char spec[SPEC_TEXT_SIZE];
    char folder[PATH_MAX];
    char socket[PATH_MAX];
};

static struct arguments arguments;

/* Slurm's variables; a value with a control character could pose as another key: none then. */
static const char *variable(const char *name) {
    const char *value = getenv(name);
    if (!value)
        return "";
    for (const char *p = value; *p; p++)
        if (iscntrl((unsigned char)*p))
            return "";
    return value;
}

static void read_arguments(int count, char **words) {
    char conf[PATH_MAX], path[PATH_MAX + 32];
    arguments_default(&arguments);
    snprintf(conf, sizeof conf, "%s", getenv("SLURM_CONF") ?: "/etc/slurm/slurm.conf");
    snprintf(path, sizeof path, "%s/plugstack.conf", dirname(conf));
    arguments_read(&arguments, path);
    for (int i = 0; i < count; i++) {
        const char *wrong = argument_set(&arguments, words[i]);
        if (wrong)
            syslog(LOG_ERR, "argument '%s' %s", words[i], wrong);
    }
}

/* SPANK_* come from the user's side of the submission: read again by our own parser, so that
 * nothing but a canonical spec is passed on. That of a job without GPUs here goes along as well:
 * right after its start slurmctld names none to a prolog, and somebody should hear of it. */
static void read_spec(struct job *job) {
    char error[SPEC_ERROR_SIZE] = "";
    struct fill_spec fill;
    struct host_spec host;
    bool is_fill = job->kind == JOB_FILL;
    const char *name = is_fill ? "SPANK_FILL_SPEC" : "SPANK_FILL_HOST_SPEC";
    const char *text = variable(name);
    job->spec[0] = 0;
    if (!*text)
        return;
    if (is_fill && spec_parse_fill(text, name, &arguments.limits, &fill, error))
        spec_format_fill(&fill, job->spec);
    if (!is_fill && spec_parse_host(text, name, &arguments.limits, &host, error))
        spec_format_host(&host, job->spec);
    if (*error)
        syslog(LOG_ERR, "job %u: %s", job->job_id, error);
}

static bool read_job(struct job *job) {
    static char host_name[256];
    job->job_id = (uint32_t)strtoul(variable("SLURM_JOB_ID"), NULL, 10);
    job->node = variable("SLURMD_NODENAME");
    if (!*job->node) {
        gethostname(host_name, sizeof host_name - 1);
        host_name[strcspn(host_name, ".")] = 0;
        job->node = host_name;
    }
    if (!strcmp(variable("SLURM_JOB_PARTITION"), arguments.partition))
        job->kind = JOB_FILL;
    else
        job->kind = *variable("SLURM_JOB_GPUS") ? JOB_HOST : JOB_OTHER;
    job->batch = !strcmp(variable("SPANK_FILL_BATCH"), "1");
    expand_node(arguments.socket, job->node, job->socket, sizeof job->socket);
    jobs_folder(&arguments, job->node, job->folder, sizeof job->folder);
    read_spec(job);
    return job->job_id != 0;
}

/* A number in the agent's answer, at most `most`; `otherwise` where there is none. */
static int answer_number(const char *answer, const char *key, int most, int otherwise) {
    char text[16];
    if (!answer_value(answer, key, text, sizeof text))
        return otherwise;
    long number = strtol(text, NULL, 10);
    return number < 0 ? otherwise : number > most ? most : (int)number;
}

/* MPS must serve before the training makes its first CUDA call, or the training can't use it. */
static void await_mps(const struct job *job, const char *answer) {
    char request[64], ready[AGENT_MESSAGE_SIZE];
    int wait_ms = answer_number(answer, "wait_ms", BEGIN_MPS_MS, 0);
    if (wait_ms == 0)
        return;
    snprintf(request, sizeof request, "ready\njob_id=%u\n", job->job_id);
    if (agent_ask_for_long(job->socket, request, ready, SILENT_MS, wait_ms) != AGENT_ANSWERED)
        syslog(LOG_ERR, "job %u: the agent did not say in time whether MPS serves", job->job_id);
}

/* When this was said: an agent that stands still reads it later, when the hook is gone. */
static long long utc_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * 1000000ll + t.tv_nsec / 1000;
}

static void begin(struct job *job) {
    char request[AGENT_MESSAGE_SIZE], answer[AGENT_MESSAGE_SIZE], reason[200] = "";
    const int bounds_ms[] = {[JOB_UNKNOWN] = BEGIN_OTHER_MS,
                             [JOB_OTHER] = BEGIN_OTHER_MS,
                             [JOB_HOST] = BEGIN_HOST_MS,
                             [JOB_FILL] = BEGIN_FILL_MS};
    snprintf(request, sizeof request,
             "job_begin\njob_id=%u\nuser_id=%s\nuser=%s\naccount=%s\nnode=%s\nkind=%s\nspec=%s\n"
             "gpus=%s\nrestart_count=%s\nbatch=%d\nat_us=%lld\n",
             job->job_id, variable("SLURM_JOB_UID"), variable("SLURM_JOB_USER"),
             variable("SLURM_JOB_ACCOUNT"), job->node, job_kind_name(job->kind), job->spec,
             job->kind == JOB_HOST ? variable("SLURM_JOB_GPUS") : "",
             variable("SLURM_JOB_RESTART_COUNT"), job->batch, utc_us());
    enum agent_result result = agent_ask(job->socket, request, answer, bounds_ms[job->kind]);
    struct job_record record = {job->kind, result == AGENT_ANSWERED};
    if (!job_record_write(job->folder, job->node, job->job_id, &record))
        syslog(LOG_ERR, "job %u: can't write its record under %s", job->job_id, job->folder);
    if (job->kind == JOB_HOST && result == AGENT_ANSWERED)
        await_mps(job, answer);
    if (job->kind != JOB_FILL || (result == AGENT_ANSWERED && answer_is(answer, "ok")))
        return;
    if (result == AGENT_ANSWERED)
        answer_value(answer, "reason", reason, sizeof reason);
    else
        snprintf(reason, sizeof reason, "the node agent %s",
                 result == AGENT_ABSENT ? "is not running" : "does not answer");
    int delay_s = ABSENT_DELAY_S;
    if (result == AGENT_ANSWERED)
        delay_s = answer_number(answer, "retry_s", RETRY_MAX_S, REFUSED_DELAY_S);
    syslog(LOG_NOTICE, "job %u: fill refused on %s: %s", job->job_id, job->node, reason);
    requeue_later(arguments.scontrol, job->job_id, job->batch, (unsigned)delay_s, reason);
}

/* An agent that knew the job and is away just now is most likely being restarted: it would take
 * the job for a living one until it has missed its processes for long. */
static enum agent_result ask_until_there(const struct job *job, const char *request,
                                         char answer[AGENT_MESSAGE_SIZE], int bound_ms, bool knew) {
    const struct timespec pause = {0, AGAIN_MS * 1000000l};
    enum agent_result result =
        agent_ask_for_long(job->socket, request, answer, SILENT_MS, bound_ms);
    for (int left = knew ? END_RESTART_MS / AGAIN_MS : 0; left > 0 && result == AGENT_ABSENT;
         left--) {
        nanosleep(&pause, NULL);
        result = agent_ask_for_long(job->socket, request, answer, SILENT_MS, bound_ms);
    }
    return result;
}

static void end(struct job *job) {
    char request[96], answer[AGENT_MESSAGE_SIZE];
    struct job_record record = job_record_read(job->folder, job->node, job->job_id);
    int bound_ms = job->kind == JOB_HOST && record.agent_answered ? END_HOST_MS : END_OTHER_MS;
    bool knew = record.agent_answered && (record.kind == JOB_HOST || record.kind == JOB_FILL);
    snprintf(request, sizeof request, "job_end\njob_id=%u\nat_us=%lld\n", job->job_id, utc_us());
    enum agent_result result = ask_until_there(job, request, answer, bound_ms, knew);
    if (result != AGENT_ANSWERED)
        syslog(LOG_ERR, "job %u: the agent %s", job->job_id,
               result == AGENT_ABSENT ? "is not there to be told of its end"
                                      : "did not say in time that its GPUs are clean");
    job_record_remove(job->folder, job->node, job->job_id);
}

int main(int argc, char **argv) {
    struct job job = {0};
    openlog("sfill-hook", LOG_PID, LOG_DAEMON);
    if (argc < 2 || (strcmp(argv[1], "begin") && strcmp(argv[1], "end"))) {
        fprintf(stderr, "usage: sfill-hook begin|end [key=value ...]\n");
        return 0; /* a prolog must not fail */
    }
    read_arguments(argc - 2, argv + 2);
    if (!read_job(&job))
        syslog(LOG_ERR, "no SLURM_JOB_ID: not called by slurmd");
    else if (!strcmp(argv[1], "begin"))
        begin(&job);
    else
        end(&job);
    return 0;
}
