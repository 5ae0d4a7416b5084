/* hooks.c - the hooks that the table describes in full, and the look-ups over the table. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include "hooks.h"

static uint64_t bytes_2d(const CUDA_MEMCPY2D *copy) {
    return copy ? (uint64_t)copy->WidthInBytes * copy->Height : 0;
}

static uint64_t bytes_3d(const CUDA_MEMCPY3D *copy) {
    return copy ? (uint64_t)copy->WidthInBytes * copy->Height * copy->Depth : 0;
}

static uint64_t bytes_batch(const size_t *sizes, size_t count) {
    uint64_t sum = 0;
    for (size_t i = 0; sizes && i < count; i++)
        sum += sizes[i];
    return sum;
}

/* The kinds of operation of the table. */
#define STREAM_NULL ((CUstream)NULL)
#define SIZED(operation_kind, count, where, blocks)                                                \
    (.kind = operation_kind, .stream = where, .bytes = (count), .blocking = blocks,                \
     .shape = shape_bytes(operation_kind, (count)))
#define BLOCKING_COPY(count) SIZED(SHIM_OP_COPY, count, STREAM_NULL, true)
#define BLOCKING_SET(count) SIZED(SHIM_OP_SET, count, STREAM_NULL, true)
#define STREAM_COPY(count) SIZED(SHIM_OP_COPY, count, stream, false)
#define STREAM_SET(count) SIZED(SHIM_OP_SET, count, stream, false)
#define STREAM_WAIT (.kind = SHIM_OP_WAIT, .stream = stream)
#define STREAM_OTHER (.kind = SHIM_OP_OTHER, .stream = stream)
#define STREAM_WRITE (.kind = SHIM_OP_OTHER, .stream = stream, .writes = true)
#define STREAM_BATCH (.kind = SHIM_OP_WAIT, .stream = stream, .writes = true)
#define SETUP_HERE (.kind = SHIM_OP_SETUP, .device = -1)
#define UNWRAP(...) __VA_ARGS__

#define DEFINE(symbol, variant, parameters, arguments, operation)                                  \
    HOOK_EXPORT CUresult symbol parameters;                                                        \
    HOOK_EXPORT CUresult symbol parameters {                                                       \
        CUresult(*real) parameters = (CUresult(*) parameters)hook_real(HOOK_##symbol);             \
        if (!real)                                                                                 \
            return hook_missing();                                                                 \
        struct shim_op op = {UNWRAP operation};                                                    \
        const struct shim_role_ops *role = hook_before(&op, variant);                              \
        CUresult result;                                                                           \
        unsigned tries = 0;                                                                        \
        do                                                                                         \
            result = real arguments;                                                               \
        while (hook_again(role, result, op.kind == SHIM_OP_SETUP ? op.device : -1, 0, &tries));    \
        hook_after(role, &op, result);                                                             \
        return result;                                                                             \
    }
#define OP_PAIR(symbol, suffix, since, since_suffix, parameters, arguments, operation, why)        \
    DEFINE(symbol, false, parameters, arguments, operation)                                        \
    DEFINE(symbol##suffix, true, parameters, arguments, operation)
#define OP_ONE(symbol, since, parameters, arguments, operation, why)                               \
    DEFINE(symbol, false, parameters, arguments, operation)
#define OWN_PAIR(symbol, suffix, ...) extern void symbol(void), symbol##suffix(void);
#define OWN_ONE(symbol, ...) extern void symbol(void);
#include "hook_table.def"
#undef OP_PAIR
#undef OP_ONE
#undef OWN_PAIR
#undef OWN_ONE

#define ENTRY(name, version, variant)                                                              \
    [HOOK_##                                                                                       \
        name] = {.symbol = #name, .ours = (void *)name, .since = version, .per_thread = variant},
#define OP_PAIR(symbol, suffix, since, since_suffix, ...)                                          \
    ENTRY(symbol, since, false) ENTRY(symbol##suffix, since_suffix, true)
#define OP_ONE(symbol, since, ...) ENTRY(symbol, since, false)
#define OWN_PAIR(symbol, suffix, since, since_suffix, ...)                                         \
    ENTRY(symbol, since, false) ENTRY(symbol##suffix, since_suffix, true)
#define OWN_ONE(symbol, since, ...) ENTRY(symbol, since, false)
const struct hook hook_list[HOOK_COUNT] = {
#include "hook_table.def"
};

/* What lies below each hook: one pointer for every symbol, ABI version and stream variant. */
static void *_Atomic real_functions[HOOK_COUNT];

void *hook_real(enum hook_id id) {
    void *function = atomic_load_explicit(&real_functions[id], memory_order_acquire);
    if (__builtin_expect(!function, 0)) {
        function = real_symbol(hook_list[id].symbol);
        if (function)
            atomic_store_explicit(&real_functions[id], function, memory_order_release);
    }
    return function;
}

void hook_remember_real(enum hook_id id, void *function) {
    void *none = NULL;
    atomic_compare_exchange_strong(&real_functions[id], &none, function);
}

CUresult hook_missing(void) {
    static void *_Atomic driver;
    if (!atomic_load(&driver))
        atomic_store(&driver, real_symbol("cuInit"));
    /* Without a driver answer as one would that finds no GPU. */
    return atomic_load(&driver) ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_NO_DEVICE;
}

int hook_by_symbol(const char *symbol) {
    for (int id = 0; id < HOOK_COUNT; id++)
        if (strcmp(hook_list[id].symbol, symbol) == 0)
            return id;
    return -1;
}

/* True when symbol is name, name_v2, name_ptsz, name_v2_ptsz ... */
static bool same_name(const char *symbol, const char *name, size_t length) {
    if (strncmp(symbol, name, length) != 0)
        return false;
    const char *rest = symbol + length;
    if (rest[0] == '_' && rest[1] == 'v' && rest[2] >= '1' && rest[2] <= '9')
        rest += 3;
    return *rest == '\0' || strcmp(rest, "_ptsz") == 0 || strcmp(rest, "_ptds") == 0;
}

static bool begins(const char *name, const char *with) {
    return strncmp(name, with, strlen(with)) == 0;
}

bool hook_looks_unhooked(const char *name) {
    static const char *const beginnings[] = {"cuLaunch", "cuMemcpy", "cuMemset", "cuGraphLaunch",
                                             "cuMemPrefetch"};
    if (!begins(name, "cu"))
        return false;
    /* Not what every runtime asks for: notices about memory, a display's buffers. */
    bool looks = strstr(name, "Async") && !strstr(name, "AsyncNotification") &&
                 !strstr(name, "apBufferObject"); /* Map, Unmap */
    for (size_t i = 0; i < sizeof beginnings / sizeof *beginnings; i++)
        looks |= begins(name, beginnings[i]);
    for (int id = 0; looks && id < HOOK_COUNT; id++) {
        size_t length = strcspn(hook_list[id].symbol, "_");
        looks = strncmp(hook_list[id].symbol, name, length) != 0 ||
                (name[length] != '\0' && name[length] != '_');
    }
    return looks;
}

/* True when the answer is an exported function of an ABI that the table does not know: wrapping
 * it with another ABI's hook would break the caller. */
static bool is_foreign(void *answer) {
    Dl_info info;
    return dladdr(answer, &info) && info.dli_saddr == answer && info.dli_sname;
}

int hook_by_answer(const char *name, void *answer, int cuda_version, bool per_thread) {
    size_t length = strlen(name);
    int by_address = HOOK_NONE, by_version = HOOK_NONE;
    for (int id = 0; id < HOOK_COUNT; id++) {
        const struct hook *hook = &hook_list[id];
        if (!same_name(hook->symbol, name, length))
            continue;
        /* Both variants can be one function; then the caller's wish decides. */
        if (hook_real((enum hook_id)id) == answer &&
            (by_address < 0 || hook->per_thread == per_thread))
            by_address = id;
        if (hook->since <= cuda_version && (per_thread || !hook->per_thread) &&
            (by_version < 0 || hook->per_thread > hook_list[by_version].per_thread ||
             (hook->per_thread == hook_list[by_version].per_thread &&
              hook->since >= hook_list[by_version].since)))
            by_version = id;
    }
    if (by_address >= 0)
        return by_address;
    if (by_version >= 0 && is_foreign(answer)) {
        shim_log(1, "the driver has a form of %s that this version does not know", name);
        return HOOK_UNKNOWN_FORM;
    }
    return by_version;
}
