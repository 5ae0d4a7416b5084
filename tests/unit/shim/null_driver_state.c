/* null_driver_state.c - the functions of the null driver that must answer: one device, contexts,
 * streams known by their handles, value writes that happen at once. */
#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
typedef uint64_t number;

int null_count(const char *symbol);
int null_get_v1(const char *, void **, int, uint64_t);
int null_get_v1_ptsz(const char *, void **, int, uint64_t);
int null_get_v2(const char *, void **, int, uint64_t, int *);
int null_get_v2_ptsz(const char *, void **, int, uint64_t, int *);

static char primary[16], streams[4096 * 16];
static unsigned stream_flags[4096];
static int streams_made, retained;
static __thread void *stack[16];
static __thread int depth;
static number capturing;

/* NULL_FAIL names what shall fail. */
static int fails(const char *what) {
    const char *wanted = getenv("NULL_FAIL");
    return wanted && !strcmp(wanted, what);
}

static int newer;
EXPORT int newer_calls(void) { return newer; }
/* What a driver of the future has: the name is hooked, this form of it is not known. */
EXPORT int cuLaunchKernel_v2(void) {
    newer++;
    return 0;
}

/* ... and launch calls that the table lacks altogether. */
EXPORT int cuLaunchTomorrow(void) {
    newer++;
    return 0;
}
EXPORT int cuMemcpyTomorrowAsync(int a, int b, int c, int d, int e, int f, int g, int h, double x,
                                 double y) {
    newer++;
    return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h + (int)(100 * x + 1000 * y);
}

EXPORT int cuGetProcAddress(const char *n, void **out, int v, uint64_t f) {
    null_count("cuGetProcAddress");
    return null_get_v1(n, out, v, f);
}
EXPORT int cuGetProcAddress_ptsz(const char *n, void **out, int v, uint64_t f) {
    return null_get_v1_ptsz(n, out, v, f);
}
EXPORT int cuGetProcAddress_v2(const char *n, void **out, int v, uint64_t f, int *s) {
    null_count("cuGetProcAddress_v2");
    if (v == 99000 && !strcmp(n, "cuLaunchKernel")) {
        *out = (void *)cuLaunchKernel_v2;
        return 0;
    }
    if (!strcmp(n, "cuMemcpyTomorrowAsync")) {
        *out = (void *)cuMemcpyTomorrowAsync;
        return 0;
    }
    if (!strcmp(n, "cuLaunchTomorrow")) {
        *out = (void *)cuLaunchTomorrow;
        return 0;
    }
    return null_get_v2(n, out, v, f, s);
}
EXPORT int cuGetProcAddress_v2_ptsz(const char *n, void **out, int v, uint64_t f, int *s) {
    return null_get_v2_ptsz(n, out, v, f, s);
}

/* NULL_SLOW=launch: the call takes its time before anything is queued. */
EXPORT int cuLaunchKernel(void) {
    const char *slow = getenv("NULL_SLOW");
    if (slow && !strcmp(slow, "launch"))
        usleep(300000);
    return null_count("cuLaunchKernel");
}

EXPORT int cuCtxGetCurrent(void **out) {
    *out = depth ? stack[depth - 1] : NULL;
    return 0;
}
EXPORT int cuCtxSetCurrent(void *context) {
    depth = context != NULL;
    stack[0] = context;
    return 0;
}
EXPORT int cuCtxPushCurrent_v2(void *context) {
    stack[depth++] = context;
    return 0;
}
EXPORT int cuCtxPopCurrent_v2(void **out) {
    *out = stack[--depth];
    return 0;
}
EXPORT int cuCtxGetDevice(int *out) {
    *out = 0;
    return 0;
}
EXPORT int cuDevicePrimaryCtxRetain(void **out, int device) {
    (void)device;
    retained++;
    *out = primary;
    return 0;
}
EXPORT int cuDevicePrimaryCtxRelease_v2(int device) {
    (void)device;
    retained--;
    return 0;
}
EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    (void)device;
    *flags = 0;
    *active = retained > 0;
    return 0;
}
EXPORT int cuDeviceGetUuid_v2(char *out, int device) {
    memset(out, device + 1, 16);
    return 0;
}
/* That of the whole GPU: under MIG the other one names an instance. */
EXPORT int cuDeviceGetUuid(char *out, int device) {
    cuDeviceGetUuid_v2(out, device);
    out[0] ^= fails("mig");
    return 0;
}
EXPORT int cuDeviceGetAttribute(int *out, int what, int device) {
    (void)what, (void)device;
    *out = !fails("memops");
    return 0;
}

EXPORT int cuStreamCreate(void **out, unsigned flags) {
    stream_flags[streams_made] = flags;
    *out = &streams[16 * streams_made++];
    return 0;
}
EXPORT int cuStreamGetCtx(void *stream, void **out) {
    (void)stream;
    return cuCtxGetCurrent(out);
}
static void *renamed;
/* From here on the handle is that of another stream. */
EXPORT void null_rename(void *stream) { renamed = stream; }
EXPORT int cuStreamGetId(void *stream, unsigned long long *out) {
    if (stream && stream == renamed) {
        *out = 1ull << 60 | (uintptr_t)stream;
        return 0;
    }
    *out = (uintptr_t)stream == 2 ? 1000000 + (number)syscall(SYS_gettid) : (uintptr_t)stream;
    return 0;
}
EXPORT int cuStreamGetFlags(void *stream, unsigned *out) {
    ptrdiff_t at = ((char *)stream - streams) / 16;
    *out = at >= 0 && at < streams_made ? stream_flags[at] : 0;
    return 0;
}
EXPORT int cuStreamWriteValue64_v2(void *stream, uint64_t at, uint64_t value, unsigned flags) {
    (void)flags;
    if (fails("write"))
        return 719;
    if (capturing && (uintptr_t)stream == capturing)
        return 900; /* a marker in a capture is a mistake that tests must see */
    null_count("cuStreamWriteValue64_v2");
    if (at > 4096)
        __atomic_store_n((uint64_t *)at, value, __ATOMIC_SEQ_CST);
    return 0;
}

EXPORT int cuStreamBeginCapture_v2(void *stream, int mode) {
    (void)mode;
    capturing = (uintptr_t)stream;
    return null_count("cuStreamBeginCapture_v2");
}
EXPORT int cuStreamEndCapture(void *stream, void **graph) {
    (void)stream;
    capturing = 0;
    *graph = primary;
    return null_count("cuStreamEndCapture");
}
EXPORT int cuStreamIsCapturing(void *stream, int *status) {
    *status = capturing && (uintptr_t)stream == capturing;
    return 0;
}
EXPORT int cuThreadExchangeStreamCaptureMode(int *mode) {
    *mode = 0;
    return 0;
}
static int registered;
EXPORT int null_registered(void) { return registered; }
EXPORT int cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags) {
    (void)at, (void)bytes, (void)flags;
    registered++;
    if (capturing)
        return 900; /* it would break the capture */
    return fails("register") ? 801 : 0;
}
EXPORT int cuMemHostGetDevicePointer_v2(uint64_t *out, void *at, unsigned flags) {
    (void)flags;
    *out = (uintptr_t)at;
    return 0;
}
