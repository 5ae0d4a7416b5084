/* siminfer - behaves as a batch inference program: one item a line, kernels for each, results
 * appended as they are done. A run that was killed goes on where its results end: nothing is
 * done twice and nothing is left out. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "program.h"

#define MAX_IN_FLIGHT 64
#define WEIGHT_BYTES (4 << 20)

static struct {
    long kernel_us, kernels, items, seconds, memory_mb, in_flight, streams;
    bool graph;
    const char *input, *output, *progress;
} options = {.kernel_us = 100, .kernels = 20, .memory_mb = 512, .in_flight = 2, .streams = 1};

static const char usage[] =
    "usage: siminfer [options]\n"
    "  --input FILE           items, one JSON object a line\n"
    "  --items N              without --input: N made-up items (default: without end)\n"
    "  --output FILE          results, appended, one JSON object a line\n"
    "  --progress FILE        {\"done\": N, \"total\": N}, replaced after each item\n"
    "  --kernel-us U          GPU time of one kernel (default 100)\n"
    "  --kernels-per-batch N  kernels for each item (default 20)\n"
    "  --streams N            1, or 2: kernels by turns in two streams that wait for each other "
    "at\n"
    "                         the begin and end of an item (default 1)\n"
    "  --graph                each item's kernels as one graph\n"
    "  --in-flight N          items issued ahead of the one waited for, 1 to 64 (default 2)\n"
    "  --memory-mb M          device memory to hold (default 512)\n"
    "  --seconds S            end after S seconds\n";

static void parse(int count, char **words) {
    static const struct option known[] = {
        {"input", 1, NULL, 1},     {"output", 1, NULL, 2},    {"progress", 1, NULL, 3},
        {"items", 1, NULL, 4},     {"kernel-us", 1, NULL, 5}, {"kernels-per-batch", 1, NULL, 6},
        {"in-flight", 1, NULL, 7}, {"memory-mb", 1, NULL, 8}, {"seconds", 1, NULL, 9},
        {"streams", 1, NULL, 11},  {"graph", 0, NULL, 12},    {"help", 0, NULL, 10},
        {NULL, 0, NULL, 0}};
    int which, at = 0;
    while ((which = getopt_long(count, words, "", known, &at)) != -1) {
        const char *name = known[at].name;
        switch (which) {
        case 1:
            options.input = optarg;
            break;
        case 2:
            options.output = optarg;
            break;
        case 3:
            options.progress = optarg;
            break;
        case 4:
            options.items = program_number(name, optarg, 1, 1000000000);
            break;
        case 5:
            options.kernel_us = program_number(name, optarg, 1, 10000000);
            break;
        case 6:
            options.kernels = program_number(name, optarg, 1, 1000000);
            break;
        case 7:
            options.in_flight = program_number(name, optarg, 1, MAX_IN_FLIGHT);
            break;
        case 8:
            options.memory_mb = program_number(name, optarg, 8, 1000000);
            break;
        case 9:
            options.seconds = program_number(name, optarg, 1, 1000000);
            break;
        case 10:
            fputs(usage, stdout);
            exit(0);
        case 11:
            options.streams = program_number(name, optarg, 1, 2);
            break;
        case 12:
            options.graph = true;
            break;
        default:
            exit(2); /* getopt has said what is wrong */
        }
    }
    if (optind < count)
        program_fail("unexpected argument \"%s\"; see --help", words[optind]);
    if (options.input && options.items)
        program_fail("--items is for made-up items: give it or --input, not both");
}

static struct {
    CUstream stream, side;
    CUevent fork, join;
    CUgraphExec graph;
    CUfunction kernel;
    CUevent done[MAX_IN_FLIGHT];
} gpu;

static void set_up(void) {
    CUcontext context;
    CUmodule module;
    CUdeviceptr weights;
    program_check(cuInit(0), "cuInit");
    program_check(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
    program_check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    program_check(cuStreamCreate(&gpu.stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    program_check(cuStreamCreate(&gpu.side, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    program_check(cuEventCreate(&gpu.fork, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    program_check(cuEventCreate(&gpu.join, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    program_check(cuModuleLoadData(&module, "image"), "cuModuleLoadData");
    program_check(cuModuleGetFunction(&gpu.kernel, module, "infer_gemm"), "cuModuleGetFunction");
    program_check(cuMemAlloc_v2(&weights, (size_t)options.memory_mb << 20), "cuMemAlloc");
    void *data = calloc(1, WEIGHT_BYTES);
    if (!data)
        program_fail("out of host memory");
    program_check(cuMemcpyHtoD_v2(weights, data, WEIGHT_BYTES), "cuMemcpyHtoD");
    free(data);
    for (int i = 0; i < options.in_flight; i++)
        program_check(cuEventCreate(&gpu.done[i], CU_EVENT_DISABLE_TIMING), "cuEventCreate");
}

/* FNV-1a of an item's text: its result. */
static unsigned long hash_of(const char *text) {
    unsigned long hash = 1469598103934665603ul;
    for (; *text && *text != '\n'; text++)
        hash = (hash ^ (unsigned char)*text) * 1099511628211ul;
    return hash;
}

static unsigned long *item_hashes;
static long total; /* 0: without end */

static void read_items(void) {
    if (!options.input) {
        total = options.items;
        return;
    }
    FILE *file = fopen(options.input, "r");
    if (!file)
        program_fail("cannot read --input %s: %s", options.input, strerror(errno));
    char *line = NULL;
    size_t size = 0;
    long room = 0;
    while (getline(&line, &size, file) > 0) {
        if (total == room &&
            !(item_hashes = realloc(item_hashes, (size_t)(room += 4096) * sizeof *item_hashes)))
            program_fail("out of host memory");
        item_hashes[total++] = hash_of(line);
    }
    free(line);
    fclose(file);
    if (!total)
        program_fail("--input %s has no items", options.input);
}

static unsigned long result_of(long item) {
    char text[32];
    if (item_hashes)
        return item_hashes[item];
    snprintf(text, sizeof text, "%ld", item);
    return hash_of(text);
}

/* Opens the results and counts the complete ones; a line cut short by a kill is taken off. */
static int open_results(long *done) {
    *done = 0;
    if (!options.output)
        return -1;
    int fd = open(options.output, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0)
        program_fail("cannot write --output %s: %s", options.output, strerror(errno));
    char buffer[65536];
    off_t at = 0, complete = 0;
    ssize_t got;
    while ((got = pread(fd, buffer, sizeof buffer, at)) > 0) {
        for (ssize_t i = 0; i < got; i++)
            if (buffer[i] == '\n') {
                (*done)++;
                complete = at + i + 1;
            }
        at += got;
    }
    if (complete != at && ftruncate(fd, complete))
        program_fail("cannot repair --output %s: %s", options.output, strerror(errno));
    return fd;
}

static void write_result(int fd, long item) {
    char line[96];
    int size = snprintf(line, sizeof line, "{\"item\": %ld, \"result\": \"%016lx\"}\n", item,
                        result_of(item));
    if (fd >= 0 && write(fd, line, (size_t)size) != size)
        program_fail("cannot write --output %s: %s", options.output, strerror(errno));
}

/* Replaced as a whole: a reader never sees half of it. */
static void write_progress(long done) {
    char path[4096];
    if (!options.progress)
        return;
    if (snprintf(path, sizeof path, "%s.new", options.progress) >= (int)sizeof path)
        program_fail("--progress %s is too long a path", options.progress);
    FILE *file = fopen(path, "w");
    if (!file || fprintf(file, "{\"done\": %ld, \"total\": %ld}\n", done, total) < 0 ||
        fclose(file) || rename(path, options.progress))
        program_fail("cannot write --progress %s: %s", options.progress, strerror(errno));
}

static void put_kernels(void) {
    bool two = options.streams == 2;
    if (two)
        program_follow(gpu.side, gpu.stream, gpu.fork);
    for (long k = 0; k < options.kernels; k++)
        program_launch(gpu.kernel, (unsigned)options.kernel_us,
                       two && k % 2 ? gpu.side : gpu.stream);
    if (two)
        program_follow(gpu.stream, gpu.side, gpu.join);
}

static void issue(long item) {
    if (options.graph && !gpu.graph) {
        program_begin_graph(gpu.stream);
        put_kernels();
        gpu.graph = program_end_graph(gpu.stream);
    }
    if (options.graph)
        program_check(cuGraphLaunch(gpu.graph, gpu.stream), "cuGraphLaunch");
    else
        put_kernels();
    program_check(cuEventRecord(gpu.done[item % options.in_flight], gpu.stream), "cuEventRecord");
}

static bool more(long item, double begin) {
    return !program_stop && (!total || item < total) &&
           (!options.seconds || program_seconds() - begin < (double)options.seconds);
}

int main(int argument_count, char **arguments) {
    program_begin("siminfer");
    parse(argument_count, arguments);
    read_items();
    long first;
    int results = open_results(&first);
    if (total && first > total)
        program_fail("--output %s has more results than there are items", options.output);
    write_progress(first);
    set_up();
    double begin = program_seconds();
    long issued = first, done = first;
    while (more(done, begin)) {
        while (issued - done < options.in_flight && (!total || issued < total) && !program_stop)
            issue(issued++);
        if (program_stop)
            break; /* what is in flight has no result yet: it is done again, and only then */
        program_check(cuEventSynchronize(gpu.done[done % options.in_flight]), "cuEventSynchronize");
        write_result(results, done++);
        write_progress(done);
    }
    double seconds = program_seconds() - begin;
    printf("{\"items\": %ld, \"done\": %ld, \"total\": %ld, \"stopped\": %s, \"seconds\": %.3f, "
           "\"rate\": %.3f}\n",
           done - first, done, total, program_stop ? "true" : "false", seconds,
           seconds > 0 ? (double)(done - first) / seconds : 0.0);
    return program_stop && (total ? done < total : options.seconds > 0) ? 143 : 0;
}
