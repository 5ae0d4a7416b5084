/* null_driver.c - a libcuda.so.1 for tests of the hooks: every symbol of the interposer's table
 * exists, does nothing and is counted; functions that the monitor needs answer sensibly. Work is
 * done at once. null_calls(symbol) tells how often the driver itself was called. */
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define WEAK __attribute__((weak, visibility("default")))

struct entry {
    const char *symbol;
    int since;
    int per_thread;
    void *function;
    int calls;
};
static int count(int id);

enum {
#define OP_PAIR(symbol, suffix, ...) ID_##symbol, ID_##symbol##suffix,
#define OP_ONE(symbol, ...) ID_##symbol,
#define OWN_PAIR OP_PAIR
#define OWN_ONE OP_ONE
#include "hook_table.def"
    ID_COUNT
};
#undef OP_PAIR
#undef OP_ONE

#define OP_PAIR(symbol, suffix, ...)                                                               \
    WEAK int symbol(void) { return count(ID_##symbol); }                                           \
    WEAK int symbol##suffix(void) { return count(ID_##symbol##suffix); }
#define OP_ONE(symbol, ...)                                                                        \
    WEAK int symbol(void) { return count(ID_##symbol); }
#include "hook_table.def"
#undef OP_PAIR
#undef OP_ONE
#undef OWN_PAIR
#undef OWN_ONE

#define OP_PAIR(symbol, suffix, since, since_suffix, ...)                                          \
    {#symbol, since, 0, (void *)symbol, 0},                                                        \
        {#symbol #suffix, since_suffix, 1, (void *)symbol##suffix, 0},
#define OP_ONE(symbol, since, ...) {#symbol, since, 0, (void *)symbol, 0},
#define OWN_PAIR OP_PAIR
#define OWN_ONE OP_ONE
static struct entry entries[ID_COUNT] = {
#include "hook_table.def"
};

static int count(int id) {
    __atomic_fetch_add(&entries[id].calls, 1, __ATOMIC_SEQ_CST);
    return 0;
}

EXPORT int null_calls(const char *symbol) {
    for (int i = 0; i < ID_COUNT; i++)
        if (!strcmp(entries[i].symbol, symbol))
            return entries[i].calls;
    return -1;
}

/* The newest ABI of the name that is not newer than asked for, in the stream variant wanted. */
static void *newest(const char *name, int version, int per_thread) {
    size_t length = strlen(name);
    const struct entry *best = NULL;
    for (int i = 0; i < ID_COUNT; i++) {
        const struct entry *e = &entries[i];
        const char *rest = e->symbol + length;
        if (strncmp(e->symbol, name, length) || e->since > version || e->per_thread > per_thread ||
            (*rest && *rest != '_'))
            continue;
        if (!best || e->per_thread > best->per_thread ||
            (e->per_thread == best->per_thread && e->since >= best->since))
            best = e;
    }
    return best ? best->function : NULL;
}

static int find(const char *name, void **out, int version, uint64_t flags, int per_thread) {
    if (flags & 2)
        per_thread = 1;
    *out = newest(name, version, per_thread);
    return *out ? 0 : 500;
}
EXPORT int null_get_v1(const char *n, void **out, int version, uint64_t flags) {
    return find(n, out, version, flags, 0);
}
EXPORT int null_get_v1_ptsz(const char *n, void **out, int version, uint64_t flags) {
    return find(n, out, version, flags, 1);
}
EXPORT int null_get_v2(const char *n, void **out, int version, uint64_t flags, int *status) {
    int result = find(n, out, version, flags, 0);
    if (status)
        *status = result != 0;
    return result;
}
EXPORT int null_get_v2_ptsz(const char *n, void **out, int version, uint64_t flags, int *status) {
    int result = find(n, out, version, flags, 1);
    if (status)
        *status = result != 0;
    return result;
}
EXPORT int null_count(const char *symbol) {
    for (int i = 0; i < ID_COUNT; i++)
        if (!strcmp(entries[i].symbol, symbol))
            return count(i);
    return 0;
}
