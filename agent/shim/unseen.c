/* unseen.c - functions of the driver that the table lacks and that may start work, in a training.
 *
 * CUDA's runtime asks for every function that it knows when it starts; most are never called. So
 * such a function is handed out with a jump in front of it that tells the role of the first call,
 * whatever its arguments are. */
#include <pthread.h>
#include <string.h>
#include "hooks.h"

#define STUBS 128 /* as in the assembly below */

struct unseen {
    void *_Atomic real;
    const char *name;
    _Atomic bool told;
};

static struct unseen table[STUBS];
static int used;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void tell(const char *name) {
    const struct shim_role_ops *role = shim_inside ? NULL : atomic_load(&shim_ops);
    shim_log(1, "%s is called, which this version does not know", name);
    if (role && role->unseen)
        role->unseen();
}

/* What a stub jumps to; called with the caller's arguments saved. */
void *unseen_called(uint64_t index) __attribute__((used));
void *unseen_called(uint64_t index) {
    struct unseen *entry = &table[index];
    if (!atomic_exchange(&entry->told, true))
        tell(entry->name);
    return atomic_load(&entry->real);
}

#if defined(__x86_64__)
__asm__(".text\n.p2align 4\n.globl unseen_stubs\n.hidden unseen_stubs\n"
        ".type unseen_stubs, @function\nunseen_stubs:\n"
        ".set index, 0\n"
        ".rept 128\n"
        ".p2align 4\nendbr64\npush $index\njmp unseen_enter\n"
        ".set index, index + 1\n"
        ".endr\n"
        ".size unseen_stubs, .-unseen_stubs\n"
        ".type unseen_enter, @function\nunseen_enter:\n"
        ".cfi_startproc\n.cfi_def_cfa_offset 16\n"
        "push %rax\npush %rdi\npush %rsi\npush %rdx\npush %rcx\npush %r8\npush %r9\n"
        "sub $136, %rsp\n.cfi_adjust_cfa_offset 192\n"
        "movaps %xmm0, (%rsp)\nmovaps %xmm1, 16(%rsp)\nmovaps %xmm2, 32(%rsp)\n"
        "movaps %xmm3, 48(%rsp)\nmovaps %xmm4, 64(%rsp)\nmovaps %xmm5, 80(%rsp)\n"
        "movaps %xmm6, 96(%rsp)\nmovaps %xmm7, 112(%rsp)\n"
        "mov 192(%rsp), %rdi\ncall unseen_called\nmov %rax, %r11\n"
        "movaps (%rsp), %xmm0\nmovaps 16(%rsp), %xmm1\nmovaps 32(%rsp), %xmm2\n"
        "movaps 48(%rsp), %xmm3\nmovaps 64(%rsp), %xmm4\nmovaps 80(%rsp), %xmm5\n"
        "movaps 96(%rsp), %xmm6\nmovaps 112(%rsp), %xmm7\n"
        "add $136, %rsp\npop %r9\npop %r8\npop %rcx\npop %rdx\npop %rsi\npop %rdi\npop %rax\n"
        "add $8, %rsp\n.cfi_adjust_cfa_offset -200\n"
        "jmp *%r11\n.cfi_endproc\n.size unseen_enter, .-unseen_enter\n");
#elif defined(__aarch64__)
__asm__(".text\n.p2align 4\n.globl unseen_stubs\n.hidden unseen_stubs\n"
        ".type unseen_stubs, %function\nunseen_stubs:\n"
        ".set index, 0\n"
        ".rept 128\n"
        ".p2align 4\nmov x16, #index\nb unseen_enter\n"
        ".set index, index + 1\n"
        ".endr\n"
        ".size unseen_stubs, .-unseen_stubs\n"
        ".type unseen_enter, %function\nunseen_enter:\n"
        ".cfi_startproc\n"
        "stp x29, x30, [sp, #-224]!\n.cfi_adjust_cfa_offset 224\n.cfi_offset 30, -216\n"
        "stp x0, x1, [sp, #16]\nstp x2, x3, [sp, #32]\nstp x4, x5, [sp, #48]\n"
        "stp x6, x7, [sp, #64]\nstr x8, [sp, #80]\n"
        "stp q0, q1, [sp, #96]\nstp q2, q3, [sp, #128]\nstp q4, q5, [sp, #160]\n"
        "stp q6, q7, [sp, #192]\n"
        "mov x0, x16\nbl unseen_called\nmov x16, x0\n"
        "ldp q6, q7, [sp, #192]\nldp q4, q5, [sp, #160]\nldp q2, q3, [sp, #128]\n"
        "ldp q0, q1, [sp, #96]\n"
        "ldr x8, [sp, #80]\nldp x6, x7, [sp, #64]\nldp x4, x5, [sp, #48]\n"
        "ldp x2, x3, [sp, #32]\nldp x0, x1, [sp, #16]\n"
        "ldp x29, x30, [sp], #224\n.cfi_adjust_cfa_offset -224\n"
        "br x16\n.cfi_endproc\n.size unseen_enter, .-unseen_enter\n");
#endif
extern const char unseen_stubs[STUBS][16] __attribute__((visibility("hidden")));

/* Names are literals of the caller's or the driver's, but nobody promises that: they are kept. */
void *unseen_function(const char *name, void *real) {
    pthread_mutex_lock(&lock);
    int found = 0;
    while (found < used && atomic_load(&table[found].real) != real)
        found++;
    if (found == used && used < STUBS) {
        const char *kept = strdup(name);
        table[used].name = kept ? kept : "a function";
        atomic_store(&table[used].real, real);
        used++;
    }
    pthread_mutex_unlock(&lock);
    if (found < STUBS)
        return (void *)(uintptr_t)unseen_stubs[found];
    tell(name); /* no room to find out whether it is called */
    return real;
}
