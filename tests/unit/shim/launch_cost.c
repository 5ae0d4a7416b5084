/* launch_cost.c - what a launch costs the host: prints nanoseconds for each of many launches. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuStreamCreate(void **, unsigned);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   void *, void **, void **);

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

int main(void) {
    enum { BATCHES = 50, LAUNCHES = 20000 };
    void *context, *stream;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) ||
        cuStreamCreate(&stream, 1))
        return 1;
    double best = 1e18;
    for (int batch = 0; batch < BATCHES; batch++) {
        double begin = now_ns();
        for (int i = 0; i < LAUNCHES; i++)
            cuLaunchKernel(&context, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
        double each = (now_ns() - begin) / LAUNCHES;
        best = each < best ? each : best;
    }
    printf("%.1f\n", best);
    return 0;
}
