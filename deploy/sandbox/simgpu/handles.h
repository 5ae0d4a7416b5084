/* handles.h - what the API files ask of handles.c beyond driver.h, and how each call gets its
 * two variants: NULL means the legacy default stream, or the calling thread's own. */
#ifndef SIMGPU_HANDLES_H
#define SIMGPU_HANDLES_H
#include "driver.h"

#define STREAM_MAGIC 0x73696d5f73747265ull
#define EVENT_MAGIC 0x73696d5f65766e74ull
#define FUNCTION_MAGIC 0x73696d5f66756e63ull

CUresult context_usable(CUcontext context); /* an error once it is destroyed or has faulted */
CUresult context_push(CUcontext context);
CUcontext context_pop(void);
bool stream_valid(CUstream stream);
CUresult stream_make(CUcontext context, unsigned flags, int priority, CUstream *stream);
void stream_close(CUstream stream);
void engine_forget(uint32_t context); /* both locks held: streams of a context that ends */

/* Defines NAME and NAME<SUFFIX>, exported, from sim_NAME(bool per_thread, ...). */
#define UNPACK(...) __VA_ARGS__
#define BOTH(name, suffix, parameters, arguments)                                                  \
    EXPORT CUresult name parameters;                                                               \
    EXPORT CUresult name##suffix parameters;                                                       \
    EXPORT CUresult name parameters { return sim_##name(false, UNPACK arguments); }                \
    EXPORT CUresult name##suffix parameters { return sim_##name(true, UNPACK arguments); }

#endif
