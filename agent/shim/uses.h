/* uses.h - which fill used which bubble, and how long training had to wait for it. */
#ifndef SFILL_USES_H
#define SFILL_USES_H
#include <stdbool.h>
#include <stdint.h>
#include "board.h"
#include "gate_idle.h"
#include "inflight.h"
#include "intrusion.h"

/* The use that is being made of the present bubble of one GPU. */
struct uses {
    struct sfill_fill_board *board; /* where records go */
    uint32_t gpu;                   /* index on that board */
    const char *uuid;
    bool live;
    bool ignoring;     /* training's state is ignored: the record is closed by time */
    uint64_t epoch;    /* idle_epoch() of the bubble in use */
    uint64_t begun_ns; /* when the record began */
    bool looked;       /* at training's boards, since anything was done */
    bool settled;      /* what that look said */
    struct sfill_use record;
    struct intrusion intrusion;
};

/* An operation was released into what the view shows. */
void uses_released(struct uses *uses, const struct gate_host *hosts, int count,
                   const struct idle_view *view, bool compute, bool ignoring, uint64_t now_ns);

/* An operation is done. */
void uses_done(struct uses *uses, const struct flight_done *done);

/* When training came back in the bubble in use, as its boards show now; 0: it has not. */
uint64_t uses_resume(struct uses *uses, const struct gate_host *hosts, int count, uint64_t now_ns);

/* Follows training's return; writes records whose time has come. */
void uses_poll(struct uses *uses, const struct gate_host *hosts, int count, bool in_flight,
               uint64_t now_ns);

/* Training has come back in the bubble in use, and its wait is not settled yet. */
bool uses_resumed(const struct uses *uses);

/* Has to be looked at again within microseconds, although nothing is in flight. */
bool uses_wants_polls(const struct uses *uses, uint64_t now_ns);

/* Writes what there is: the boards are about to go. */
void uses_close(struct uses *uses, const struct gate_host *hosts, int count, uint64_t now_ns);
#endif
