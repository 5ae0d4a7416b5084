/* devices.c - which simulated GPUs this process may see. A device's node tells, as with a real
 * driver: opening it works, or gives ENXIO when no driver stands behind the node; EPERM and
 * EACCES mean that the cgroup or the file mode keeps the process away. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>
#include "driver.h"

static uint32_t minors[SIM_GPUS];
static unsigned count;

unsigned devices_count(void) { return count; }
uint32_t device_minor(CUdevice device) { return minors[device]; }
bool device_valid(CUdevice device) { return device >= 0 && (unsigned)device < count; }

void device_uuid(uint32_t minor, CUuuid *uuid) {
    char text[16];
    memset(uuid, 0, sizeof *uuid);
    snprintf(text, sizeof text, "%012u", minor); /* decimal digits, as the text form shows them */
    for (int i = 0; i < 6; i++)
        uuid->bytes[10 + i] = (char)((text[2 * i] - '0') * 16 + (text[2 * i + 1] - '0'));
}

static bool may_open(uint32_t minor) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/nvidia%u", settings_device_dir(), minor);
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0)
        close(fd);
    return fd >= 0 || errno == ENXIO;
}

static int by_uuid(const char *text, const uint32_t *all, unsigned all_count) {
    for (unsigned i = 0; i < all_count; i++) {
        char uuid[48];
        snprintf(uuid, sizeof uuid, "GPU-00000000-0000-0000-0000-%012u", all[i]);
        if (!strncasecmp(uuid, text, strlen(text)) && strlen(text) > 4)
            return (int)i;
    }
    return -1;
}

/* CUDA_VISIBLE_DEVICES: indices or UUIDs; the first that is neither ends the list. */
static void narrow(const char *list, const uint32_t *all, unsigned all_count) {
    char copy[1024], *rest;
    snprintf(copy, sizeof copy, "%s", list);
    for (char *item = strtok_r(copy, ",", &rest); item && count < SIM_GPUS;
         item = strtok_r(NULL, ",", &rest)) {
        item += strspn(item, " ");
        char *end;
        long index =
            strncasecmp(item, "GPU-", 4) ? strtol(item, &end, 10) : by_uuid(item, all, all_count);
        if (index < 0 || index >= (long)all_count || (strncasecmp(item, "GPU-", 4) && end == item))
            return;
        minors[count++] = all[index];
    }
}

CUresult devices_find(bool all_nodes) {
    uint32_t all[SIM_GPUS];
    unsigned all_count = 0;
    count = 0;
    if (settings_device_dir())
        for (uint32_t minor = 0; minor < SIM_GPUS; minor++)
            if (may_open(minor))
                all[all_count++] = minor;
    const char *list = all_nodes ? NULL : getenv("CUDA_VISIBLE_DEVICES");
    if (list) {
        narrow(list, all, all_count);
    } else {
        memcpy(minors, all, sizeof minors);
        count = all_count;
    }
    return count ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}
