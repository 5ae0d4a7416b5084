/* gate_driver.c - looks up what the gate calls itself. */
#include "gate_driver.h"

struct gate_driver gate_driver;

static void *newest(const char *versioned, const char *plain) {
    void *found = versioned ? real_symbol(versioned) : NULL;
    return found ? found : real_symbol(plain);
}

void gate_driver_find(void) {
    gate_driver.stream_write64 = newest("cuStreamWriteValue64_v2", "cuStreamWriteValue64");
    gate_driver.stream_wait64 = newest("cuStreamWaitValue64_v2", "cuStreamWaitValue64");
    gate_driver.stream_create = newest(NULL, "cuStreamCreate");
    gate_driver.event_create = newest(NULL, "cuEventCreate");
    gate_driver.event_record = newest(NULL, "cuEventRecord");
    gate_driver.event_synchronize = newest(NULL, "cuEventSynchronize");
    gate_driver.event_query = newest(NULL, "cuEventQuery");
    gate_driver.event_destroy = newest("cuEventDestroy_v2", "cuEventDestroy");
    gate_driver.stream_wait_event = newest(NULL, "cuStreamWaitEvent");
    gate_driver.event_elapsed = newest(NULL, "cuEventElapsedTime");
    gate_driver.stream_synchronize = newest(NULL, "cuStreamSynchronize");
    gate_driver.host_register = newest("cuMemHostRegister_v2", "cuMemHostRegister");
    gate_driver.host_device_pointer =
        newest("cuMemHostGetDevicePointer_v2", "cuMemHostGetDevicePointer");
    gate_driver.context_current = newest(NULL, "cuCtxGetCurrent");
    gate_driver.context_device = newest(NULL, "cuCtxGetDevice");
    gate_driver.stream_context = newest(NULL, "cuStreamGetCtx");
    gate_driver.context_push = newest("cuCtxPushCurrent_v2", "cuCtxPushCurrent");
    gate_driver.context_pop = newest("cuCtxPopCurrent_v2", "cuCtxPopCurrent");
    gate_driver.device_uuid = newest("cuDeviceGetUuid_v2", "cuDeviceGetUuid");
    gate_driver.free_async = newest(NULL, "cuMemFreeAsync");
    gate_driver.device_pool = newest(NULL, "cuDeviceGetMemPool");
    gate_driver.pool_attribute = newest(NULL, "cuMemPoolGetAttribute");
    gate_driver.pool_trim = newest(NULL, "cuMemPoolTrimTo");
    gate_driver.capture_mode = newest(NULL, "cuThreadExchangeStreamCaptureMode");
}
