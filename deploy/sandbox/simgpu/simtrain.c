/* simtrain - behaves as a training program does on its GPUs: each iteration uploads a batch, runs
 * kernels, perhaps a collective, reads the loss, and stalls on the host. The collective may have a
 * stream of its own, wait for a second training, and all of an iteration may be one graph. */
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "program.h"

#define MAX_DEVICES 16
#define BATCH_BYTES 65536
#define PEER_BYTES 4096

static struct {
    long iterations, seconds, kernels, kernel_us, compute_us, comm_us, stall_ms, devices, memory_mb;
    long overlap, rank;
    bool dry, times, side, graph;
    const char *peer;
    char stream; /* l legacy, o own */
} options = {.kernels = -1,
             .kernel_us = 200,
             .compute_us = 60000,
             .stall_ms = 40,
             .devices = 1,
             .memory_mb = 1024,
             .times = true,
             .stream = 'l'};

static struct device {
    CUcontext context;
    CUstream stream, side; /* side: the collective's */
    CUevent computed, communicated;
    CUgraphExec graph;
    CUfunction kernel, collective;
    CUdeviceptr batch;
    unsigned received[BATCH_BYTES / sizeof(unsigned)];
} devices[MAX_DEVICES];

static const char usage[] =
    "usage: simtrain [options]\n"
    "  --iterations N      end after N iterations (default: at SIGTERM, or after --seconds)\n"
    "  --seconds S         end after S seconds\n"
    "  --compute-us U      GPU time of the kernels of one iteration (default 60000)\n"
    "  --kernel-us U       GPU time of one kernel (default 200)\n"
    "  --kernels N         kernels per iteration, instead of --compute-us\n"
    "  --comm-us U         GPU time of a collective at the end of each iteration (default 0)\n"
    "  --comm-stream KIND  same: in the stream of the kernels; side: in one of its own, which "
    "waits\n"
    "                      for the kernels before it and is waited for at the end (default same)\n"
    "  --overlap N         with --comm-stream side: kernels of the iteration that run beside the\n"
    "                      collective (default 0)\n"
    "  --peer FILE         collectives last until a second simtrain with the same FILE and the "
    "other\n"
    "                      --rank is in its own too\n"
    "  --rank R            0 or 1 (default 0)\n"
    "  --graph             the whole iteration as one graph; needs --stream own\n"
    "  --stall-ms M        host stall in each iteration (default 40)\n"
    "  --sync-style STYLE  sync: wait for the GPU, then stall; dry: the host is busy elsewhere "
    "for\n"
    "                      compute + stall while the queue runs dry, then waits (default sync)\n"
    "  --devices N         GPUs to use (default 1)\n"
    "  --stream KIND       legacy: the legacy default stream; own: a non-blocking stream\n"
    "                      (default legacy)\n"
    "  --memory-mb M       device memory to hold on each GPU (default 1024)\n"
    "  --no-times          leave times out of the output, so that it is always the same\n";

static void choose(int which, const char *name, const char *text) {
    struct {
        const char *name;
        long *value, least, most;
    } numbers[] = {{"iterations", &options.iterations, 1, 1000000000},
                   {"seconds", &options.seconds, 1, 1000000},
                   {"compute-us", &options.compute_us, 1, 100000000},
                   {"kernel-us", &options.kernel_us, 1, 10000000},
                   {"kernels", &options.kernels, 0, 1000000},
                   {"comm-us", &options.comm_us, 0, 10000000},
                   {"stall-ms", &options.stall_ms, 0, 1000000},
                   {"devices", &options.devices, 1, MAX_DEVICES},
                   {"overlap", &options.overlap, 0, 1000000},
                   {"rank", &options.rank, 0, 1},
                   {"memory-mb", &options.memory_mb, 1, 1000000}};
    (void)which;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!strcmp(numbers[i].name, name)) {
            *numbers[i].value = program_number(name, text, numbers[i].least, numbers[i].most);
            return;
        }
    if (!strcmp(name, "no-times")) {
        options.times = false;
    } else if (!strcmp(name, "graph")) {
        options.graph = true;
    } else if (!strcmp(name, "peer")) {
        options.peer = text;
    } else if (!strcmp(name, "comm-stream")) {
        if (strcmp(text, "same") && strcmp(text, "side"))
            program_fail("--comm-stream must be same or side, not \"%s\"", text);
        options.side = !strcmp(text, "side");
    } else if (!strcmp(name, "sync-style")) {
        if (strcmp(text, "sync") && strcmp(text, "dry"))
            program_fail("--sync-style must be sync or dry, not \"%s\"", text);
        options.dry = !strcmp(text, "dry");
    } else if (!strcmp(name, "stream")) {
        if (strcmp(text, "legacy") && strcmp(text, "own"))
            program_fail("--stream must be legacy or own, not \"%s\"", text);
        options.stream = text[0];
    }
}

static void parse(int count, char **words) {
    static const struct option known[] = {
        {"iterations", 1, NULL, 1},  {"seconds", 1, NULL, 1},    {"compute-us", 1, NULL, 1},
        {"kernel-us", 1, NULL, 1},   {"kernels", 1, NULL, 1},    {"comm-us", 1, NULL, 1},
        {"stall-ms", 1, NULL, 1},    {"sync-style", 1, NULL, 1}, {"devices", 1, NULL, 1},
        {"stream", 1, NULL, 1},      {"memory-mb", 1, NULL, 1},  {"no-times", 0, NULL, 1},
        {"overlap", 1, NULL, 1},     {"rank", 1, NULL, 1},       {"peer", 1, NULL, 1},
        {"comm-stream", 1, NULL, 1}, {"graph", 0, NULL, 1},      {"help", 0, NULL, 2},
        {NULL, 0, NULL, 0}};
    int at = 0, which;
    while ((which = getopt_long(count, words, "", known, &at)) != -1) {
        if (which == 2) {
            fputs(usage, stdout);
            exit(0);
        }
        if (which != 1)
            exit(2); /* getopt has said what is wrong */
        choose(which, known[at].name, optarg);
    }
    if (optind < count)
        program_fail("unexpected argument \"%s\"; see --help", words[optind]);
    if (options.kernels < 0)
        options.kernels = (options.compute_us + options.kernel_us - 1) / options.kernel_us;
    if (options.overlap > options.kernels)
        program_fail("--overlap must be at most the %ld kernels of an iteration", options.kernels);
    if (options.overlap && !options.side)
        program_fail("--overlap needs --comm-stream side");
    if (options.peer && !options.comm_us)
        program_fail("--peer needs --comm-us");
    if (options.graph && (options.stream != 'o' || options.peer))
        program_fail("--graph needs --stream own, and does not go with --peer");
}

/* Word 0 and word 1: how many collectives each rank has come to. */
static uint64_t *peer_words;

static void map_peer(void) {
    int fd = open(options.peer, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, PEER_BYTES))
        program_fail("cannot use --peer %s", options.peer);
    peer_words = mmap(NULL, PEER_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (peer_words == MAP_FAILED)
        program_fail("cannot map --peer %s", options.peer);
}

static void set_up(void) {
    int present;
    program_check(cuInit(0), "cuInit");
    program_check(cuDeviceGetCount(&present), "cuDeviceGetCount");
    if (options.devices > present)
        program_fail("--devices %ld: only %d visible", options.devices, present);
    if (options.peer)
        map_peer();
    for (int i = 0; i < options.devices; i++) {
        struct device *d = &devices[i];
        CUmodule module;
        CUdeviceptr weights;
        program_check(cuDevicePrimaryCtxRetain(&d->context, i), "cuDevicePrimaryCtxRetain");
        program_check(cuCtxSetCurrent(d->context), "cuCtxSetCurrent");
        if (options.stream == 'o')
            program_check(cuStreamCreate(&d->stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
        if (options.side) {
            program_check(cuStreamCreate(&d->side, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
            program_check(cuEventCreate(&d->computed, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
            program_check(cuEventCreate(&d->communicated, CU_EVENT_DISABLE_TIMING),
                          "cuEventCreate");
        }
        if (options.peer && !i)
            program_check(cuMemHostRegister_v2(peer_words, PEER_BYTES, 0), "cuMemHostRegister");
        program_check(cuModuleLoadData(&module, "image"), "cuModuleLoadData");
        program_check(cuModuleGetFunction(&d->kernel, module, "train_gemm"), "cuModuleGetFunction");
        program_check(
            cuModuleGetFunction(&d->collective, module, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"),
            "cuModuleGetFunction");
        program_check(cuMemAlloc_v2(&weights, (size_t)options.memory_mb << 20), "cuMemAlloc");
        d->batch = weights; /* the batch lies at its begin */
    }
}

static void fill_batch(unsigned *batch, unsigned long iteration) {
    unsigned state = (unsigned)iteration * 2654435761u + 1;
    for (unsigned i = 0; i < BATCH_BYTES / sizeof *batch; i++)
        batch[i] = state = state * 1664525u + 1013904223u;
}

/* The first GPU's collective waits for the other training's; those of the others take their time.
 */
static void communicate(struct device *d, CUstream stream, unsigned long iteration) {
    if (!options.peer || d != devices) {
        program_launch(d->collective, (unsigned)options.comm_us, stream);
        return;
    }
    program_check(
        cuStreamWriteValue64_v2(stream, (uintptr_t)&peer_words[options.rank], iteration, 0),
        "cuStreamWriteValue64");
    program_spin(d->collective, (unsigned)options.comm_us, stream, &peer_words[!options.rank],
                 iteration);
}

static void put_all(struct device *d, const unsigned *batch, unsigned long iteration) {
    program_check(cuMemcpyHtoDAsync_v2(d->batch, batch, BATCH_BYTES, d->stream), "cuMemcpyHtoD");
    for (long k = options.overlap; k < options.kernels; k++)
        program_launch(d->kernel, (unsigned)options.kernel_us, d->stream);
    if (options.comm_us && options.side)
        program_follow(d->side, d->stream, d->computed);
    if (options.comm_us)
        communicate(d, options.side ? d->side : d->stream, iteration);
    for (long k = 0; k < options.overlap; k++)
        program_launch(d->kernel, (unsigned)options.kernel_us, d->stream);
    if (options.comm_us && options.side)
        program_follow(d->stream, d->side, d->communicated);
    program_check(cuMemcpyDtoHAsync_v2(d->received, d->batch, BATCH_BYTES, d->stream),
                  "cuMemcpyDtoH");
}

static void issue(struct device *d, const unsigned *batch, unsigned long iteration) {
    program_check(cuCtxSetCurrent(d->context), "cuCtxSetCurrent");
    if (!options.graph) {
        put_all(d, batch, iteration);
        return;
    }
    if (!d->graph) {
        program_begin_graph(d->stream);
        put_all(d, batch, iteration);
        d->graph = program_end_graph(d->stream);
    }
    program_check(cuGraphLaunch(d->graph, d->stream), "cuGraphLaunch");
}

static void wait_for(struct device *d) {
    program_check(cuCtxSetCurrent(d->context), "cuCtxSetCurrent");
    program_check(cuStreamSynchronize(d->stream), "cuStreamSynchronize");
}

/* From what came back from the GPU, so that it is wrong if a copy was lost or changed order. */
static double loss_of(unsigned long iteration) {
    unsigned sum = 0;
    for (int i = 0; i < options.devices; i++)
        for (unsigned w = 0; w < BATCH_BYTES / sizeof(unsigned); w++)
            sum ^= devices[i].received[w] + (unsigned)i;
    return 4.0 / (1.0 + (double)iteration / 50.0) + (double)(sum % 1000) / 10000.0;
}

static double iterate(unsigned long iteration) {
    static unsigned batch[BATCH_BYTES / sizeof(unsigned)];
    double begin = program_seconds();
    fill_batch(batch, iteration);
    for (int i = 0; i < options.devices; i++)
        issue(&devices[i], batch, iteration);
    double compute = (double)(options.kernels * options.kernel_us + options.comm_us) / 1e6;
    if (options.dry)
        program_sleep(begin + compute + (double)options.stall_ms / 1e3 - program_seconds());
    for (int i = 0; i < options.devices; i++)
        wait_for(&devices[i]);
    if (!options.dry)
        program_sleep((double)options.stall_ms / 1e3);
    return (program_seconds() - begin) * 1e3;
}

static void report(double *times, unsigned long count, double seconds, double loss) {
    struct spread s = program_spread(times, count);
    printf("{\"iterations\": %lu, \"stopped\": %s, \"loss\": %.6f", count,
           program_stop ? "true" : "false", loss);
    if (options.times)
        printf(", \"median_ms\": %.3f, \"p95_ms\": %.3f, \"mean_ms\": %.3f, \"seconds\": %.3f",
               s.median, s.p95, s.mean, seconds);
    puts("}");
}

int main(int argument_count, char **arguments) {
    program_begin("simtrain");
    parse(argument_count, arguments);
    set_up();
    unsigned long count = 0, room = 0;
    double *times = NULL, loss = 0, begin = program_seconds();
    while (!program_stop && (!options.iterations || (long)count < options.iterations) &&
           (!options.seconds || program_seconds() - begin < (double)options.seconds)) {
        if (count == room && !(times = realloc(times, (room += 4096) * sizeof *times)))
            program_fail("out of host memory after %lu iterations", count);
        double taken = iterate(count + 1);
        if (program_stop)
            break; /* cut short: not a time to report */
        times[count++] = taken;
        loss = loss_of(count);
        if (options.times)
            printf("iteration %lu %.3f\n", count, taken);
        else
            printf("iteration %lu loss %.6f\n", count, loss);
    }
    report(times, count, program_seconds() - begin, loss);
    free(times);
    return program_stop && (options.iterations || options.seconds) ? 143 : 0;
}
