/* gate_between.c - the reader's two files with a hook where they look a second time, so that a
 * test may change the boards just there. Built by gate_library.py in their place. */
#include <stdatomic.h>

enum moment { BETWEEN_LIST_READS = 0, BETWEEN_LOOKS = 1 };

static void (*at_moment)(int moment);

void glue_at_moment(void (*call)(int moment));
void glue_at_moment(void (*call)(int moment)) { at_moment = call; }

static void pass(int moment) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (at_moment)
        at_moment(moment);
}

#undef atomic_thread_fence
#define atomic_thread_fence(order) pass(BETWEEN_LIST_READS)
#include "gate_policy.c"
#undef atomic_thread_fence
#define atomic_thread_fence(order) pass(BETWEEN_LOOKS)
#include "gate_idle.c"
