/* connect.h - what shim.c needs of the connection beyond shim.h. */
#ifndef SFILL_CONNECT_H
#define SFILL_CONNECT_H
/* Closes the connection; safe in a forked child. */
void connect_close(void);
#endif
