/* latency.c - a training with bubbles of one kind, and a fill, whose kernels write down by the
 * GPU's own clock when they began and ended; driven by latency.py.
 *
 *   latency train KIND FILE SECONDS [simulated]
 *   latency fill - FILE SECONDS [simulated]
 *
 * FILE is mapped: struct head, then struct iteration or struct kernel, one each. Kinds of bubble:
 *   sync  the host waits for the stream, then does something else
 *   poll  the same, but it asks for an event again and again
 *   dry   the host is busy elsewhere while the queue runs dry
 *   wait  the stream stands in a wait for a value that the host writes later
 * On the simulated GPU kernels write nothing: its log has the times. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include "gpu.h"

enum {
    KERNELS = 20, /* of an iteration */
    KERNEL_US = 100,
    STALL_US = 4000,
    FILL_KERNEL_US = 50,
    PINGS = 300,
    PING_MOST_MS = 1000
};

/* latency.py has the same. */
struct clock_pair {
    uint64_t gpu_ns, host_ns, window_ns; /* both at the same time, to half of the window */
};
struct head {
    uint64_t count, kernels;
    struct clock_pair begin, end;
    uint64_t ping[4]; /* asked by the host, answered by the GPU, when; unused */
    uint64_t scratch[2];
    uint64_t released; /* kind wait: iterations that may begin */
    uint64_t unused;
};
struct kernel {
    uint64_t begin_ns, end_ns;
};
struct iteration {
    uint64_t launch_ns, issued_ns; /* around the call that lets it begin */
    struct kernel first, last;
    uint64_t unused[2];
};

static const char ptx[] =
    ".version 6.3\n.target sm_75\n.address_size 64\n"
    ".visible .entry spin(.param .u64 ns, .param .u64 stamps)\n{\n"
    "    .reg .u64 %rd<6>;\n    .reg .pred %p<2>;\n"
    "    mov.u64 %rd3, %globaltimer;\n"
    "    ld.param.u64 %rd1, [ns];\n    ld.param.u64 %rd2, [stamps];\n"
    "    st.volatile.global.u64 [%rd2], %rd3;\n"
    "AGAIN:\n"
    "    mov.u64 %rd4, %globaltimer;\n    sub.u64 %rd5, %rd4, %rd3;\n"
    "    setp.lt.u64 %p1, %rd5, %rd1;\n    @%p1 bra AGAIN;\n"
    "    st.volatile.global.u64 [%rd2+8], %rd4;\n"
    "    ret;\n}\n"
    ".visible .entry ping(.param .u64 words, .param .u64 times)\n{\n"
    "    .reg .u64 %rd<7>;\n    .reg .pred %p<3>;\n"
    "    ld.param.u64 %rd1, [words];\n    ld.param.u64 %rd2, [times];\n    mov.u64 %rd3, 1;\n"
    "ASK:\n"
    "    ld.volatile.global.u64 %rd4, [%rd1];\n"
    "    setp.lt.u64 %p1, %rd4, %rd3;\n    @%p1 bra ASK;\n"
    "    mov.u64 %rd5, %globaltimer;\n"
    "    st.volatile.global.u64 [%rd1+16], %rd5;\n    membar.sys;\n"
    "    st.volatile.global.u64 [%rd1+8], %rd3;\n"
    "    add.u64 %rd3, %rd3, 1;\n"
    "    setp.le.u64 %p2, %rd3, %rd2;\n    @%p2 bra ASK;\n"
    "    ret;\n}\n";

static bool simulated;
static struct head *head;
static CUdeviceptr head_at; /* the GPU's address of it */
static CUstream stream;
static CUfunction spin, ping;
static uint64_t most;

static CUdeviceptr gpu_address(const void *at) {
    return head_at + (CUdeviceptr)((const char *)at - (const char *)head);
}

static void launch(unsigned us, const void *stamps) {
    uint64_t ns = us * 1000ull;
    CUdeviceptr at = gpu_address(stamps);
    void *parameters[] = {&ns, &at};
    GPU_TRY(cuLaunchKernel, spin, simulated ? us : 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

/* Asks the GPU for its time again and again; the question answered soonest is taken. */
static void compare_clocks(struct clock_pair *pair) {
    volatile uint64_t *words = head->ping;
    CUdeviceptr at = gpu_address(head->ping);
    uint64_t times = PINGS, give_up = now_ns() + PING_MOST_MS * 1000000ull;
    void *parameters[] = {&at, &times};
    pair->window_ns = UINT64_MAX;
    if (simulated)
        return;
    words[0] = words[1] = 0;
    GPU_TRY(cuLaunchKernel, ping, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
    for (uint64_t i = 1; i <= PINGS; i++) {
        uint64_t asked = now_ns(), answered;
        words[0] = now_ns() > give_up ? PINGS : i;
        while (words[1] < i)
            if (now_ns() > give_up)
                words[0] = PINGS;
        answered = now_ns();
        if (answered - asked < pair->window_ns)
            *pair = (struct clock_pair){words[2], (asked + answered) / 2, answered - asked};
    }
    GPU_TRY(cuStreamSynchronize, stream);
}

static void launch_iteration(struct iteration *it) {
    it->launch_ns = now_ns();
    launch(KERNEL_US, &it->first);
    it->issued_ns = now_ns();
    for (int k = 1; k < KERNELS - 1; k++)
        launch(KERNEL_US, head->scratch);
    launch(KERNEL_US, &it->last);
}

static void train(const char *kind, double seconds) {
    CUresult (*create)(CUevent *, unsigned) = gpu_find("cuEventCreate");
    CUresult (*record)(CUevent, CUstream) = gpu_find("cuEventRecord");
    CUresult (*query)(CUevent) = gpu_find("cuEventQuery");
    CUresult (*wait_for)(CUstream, CUdeviceptr, uint64_t, unsigned) =
        gpu_find("cuStreamWaitValue64_v2");
    struct iteration *iterations = (struct iteration *)(head + 1);
    bool polls = !strcmp(kind, "poll"), waits = !strcmp(kind, "wait"), dry = !strcmp(kind, "dry");
    CUevent done;
    gpu_check(create(&done, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    compare_clocks(&head->begin);
    uint64_t end = now_ns() + (uint64_t)(seconds * 1e9);
    for (uint64_t i = 0; i < most && now_ns() < end; i++) {
        launch_iteration(&iterations[i]);
        if (polls) {
            gpu_check(record(done, stream), "cuEventRecord");
            while (query(done) == CUDA_ERROR_NOT_READY)
                ;
        } else if (waits) {
            iterations[i].launch_ns = now_ns();
            __atomic_store_n(&head->released, i, __ATOMIC_RELEASE); /* this one may begin */
            iterations[i].issued_ns = now_ns();
            gpu_check(wait_for(stream, gpu_address(&head->released), i + 1, 0), "wait");
        } else if (!dry) {
            GPU_TRY(cuStreamSynchronize, stream);
        }
        head->count = i + 1;
        rest_us(STALL_US + (waits || dry ? KERNELS * KERNEL_US : 0));
    }
    __atomic_store_n(&head->released, UINT64_MAX >> 1, __ATOMIC_RELEASE);
    GPU_TRY(cuStreamSynchronize, stream);
    compare_clocks(&head->end);
}

static void fill(double seconds) {
    struct kernel *kernels = (struct kernel *)(head + 1);
    uint64_t end = now_ns() + (uint64_t)(seconds * 1e9);
    for (uint64_t i = 0; i < most && now_ns() < end; i++) {
        launch(FILL_KERNEL_US, &kernels[i]);
        head->count = i + 1;
    }
    GPU_TRY(cuStreamSynchronize, stream);
}

int main(int count, char **words) {
    if (count < 5)
        return 2;
    bool trains = !strcmp(words[1], "train");
    simulated = count > 5;
    struct stat facts;
    int file = open(words[3], O_RDWR);
    if (file < 0 || fstat(file, &facts))
        return 2;
    size_t bytes = (size_t)facts.st_size;
    head = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (head == MAP_FAILED)
        return 2;
    most = (bytes - sizeof *head) / (trains ? sizeof(struct iteration) : sizeof(struct kernel));
    head->kernels = KERNELS;
    gpu_begin();
    CUresult (*address)(CUdeviceptr *, void *, unsigned) = gpu_find("cuMemHostGetDevicePointer_v2");
    GPU_TRY(cuMemHostRegister_v2, head, bytes, CU_MEMHOSTREGISTER_DEVICEMAP);
    gpu_check(address(&head_at, head, 0), "cuMemHostGetDevicePointer");
    GPU_TRY(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    spin = gpu_kernel(ptx, "spin");
    ping = gpu_kernel(ptx, "ping");
    if (trains)
        train(words[2], atof(words[4]));
    else
        fill(atof(words[4]));
    printf("{\"count\": %llu}\n", (unsigned long long)head->count);
    return 0;
}
