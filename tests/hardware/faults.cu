/* faults.cu - a training that checks its own results, and fills with the faults that programs have.
 * Driven by faults.py.
 *
 *   faults train STOP_FILE
 *       iterations until that file is there, a line `iteration N MS` each; then `right` or `wrong`
 *       with exit code 0 or 2; 1 at a CUDA error
 *   faults illegal|assert|busy|endless
 *       prints `armed` when its context is there and the fault comes next; busy keeps kernels in
 *       flight until it is killed
 *
 * Launched by cudaLaunchKernel rather than <<<>>>, so that any C++ compiler can check this file. */
#include <cassert>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>
#include <cuda_runtime.h>

static const unsigned CELLS = 1u << 22;
static const unsigned THREADS = 256;
static const unsigned KERNELS = 8; /* an iteration's */

__global__ void add_one(unsigned *cells, unsigned rounds) {
    unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
    for (unsigned i = 0; i < rounds; i++)
        atomicAdd(&cells[at], 1u);
}

__global__ void write_far(unsigned *cells) { cells[1ull << 40] = 1; }

__global__ void fail_assert(unsigned *cells) { assert(cells[0] == 12345); }

__global__ void spin(volatile unsigned *cells) {
    while (cells[0] == 0)
        ;
}

static void check(cudaError_t result, const char *what) {
    if (result == cudaSuccess)
        return;
    printf("error %s: %s\n", what, cudaGetErrorString(result));
    fflush(stdout);
    _exit(1);
}

static void launch(const void *kernel, unsigned blocks, void **arguments) {
    check(cudaLaunchKernel(kernel, dim3(blocks), dim3(THREADS), arguments, 0, 0), "launch");
}

static unsigned *make_cells() {
    unsigned *cells = NULL;
    check(cudaMalloc((void **)&cells, CELLS * sizeof *cells), "malloc");
    check(cudaMemset(cells, 0, CELLS * sizeof *cells), "memset");
    check(cudaDeviceSynchronize(), "synchronize");
    return cells;
}

static bool all_are(const unsigned *cells, unsigned wanted, unsigned count) {
    unsigned *copy = (unsigned *)malloc(count * sizeof *copy);
    check(cudaMemcpy(copy, cells, count * sizeof *copy, cudaMemcpyDeviceToHost), "copy");
    bool same = true;
    for (unsigned i = 0; i < count; i++)
        same = same && copy[i] == wanted;
    free(copy);
    return same;
}

static int train(const char *stop_file) {
    unsigned *cells = make_cells();
    unsigned rounds = 20, done = 0;
    void *arguments[] = {&cells, &rounds};
    bool right = true;
    for (unsigned iteration = 0; access(stop_file, F_OK) != 0; iteration++) {
        auto began = std::chrono::steady_clock::now();
        for (unsigned i = 0; i < KERNELS; i++, done += rounds)
            launch((const void *)add_one, CELLS / THREADS, arguments);
        check(cudaDeviceSynchronize(), "synchronize");
        right = right && all_are(cells, done, 64);
        std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - began;
        printf("iteration %u %.3f\n", iteration, took.count());
        fflush(stdout);
    }
    right = right && all_are(cells, done, CELLS);
    puts(right ? "right" : "wrong");
    return right ? 0 : 2;
}

static int fail(const char *fault) {
    unsigned *cells = make_cells();
    unsigned rounds = 200;
    void *arguments[] = {&cells, &rounds};
    puts("armed");
    fflush(stdout);
    if (!strcmp(fault, "illegal"))
        launch((const void *)write_far, 1, arguments);
    else if (!strcmp(fault, "assert"))
        launch((const void *)fail_assert, 1, arguments);
    else if (!strcmp(fault, "endless"))
        launch((const void *)spin, 1, arguments);
    else
        for (;;) /* the queue holds the host up when it is full */
            launch((const void *)add_one, CELLS / THREADS, arguments);
    check(cudaDeviceSynchronize(), "synchronize");
    puts("no fault");
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[1], "train"))
        return train(argv[2]);
    return argc == 2 ? fail(argv[1]) : 64;
}
