/* launch_cost.c - what launches cost the host: bursts of 64, each awaited and followed by a rest.
 *
 *   launch_cost SECONDS REST_US
 *
 * Prints one JSON object: launches, how often their thread read the clock, how often the
 * interposer's own thread went to sleep, and the nanoseconds of the cheapest burst's launches. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuStreamCreate(void **, unsigned);
int cuStreamSynchronize(void *);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   void *, void **, void **);

enum { BURST = 64 };

/* The interposer's reads of the clock come here too: a program's symbols go first. */
static __thread long clock_reads;
int clock_gettime(clockid_t clock, struct timespec *out) {
    clock_reads++;
    return (int)syscall(SYS_clock_gettime, clock, out);
}

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

/* How often the threads beside this one have gone to sleep so far. */
static long sleeps(void) {
    char path[300], line[128];
    long sum = 0, found;
    DIR *tasks = opendir("/proc/self/task");
    struct dirent *entry;
    while (tasks && (entry = readdir(tasks))) {
        if (atol(entry->d_name) == getpid() || entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", entry->d_name);
        FILE *status = fopen(path, "r");
        while (status && fgets(line, sizeof line, status))
            if (sscanf(line, "voluntary_ctxt_switches: %ld", &found) == 1)
                sum += found;
        if (status)
            fclose(status);
    }
    if (tasks)
        closedir(tasks);
    return sum;
}

int main(int count, char **words) {
    void *context, *stream;
    if (count != 3 || cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) ||
        cuCtxSetCurrent(context) || cuStreamCreate(&stream, 1))
        return 1;
    long launches = 0, reads = 0, slept = 0;
    double best = 1e18, begin = 0, end = now_ns() + 1e9 * (0.2 + atof(words[1]));
    while (now_ns() < end) {
        if (!begin && now_ns() > end - 1e9 * atof(words[1])) { /* it has warmed up */
            begin = now_ns();
            slept = sleeps();
        }
        long before = clock_reads;
        double from = now_ns();
        for (int i = 0; i < BURST; i++)
            cuLaunchKernel(&context, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
        double each = (now_ns() - from) / BURST;
        if (begin) {
            reads += clock_reads - before - 2;
            launches += BURST;
            best = each < best ? each : best;
        }
        cuStreamSynchronize(stream);
        usleep((unsigned)atoi(words[2]));
    }
    printf("{\"launches\": %ld, \"clock_reads\": %ld, \"sleeps\": %ld, \"seconds\": %.3f, "
           "\"best_ns\": %.1f}\n",
           launches, reads, sleeps() - slept, (now_ns() - begin) / 1e9, best);
    return 0;
}
