/* lookup.c - stands before the ways in which programs ask for driver functions by name: dlsym,
 * dlvsym and cuGetProcAddress. */
#include <dlfcn.h>
#include <string.h>
#include "hooks.h"
#include "real.h"

/* libc resolves RTLD_NEXT and RTLD_DEFAULT from the address that the call returns to, so a
 * wrapper that calls on would change their meaning. These two therefore only choose a target
 * and jump to it with the caller's own frame and arguments. */
void *lookup_dlsym_target(void *handle, const char *name) __attribute__((used));
void *lookup_dlvsym_target(void *handle, const char *name) __attribute__((used));

#if defined(__x86_64__)
#define JUMP_TO_CHOICE(symbol, chooser)                                                            \
    __asm__(".text\n.globl " #symbol "\n.type " #symbol ", @function\n" #symbol ":\n"              \
            ".cfi_startproc\nendbr64\n"                                                            \
            "push %rdi\n.cfi_adjust_cfa_offset 8\n"                                                \
            "push %rsi\n.cfi_adjust_cfa_offset 8\n"                                                \
            "push %rdx\n.cfi_adjust_cfa_offset 8\n"                                                \
            "call " #chooser "\n"                                                                  \
            "pop %rdx\n.cfi_adjust_cfa_offset -8\n"                                                \
            "pop %rsi\n.cfi_adjust_cfa_offset -8\n"                                                \
            "pop %rdi\n.cfi_adjust_cfa_offset -8\n"                                                \
            "jmp *%rax\n.cfi_endproc\n.size " #symbol ", .-" #symbol "\n")
#elif defined(__aarch64__)
#define JUMP_TO_CHOICE(symbol, chooser)                                                            \
    __asm__(".text\n.globl " #symbol "\n.type " #symbol ", %function\n" #symbol ":\n"              \
            ".cfi_startproc\n"                                                                     \
            "stp x0, x1, [sp, #-32]!\n.cfi_adjust_cfa_offset 32\n"                                 \
            "stp x2, x30, [sp, #16]\n.cfi_offset 30, -8\n"                                         \
            "bl " #chooser "\n"                                                                    \
            "mov x16, x0\n"                                                                        \
            "ldp x2, x30, [sp, #16]\n"                                                             \
            "ldp x0, x1, [sp], #32\n.cfi_adjust_cfa_offset -32\n"                                  \
            "br x16\n.cfi_endproc\n.size " #symbol ", .-" #symbol "\n")
#else
#error "the jump into dlsym is written for x86-64 and aarch64 only"
#endif
JUMP_TO_CHOICE(dlsym, lookup_dlsym_target);
JUMP_TO_CHOICE(dlvsym, lookup_dlvsym_target);

static int hook_of(const char *name) {
    return name && name[0] == 'c' && name[1] == 'u' ? hook_by_symbol(name) : -1;
}

/* What a look-up that libc answered with `found` shall give for a hooked name. */
static void *substitute(int id, void *found) {
    if (found == hook_list[id].ours || (found && found == hook_real((enum hook_id)id)))
        return hook_list[id].ours;
    return found; /* another library's function of that name */
}

/* Looks on behind us, wherever the driver is loaded for all to see. Volatile keeps this a call:
 * as a jump it would be made in the caller's name. */
static void *dlsym_behind_us(const char *name) {
    void *volatile found = real_dlsym()(RTLD_NEXT, name);
    return found;
}

/* A look-up through a handle. A handle of the whole program finds our own exports first; they
 * may be seen only where the driver would be. */
static void *dlsym_by_handle(void *handle, const char *name) {
    int id = hook_of(name);
    void *found = real_dlsym()(handle, name);
    if (found == hook_list[id].ours && !real_symbol(name))
        return dlsym_behind_us(name); /* NULL, and dlerror() says why */
    return substitute(id, found);
}

static void *dlvsym_by_handle(void *handle, const char *name, const char *version) {
    int id = hook_of(name);
    void *found = real_dlvsym()(handle, name, version);
    if (found == hook_list[id].ours && !real_symbol(name))
        return dlsym_behind_us(name);
    return substitute(id, found);
}

/* A look-up of a hooked name in the global scope. The driver, if loaded, is what is meant. */
static void *dlsym_global(void *handle, const char *name) {
    (void)handle;
    if (real_symbol(name))
        return hook_list[hook_of(name)].ours;
    return dlsym_behind_us(name);
}

/* The same for a function of NVML. */
static void *nvml_by_handle(void *handle, const char *name) {
    void *ours = nvml_hook(name), *real = nvml_real(name);
    void *found = real_dlsym()(handle, name);
    if (found == ours && !real)
        return dlsym_behind_us(name);
    return found && found == real ? ours : found;
}

static void *nvml_global(void *handle, const char *name) {
    (void)handle;
    return nvml_real(name) ? nvml_hook(name) : dlsym_behind_us(name);
}

static bool is_nvml(const char *name) {
    return name && name[0] == 'n' && name[1] == 'v' && nvml_hook(name);
}

static void *not_found(void) { return NULL; }

/* NULL, and dlerror() says that there is none: callers print what it says. */
static void *refuse(void *handle, const char *name) {
    (void)name;
    void *volatile found = real_dlsym()(handle, "a launch call that libspecinf.so does not know");
    return found;
}

/* What libc finds, with a jump in front if it is the driver's function. */
static void *note(const char *name, void *found) {
    return found && found == real_symbol(name) ? unseen_function(name, found) : found;
}

static void *note_dlsym(void *handle, const char *name) {
    return note(name, real_dlsym()(handle, name));
}

static void *note_global(void *handle, const char *name) {
    (void)handle;
    return unseen_function(name, real_symbol(name));
}

static void *note_dlvsym(void *handle, const char *name, const char *version) {
    return note(name, real_dlvsym()(handle, name, version));
}

/* A launch call of a newer driver. Names of other libraries do not count: the driver must have
 * the function. */
static bool is_unseen(const char *name) {
    return name && name[0] == 'c' && name[1] == 'u' && hook_looks_unhooked(name) &&
           real_symbol(name);
}

/* Where a look-up of it goes; `by_handle`: when it names a library. */
static void *unseen_target(bool special, void *by_handle) {
    if (!hook_allows(SHIM_UNKNOWN_FORM))
        return (void *)refuse;
    return special ? (void *)note_global : by_handle;
}

void *lookup_dlsym_target(void *handle, const char *name) {
    dlsym_fn real = real_dlsym();
    if (!real)
        return (void *)not_found;
    bool special = handle == RTLD_NEXT || handle == RTLD_DEFAULT;
    if (is_unseen(name))
        return unseen_target(special, (void *)note_dlsym);
    if (is_nvml(name))
        return special ? (void *)nvml_global : (void *)nvml_by_handle;
    if (hook_of(name) < 0)
        return (void *)real;
    return special ? (void *)dlsym_global : (void *)dlsym_by_handle;
}

void *lookup_dlvsym_target(void *handle, const char *name) {
    dlvsym_fn real = real_dlvsym();
    if (!real)
        return (void *)not_found;
    bool special = handle == RTLD_NEXT || handle == RTLD_DEFAULT;
    if (is_unseen(name))
        return unseen_target(special, (void *)note_dlvsym);
    return hook_of(name) < 0 || special ? (void *)real : (void *)dlvsym_by_handle;
}

/* After the driver's own answer: the hook of the same function, ABI and stream variant. */
static CUresult replace(const char *name, void **answer, int version, uint64_t flags,
                        bool per_thread) {
    if (!name || !answer || !*answer)
        return CUDA_SUCCESS;
    if (flags & CU_PROC_ADDRESS_PER_THREAD_STREAM)
        per_thread = true;
    else if (flags & CU_PROC_ADDRESS_LEGACY_STREAM)
        per_thread = false;
    int id = hook_by_answer(name, *answer, version, per_thread);
    bool unseen = id == HOOK_UNKNOWN_FORM || (id == HOOK_NONE && hook_looks_unhooked(name));
    if (unseen && !hook_allows(SHIM_UNKNOWN_FORM)) {
        *answer = NULL;
        return CUDA_ERROR_NOT_FOUND;
    }
    if (unseen)
        *answer = unseen_function(name, *answer);
    if (id >= 0) {
        hook_remember_real((enum hook_id)id, *answer);
        *answer = hook_list[id].ours;
    }
    return CUDA_SUCCESS;
}

#define HOOK(symbol, parameters)                                                                   \
    HOOK_EXPORT CUresult symbol parameters;                                                        \
    HOOK_EXPORT CUresult symbol parameters
#define REAL(symbol, parameters) ((CUresult(*) parameters)hook_real(HOOK_##symbol))

#define V1_PARAMETERS (const char *name, void **answer, int version, uint64_t flags)
#define V1_HOOK(symbol, per_thread)                                                                \
    HOOK(symbol, V1_PARAMETERS) {                                                                  \
        CUresult(*real) V1_PARAMETERS = REAL(symbol, V1_PARAMETERS);                               \
        if (!real)                                                                                 \
            return hook_missing();                                                                 \
        CUresult result = real(name, answer, version, flags);                                      \
        if (result == CUDA_SUCCESS)                                                                \
            result = replace(name, answer, version, flags, per_thread);                            \
        return result;                                                                             \
    }
V1_HOOK(cuGetProcAddress, false)
V1_HOOK(cuGetProcAddress_ptsz, true)

#define V2_PARAMETERS (const char *name, void **answer, int version, uint64_t flags, int *status)
#define V2_HOOK(symbol, per_thread)                                                                \
    HOOK(symbol, V2_PARAMETERS) {                                                                  \
        CUresult(*real) V2_PARAMETERS = REAL(symbol, V2_PARAMETERS);                               \
        if (!real)                                                                                 \
            return hook_missing();                                                                 \
        CUresult result = real(name, answer, version, flags, status);                              \
        if (result == CUDA_SUCCESS)                                                                \
            result = replace(name, answer, version, flags, per_thread);                            \
        return result;                                                                             \
    }
V2_HOOK(cuGetProcAddress_v2, false)
V2_HOOK(cuGetProcAddress_v2_ptsz, true)
