/* threads_program.c SEED MILLISECONDS THREADS - launches from several threads at once, each on
 * streams of its own and on shared ones, with waits across streams, synchronisation of every kind
 * and pauses; for checking that the board never says idle while something is unfinished. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuCtxSynchronize(void);
int cuModuleLoadData(void **, const void *);
int cuModuleGetFunction(void **, void *, const char *);
int cuStreamCreate(void **, unsigned);
int cuStreamDestroy_v2(void *);
int cuStreamSynchronize(void *);
int cuStreamWaitEvent(void *, void *, unsigned);
int cuEventCreate(void **, unsigned);
int cuEventRecord(void *, void *);
int cuEventSynchronize(void *);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   void *, void **, void **);

static void *context, *function, *shared_stream;
static unsigned seed, milliseconds;

static void check(int result, const char *what) {
    if (result) {
        fprintf(stderr, "%s: error %d\n", what, result);
        exit(1);
    }
}

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

static void one_step(unsigned *state, void **stream, void *event) {
    /* NULL and the thread's own default stream too */
    void *targets[] = {*stream, *stream, shared_stream, NULL, (void *)2};
    void *target = targets[rand_r(state) % 5];
    unsigned launches = 1 + rand_r(state) % 20;
    for (unsigned i = 0; i < launches; i++)
        check(
            cuLaunchKernel(function, 1 + rand_r(state) % 200, 1, 1, 1, 1, 1, 0, target, NULL, NULL),
            "launch");
    switch (rand_r(state) % 8) {
    case 0:
        check(cuStreamSynchronize(target), "stream");
        break;
    case 1:
        check(cuEventRecord(event, target), "record");
        check(cuStreamWaitEvent(*stream, event, 0), "wait");
        break;
    case 2:
        check(cuEventRecord(event, target), "record");
        check(cuEventSynchronize(event), "event");
        break;
    case 3:
        check(cuCtxSynchronize(), "context");
        break;
    case 4:
        check(cuStreamDestroy_v2(*stream), "destroy");
        check(cuStreamCreate(stream, rand_r(state) % 4 == 0 ? 0 : 1), "create");
        break;
    case 5:
        usleep(rand_r(state) % 3000);
        break;
    }
}

static void *work(void *data) {
    unsigned state = seed + (unsigned)(size_t)data;
    void *stream, *event;
    check(cuCtxSetCurrent(context), "current");
    check(cuStreamCreate(&stream, 1), "create");
    check(cuEventCreate(&event, 2), "event");
    for (double end = now_ms() + milliseconds; now_ms() < end;) {
        one_step(&state, &stream, event);
        if (rand_r(&state) % 10 == 0) {
            check(cuCtxSynchronize(), "context");
            usleep(rand_r(&state) % 5000);
        }
    }
    check(cuCtxSynchronize(), "context");
    return NULL;
}

int main(int count, char **arguments) {
    if (count != 4)
        return 2;
    seed = (unsigned)atoi(arguments[1]);
    milliseconds = (unsigned)atoi(arguments[2]);
    int threads = atoi(arguments[3]);
    void *module;
    check(cuInit(0), "init");
    check(cuDevicePrimaryCtxRetain(&context, 0), "retain");
    check(cuCtxSetCurrent(context), "current");
    check(cuModuleLoadData(&module, "image"), "module");
    check(cuModuleGetFunction(&function, module, "kernel"), "function");
    check(cuStreamCreate(&shared_stream, 1), "create");
    pthread_t workers[16];
    for (int i = 0; i < threads && i < 16; i++)
        pthread_create(&workers[i], NULL, work, (void *)(size_t)i);
    for (int i = 0; i < threads && i < 16; i++)
        pthread_join(workers[i], NULL);
    check(cuCtxSynchronize(), "context");
    puts("done");
    return 0;
}
