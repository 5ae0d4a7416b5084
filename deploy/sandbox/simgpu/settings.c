/* settings.c - where the simulated machine lives and how it behaves. */
#include <ctype.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "world.h"

/* The folder two levels up from this library, so that a job started without its environment
 * (--export=NONE) still finds the machine it runs on. */
static const char *beside_library(const char *relative, char *buffer, size_t size) {
    Dl_info info;
    char path[PATH_MAX];
    if (!dladdr((void *)(uintptr_t)beside_library, &info) || !realpath(info.dli_fname, path))
        return NULL;
    char *slash = strrchr(path, '/');
    *slash = 0;
    if (snprintf(buffer, size, "%s/%s", path, relative) >= (int)size)
        return NULL;
    return buffer;
}

const char *settings_state_dir(void) {
    static char buffer[PATH_MAX];
    const char *given = getenv("SIMGPU_DIR");
    return given && *given ? given : beside_library("../state", buffer, sizeof buffer);
}

const char *settings_device_dir(void) {
    static char buffer[PATH_MAX];
    const char *given = getenv("SIMGPU_DEV");
    return given && *given ? given : beside_library("../../dev", buffer, sizeof buffer);
}

static bool parse_number(const char *text, const char *where, const char *key, uint64_t *value) {
    while (isspace((unsigned char)*text))
        text++;
    char *end;
    unsigned long long number = strtoull(text, &end, 10);
    while (isspace((unsigned char)*end))
        end++;
    if (!isdigit((unsigned char)*text) || (*end && *end != '#')) {
        fprintf(stderr, "simgpu: %s: %s must be a whole number, not \"%s\"\n", where, key, text);
        return false;
    }
    *value = number;
    return true;
}

uint64_t settings_number(const char *environment, const char *key, uint64_t otherwise) {
    uint64_t value = otherwise;
    const char *given = getenv(environment);
    if (given && *given)
        return parse_number(given, "environment", environment, &value) ? value : otherwise;
    char path[PATH_MAX], line[256];
    const char *dir = settings_state_dir();
    if (!dir || snprintf(path, sizeof path, "%s/simgpu.conf", dir) >= (int)sizeof path)
        return otherwise;
    FILE *file = fopen(path, "re");
    if (!file)
        return otherwise;
    size_t length = strlen(key);
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\r\n")] = 0;
        char *text = line + strspn(line, " \t");
        if (strncmp(text, key, length))
            continue;
        text += length + strspn(text + length, " \t");
        if (*text == '=' && !parse_number(text + 1, path, key, &value))
            value = otherwise;
    }
    fclose(file);
    return value;
}
