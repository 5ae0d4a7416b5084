/* job_record.c - see job_record.h. One file a job and node: nodes of a sandbox share a host. */
#include "job_record.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *kind_names[] = {"unknown", "other", "host", "fill"};

const char *job_kind_name(enum job_kind kind) { return kind_names[kind]; }

static bool record_path(char path[PATH_MAX], const char *folder, const char *node,
                        uint32_t job_id) {
    int n = snprintf(path, PATH_MAX, "%s/%u.%s", folder, job_id, node);
    return n > 0 && n < PATH_MAX && !strchr(node, '/');
}

bool job_record_write(const char *folder, const char *node, uint32_t job_id,
                      const struct job_record *record) {
    char path[PATH_MAX], text[64];
    if (!record_path(path, folder, node, job_id))
        return false;
    if (mkdir(folder, 0755) != 0 && errno != EEXIST)
        return false;
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0)
        return false;
    int n =
        snprintf(text, sizeof text, "%s %d\n", kind_names[record->kind], record->agent_answered);
    bool ok = write(fd, text, (size_t)n) == n;
    return close(fd) == 0 && ok;
}

struct job_record job_record_read(const char *folder, const char *node, uint32_t job_id) {
    struct job_record record = {JOB_UNKNOWN, true};
    char path[PATH_MAX], text[64] = "", word[16];
    int answered;
    if (!record_path(path, folder, node, job_id))
        return record;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return record;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0 || sscanf(text, "%15s %d", word, &answered) != 2)
        return record;
    for (int kind = JOB_OTHER; kind <= JOB_FILL; kind++)
        if (!strcmp(word, kind_names[kind]))
            record.kind = (enum job_kind)kind;
    record.agent_answered = answered != 0;
    return record;
}

void job_record_remove(const char *folder, const char *node, uint32_t job_id) {
    char path[PATH_MAX];
    if (record_path(path, folder, node, job_id))
        unlink(path);
}
