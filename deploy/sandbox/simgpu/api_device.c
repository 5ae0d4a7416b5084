/* api_device.c - devices and their attributes. */
#include <stdio.h>
#include <string.h>
#include "driver.h"

EXPORT CUresult cuDriverGetVersion(int *version) {
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = 13000;
    return CUDA_SUCCESS;
}

static CUresult check(CUdevice device, const void *out) {
    CUresult ready = driver_ready();
    if (ready)
        return ready;
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    return device_valid(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

EXPORT CUresult cuDeviceGetCount(int *count) {
    CUresult ready = driver_ready();
    if (ready)
        return ready;
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    *count = (int)devices_count();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    CUresult bad = check(ordinal, device);
    if (!bad)
        *device = ordinal;
    return bad;
}

EXPORT CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    CUresult bad = check(device, name);
    if (!bad && length > 0)
        snprintf(name, (size_t)length, "Simulated GPU");
    return bad;
}

EXPORT CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
    CUresult bad = check(device, uuid);
    if (!bad)
        device_uuid(device_minor(device), uuid);
    return bad;
}

EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    CUresult bad = check(device, uuid);
    if (!bad)
        device_uuid(device_minor(device), uuid);
    return bad;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    CUresult bad = check(device, bytes);
    if (!bad)
        *bytes = world->memory_bytes;
    return bad;
}

EXPORT CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device) {
    CUresult bad = check(device, major);
    if (bad || !minor)
        return bad ? bad : CUDA_ERROR_INVALID_VALUE;
    *major = 9;
    *minor = 0;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice device) {
    CUresult bad = check(device, text);
    if (!bad &&
        snprintf(text, (size_t)length, "0000:%02X:00.0", device_minor(device) + 1) >= length)
        return CUDA_ERROR_INVALID_VALUE;
    return bad;
}

EXPORT CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *text) {
    unsigned domain, bus;
    if (!device || !text || sscanf(text, "%x:%x", &domain, &bus) != 2)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < devices_count(); i++)
        if (device_minor((CUdevice)i) + 1 == bus) {
            *device = (CUdevice)i;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_DEVICE;
}

/* Attribute numbers are the driver API's; those not listed are answered with 0. */
static int attribute_value(int attribute, uint32_t minor) {
    switch (attribute) {
    case 1: /* max threads per block */
    case 2: /* max block x, y */
    case 3:
        return 1024;
    case 4: /* max block z */
        return 64;
    case 5: /* max grid x */
        return 2147483647;
    case 6: /* max grid y, z */
    case 7:
        return 65535;
    case 8: /* shared memory per block */
        return 49152;
    case 10: /* warp size */
        return 32;
    case 13: /* clock, kHz */
        return 1000000;
    case 16: /* multiprocessors */
        return 64;
    case 19:  /* can map host memory */
    case 31:  /* concurrent kernels */
    case 41:  /* unified addressing */
    case 83:  /* managed memory */
    case 90:  /* compute preemption */
    case 95:  /* cooperative launch */
    case 99:  /* host registration */
    case 113: /* read-only host registration */
    case 115: /* memory pools */
        return 1;
    case 91: /* registered host memory has the host's addresses */
        return 1;
    case 92: /* stream memory operations: v1 */
    case 93:
    case 94:
        return 1;
    case 122: /* stream memory operations: wait nor, v2 */
    case 123:
        return 1;
    case 20: /* compute mode: default */
        return 0;
    case 33: /* PCI bus */
        return (int)minor + 1;
    case 38: /* L2 cache bytes */
        return 50 << 20;
    case 39: /* threads per multiprocessor */
        return 2048;
    case 40: /* copy engines */
        return 1;
    case 75: /* compute capability */
        return 9;
    case 76:
        return 0;
    case 78: /* stream priorities */
        return 1;
    case 81: /* shared memory and registers per multiprocessor */
        return 233472;
    case 12:
    case 82:
        return 65536;
    default:
        return 0;
    }
}

EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    CUresult bad = check(device, value);
    if (!bad)
        *value = attribute_value(attribute, device_minor(device));
    return bad;
}

EXPORT CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
    CUresult bad = check(device, can);
    if (!bad && !device_valid(peer))
        bad = CUDA_ERROR_INVALID_DEVICE;
    if (!bad)
        *can = device != peer;
    return bad;
}
