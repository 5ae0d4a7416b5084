/* library.c - looks at the interposer's file before any program is made to load it.
 *
 * The dynamic loader passes over a file that is missing or no library, with a line on standard
 * error. One that was cut short (a full disk, a copy in the middle of an update) it maps, and the
 * program dies of SIGBUS before its first instruction: a training would pay for our fault. */
#include "library.h"
#include <elf.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#if defined(__x86_64__)
#define MACHINE EM_X86_64
#elif defined(__aarch64__)
#define MACHINE EM_AARCH64
#else
#error "which machine's libraries are loaded here?"
#endif

static bool read_at(int fd, void *to, size_t bytes, uint64_t offset) {
    return pread(fd, to, bytes, (off_t)offset) == (ssize_t)bytes;
}

static bool is_library(const Elf64_Ehdr *head) {
    return memcmp(head->e_ident, ELFMAG, SELFMAG) == 0 && head->e_ident[EI_CLASS] == ELFCLASS64 &&
           head->e_type == ET_DYN && head->e_machine == MACHINE &&
           head->e_phentsize == sizeof(Elf64_Phdr) && head->e_phnum > 0;
}

static bool lies_within(uint64_t offset, uint64_t bytes, uint64_t size) {
    return offset <= size && bytes <= size - offset;
}

static const char *defect_of(int fd) {
    struct stat file;
    Elf64_Ehdr head;
    if (fstat(fd, &file) != 0 || !S_ISREG(file.st_mode))
        return "is no file";
    uint64_t size = (uint64_t)file.st_size;
    if (size < sizeof head)
        return size ? "is cut short" : "is empty";
    if (!read_at(fd, &head, sizeof head, 0) || !is_library(&head))
        return "is no library of this machine";
    if (!lies_within(head.e_shoff, (uint64_t)head.e_shnum * head.e_shentsize, size))
        return "is cut short";
    for (unsigned i = 0; i < head.e_phnum; i++) {
        Elf64_Phdr part;
        if (!read_at(fd, &part, sizeof part, head.e_phoff + i * sizeof part) ||
            !lies_within(part.p_offset, part.p_filesz, size))
            return "is cut short";
    }
    return NULL;
}

const char *library_defect(const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return "can't be read";
    const char *defect = defect_of(fd);
    close(fd);
    return defect;
}
