/* library.h - is the interposer's file whole? */
#ifndef SFILL_LIBRARY_H
#define SFILL_LIBRARY_H

/* What is wrong with a file that programs are to preload; NULL: nothing. */
const char *library_defect(const char *path);
#endif
