/* own_fd.c - see own_fd.h. Sockets and memfds have inodes of their own; of an eventfd only the kind
 * can be told, since all of them share one. */
#include "own_fd.h"
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

int own_fd(const struct own_fd *own) {
    struct stat status;
    int number = atomic_load(&own->number);
    if (number < 0 || fstat(number, &status) != 0)
        return -1;
    return status.st_dev == own->device && status.st_ino == own->inode ? number : -1;
}

int own_fd_keep(struct own_fd *own, int number) {
    struct stat status = {0};
    int before = own_fd(own);
    if (number >= 0 && fstat(number, &status) != 0)
        number = -1;
    atomic_store(&own->number, -1);
    own->device = status.st_dev;
    own->inode = status.st_ino;
    atomic_store(&own->number, number);
    return before;
}

void own_fd_close(struct own_fd *own) {
    int number = own_fd(own);
    atomic_store(&own->number, -1);
    if (number >= 0)
        close(number);
}
