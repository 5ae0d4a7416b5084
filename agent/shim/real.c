/* real.c - the functions below ours: libc's dlsym and the driver's own entry points. */
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <string.h>
#include "real.h"
#include "shim.h"

/* What is needed of one loaded object to look a symbol up in it. */
struct elf_symbols {
    const ElfW(Sym) * symbols;
    const char *strings;
    const uint32_t *gnu_hash;
    uintptr_t base;
};

static bool elf_read(const struct dl_phdr_info *info, struct elf_symbols *out) {
    memset(out, 0, sizeof *out);
    out->base = info->dlpi_addr;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_DYNAMIC)
            continue;
        const ElfW(Dyn) *entry = (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
        for (; entry->d_tag != DT_NULL; entry++) {
            /* glibc stores relocated addresses here, musl plain ones. */
            uintptr_t at = entry->d_un.d_ptr;
            if (at < out->base)
                at += out->base;
            if (entry->d_tag == DT_SYMTAB)
                out->symbols = (const void *)at;
            else if (entry->d_tag == DT_STRTAB)
                out->strings = (const void *)at;
            else if (entry->d_tag == DT_GNU_HASH)
                out->gnu_hash = (const void *)at;
        }
    }
    return out->symbols && out->strings && out->gnu_hash;
}

static void *elf_find(const struct elf_symbols *elf, const char *name) {
    uint32_t hash = 5381;
    for (const unsigned char *c = (const unsigned char *)name; *c; c++)
        hash = hash * 33 + *c;
    uint32_t buckets = elf->gnu_hash[0], first = elf->gnu_hash[1], bloom_words = elf->gnu_hash[2];
    const uint32_t *bucket =
        elf->gnu_hash + 4 + (size_t)bloom_words * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
    const uint32_t *chain = bucket + buckets;
    uint32_t index = buckets ? bucket[hash % buckets] : 0;
    if (index < first)
        return NULL;
    for (;; index++) {
        uint32_t link = chain[index - first];
        const ElfW(Sym) *symbol = &elf->symbols[index];
        if ((link | 1) == (hash | 1) && symbol->st_shndx != SHN_UNDEF &&
            strcmp(elf->strings + symbol->st_name, name) == 0)
            return (void *)(elf->base + symbol->st_value);
        if (link & 1)
            return NULL;
    }
}

static bool is_libc(const char *path) {
    const char *name = strrchr(path, '/');
    name = name ? name + 1 : path;
    return strncmp(name, "libc.so", 7) == 0 || strncmp(name, "libc-", 5) == 0 ||
           strncmp(name, "libdl.so", 8) == 0 || strncmp(name, "libdl-", 6) == 0 ||
           strncmp(name, "ld-musl", 7) == 0 || strncmp(name, "libc.musl", 9) == 0;
}

struct libc_query {
    const char *name;
    void *found;
};

static int libc_visit(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size;
    struct libc_query *query = data;
    struct elf_symbols elf;
    if (is_libc(info->dlpi_name) && elf_read(info, &elf))
        query->found = elf_find(&elf, query->name);
    return query->found != NULL;
}

/* Looked up in libc's own symbol table: asking dlsym for dlsym would give ours, and this must
 * work before malloc does, since allocators call dlsym while they start. */
static void *libc_symbol(const char *name) {
    struct libc_query query = {.name = name};
    dl_iterate_phdr(libc_visit, &query);
    return query.found;
}

dlsym_fn real_dlsym(void) {
    static dlsym_fn _Atomic cached;
    dlsym_fn found = atomic_load_explicit(&cached, memory_order_acquire);
    if (!found) {
        found = (dlsym_fn)libc_symbol("dlsym");
        atomic_store_explicit(&cached, found, memory_order_release);
    }
    return found;
}

dlvsym_fn real_dlvsym(void) {
    static dlvsym_fn _Atomic cached;
    dlvsym_fn found = atomic_load_explicit(&cached, memory_order_acquire);
    if (!found) {
        found = (dlvsym_fn)libc_symbol("dlvsym");
        atomic_store_explicit(&cached, found, memory_order_release);
    }
    return found;
}

void *real_driver(void) {
    static void *_Atomic cached;
    void *handle = atomic_load_explicit(&cached, memory_order_acquire);
    if (!handle) {
        /* Never loads the driver; once it is there, NODELETE keeps the pointers we hold valid. */
        handle = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
        if (handle)
            atomic_store_explicit(&cached, handle, memory_order_release);
    }
    return handle;
}

void *real_symbol(const char *name) {
    void *driver = real_driver();
    dlsym_fn lookup = real_dlsym();
    return driver && lookup ? lookup(driver, name) : NULL;
}
