/* direct_program.c - linked against libcuda, as some programs are: the loader binds its calls.
 * Prints how many launches the driver saw. */
#include <stdio.h>

int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   void *, void **, void **);
int cuMemcpyHtoDAsync_v2_ptsz(unsigned long long, const void *, unsigned long, void *);
int null_calls(const char *);

int main(void) {
    void *context;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context))
        return 1;
    for (int i = 0; i < 7; i++)
        cuLaunchKernel(&context, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    cuMemcpyHtoDAsync_v2_ptsz(0, "", 1, NULL);
    printf("%d %d\n", null_calls("cuLaunchKernel"), null_calls("cuMemcpyHtoDAsync_v2_ptsz"));
    return 0;
}
