/* memory.h - the process's table of memory that the simulated GPU can reach. */
#ifndef SIMGPU_MEMORY_H
#define SIMGPU_MEMORY_H
#include "driver.h"

enum memory_kind { MEMORY_DEVICE = 1, MEMORY_MANAGED = 2, MEMORY_HOST = 4, MEMORY_REGISTERED = 8 };

struct allocation {
    uint64_t base, bytes, id;
    unsigned kind;
    bool read_only; /* registered so: the GPU may not write */
    CUcontext context;
    CUmemoryPool pool; /* NULL: taken from the GPU by itself */
    struct allocation *next;
};

bool memory_find(uint64_t address, struct allocation *found);
CUresult memory_allocate(CUdeviceptr *pointer, size_t bytes, CUcontext context, unsigned kind);
CUresult memory_allocate_from(CUmemoryPool pool, CUdeviceptr *pointer, size_t bytes,
                              CUcontext context);
CUresult memory_free(uint64_t base, unsigned kinds);
/* Takes so much of the context's GPU into account, or gives it back. */
CUresult memory_count(CUcontext context, uint64_t bytes, bool take_back);
CUresult memory_register(void *base, size_t bytes, unsigned flags, CUcontext context);
#endif
