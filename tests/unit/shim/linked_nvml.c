/* linked_nvml.c - linked against NVML, as some programs are: the loader binds its calls. It makes
 * no context. Prints free, total and used MiB of the first GPU by both forms, and by a look-up in
 * the global scope. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

struct memory {
    unsigned long long total, free, used;
};
struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};
int nvmlInit_v2(void);
int nvmlDeviceGetHandleByIndex_v2(unsigned, void **);
int nvmlDeviceGetMemoryInfo(void *, struct memory *);
int nvmlDeviceGetMemoryInfo_v2(void *, struct memory_v2 *);

int main(void) {
    void *device;
    struct memory first, found;
    struct memory_v2 second = {.version = sizeof second | 2u << 24};
    int (*global)(void *, struct memory *) =
        (int (*)(void *, struct memory *))dlsym(RTLD_DEFAULT, "nvmlDeviceGetMemoryInfo");
    if (nvmlInit_v2() || nvmlDeviceGetHandleByIndex_v2(0, &device) || !global ||
        nvmlDeviceGetMemoryInfo(device, &first) || nvmlDeviceGetMemoryInfo_v2(device, &second) ||
        global(device, &found))
        return 1;
    printf("[[%llu, %llu, %llu], [%llu, %llu, %llu], [%llu, %llu, %llu]]\n", first.free >> 20,
           first.total >> 20, first.used >> 20, second.free >> 20, second.total >> 20,
           second.used >> 20, found.free >> 20, found.total >> 20, found.used >> 20);
    return 0;
}
