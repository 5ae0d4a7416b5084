/* gate_idle.h - is training idle on one GPU? Pure reading of boards: no CUDA, no locks. */
#ifndef SFILL_GATE_IDLE_H
#define SFILL_GATE_IDLE_H
#include <stdbool.h>
#include <stdint.h>
#include "board.h"

/* A training process that computes on the GPU, as its board shows it. */
struct gate_host {
    uint64_t board_id;
    const struct sfill_training_board *board;
};

/* What one look at all boards of a GPU found. */
struct idle_view {
    enum sfill_closed closed; /* SFILL_OPEN: every training process is idle */
    uint64_t checked_ns;      /* before that look began */
    uint64_t since_ns;        /* when the last of them became idle */
    int host;                 /* index of that one; its bubble is the one to be used */
    uint32_t section;         /* the GPU's section on that board */
    uint32_t cause;           /* of its bubble */
    uint64_t bubble_seq;      /* of its bubble */
    uint64_t epoch;           /* idle_epoch() as this look saw it; 0: not all are idle */
};

/* Looks twice at every board and calls training idle only when both looks agree (GATE.md,
 * rule 3). Whatever is absent, torn, shut, not ready or not lending closes. now_ns: the clock, read
 * before. */
struct idle_view idle_look(const struct gate_host *hosts, int count, const char *uuid,
                           uint64_t now_ns);

/* Index of the GPU's section on a board, or -1. */
int idle_section(const struct sfill_training_board *board, const char *uuid);

/* Number that changes whenever a bubble begins or ends on any of the boards. Equal before and
 * after an operation, and all odd at the first: training did nothing meanwhile. */
uint64_t idle_epoch(const struct gate_host *hosts, int count, const char *uuid);
#endif
