/* arguments.c - see arguments.h */
#include "arguments.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void arguments_default(struct arguments *a) {
    memset(a, 0, sizeof *a);
    strcpy(a->socket, "/run/sfill/sfilld.sock");
    strcpy(a->scontrol, "scontrol");
    strcpy(a->partition, "fill");
    a->limits.default_mib = 16 * 1024;
    a->limits.max_mib = 1024 * 1024;
}

static const char *set_text(char *field, size_t size, const char *value) {
    if (!*value)
        return "has no value";
    if (strlen(value) >= size)
        return "is too long";
    strcpy(field, value);
    return NULL;
}

static const char *set_size(uint64_t *field, const char *value) {
    uint64_t mib;
    if (!spec_parse_size(value, strlen(value), &mib) || mib > SPEC_MAX_MIB)
        return "is not a size (as in 16G)";
    *field = mib;
    return NULL;
}

const char *argument_set(struct arguments *a, const char *text) {
    const char *equals = strchr(text, '=');
    if (!equals)
        return "is not key=value";
    const char *value = equals + 1;
    size_t length = (size_t)(equals - text);
    const struct {
        const char *key;
        char *field;
        size_t size;
    } texts[] = {{"socket", a->socket, sizeof a->socket},
                 {"preload", a->preload, sizeof a->preload},
                 {"jobs", a->jobs, sizeof a->jobs},
                 {"scontrol", a->scontrol, sizeof a->scontrol},
                 {"partition", a->partition, sizeof a->partition}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (strlen(texts[i].key) == length && !memcmp(text, texts[i].key, length))
            return set_text(texts[i].field, texts[i].size, value);
    if (length == 7 && !memcmp(text, "max_mem", 7))
        return set_size(&a->limits.max_mib, value);
    if (length == 11 && !memcmp(text, "default_mem", 11))
        return set_size(&a->limits.default_mib, value);
    return "is not known; allowed are socket, preload, jobs, scontrol, partition, max_mem, "
           "default_mem";
}

void arguments_read(struct arguments *a, const char *path) {
    FILE *file = fopen(path, "re");
    char *line = NULL;
    size_t size = 0;
    if (!file)
        return;
    while (getline(&line, &size, file) > 0) {
        char *rest = strstr(line, "spank_fill.so"), *comment = strchr(line, '#');
        if (!rest || (comment && comment < rest))
            continue;
        for (char *word = strtok(rest, " \t\n"); word; word = strtok(NULL, " \t\n"))
            argument_set(a, word); /* the first word, the plugin itself, is no key=value */
        break;
    }
    free(line);
    fclose(file);
}

void expand_node(const char *pattern, const char *node, char *out, size_t size) {
    size_t used = 0;
    for (const char *p = pattern; *p && used + 1 < size; p++) {
        if (p[0] != '%' || p[1] != 'n') {
            out[used++] = *p;
            continue;
        }
        p++;
        for (const char *n = node; *n && used + 1 < size; n++)
            out[used++] = *n;
    }
    out[used] = 0;
}

void jobs_folder(const struct arguments *a, const char *node, char *out, size_t size) {
    char pattern[PATH_MAX + 8];
    const char *slash = strrchr(a->socket, '/');
    int length = slash ? (int)(slash - a->socket) : 0;
    snprintf(pattern, sizeof pattern, "%.*s/jobs", length, a->socket);
    expand_node(*a->jobs ? a->jobs : pattern, node, out, size);
}
