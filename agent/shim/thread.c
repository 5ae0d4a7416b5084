/* thread.c - helper threads of the roles. */
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include "shim.h"

enum { STACK_BYTES = 256 * 1024, TIMER_SLACK_NS = 1000 };

struct thread_start {
    void (*run)(void);
    const char *name;
};

static void *enter(void *data) {
    struct thread_start *start = data;
    pthread_setname_np(pthread_self(), start->name);
    /* Else a sleep of 100 us takes 150: the kernel rounds wake-ups of ordinary threads by 50. */
    prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS);
    shim_inside = 1;
    start->run();
    return NULL;
}

bool shim_thread(void (*run)(void), const char *name) {
    static struct thread_start starts[4]; /* a process has one role, which has few helpers */
    static _Atomic unsigned used;
    unsigned index = atomic_fetch_add(&used, 1);
    if (index >= sizeof starts / sizeof starts[0])
        return false;
    starts[index] = (struct thread_start){run, name};

    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    /* The program's signals are for the program's threads. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread;
    int failed = pthread_create(&thread, &attributes, enter, &starts[index]);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return !failed;
}
