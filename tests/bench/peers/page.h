/* page.h - the small shared file through which bench, training and fill of one GPU speak. Bench
 * only: the product never sees it. tests/bench/page.py mirrors the order of the words. */
#ifndef SFILL_BENCH_PAGE_H
#define SFILL_BENCH_PAGE_H
#include <stdatomic.h>
#include <stdint.h>

#define PAGE_MAGIC 0x31454741504c4653ull /* "SFLPAGE1" */

enum page_policy {
    PAGE_POLICY_NONE = 0,
    PAGE_POLICY_LAUNCH_COUNT = 1, /* open when training has launched nothing for quiet_ns */
    PAGE_POLICY_RATE = 2          /* at most `rate` launches a second */
};

/* Words of 64 bits, in this order. Times are CLOCK_MONOTONIC in nanoseconds. */
struct page {
    _Atomic uint64_t magic;
    _Atomic uint64_t command;           /* counts up; odd: fill may run, even: fill pauses */
    _Atomic uint64_t obeyed;            /* the latest command that the fill has carried out */
    _Atomic uint64_t stop;              /* 1: the program is to end */
    _Atomic uint64_t steady;            /* 1: training's iterations are being timed */
    _Atomic uint64_t training_launches; /* operations that training has launched */
    _Atomic uint64_t training_last_ns;  /* when it launched the latest one */
    _Atomic uint64_t fill_launches;     /* operations that the fill has launched */
    _Atomic uint64_t policy;            /* enum page_policy */
    _Atomic uint64_t quiet_ns;
    _Atomic uint64_t in_flight; /* launches of the fill not yet done, at most; 0: no limit */
    _Atomic uint64_t rate;      /* launches a second; 0: none */
    _Atomic uint64_t free_rate; /* launches a second of the fill when nothing holds it */
};
#endif
