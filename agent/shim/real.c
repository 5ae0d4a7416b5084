/* real.c - the functions below ours: libc's dlsym and the driver's own entry points. */
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include "real.h"
#include "shim.h"

/* From here to real_dlvsym() nothing of libc is called: allocators and sanitizers call dlsym while
 * they start, when functions that they replace (strcmp, malloc) cannot be called yet. */

/* What is needed of one loaded object to look a symbol up in it. */
struct elf_symbols {
    const ElfW(Sym) * symbols;
    const char *strings;
    const uint32_t *gnu_hash;
    uintptr_t base;
};

static bool begins_with(const char *text, const char *begin) {
    while (*begin && *text == *begin)
        text++, begin++;
    return !*begin;
}

static bool same_text(const char *one, const char *other) {
    while (*one && *one == *other)
        one++, other++;
    return *one == *other;
}

static bool elf_read(const struct link_map *object, struct elf_symbols *out) {
    out->symbols = NULL;
    out->strings = NULL;
    out->gnu_hash = NULL;
    out->base = object->l_addr;
    for (const ElfW(Dyn) *entry = object->l_ld; entry->d_tag != DT_NULL; entry++) {
        /* Some loaders store relocated addresses here, some plain ones. */
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
            same_text(elf->strings + symbol->st_name, name))
            return (void *)(elf->base + symbol->st_value);
        if (link & 1)
            return NULL;
    }
}

static bool is_libc(const char *path) {
    const char *name = path;
    for (const char *c = path; *c; c++)
        if (*c == '/')
            name = c + 1;
    return begins_with(name, "libc.so") || begins_with(name, "libc-") ||
           begins_with(name, "libdl.so") || begins_with(name, "libdl-");
}

/* Looked up in libc's own symbol table: asking dlsym for dlsym would give ours. */
static void *libc_symbol(const char *name) {
    struct elf_symbols elf;
    for (const struct link_map *object = _r_debug.r_map; object; object = object->l_next) {
        void *found =
            is_libc(object->l_name) && elf_read(object, &elf) ? elf_find(&elf, name) : NULL;
        if (found)
            return found;
    }
    return NULL;
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
