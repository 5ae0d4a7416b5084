/* api_memop.c - stream memory operations: the GPU writes a value, or waits for one. */
#include "handles.h"
#include "memory.h"

enum direction { WRITE, WAIT };

/* What the GPU may write, it must be able to reach; what it only reads may be read-only. */
static CUresult check(CUdeviceptr address, unsigned bytes, enum direction direction) {
    struct allocation a;
    if (address % bytes || !memory_find(address, &a) || address + bytes > a.base + a.bytes)
        return CUDA_ERROR_INVALID_VALUE;
    return direction == WRITE && a.read_only ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult value_op(bool per_thread, CUstream stream, CUdeviceptr address, uint64_t value,
                         unsigned flags, unsigned bytes, enum direction direction) {
    struct stream_ref ref;
    CUresult result = stream_resolve(stream, per_thread, &ref);
    if (!result)
        result = check(address, bytes, direction);
    if (result)
        return result;
    struct sim_op op = {.kind = direction == WRITE ? SIM_MARK : SIM_WAIT_VALUE,
                        .flags = (uint8_t)(SIM_EFFECT | (bytes == 8 ? SIM_WIDE : 0)),
                        .duration_ns = direction == WRITE ? SIM_MARK_NS : 0,
                        .a = address,
                        .b = value,
                        .c = flags};
    return stream_issue(&ref, &op, NULL);
}

#define MEMORY_OP(name, type, bytes, direction)                                                    \
    static CUresult sim_##name(bool per_thread, CUstream stream, CUdeviceptr address, type value,  \
                               unsigned flags) {                                                   \
        return value_op(per_thread, stream, address, value, flags, bytes, direction);              \
    }                                                                                              \
    BOTH(name, _ptsz, (CUstream stream, CUdeviceptr address, type value, unsigned flags),          \
         (stream, address, value, flags))

/* The first version of these calls differs from the second only in what a module parameter must
 * have allowed. */
MEMORY_OP(cuStreamWriteValue32_v2, uint32_t, 4, WRITE)
MEMORY_OP(cuStreamWriteValue64_v2, uint64_t, 8, WRITE)
MEMORY_OP(cuStreamWaitValue32_v2, uint32_t, 4, WAIT)
MEMORY_OP(cuStreamWaitValue64_v2, uint64_t, 8, WAIT)
MEMORY_OP(cuStreamWriteValue32, uint32_t, 4, WRITE)
MEMORY_OP(cuStreamWriteValue64, uint64_t, 8, WRITE)
MEMORY_OP(cuStreamWaitValue32, uint32_t, 4, WAIT)
MEMORY_OP(cuStreamWaitValue64, uint64_t, 8, WAIT)

static CUresult one(bool per_thread, CUstream stream, const CUstreamBatchMemOpParams *p) {
    switch (p->operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
        return value_op(per_thread, stream, p->value.address, (uint32_t)p->value.value,
                        p->value.flags, 4, WAIT);
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        return value_op(per_thread, stream, p->value.address, (uint32_t)p->value.value,
                        p->value.flags, 4, WRITE);
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        return value_op(per_thread, stream, p->value.address, p->value.value, p->value.flags, 8,
                        WAIT);
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        return value_op(per_thread, stream, p->value.address, p->value.value, p->value.flags, 8,
                        WRITE);
    case CU_STREAM_MEM_OP_BARRIER:
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
        return CUDA_SUCCESS; /* everything is ordered here anyway */
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult sim_cuStreamBatchMemOp_v2(bool per_thread, CUstream stream, unsigned count,
                                          CUstreamBatchMemOpParams *parameters, unsigned flags) {
    struct stream_ref ref;
    CUresult result = stream_resolve(stream, per_thread, &ref);
    if (result)
        return result;
    if (flags || !parameters || count > 256)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count && !result; i++)
        result = one(per_thread, stream, &parameters[i]);
    return result;
}
BOTH(cuStreamBatchMemOp_v2, _ptsz,
     (CUstream stream, unsigned count, CUstreamBatchMemOpParams *parameters, unsigned flags),
     (stream, count, parameters, flags))

static CUresult sim_cuStreamBatchMemOp(bool per_thread, CUstream stream, unsigned count,
                                       CUstreamBatchMemOpParams *parameters, unsigned flags) {
    return sim_cuStreamBatchMemOp_v2(per_thread, stream, count, parameters, flags);
}
BOTH(cuStreamBatchMemOp, _ptsz,
     (CUstream stream, unsigned count, CUstreamBatchMemOpParams *parameters, unsigned flags),
     (stream, count, parameters, flags))
