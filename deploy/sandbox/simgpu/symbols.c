/* symbols.c - cuGetProcAddress. Each entry: the name that callers ask for, the driver version
 * that brought this form of it, the legacy function and the per-thread one. The newest form that
 * the caller's version allows is the answer. */
#include <string.h>
#include "symbols.h"

typedef void (*function)(void);
struct symbol {
    const char *name;
    int since;
    function legacy, per_thread;
};

#define ONE(name, since) extern void name(void);
#define TWO(name, suffix, since) extern void name(void), name##suffix(void);
#define AS(asked, name, since) extern void name(void);
#define TWO_AS(asked, name, suffix, since) extern void name(void), name##suffix(void);
#include "symbols.def"
#undef ONE
#undef TWO
#undef AS
#undef TWO_AS

#define ONE(name, since) {#name, since, name, name},
#define TWO(name, suffix, since) {#name, since, name, name##suffix},
#define AS(asked, name, since) {#asked, since, name, name},
#define TWO_AS(asked, name, suffix, since) {#asked, since, name, name##suffix},
static const struct symbol symbols[] = {
#include "symbols.def"
};

int symbol_find(const char *name, void **found, int version, uint64_t flags) {
    const struct symbol *best = NULL;
    int status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        const struct symbol *s = &symbols[i];
        if (strcmp(s->name, name))
            continue;
        if (s->since > version)
            status = best ? status : CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
        else if (!best || s->since > best->since)
            best = s;
    }
    if (!best)
        return status;
    function f =
        flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM ? best->per_thread : best->legacy;
    memcpy(found, &f, sizeof f);
    return CU_GET_PROC_ADDRESS_SUCCESS;
}
