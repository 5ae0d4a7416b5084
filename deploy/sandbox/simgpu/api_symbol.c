/* api_symbol.c - cuGetProcAddress in both its forms. In a file of its own because symbols.c
 * declares every exported name as a function without arguments. */
#include "symbols.h"

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags,
                                    int *status) {
    if (!name || !found || flags > 2)
        return CUDA_ERROR_INVALID_VALUE;
    *found = NULL;
    int result = symbol_find(name, found, version, flags);
    if (status)
        *status = result;
    return result == CU_GET_PROC_ADDRESS_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

EXPORT CUresult cuGetProcAddress(const char *name, void **found, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, found, version, flags, NULL);
}
