/* paths.c - goes one way to the GPU again and again, where the GPU leaves a trace of each time;
 * driven by proof.py.
 *
 *   paths --list                 every path: its name and what its trace is
 *   paths PATH FILE [simulated]  FILE is mapped: page 0 is struct page, the GPU writes page 1
 *
 * A path is SYMBOL or SYMBOL/HOW. HOW: null (into the legacy default stream), address (found by
 * cuGetProcAddress), linked (by the linker, in a program built for that). Traces:
 *   kernel       a kernel counts in page 1
 *   destination  page 1 is where the copy, set or write goes; its content is another each time
 *   watched      the copy's destination is device memory; a second stream has long been told to
 *                wait for the value to come there and then to write it into page 1
 * On the simulated GPU a host function behind the kernel counts in its stead. */
#include <fcntl.h>
#include <sys/mman.h>
#include "gpu.h"
#include "paths.h"

#define AHEAD 32     /* values that the second stream waits for at least */
#define MOST 60000   /* times: what the table and the array hold */
#define PAGE_AT 4096 /* of page 1 in the file */

static const char ptx[] = ".version 6.3\n.target sm_75\n.address_size 64\n"
                          ".visible .global .align 8 .u64 place;\n"
                          ".visible .entry count()\n{\n"
                          "    .reg .u64 %rd<3>;\n"
                          "    ld.global.u64 %rd1, [place];\n"
                          "    ld.volatile.global.u64 %rd2, [%rd1];\n"
                          "    add.u64 %rd2, %rd2, 1;\n"
                          "    st.volatile.global.u64 [%rd1], %rd2;\n"
                          "    ret;\n}\n";

#ifdef LINKED
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                        unsigned, CUstream, void **, void **);
#endif

struct paths_machine m;
static volatile struct page *page;
static bool simulated;

static void count_by_host(void *data) {
    (void)data;
    ++*(volatile uint64_t *)m.seen;
}

#define FIND(name, parameters) CUresult(*name) parameters = gpu_find(#name)

static void set_up_memory(void) {
    FIND(cuMemHostGetDevicePointer_v2, (CUdeviceptr *, void *, unsigned));
    FIND(cuMemAlloc_v2, (CUdeviceptr *, size_t));
    FIND(cuMemcpyHtoD_v2, (CUdeviceptr, const void *, size_t));
    GPU_TRY(cuMemHostRegister_v2, m.seen, 4096,
            CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    gpu_check(cuMemHostGetDevicePointer_v2(&m.seen_at, m.seen, 0), "cuMemHostGetDevicePointer");
    m.source = m.seen + 2048;
    m.numbers = malloc((MOST + 1) * sizeof *m.numbers);
    for (uint64_t i = 0; i <= MOST; i++)
        m.numbers[i] = i;
    gpu_check(cuMemAlloc_v2(&m.table, (MOST + 1) * sizeof *m.numbers), "cuMemAlloc");
    gpu_check(cuMemAlloc_v2(&m.word, 4096), "cuMemAlloc");
    gpu_check(cuMemcpyHtoD_v2(m.table, m.numbers, (MOST + 1) * sizeof *m.numbers), "cuMemcpyHtoD");
    gpu_check(cuMemcpyHtoD_v2(m.word, m.numbers, 8), "cuMemcpyHtoD");
}

static void set_up_kernel(void) {
    CUmodule module;
    CUdeviceptr place;
    size_t bytes;
    GPU_TRY(cuModuleLoadData, &module, ptx);
    GPU_TRY(cuModuleGetFunction, &m.count, module, "count");
    if (simulated)
        return;
    FIND(cuModuleGetGlobal_v2, (CUdeviceptr *, size_t *, CUmodule, const char *));
    FIND(cuMemcpyHtoD_v2, (CUdeviceptr, const void *, size_t));
    gpu_check(cuModuleGetGlobal_v2(&place, &bytes, module, "place"), "cuModuleGetGlobal");
    gpu_check(cuMemcpyHtoD_v2(place, &m.seen_at, sizeof m.seen_at), "cuMemcpyHtoD");
}

static void set_up_array(void) {
    FIND(cuArrayCreate_v2, (CUarray *, const CUDA_ARRAY_DESCRIPTOR *));
    FIND(cuMemcpyHtoA_v2, (CUarray, size_t, const void *, size_t));
    CUDA_ARRAY_DESCRIPTOR form = {.Width = MOST + 1, .Format = 3 /* 32 bits */, .NumChannels = 2};
    gpu_check(cuArrayCreate_v2(&m.array, &form), "cuArrayCreate");
    gpu_check(cuMemcpyHtoA_v2(m.array, 0, m.numbers, (MOST + 1) * 8), "cuMemcpyHtoA");
}

static void set_up_graph(void) {
    CUgraph graph;
    FIND(cuStreamBeginCapture_v2, (CUstream, int));
    FIND(cuStreamEndCapture, (CUstream, CUgraph *));
    FIND(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long));
    FIND(cuLaunchHostFunc, (CUstream, CUhostFn, void *));
    CUstream stream;
    GPU_TRY(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    gpu_check(cuStreamBeginCapture_v2(stream, CU_CAPTURE_MODE_RELAXED), "cuStreamBeginCapture");
    GPU_TRY(cuLaunchKernel, m.count, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
    if (simulated)
        gpu_check(cuLaunchHostFunc(stream, count_by_host, NULL), "cuLaunchHostFunc");
    gpu_check(cuStreamEndCapture(stream, &graph), "cuStreamEndCapture");
    gpu_check(cuGraphInstantiateWithFlags(&m.graph, graph, 0), "cuGraphInstantiate");
}

/* Told long before: what is queued here waits for the next values of m.word. */
static void watch(uint64_t tried) {
    static CUresult (*wait_for)(CUstream, CUdeviceptr, uint64_t, unsigned);
    static CUresult (*write)(CUstream, CUdeviceptr, uint64_t, unsigned);
    static CUstream stream;
    static uint64_t told;
    if (!stream) {
        wait_for = gpu_find("cuStreamWaitValue64_v2");
        write = gpu_find("cuStreamWriteValue64_v2");
        GPU_TRY(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    }
    if (told >= tried + AHEAD)
        return;
    for (; told < tried + 2 * AHEAD; told++) {
        gpu_check(wait_for(stream, m.word, told + 1, CU_STREAM_WAIT_VALUE_GEQ), "watch: wait");
        gpu_check(write(stream, m.seen_at, told + 1, 0), "watch: write");
    }
}

static void *find_call(const char *symbol, const char *how) {
    if (!strcmp(how, "linked")) {
#ifdef LINKED
        return (void *)cuLaunchKernel;
#else
        fprintf(stderr, "this program is not linked with the driver\n");
        _exit(2);
#endif
    }
    if (strcmp(how, "address"))
        return dlsym(gpu_driver, symbol);
    FIND(cuGetProcAddress_v2, (const char *, void **, int, uint64_t, int *));
    FIND(cuDriverGetVersion, (int *));
    int version = 0, status = 0;
    char base[80];
    void *found = NULL;
    snprintf(base, sizeof base, "%s", symbol);
    char *suffix = strstr(base, "_pts");
    suffix = suffix ? suffix : strstr(base, "_ptds");
    if (suffix)
        *suffix = 0;
    uint64_t flags = suffix ? CU_PROC_ADDRESS_PER_THREAD_STREAM : CU_PROC_ADDRESS_LEGACY_STREAM;
    if ((suffix = strstr(base, "_v2")))
        *suffix = 0;
    gpu_check(cuDriverGetVersion(&version), "cuDriverGetVersion");
    gpu_check(cuGetProcAddress_v2(base, &found, version, flags, &status), "cuGetProcAddress");
    return found;
}

static void set_up(const struct path *path, const char *symbol, const char *how, bool own_thread) {
    set_up_memory();
    set_up_kernel();
    if (path->needs == NEEDS_ARRAY)
        set_up_array();
    if (path->needs == NEEDS_GRAPH)
        set_up_graph();
    if (!own_thread && strcmp(how, "null"))
        GPU_TRY(cuStreamCreate, &m.stream, CU_STREAM_NON_BLOCKING);
    m.context = gpu_context;
    *(void **)&m.set_block_shape = dlsym(gpu_driver, "cuFuncSetBlockShape");
    m.call = find_call(symbol, how);
    if (!m.call) {
        printf("{\"absent\": \"the driver has no such function\"}\n");
        exit(0);
    }
}

static void run(const struct path *path, bool own_thread) {
    FIND(cuLaunchHostFunc, (CUstream, CUhostFn, void *));
    CUstream awaited = own_thread ? CU_STREAM_PER_THREAD : m.stream ? m.stream : CU_STREAM_LEGACY;
    for (uint64_t v = 1; v < MOST && !page->stop; v++) {
        if (path->trace == TRACE_WATCHED)
            watch(v);
        page->tried = v;
        page->where = WHERE_CALL;
        CUresult result = path->go(v);
        page->where = WHERE_ELSE;
        if (result == CUDA_ERROR_NOT_SUPPORTED && v == 1) {
            printf("{\"absent\": \"the driver says that it is not supported (801)\"}\n");
            exit(0);
        }
        gpu_check(result, path->symbol);
        page->returned = v;
        if (simulated && path->trace == TRACE_KERNEL && path->needs != NEEDS_GRAPH)
            gpu_check(cuLaunchHostFunc(awaited, count_by_host, NULL), "cuLaunchHostFunc");
        GPU_TRY(cuStreamSynchronize, awaited);
        rest_us(1000);
    }
}

static void list(void) {
    static const char *const traces[] = {"kernel", "destination", "watched"};
    for (const struct path *p = paths; p->symbol; p++) {
        printf("%s %s\n", p->symbol, traces[p->trace]);
        if (p->suffix)
            printf("%s%s %s\n", p->symbol, p->suffix, traces[p->trace]);
    }
}

static const struct path *find_path(const char *symbol, bool *own_thread) {
    char full[80];
    for (const struct path *p = paths; p->symbol; p++) {
        snprintf(full, sizeof full, "%s%s", p->symbol, p->suffix ? p->suffix : "");
        *own_thread = p->suffix && !strcmp(full, symbol);
        if (*own_thread || !strcmp(p->symbol, symbol))
            return p;
    }
    fprintf(stderr, "no path %s\n", symbol);
    exit(2);
}

int main(int count, char **words) {
    if (count == 2 && !strcmp(words[1], "--list")) {
        list();
        return 0;
    }
    if (count < 3)
        return 2;
    char symbol[80];
    snprintf(symbol, sizeof symbol, "%s", words[1]);
    char *how = strchr(symbol, '/');
    if (how)
        *how++ = 0;
    bool own_thread;
    const struct path *path = find_path(symbol, &own_thread);
    simulated = count > 3;
    int file = open(words[2], O_RDWR);
    char *at = mmap(NULL, 2 * PAGE_AT, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (at == MAP_FAILED)
        return 2;
    page = (volatile struct page *)at;
    m.seen = at + PAGE_AT;
    gpu_begin();
    set_up(path, symbol, how ? how : "", own_thread);
    run(path, own_thread);
    _exit(0); /* streams that wait for values that never come are not waited for */
}
