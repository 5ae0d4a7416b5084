/* program.h - what the simulated training and inference programs share. */
#ifndef SIMGPU_PROGRAM_H
#define SIMGPU_PROGRAM_H
#include <signal.h>
#include <stdbool.h>
#include "cuda_calls.h"

extern volatile sig_atomic_t program_stop; /* SIGTERM or SIGINT has come */

void program_begin(const char *name); /* messages begin with name; SIGTERM asks to stop */
void program_check(CUresult result, const char *call); /* ends the program with one sentence */
void program_fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
long program_number(const char *option, const char *text, long least, long most);
double program_seconds(void);       /* monotonic */
void program_sleep(double seconds); /* cut short by a request to stop */
void program_launch(CUfunction function, unsigned microseconds, CUstream stream);
/* The same; but it spins besides until *word is at least value. */
void program_spin(CUfunction function, unsigned microseconds, CUstream stream, const void *word,
                  uint64_t value);
void program_follow(CUstream stream, CUstream other, CUevent event); /* stream waits for other */
CUgraphExec program_end_graph(CUstream stream); /* of what was captured since program_begin_graph */
void program_begin_graph(CUstream stream);

struct spread {
    double median, p95, mean;
};
struct spread program_spread(double *values, unsigned long count); /* sorts values */
#endif
