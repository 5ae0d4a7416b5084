/* shim.c - decides once which role the process plays, and turns the interposer off where it must
 * not act: in a forked child. */
#include <pthread.h>
#include <stdlib.h>
#include "connect.h"
#include "hooks.h"

__thread int shim_inside;
const struct shim_role_ops *_Atomic shim_ops;
_Atomic bool shim_decided;
static _Atomic int role_now = SHIM_ASIDE;
static pthread_mutex_t deciding = PTHREAD_MUTEX_INITIALIZER;

/* The driver does not work in a forked child, and the boards are not mapped there. */
static void in_child(void) {
    atomic_store(&shim_ops, NULL);
    atomic_store(&shim_decided, true);
    atomic_store(&role_now, SHIM_ASIDE);
    connect_close();
}

static const struct shim_role_ops *start(void) {
    struct shim_answer answer = {.board_fd = -1};
    pthread_atfork(NULL, NULL, in_child); /* first: another thread may fork while we wait */
    enum shim_role role = shim_attach(&answer);
    if (role == SHIM_MONITOR && monitor_start(&answer)) {
        atomic_store(&role_now, role);
        return &monitor_ops;
    }
    /* A gate never steps aside: without an agent it holds every launch. */
    if (role == SHIM_GATE && gate_start(&answer)) {
        atomic_store(&role_now, role);
        return &gate_ops;
    }
    if (role == SHIM_GATE) {
        shim_log(1, "the gate could not start; ending, since a fill must not run without it");
        abort();
    }
    return NULL;
}

const struct shim_role_ops *shim_decide(void) {
    shim_inside = 1; /* whatever starting a role asks of the driver passes through */
    pthread_mutex_lock(&deciding);
    if (!atomic_load(&shim_decided)) {
        atomic_store_explicit(&shim_ops, start(), memory_order_release);
        atomic_store_explicit(&shim_decided, true, memory_order_release);
    }
    pthread_mutex_unlock(&deciding);
    shim_inside = 0;
    return atomic_load(&shim_ops);
}

int specinf_role(void);
HOOK_EXPORT int specinf_role(void) { return atomic_load(&role_now); }
