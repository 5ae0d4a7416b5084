/* next_wrapper.c - a preloaded library of the usual kind: it wraps a function of libc and finds
 * the wrapped one with RTLD_NEXT, which has a meaning only from its own frame. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>

pid_t getppid(void) {
    pid_t (*next)(void) = (pid_t(*)(void))dlsym(RTLD_NEXT, "getppid");
    return next && next != getppid ? next() + 1000000000 : -1;
}
