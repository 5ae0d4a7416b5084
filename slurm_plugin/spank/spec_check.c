/* spec_check.c - lets the unit tests ask the parser: `spec_check fill|host SPEC [DEFAULT MAX]`,
 * SPEC "-" for an option that stands alone, or no arguments and one `fill SPEC` / `host SPEC` a
 * line (for many at once). Prints "ok CANONICAL" or "bad SENTENCE". Not installed. */
#include "spec.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(bool fill, const char *text, const struct spec_limits *limits) {
    char error[SPEC_ERROR_SIZE] = "", canonical[SPEC_TEXT_SIZE] = "";
    struct fill_spec fill_spec;
    struct host_spec host_spec;
    bool ok;
    if (fill) {
        ok = spec_parse_fill(text, "--fill", limits, &fill_spec, error);
        if (ok)
            spec_format_fill(&fill_spec, canonical);
    } else {
        ok = spec_parse_host(text, "--fill-host", limits, &host_spec, error);
        if (ok)
            spec_format_host(&host_spec, canonical);
    }
    printf("%s %s\n", ok ? "ok" : "bad", ok ? canonical : error);
}

int main(int argc, char **argv) {
    struct spec_limits limits = {16 * 1024, 1024 * 1024};
    if (argc >= 3) {
        if (argc >= 5) {
            limits.default_mib = strtoull(argv[3], NULL, 10);
            limits.max_mib = strtoull(argv[4], NULL, 10);
        }
        check(!strcmp(argv[1], "fill"), strcmp(argv[2], "-") ? argv[2] : NULL, &limits);
        return 0;
    }
    char *line = NULL;
    size_t size = 0;
    ssize_t length;
    while ((length = getline(&line, &size, stdin)) > 0) {
        if (line[length - 1] == '\n')
            line[length - 1] = 0;
        if (length < 6)
            continue;
        /* A copy of its own size, so that a read past the end is seen by ASan. */
        char *text = strdup(line + 5);
        check(!strncmp(line, "fill", 4), text, &limits);
        free(text);
    }
    free(line);
    return 0;
}
