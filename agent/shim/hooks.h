/* hooks.h - the hooks' common frame: which hook stands for which symbol, how a hook finds the
 * real function, and how it tells the role. */
#ifndef SFILL_HOOKS_H
#define SFILL_HOOKS_H
#include "shapes.h"
#include "shim.h"

#define HOOK_EXPORT __attribute__((visibility("default")))

/* One number for each symbol of the table. */
enum hook_id {
#define OP_PAIR(symbol, suffix, ...) HOOK_##symbol, HOOK_##symbol##suffix,
#define OP_ONE(symbol, ...) HOOK_##symbol,
#define OWN_PAIR(symbol, suffix, ...) HOOK_##symbol, HOOK_##symbol##suffix,
#define OWN_ONE(symbol, ...) HOOK_##symbol,
#include "hook_table.def"
#undef OP_PAIR
#undef OP_ONE
#undef OWN_PAIR
#undef OWN_ONE
    HOOK_COUNT
};

struct hook {
    const char *symbol;
    void *ours;
    int since;       /* CUDA version from which cuGetProcAddress means this ABI */
    bool per_thread; /* the variant whose NULL stream is the calling thread's own */
};

extern const struct hook hook_list[HOOK_COUNT];

/* The driver's function under a hook; NULL when the driver lacks it or is not loaded. */
void *hook_real(enum hook_id id);
/* Keeps what cuGetProcAddress answered, for drivers that hand out more than they export. */
void hook_remember_real(enum hook_id id, void *function);
/* The hook of an exported name, by its exact spelling; -1: not hooked. */
int hook_by_symbol(const char *symbol);
/* The hook for what cuGetProcAddress(name, version) answered; HOOK_NONE: the table does not have
 * the name; HOOK_UNKNOWN_FORM: it has, but not in this ABI. */
enum { HOOK_NONE = -1, HOOK_UNKNOWN_FORM = -2 };
int hook_by_answer(const char *name, void *answer, int cuda_version, bool per_thread);
/* A name that the table lacks and that by its look starts work: from a newer driver. */
bool hook_looks_unhooked(const char *name);
/* unseen.c: what to hand out for a function that the table lacks: the first call is told. */
void *unseen_function(const char *name, void *real);
/* What a call answers whose real function is missing. */
CUresult hook_missing(void);

/* hook_nvml.c: our stand-in for a function of NVML, NULL: none; NVML's own, NULL: not loaded. */
void *nvml_hook(const char *name);
void *nvml_real(const char *name);

/* shim.c: the role after the first driver call; NULL: step aside. */
const struct shim_role_ops *shim_decide(void);
extern _Atomic bool shim_decided;

/* hook_capture.c: streams that record a graph instead of running. */
extern _Atomic int hook_captures;
bool hook_capturing(CUstream stream);
void hook_capture_forget(CUstream stream);

/* Enters a hook: the role to tell, or NULL to pass straight through. After a non-NULL answer
 * hook_leave() must follow; meanwhile driver calls of this thread are the shim's or the
 * driver's own. */
static inline const struct shim_role_ops *hook_enter(void) {
    if (__builtin_expect(shim_inside, 0))
        return NULL;
    const struct shim_role_ops *role = atomic_load_explicit(&shim_ops, memory_order_acquire);
    if (__builtin_expect(!role, 0)) {
        if (atomic_load_explicit(&shim_decided, memory_order_acquire))
            return NULL;
        role = shim_decide();
        if (!role)
            return NULL;
    }
    shim_inside = 1;
    return role;
}

static inline void hook_leave(const struct shim_role_ops *role) {
    if (role)
        shim_inside = 0;
}

/* After a call that answered `result`: whether to make it again, since memory has been freed for
 * it meanwhile. tries: 0 before the first such question. */
static inline bool hook_again(const struct shim_role_ops *role, CUresult result, int device,
                              uint64_t bytes, unsigned *tries) {
    if (__builtin_expect(result != CUDA_ERROR_OUT_OF_MEMORY, 1))
        return false;
    return role && role->memory_short && role->memory_short(device, bytes, (*tries)++);
}

/* Whether the role lets the program use a feature at all. */
static inline bool hook_allows(enum shim_feature feature) {
    const struct shim_role_ops *role = hook_enter();
    bool allows = !role || !role->allows || role->allows(feature);
    hook_leave(role);
    return allows;
}

static inline CUstream hook_stream(CUstream stream, bool per_thread) {
    if (stream)
        return stream;
    return per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
}

/* Enters a hook with an operation and tells the role; NULL when nobody is to be told. */
static inline const struct shim_role_ops *hook_before(struct shim_op *op, bool per_thread) {
    const struct shim_role_ops *role = hook_enter();
    if (!role)
        return NULL;
    op->per_thread = per_thread;
    op->stream = hook_stream(op->stream, per_thread);
    if (__builtin_expect(atomic_load_explicit(&hook_captures, memory_order_acquire) > 0, 0) &&
        op->kind != SHIM_OP_SETUP && hook_capturing(op->stream)) {
        hook_leave(role);
        return NULL;
    }
    if (role->before)
        role->before(op);
    return role;
}

static inline void hook_after(const struct shim_role_ops *role, struct shim_op *op,
                              CUresult result) {
    if (!role)
        return;
    if (role->after)
        role->after(op, result);
    hook_leave(role);
}

/* False only once the role is known and wants none. */
static inline bool hook_shapes(void) {
    const struct shim_role_ops *role = atomic_load_explicit(&shim_ops, memory_order_acquire);
    return !role || role->shapes;
}
#endif
