/* mps.h - MPS in the simulated machine: control daemons, their servers, and who is a client. */
#ifndef SIMGPU_MPS_H
#define SIMGPU_MPS_H
#include "world.h"

/* The pipe directory that this process's environment names, or MPS's own default. */
const char *mps_pipe_directory(void);

/* All but mps_connect() are called locked. */
int mps_daemon_find(const char *pipe); /* -1: none is alive there */
int mps_daemon_add(const char *pipe, bool several_users);
void mps_daemon_remove(uint32_t daemon);
int mps_server_want(uint32_t daemon,
                    uint32_t uid); /* its server for this user; -1: not to be had */
void mps_server_up(uint32_t server, int pid);
void mps_server_down(uint32_t server); /* its clients fail */
int mps_server_by_pid(uint32_t daemon, int pid);
bool mps_terminate(uint32_t server, int pid); /* false: no client of that number */
void mps_reap(void);                          /* servers and daemons that are gone */

/* Makes the process a client if a daemon stands in its pipe directory. A CUDA result. */
int mps_connect(uint32_t process);
#endif
