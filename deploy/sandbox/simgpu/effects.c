/* effects.c - what a finished operation does in its process's memory. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "effects.h"

bool effect_value_reached(const struct sim_op *op) {
    bool wide = op->flags & SIM_WIDE;
    uint64_t value = wide ? atomic_load((_Atomic uint64_t *)(uintptr_t)op->a)
                          : atomic_load((_Atomic uint32_t *)(uintptr_t)op->a);
    switch (op->kind == SIM_KERNEL ? CU_STREAM_WAIT_VALUE_GEQ : op->c & 3) {
    case CU_STREAM_WAIT_VALUE_GEQ: /* cyclic, as the hardware compares */
        return wide ? (int64_t)(value - op->b) >= 0
                    : (int32_t)((uint32_t)value - (uint32_t)op->b) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
        return value == op->b;
    case CU_STREAM_WAIT_VALUE_AND:
        return (value & op->b) != 0;
    default:
        return (wide ? ~(value | op->b) : (uint32_t) ~(value | op->b)) != 0;
    }
}

static void do_transfer(struct transfer *t) {
    if (t->from) {
        memmove(t->to, t->staged ? t->staged : t->from, t->bytes);
    } else if (t->width == 1) {
        memset(t->to, (int)t->value, t->bytes);
    } else if (t->width == 2) {
        for (size_t i = 0; i < t->bytes / 2; i++)
            ((uint16_t *)t->to)[i] = (uint16_t)t->value;
    } else {
        for (size_t i = 0; i < t->bytes / 4; i++)
            ((uint32_t *)t->to)[i] = t->value;
    }
    free(t->staged);
    free(t);
}

static void write_value(const struct sim_op *op) {
    if (op->flags & SIM_WIDE)
        atomic_store((_Atomic uint64_t *)(uintptr_t)op->a, op->b);
    else
        atomic_store((_Atomic uint32_t *)(uintptr_t)op->a, (uint32_t)op->b);
}

void effect_apply(const struct sim_op *op) {
    if (op->kind == SIM_MARK) {
        write_value(op);
    } else if (op->kind == SIM_RECORD && op->a) {
        struct sim_event_handle *event = (void *)(uintptr_t)op->a;
        if (event->record >= op->b && event->time_record < op->b) {
            event->time_record = op->b;
            event->time_ns = op->end_ns;
        }
    } else if (op->kind == SIM_RECORD) {
        memory_release(op->c);
    } else if (op->a && (op->kind == SIM_COPY || op->kind == SIM_SET)) {
        /* A large one must not hold up the whole machine. The apply lock keeps the order. */
        world_unlock();
        do_transfer((void *)(uintptr_t)op->a);
        world_lock();
    }
}
