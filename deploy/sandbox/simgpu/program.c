/* program.c - starting, stopping and measuring, for the simulated programs. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "program.h"

volatile sig_atomic_t program_stop;
static const char *program_name = "program";

static void on_stop(int signal_number) {
    (void)signal_number;
    program_stop = 1;
}

void program_begin(const char *name) {
    program_name = name;
    struct sigaction action = {.sa_handler = on_stop}; /* no restart: a sleep must end */
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    setvbuf(stdout, NULL, _IOLBF, 0);
}

void program_fail(const char *format, ...) {
    va_list arguments;
    fprintf(stderr, "%s: ", program_name);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(2);
}

void program_check(CUresult result, const char *call) {
    const char *name = "unknown error";
    if (!result)
        return;
    cuGetErrorName(result, &name);
    fprintf(stderr, "%s: %s failed with %d (%s)\n", program_name, call, result, name);
    exit(1);
}

long program_number(const char *option, const char *text, long least, long most) {
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || end == text || *end || value < least || value > most)
        program_fail("--%s must be a whole number from %ld to %ld, not \"%s\"", option, least, most,
                     text);
    return value;
}

double program_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

void program_sleep(double seconds) {
    if (seconds <= 0 || program_stop)
        return;
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&t, &t) && !program_stop)
        ;
}

void program_launch(CUfunction function, unsigned microseconds, CUstream stream) {
    program_check(cuLaunchKernel(function, microseconds, 1, 1, 128, 1, 1, 0, stream, NULL, NULL),
                  "cuLaunchKernel");
}

void program_spin(CUfunction function, unsigned microseconds, CUstream stream, const void *word,
                  uint64_t value) {
    uint64_t buffer[] = {(uintptr_t)word, value};
    size_t bytes = sizeof buffer;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     NULL};
    program_check(cuLaunchKernel(function, microseconds, 1, 1, 128, 1, 1, 0, stream, NULL, extra),
                  "cuLaunchKernel");
}

void program_follow(CUstream stream, CUstream other, CUevent event) {
    program_check(cuEventRecord(event, other), "cuEventRecord");
    program_check(cuStreamWaitEvent(stream, event, 0), "cuStreamWaitEvent");
}

void program_begin_graph(CUstream stream) {
    program_check(cuStreamBeginCapture_v2(stream, 0), "cuStreamBeginCapture");
}

CUgraphExec program_end_graph(CUstream stream) {
    CUgraph graph;
    CUgraphExec made;
    program_check(cuStreamEndCapture(stream, &graph), "cuStreamEndCapture");
    program_check(cuGraphInstantiateWithFlags(&made, graph, 0), "cuGraphInstantiate");
    program_check(cuGraphDestroy(graph), "cuGraphDestroy");
    return made;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct spread program_spread(double *values, unsigned long count) {
    struct spread s = {0, 0, 0};
    if (!count)
        return s;
    qsort(values, count, sizeof *values, compare);
    for (unsigned long i = 0; i < count; i++)
        s.mean += values[i] / (double)count;
    s.median = count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
    s.p95 = values[(count * 95 + 99) / 100 - 1];
    return s;
}
