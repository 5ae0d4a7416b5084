/* gate_forget.c - what was learned of functions and graphs dies with them: the driver uses their
 * handles again. What is in flight then is not learned from when it ends. */
#include "gate.h"
#include "shapes.h"

/* shape 0: whatever it is. */
static void unlearn_in_flight(struct flight *flight, uint64_t shape) {
    for (uint64_t i = flight->head; i < flight->tail; i++) {
        struct flown *op = flight_op(flight, i);
        if (op->state != FLOWN_NONE && op->compute && (!shape || op->shape == shape))
            op->shape = 0;
    }
}

/* Programs that have warmed up unload nothing, so that all is forgotten costs little; which of
 * the handles were that module's, old drivers do not tell. */
void gate_forget_functions(CUmodule module) {
    (void)module;
    uint32_t used = atomic_load(&gate.gpus_used);
    for (uint32_t i = 0; i < used; i++) {
        struct gate_gpu *gpu = atomic_load(&gate.gpus[i]);
        pthread_mutex_lock(&gpu->lock);
        unlearn_in_flight(&gpu->flight, 0);
        durations_forget_all(&gpu->durations);
        pthread_mutex_unlock(&gpu->lock);
    }
}

void gate_forget_graph(CUgraphExec graph, bool gone) {
    uint64_t shape = shape_graph(graph);
    uint32_t used = atomic_load(&gate.gpus_used);
    for (uint32_t i = 0; i < used; i++) {
        struct gate_gpu *gpu = atomic_load(&gate.gpus[i]);
        pthread_mutex_lock(&gpu->lock);
        unlearn_in_flight(&gpu->flight, shape);
        if (gone)
            durations_forget(&gpu->durations, shape);
        else
            durations_changed(&gpu->durations, shape);
        pthread_mutex_unlock(&gpu->lock);
    }
}
