/* cost.c - what a launch costs the host; driven by cost.py.
 *
 *   cost SECONDS BURST REST_US    launches of an empty kernel in bursts; each burst is waited for,
 *                                 then the host rests. Prints one JSON object.
 *   cost idle                     a training that has stopped: one kernel, then it waits until its
 *                                 standard input ends. Prints `idle` first. */
#include <dirent.h>
#include "gpu.h"

#define MAX_BURSTS 200000
#define MAX_THREADS 64
#define WARM_UP_BURSTS 40

static const char ptx[] = ".version 6.3\n.target sm_75\n.address_size 64\n"
                          ".visible .entry nothing()\n{\n    ret;\n}\n";

static double each_ns[MAX_BURSTS];

struct thread {
    long id;
    uint64_t cpu_ns;
    char name[32];
};

static bool read_line(const char *folder, const char *id, const char *file, char *text, int size) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s/%s", folder, id, file);
    FILE *from = fopen(path, "r");
    bool read = from && fgets(text, size, from);
    if (from)
        fclose(from);
    if (read)
        text[strcspn(text, "\n")] = 0;
    return read;
}

/* CPU time of every thread of this process so far. */
static int read_threads(struct thread *threads) {
    const char *folder = "/proc/self/task";
    DIR *tasks = opendir(folder);
    struct dirent *entry;
    int count = 0;
    while (tasks && count < MAX_THREADS && (entry = readdir(tasks))) {
        struct thread *t = &threads[count];
        char text[512];
        if (entry->d_name[0] == '.' ||
            !read_line(folder, entry->d_name, "comm", t->name, sizeof t->name))
            continue;
        t->id = atol(entry->d_name);
        if (read_line(folder, entry->d_name, "schedstat", text, sizeof text)) {
            t->cpu_ns = strtoull(text, NULL, 10);
        } else if (read_line(folder, entry->d_name, "stat", text, sizeof text)) {
            unsigned long user = 0, system = 0;
            const char *after = strrchr(text, ')');
            if (after)
                sscanf(after + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user,
                       &system);
            t->cpu_ns = (user + system) * (1000000000ull / (uint64_t)sysconf(_SC_CLK_TCK));
        } else {
            continue;
        }
        count++;
    }
    if (tasks)
        closedir(tasks);
    return count;
}

static void print_threads(const struct thread *before, int before_count) {
    struct thread after[MAX_THREADS];
    int count = read_threads(after);
    for (int i = 0; i < count; i++) {
        uint64_t cpu_ns = after[i].cpu_ns;
        for (int k = 0; k < before_count; k++)
            if (before[k].id == after[i].id)
                cpu_ns -= before[k].cpu_ns;
        bool first = after[i].id == getpid();
        printf("%s{\"name\": \"%s\", \"launches\": %s, \"cpu_ns\": %llu}", i ? ", " : "",
               after[i].name, first ? "true" : "false", (unsigned long long)cpu_ns);
    }
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(CUfunction kernel, CUstream stream, double seconds, int burst, unsigned rest) {
    struct thread threads[MAX_THREADS];
    int thread_count = 0, bursts = 0;
    uint64_t launch_ns = 0, whole_ns = 0, begin = 0, end = UINT64_MAX;
    for (int i = -WARM_UP_BURSTS; i < MAX_BURSTS; i++) {
        if (i == 0) {
            thread_count = read_threads(threads);
            begin = now_ns();
            end = begin + (uint64_t)(seconds * 1e9);
        }
        uint64_t from = now_ns();
        if (from >= end)
            break;
        for (int k = 0; k < burst; k++)
            GPU_TRY(cuLaunchKernel, kernel, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL);
        uint64_t launched = now_ns();
        GPU_TRY(cuStreamSynchronize, stream);
        uint64_t done = now_ns();
        if (i >= 0) {
            launch_ns += launched - from;
            whole_ns += done - from;
            each_ns[bursts++] = (double)(launched - from) / burst;
        }
        rest_us(rest);
    }
    uint64_t wall_ns = now_ns() - begin;
    double launches = (double)bursts * burst;
    qsort(each_ns, (size_t)bursts, sizeof *each_ns, compare);
    int (*role)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "specinf_role");
    printf("{\"role\": %d, \"launches\": %.0f, \"mean_ns\": %.2f, \"median_ns\": %.2f, \"p99_ns\": "
           "%.2f, "
           "\"with_wait_ns\": %.2f, \"wall_ns\": %llu, \"threads\": [",
           role ? role() : 0, launches, (double)launch_ns / launches, each_ns[bursts / 2],
           each_ns[bursts * 99 / 100], (double)whole_ns / launches, (unsigned long long)wall_ns);
    print_threads(threads, thread_count);
    printf("]}\n");
}

int main(int count, char **words) {
    bool idle = count == 2 && !strcmp(words[1], "idle");
    if (!idle && count != 4) {
        fprintf(stderr, "usage: cost SECONDS BURST REST_US | cost idle\n");
        return 2;
    }
    gpu_begin();
    CUstream stream;
    GPU_TRY(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    CUfunction kernel = gpu_kernel(ptx, "nothing");
    if (!idle) {
        measure(kernel, stream, atof(words[1]), atoi(words[2]), (unsigned)atoi(words[3]));
        return 0;
    }
    GPU_TRY(cuLaunchKernel, kernel, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL);
    GPU_TRY(cuStreamSynchronize, stream);
    printf("idle\n");
    fflush(stdout);
    while (getchar() != EOF)
        ;
    return 0;
}
