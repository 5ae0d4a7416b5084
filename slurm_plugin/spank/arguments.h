/* arguments.h - what the site sets for all of this in one place: the arguments after
 * spank_fill.so in plugstack.conf. sfill-hook (prolog, epilog) reads the same line. */
#ifndef SFILL_ARGUMENTS_H
#define SFILL_ARGUMENTS_H
#include <limits.h>
#include <stddef.h>
#include "spec.h"

struct arguments {
    char socket[PATH_MAX];  /* agent's socket; %n stands for the node name */
    char preload[PATH_MAX]; /* libspecinf.so, where the agent names none */
    char jobs[PATH_MAX];    /* folder of job records (job_record.h); empty: beside the socket */
    char scontrol[PATH_MAX];
    char partition[64]; /* partition of fill jobs */
    struct spec_limits limits;
};

void arguments_default(struct arguments *arguments);

/* One "key=value". Returns NULL, or what is wrong with it; then nothing is changed. */
const char *argument_set(struct arguments *arguments, const char *text);

/* Takes the arguments of the first line of `path` that names spank_fill.so; no such file or
 * line leaves the defaults. Wrong ones are passed over. */
void arguments_read(struct arguments *arguments, const char *path);

/* Folder of job records: jobs=, else "jobs" in the socket's folder. */
void jobs_folder(const struct arguments *arguments, const char *node, char *out, size_t size);

/* `pattern` with %n replaced. */
void expand_node(const char *pattern, const char *node, char *out, size_t size);
#endif
