/* symbols.h - the table behind cuGetProcAddress. */
#ifndef SIMGPU_SYMBOLS_H
#define SIMGPU_SYMBOLS_H
#include "cuda_types.h"
/* Puts the function at *found; returns the API's symbol status. */
int symbol_find(const char *name, void **found, int version, uint64_t flags);
#endif
