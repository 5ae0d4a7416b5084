/* allocator.c - sbatch, salloc, srun: reads the options and their environment variables, says at
 * once what is wrong, and passes canonical specs on to job_submit.lua (as FILL_SPEC,
 * FILL_HOST_SPEC in spank_job_env) and to prolog and epilog (as SPANK_FILL_SPEC ...). */
#include "plugin.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Slurm hands options to whatever its commands start, and to the next component of a heterogeneous
 * job, by environment variables. */
static const char *const inherited_names[][2] = {
    [OPTION_FILL] = {"SLURM_SPANK__SLURM_SPANK_OPTION_fill_fill", "_SLURM_SPANK_OPTION_fill_fill"},
    [OPTION_FILL_HOST] = {"SLURM_SPANK__SLURM_SPANK_OPTION_fill_fill_host",
                          "_SLURM_SPANK_OPTION_fill_fill_host"},
};

struct request {
    bool given;
    bool from_environment;
    const char *origin; /* what the user wrote: option or variable */
    char *value;        /* NULL: alone */
};

static struct request fill, host;

static void forget(struct request *request) {
    free(request->value);
    *request = (struct request){0};
}

/* A step takes part in an allocation that others decided about. */
static bool inside_job(void) {
    return spank_context() == S_CTX_LOCAL && (getenv("SLURM_JOB_ID") || getenv("SLURM_JOBID"));
}

static const char *inherited(enum option option) {
    return getenv(inherited_names[option][0]) ?: getenv(inherited_names[option][1]);
}

/* Whether Slurm took this very text from the environment. What a component asks for may read the
 * same, and its script's lines come before the environment, its command line after. */
static bool of_environment(enum option option, const char *value) {
    return value && (value == getenv(inherited_names[option][0]) ||
                     value == getenv(inherited_names[option][1]));
}

static void disinherit(enum option option) {
    unsetenv(inherited_names[option][0]);
    unsetenv(inherited_names[option][1]);
}

void allocator_start(spank_t spank) {
    (void)spank;
    /* A job that is submitted from within a job is no part of it and inherits nothing. */
    if (!inside_job()) {
        disinherit(OPTION_FILL);
        disinherit(OPTION_FILL_HOST);
    }
}

void allocator_option(enum option option, const char *value) {
    struct request *request = option == OPTION_FILL ? &fill : &host;
    const char *of_job = inside_job() ? inherited(option) : NULL;
    if (!of_job && of_environment(option, value))
        return; /* the component before this one asked, not this one */
    forget(request);
    request->given = true;
    request->origin = option == OPTION_FILL ? "--fill" : "--fill-host";
    /* A step's inherited option was checked at submission; without a value it reads "(null)". */
    if (value && !(of_job && !strcmp(value, of_job)))
        request->value = strdup(value);
}

/* The option wins over the variables; an empty variable is none. */
static void take_environment(void) {
    if (fill.given || host.given || inside_job())
        return;
    const char *value = getenv("SFILL_FILL");
    if (value && *value)
        fill = (struct request){true, true, "SFILL_FILL", strdup(value)};
    value = getenv("SFILL_FILL_HOST");
    if (value && *value)
        host = (struct request){true, true, "SFILL_FILL_HOST", strdup(value)};
}

static bool check(char fill_text[SPEC_TEXT_SIZE], char host_text[SPEC_TEXT_SIZE],
                  char error[SPEC_ERROR_SIZE]) {
    struct fill_spec fill_spec;
    struct host_spec host_spec;
    if (fill.given && host.given && !inside_job()) { /* a step may inherit one of them */
        snprintf(error, SPEC_ERROR_SIZE,
                 "%s and %s can't go together: a job either fills bubbles or lends them; leave "
                 "one out",
                 fill.origin, host.origin);
        return false;
    }
    if (fill.given) {
        if (!spec_parse_fill(fill.value, fill.origin, &arguments.limits, &fill_spec, error))
            return false;
        spec_format_fill(&fill_spec, fill_text);
    }
    if (host.given) {
        if (!spec_parse_host(host.value, host.origin, &arguments.limits, &host_spec, error))
            return false;
        spec_format_host(&host_spec, host_text);
    }
    return true;
}

/* Sets or clears: components of a heterogeneous job share one process, and what one asks for must
 * not reach the next. */
static void pass_on(spank_t spank, const char *name, const char *value) {
    if (*value)
        spank_job_control_setenv(spank, name, value, 1);
    else
        spank_job_control_unsetenv(spank, name);
}

/* As Slurm's own commands choose it. */
static int exit_code(void) {
    const char *text = getenv("SLURM_EXIT_ERROR");
    int code = text ? atoi(text) : 0;
    return code > 0 && code < 256 ? code : 1;
}

int allocator_options_done(spank_t spank) {
    char fill_text[SPEC_TEXT_SIZE] = "", host_text[SPEC_TEXT_SIZE] = "", error[SPEC_ERROR_SIZE];
    take_environment();
    if (!check(fill_text, host_text, error)) {
        slurm_error("%s", error);
        exit(exit_code()); /* a refusal by return value would add two lines about plugins */
    }
    if (!inside_job()) {
        const bool batch = !strcmp(program_invocation_short_name, "sbatch");
        pass_on(spank, "FILL_SPEC", fill_text);
        pass_on(spank, "FILL_HOST_SPEC", host_text);
        pass_on(spank, "FILL_FROM_ENVIRONMENT", fill.from_environment ? "1" : "");
        pass_on(spank, "FILL_BATCH", fill.given ? (batch ? "1" : "0") : "");
        pass_on(spank, "FILL_HOST_FROM_ENVIRONMENT", host.from_environment ? "1" : "");
    }
    forget(&fill);
    forget(&host);
    return ESPANK_SUCCESS;
}
