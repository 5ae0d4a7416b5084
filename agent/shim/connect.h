/* connect.h - what shim.c needs of the connection beyond shim.h. */
#ifndef SFILL_CONNECT_H
#define SFILL_CONNECT_H
#include <stdint.h>

/* Closes the connection; safe in a forked child. */
void connect_close(void);
/* The value of key= in a message as a number; 0 when absent. */
uint64_t connect_number(const char *text, const char *key);
#endif
