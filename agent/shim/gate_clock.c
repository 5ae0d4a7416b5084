/* gate_clock.c - when did it happen on the GPU, by the host's clock?
 *
 * Differences between two events are exact however late the host looks. To place them on the
 * host's clock one event is recorded on an idle stream and waited for at once: it lies between
 * the two host times around that, and the tightest of a few tries is kept. Every event must have
 * passed before it is seen to have; where it seems not to, the anchor was late by so much. The
 * reference moves on with time, since differences come as a float of milliseconds. */
#include "gate_clock.h"
#include <stddef.h>
#include "gate_driver.h"
#include "shim.h"

#define TRIES 4
#define FIRST_ERROR_NS 100000ull /* worse than that is no anchor at all */
#define GOOD_NS 10000ull
#define DRIFT_PART 50000ull /* both clocks differ by less than 20 us in a second */
#define RETRY_NS 50000000ull
#define RENEW_NS 2000000000ull
#define MOVE_NS 250000000ull /* a float tells 0.03 us apart over so long */

static CUevent take_event(struct gate_clock *clock) {
    CUevent event = NULL;
    if (clock->broken)
        return NULL;
    if (clock->spares)
        return clock->spare[--clock->spares];
    if (clock->made >= CLOCK_EVENTS || !gate_driver.event_create || !gate_driver.event_record ||
        !gate_driver.event_elapsed)
        return NULL;
    if (gate_driver.event_create(&event, CU_EVENT_DEFAULT) == CUDA_SUCCESS) {
        clock->made++;
        return event;
    }
    clock->broken = true;
    shim_log(1, "no events in this context: GPU times are those at which progress is seen");
    return NULL;
}

static void put_event(struct gate_clock *clock, CUevent event) {
    if (clock->spares < CLOCK_EVENTS)
        clock->spare[clock->spares++] = event;
}

CUevent clock_record(struct gate_clock *clock, CUstream stream) {
    if (!clock->reference)
        return NULL;
    CUevent event = take_event(clock);
    if (event && gate_driver.event_record(event, stream) != CUDA_SUCCESS) {
        put_event(clock, event);
        return NULL;
    }
    return event;
}

static bool elapsed_ns(const struct gate_clock *clock, CUevent from, CUevent to, int64_t *ns) {
    CUcontext current = NULL, popped;
    float milliseconds = 0;
    gate_driver.context_current(&current);
    bool push = current != clock->context;
    if (push && gate_driver.context_push(clock->context) != CUDA_SUCCESS)
        return false;
    CUresult result = gate_driver.event_elapsed(&milliseconds, from, to);
    if (push)
        gate_driver.context_pop(&popped);
    *ns = (int64_t)((double)milliseconds * 1e6);
    return result == CUDA_SUCCESS;
}

bool clock_time(struct gate_clock *clock, CUevent event, uint64_t *at_ns) {
    int64_t since;
    if (!clock->reference || !elapsed_ns(clock, clock->reference, event, &since))
        return false;
    uint64_t at = (uint64_t)((int64_t)clock->reference_ns + since), now_ns = shim_now_ns();
    if (at > now_ns) {
        clock->reference_ns -= at - now_ns;
        at = now_ns;
    }
    *at_ns = at;
    return true;
}

void clock_give_back(struct gate_clock *clock, CUevent event, uint64_t at_ns) {
    if (at_ns && clock->reference && at_ns > clock->reference_ns + MOVE_NS) {
        CUevent old = clock->reference;
        clock->reference = event;
        clock->reference_ns = at_ns;
        event = old;
    }
    put_event(clock, event);
}

static uint64_t error_now(const struct gate_clock *clock, uint64_t now_ns) {
    return clock->error_ns + (now_ns - clock->anchored_ns) / DRIFT_PART;
}

bool clock_due(const struct gate_clock *clock, uint64_t now_ns) {
    if (clock->broken)
        return false;
    uint64_t after_ns = clock->reference && clock->error_ns <= GOOD_NS ? RENEW_NS : RETRY_NS;
    return !clock->tried_ns || now_ns - clock->tried_ns > after_ns;
}

/* Between two records with a marker in between, all queued before the GPU gets there. */
static void measure_marker(struct gate_clock *clock, _Atomic uint64_t *word, CUdeviceptr at) {
    CUevent before = take_event(clock), after = take_event(clock);
    int64_t ns;
    atomic_store(word, 0);
    if (before && after && gate_driver.stream_wait64 &&
        gate_driver.stream_wait64(clock->stream, at, 1, CU_STREAM_WAIT_VALUE_GEQ) == CUDA_SUCCESS) {
        bool queued = gate_driver.event_record(before, clock->stream) == CUDA_SUCCESS &&
                      gate_driver.stream_write64(clock->stream, at, 2, 0) == CUDA_SUCCESS &&
                      gate_driver.event_record(after, clock->stream) == CUDA_SUCCESS;
        atomic_store(word, 1);
        gate_driver.stream_synchronize(clock->stream);
        if (queued && elapsed_ns(clock, before, after, &ns) && ns >= 0 && ns < 10000)
            clock->marker_ns = (uint64_t)ns + 1;
    }
    if (before)
        put_event(clock, before);
    if (after)
        put_event(clock, after);
}

/* One comparison: the event's time is known to within *error_ns. */
static bool compare(struct gate_clock *clock, CUevent event, uint64_t *at_ns, uint64_t *error_ns) {
    uint64_t begin_ns = shim_now_ns();
    if (gate_driver.event_record(event, clock->stream) != CUDA_SUCCESS ||
        gate_driver.event_synchronize(event) != CUDA_SUCCESS)
        return false;
    uint64_t end_ns = shim_now_ns();
    *at_ns = begin_ns + (end_ns - begin_ns) / 2;
    *error_ns = (end_ns - begin_ns) / 2;
    return true;
}

static void try_anchor(struct gate_clock *clock) {
    uint64_t at_ns, error_ns;
    for (int i = 0; i < TRIES; i++) {
        CUevent event = take_event(clock);
        if (!event)
            return;
        if (!compare(clock, event, &at_ns, &error_ns)) {
            put_event(clock, event);
            return;
        }
        bool better =
            clock->reference ? error_ns <= error_now(clock, at_ns) : error_ns <= FIRST_ERROR_NS;
        if (better) {
            if (clock->reference)
                put_event(clock, clock->reference);
            clock->reference = event;
            clock->reference_ns = at_ns;
            clock->error_ns = error_ns;
            clock->anchored_ns = at_ns;
        } else {
            put_event(clock, event);
        }
    }
}

void clock_anchor(struct gate_clock *clock, _Atomic uint64_t *spare_word, CUdeviceptr spare_at) {
    CUcontext popped;
    if (!gate_driver.stream_create || !gate_driver.event_synchronize ||
        gate_driver.context_push(clock->context) != CUDA_SUCCESS) {
        clock->broken = true;
        return;
    }
    if (!clock->stream &&
        gate_driver.stream_create(&clock->stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
        clock->broken = true;
    if (!clock->broken) {
        try_anchor(clock);
        if (!clock->marker_ns)
            measure_marker(clock, spare_word, spare_at);
    }
    clock->tried_ns = shim_now_ns();
    gate_driver.context_pop(&popped);
}
