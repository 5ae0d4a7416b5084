/* gate_driver.h - the driver's functions that the gate itself calls, looked up once. */
#ifndef SFILL_GATE_DRIVER_H
#define SFILL_GATE_DRIVER_H
#include "shim.h"

struct gate_driver {
    CUresult (*stream_write64)(CUstream, CUdeviceptr, uint64_t, unsigned);
    CUresult (*stream_wait64)(CUstream, CUdeviceptr, uint64_t, unsigned);
    CUresult (*stream_create)(CUstream *, unsigned);
    CUresult (*stream_synchronize)(CUstream);
    CUresult (*stream_wait_event)(CUstream, CUevent, unsigned);
    CUresult (*event_create)(CUevent *, unsigned);
    CUresult (*event_record)(CUevent, CUstream);
    CUresult (*event_synchronize)(CUevent);
    CUresult (*event_query)(CUevent);
    CUresult (*event_destroy)(CUevent);
    CUresult (*event_elapsed)(float *, CUevent, CUevent);
    CUresult (*host_register)(void *, size_t, unsigned);
    CUresult (*host_device_pointer)(CUdeviceptr *, void *, unsigned);
    CUresult (*context_current)(CUcontext *);
    CUresult (*context_device)(CUdevice *);
    CUresult (*stream_context)(CUstream, CUcontext *);
    CUresult (*context_push)(CUcontext);
    CUresult (*context_pop)(CUcontext *);
    CUresult (*device_uuid)(CUuuid *, CUdevice);
    CUresult (*capture_mode)(int *);
    CUresult (*free_async)(CUdeviceptr, CUstream);
    CUresult (*device_pool)(CUmemoryPool *, CUdevice);
    CUresult (*pool_attribute)(CUmemoryPool, int, void *);
    CUresult (*pool_trim)(CUmemoryPool, size_t);
};
extern struct gate_driver gate_driver;
/* Looks all of them up; a missing one stays NULL. */
void gate_driver_find(void);
#endif
