/* local_user.c - a library that brings the driver along as a dependency of its own, as Python
 * extensions do: for the rest of the program the driver is not in sight. */
#define _GNU_SOURCE
#include <dlfcn.h>

int cuInit(unsigned);

int use(void) { return cuInit(0); }
int next_is_found(void) { return dlsym(RTLD_NEXT, "cuLaunchKernel") != 0; }
