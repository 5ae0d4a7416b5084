/* step.c - slurmstepd: the role of a step's processes. It comes from the agent, by job id; the
 * option a step carries decides nothing (a user can add it, drop it, or have it leak).
 *
 * init_post_opt asks; the task hooks act, because what is put into the environment earlier is lost
 * with --export=NONE, and because only a failing task ends a step without draining its node. */
#include "plugin.h"
#include "agent_client.h"
#include "job_record.h"
#include "library.h"
#include "step_environment.h"
#include "requeue.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ASK_MS 200
#define ASK_AGAIN_MS                                                                               \
    40                   /* an ordinary job, whose prolog found the agent deaf: don't wait for it  \
                          */
#define TASK_MS 1000     /* opening devices for a fill job's task */
#define REQUEUE_WAIT_S 5 /* for the kill that follows a requeue */
#define STEP_EXTERN 0xfffffffcu
#define STEP_BATCH 0xfffffffbu

static struct step_role role; /* of all tasks of this step */
static struct job_record record;
static uint32_t job_id, step_id;
static char job_name[32]; /* for Slurm's commands */
static bool carries_fill;

void step_option(enum option option) {
    if (option == OPTION_FILL)
        carries_fill = true;
}

/* What Slurm's commands call this one job: the number of an array means all of its tasks. */
static void name_job(spank_t spank) {
    uint32_t array = 0, task = 0;
    if (spank_get_item(spank, S_JOB_ARRAY_ID, &array) == ESPANK_SUCCESS && array &&
        spank_get_item(spank, S_JOB_ARRAY_TASK_ID, &task) == ESPANK_SUCCESS)
        snprintf(job_name, sizeof job_name, "%u_%u", array, task);
    else
        snprintf(job_name, sizeof job_name, "%u", job_id);
}

static void find_node(spank_t spank, char *node, size_t size) {
    const char *own = getenv("SLURMD_NODENAME");
    if (own && *own)
        snprintf(node, size, "%s", own);
    else if (spank_getenv(spank, "SLURMD_NODENAME", node, (int)size) != ESPANK_SUCCESS) {
        gethostname(node, size);
        node[size - 1] = 0;
        node[strcspn(node, ".")] = 0;
    }
}

static void refuse(const char *reason) {
    role.kind = ROLE_REFUSED;
    snprintf(role.reason, sizeof role.reason, "%s", reason);
}

static bool in_fill_partition(spank_t spank) {
    char partition[64] = "";
    return spank_getenv(spank, "SLURM_JOB_PARTITION", partition, sizeof partition) ==
               ESPANK_SUCCESS &&
           !strcmp(partition, arguments.partition);
}

/* Without a word from the agent: the prolog's record tells, and where there is none, the
 * environment, which can only make a job stricter. */
static void decide_alone(spank_t spank, enum agent_result result) {
    bool fill = record.kind == JOB_FILL;
    if (record.kind == JOB_UNKNOWN)
        fill = in_fill_partition(spank);
    if (fill)
        refuse(result == AGENT_ABSENT ? "the node agent is not running"
                                      : "the node agent does not answer");
    else {
        role.kind = ROLE_UNKNOWN;
        slurm_info("spank_fill: job %u goes on without the agent (%s)", job_id,
                   result == AGENT_ABSENT ? "absent" : "silent");
    }
}

static void take_answer(spank_t spank, const char *answer) {
    if (!answer_value(answer, "preload", role.preload, sizeof role.preload))
        snprintf(role.preload, sizeof role.preload, "%s", arguments.preload);
    char socket_path[sizeof role.socket];
    if (answer_value(answer, "socket", socket_path, sizeof socket_path) && *socket_path)
        strcpy(role.socket, socket_path);
    char mode[16], gpus[16];
    answer_value(answer, "mps_pipe", role.mps_pipe, sizeof role.mps_pipe);
    answer_value(answer, "mps_threads", role.mps_threads, sizeof role.mps_threads);
    answer_value(answer, "mps_gpus", gpus, sizeof gpus);
    role.mps_gpus = atoi(gpus);
    answer_value(answer, "mode", mode, sizeof mode);
    if (answer_is(answer, "fill") &&
        answer_value(answer, "cuda_visible_devices", role.devices, sizeof role.devices))
        role.kind = ROLE_FILL;
    else if (answer_is(answer, "refused")) {
        char reason[sizeof role.reason];
        answer_value(answer, "reason", reason, sizeof reason);
        refuse(*reason ? reason : "the node agent did not admit it");
    } else if (record.kind == JOB_FILL)
        refuse("the node agent does not know this job as a fill job");
    else if (record.kind == JOB_UNKNOWN && in_fill_partition(spank))
        /* slurmd runs none for a job that it has seen before and not forgotten yet, which it does
         * every 2 s at most: one that is requeued while others start on the node. */
        refuse("Slurm ran no prolog for it on this node");
    else if (answer_is(answer, "host") && strcmp(mode, "off") != 0)
        role.kind = ROLE_HOST;
    else
        role.kind = ROLE_NONE;
}

int step_options_done(spank_t spank) {
    char node[256], folder[PATH_MAX], request[256], answer[AGENT_MESSAGE_SIZE];
    uid_t user_id = 0;
    if (spank_get_item(spank, S_JOB_ID, &job_id) != ESPANK_SUCCESS ||
        spank_get_item(spank, S_JOB_STEPID, &step_id) != ESPANK_SUCCESS ||
        spank_get_item(spank, S_JOB_UID, &user_id) != ESPANK_SUCCESS || step_id == STEP_EXTERN)
        return ESPANK_SUCCESS;
    name_job(spank);
    find_node(spank, node, sizeof node);
    expand_node(arguments.socket, node, role.socket, sizeof role.socket);
    jobs_folder(&arguments, node, folder, sizeof folder);
    record = job_record_read(folder, node, job_id);
    bool deaf = !record.agent_answered && record.kind != JOB_FILL;
    snprintf(request, sizeof request, "step\njob_id=%u\nstep_id=%u\nuser_id=%u\n", job_id, step_id,
             (unsigned)user_id);
    enum agent_result result =
        agent_ask(role.socket, request, answer, deaf ? ASK_AGAIN_MS : ASK_MS);
    if (result == AGENT_ANSWERED)
        take_answer(spank, answer);
    else
        decide_alone(spank, result);
    slurm_info("spank_fill: job %u step %u on %s: role %s%s%s", job_id, step_id, node,
               step_role_name(role.kind), *role.reason ? ": " : "", role.reason);
    return ESPANK_SUCCESS;
}

/* Opens the GPU in the cgroups of this process; as root for job and step, again as the user once
 * Slurm has put the task into a cgroup of its own. */
static bool open_devices(void) {
    char request[256], answer[AGENT_MESSAGE_SIZE];
    snprintf(request, sizeof request, "task\njob_id=%u\nstep_id=%u\nprocess_id=%d\n", job_id,
             step_id, (int)getpid());
    enum agent_result result = agent_ask(role.socket, request, answer, TASK_MS);
    if (result == AGENT_ANSWERED && answer_is(answer, "ok"))
        return true;
    char reason[sizeof role.reason] = "";
    if (result == AGENT_ANSWERED)
        answer_value(answer, "reason", reason, sizeof reason);
    refuse(*reason ? reason : "the node agent did not open the GPU");
    return false;
}

/* What the task's own standard error shows. */
static void tell_task(const char *text) { dprintf(STDERR_FILENO, "sfill: %s\n", text); }

/* A batch fill goes back to the queue; the task must not end before the kill comes, or the job
 * would count as failed. What Slurm can't requeue fails here. Slurm's own way to fail, a negative
 * answer, adds two lines about plugins and does nothing where the site wrote `optional`. */
static void __attribute__((noreturn)) stop_task(void) {
    char text[sizeof role.reason + 64];
    snprintf(text, sizeof text, "this fill job can't run here: %s", role.reason);
    tell_task(text);
    slurm_info("spank_fill: job %u step %u: %s", job_id, step_id, text);
    if (step_id == STEP_BATCH && geteuid() == 0 && requeue_now(arguments.scontrol, job_name))
        sleep(REQUEUE_WAIT_S);
    _exit(EXIT_FAILURE);
}

static bool library_stands(void) {
    const char *defect = library_defect(role.preload);
    char text[sizeof role.reason];
    if (!defect)
        return true;
    snprintf(text, sizeof text, "the interposer's library %s", defect);
    refuse(text);
    return false;
}

int step_task_privileged(spank_t spank) {
    (void)spank;
    if (role.kind == ROLE_FILL && library_stands()) /* while we are root, who can requeue it */
        open_devices();
    if (role.kind == ROLE_REFUSED)
        stop_task();
    return ESPANK_SUCCESS;
}

static void note_vain_option(spank_t spank) {
    char het[16];
    uint32_t rank = 0;
    spank_get_item(spank, S_TASK_GLOBAL_ID, &rank);
    /* In a heterogeneous job Slurm itself carries the option to the other components. */
    if (carries_fill && rank == 0 && step_id != STEP_BATCH &&
        spank_getenv(spank, "SLURM_HET_SIZE", het, sizeof het) != ESPANK_SUCCESS)
        tell_task("--fill changes nothing for a step: this job was not submitted as a fill job");
}

int step_task(spank_t spank) {
    const char *defect = role.kind == ROLE_HOST ? library_defect(role.preload) : NULL;
    switch (role.kind) {
    case ROLE_FILL:
        if (library_stands() && open_devices()) { /* as the user sees them */
            step_environment_fill(spank, &role);
            return ESPANK_SUCCESS;
        }
        stop_task();
    case ROLE_HOST:
        if (!defect)
            step_environment_host(spank, &role);
        else
            slurm_info("spank_fill: job %u runs without a monitor: %s %s", job_id, role.preload,
                       defect);
        break;
    case ROLE_NONE:
        step_environment_none(spank, &role);
        break;
    case ROLE_UNKNOWN:
    case ROLE_REFUSED:
        break;
    }
    if (role.kind == ROLE_HOST || role.kind == ROLE_NONE)
        note_vain_option(spank);
    return ESPANK_SUCCESS;
}
