/* own_fd.h - a descriptor of ours inside a program that may close all it finds.
 *
 * A program that becomes a daemon closes every descriptor, and opens its own files under the same
 * numbers. Reading, writing or closing those would do it harm. */
#ifndef SFILL_OWN_FD_H
#define SFILL_OWN_FD_H
#include <stdbool.h>
#include <sys/types.h>

struct own_fd {
    _Atomic int number; /* -1: none */
    dev_t device;       /* what it stood for when it was kept */
    ino_t inode;
};

#define OWN_FD_NONE                                                                                \
    { .number = -1 }

/* Keeps `number` (-1: none) in the place of what was there. Returns what was there and is still
 * ours, for the caller to close; else -1. One thread at a time. */
int own_fd_keep(struct own_fd *own, int number);

/* The number while it is ours; -1 when there is none, or the program has taken it away. */
int own_fd(const struct own_fd *own);

/* Forgets it, and closes it if it is ours. */
void own_fd_close(struct own_fd *own);
#endif
