/* real.h - libc's own symbol lookup and the loaded driver; real_symbol() stands in shim.h. */
#ifndef SFILL_REAL_H
#define SFILL_REAL_H
typedef void *(*dlsym_fn)(void *handle, const char *name);
typedef void *(*dlvsym_fn)(void *handle, const char *name, const char *version);

dlsym_fn real_dlsym(void);
dlvsym_fn real_dlvsym(void);
/* Handle of libcuda.so.1 if the process has loaded it, else NULL. Never loads it. */
void *real_driver(void);
#endif
