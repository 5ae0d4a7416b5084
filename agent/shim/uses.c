/* uses.c - one record for each bubble that this process used on a GPU.
 *
 * A record is written when the bubble has ended for us: training is back, our work is done and
 * training has been seen to start (or cannot be seen). A long bubble is written in parts, one a
 * second; the parts share its number. The caller holds the GPU's lock. */
#include "uses.h"
#include <string.h>

#define LOAD(x) atomic_load_explicit(&(x), memory_order_acquire)
#define PART_NS 1000000000ull    /* a longer use is written in parts */
#define QUIET_NS 200000000ull    /* unused for so long: the record is closed */
#define IGNORING_NS 200000000ull /* parts when training's state is ignored */
#define SETTLE_NS 500000ull      /* after our last work training is watched so closely */

/* A process that dies takes its open use with it; the agent finds there what it is owed for. */
static void show_open(const struct uses *uses, uint64_t gpu_time_ns) {
    if (uses->board)
        atomic_store_explicit(&uses->board->gpus[uses->gpu].open_gpu_ns, gpu_time_ns,
                              memory_order_relaxed);
}

static void write_record(struct uses *uses, const struct sfill_use *record) {
    if (!uses->board)
        return;
    uint64_t head = atomic_load_explicit(&uses->board->use_head, memory_order_relaxed);
    atomic_fetch_add_explicit(&uses->board->gpus[uses->gpu].recorded,
                              (uint64_t)record->kernels + record->copies, memory_order_relaxed);
    uses->board->uses[head % SFILL_USE_RING] = *record;
    atomic_store_explicit(&uses->board->use_head, head + 1, memory_order_release);
}

/* Another training process than the one whose bubble we used may have waited as well. */
static void write_others(struct uses *uses, const struct gate_host *hosts, int count,
                         uint64_t upto_ns) {
    for (int i = 0; i < uses->intrusion.count; i++) {
        struct host_watch *watch = &uses->intrusion.watches[i];
        if (watch->board_id == uses->record.host_board_id)
            continue;
        struct sfill_use other = {.host_board_id = watch->board_id,
                                  .bubble_seq = watch->seq,
                                  .bubble_begin_ns = uses->record.bubble_begin_ns,
                                  .bubble_end_ns = watch->resume_ns,
                                  .first_release_ns = uses->record.first_release_ns,
                                  .last_done_ns = uses->record.last_done_ns,
                                  .gpu = uses->gpu,
                                  .cause = uses->record.cause};
        other.intrusion_ns = intrusion_take(&uses->intrusion, i, hosts, count, upto_ns);
        if (other.intrusion_ns)
            write_record(uses, &other);
    }
}

/* Writes the record as it stands and clears what has been counted. */
static void flush(struct uses *uses, const struct gate_host *hosts, int count, uint64_t upto_ns) {
    struct sfill_use *record = &uses->record;
    for (int i = 0; i < uses->intrusion.count; i++) {
        struct host_watch *watch = &uses->intrusion.watches[i];
        if (watch->board_id != record->host_board_id)
            continue;
        record->bubble_end_ns = watch->seq % 2 ? watch->resume_ns : 0;
        record->intrusion_ns += intrusion_take(&uses->intrusion, i, hosts, count, upto_ns);
    }
    if (!record->first_release_ns) /* all that it has was released before this part began */
        record->first_release_ns = uses->begun_ns;
    show_open(uses, 0); /* before it is written: what stood twice would overstate the harvest */
    if (record->kernels || record->copies || record->gpu_time_ns || record->intrusion_ns)
        write_record(uses, record);
    write_others(uses, hosts, count, upto_ns);
    record->gpu_time_ns = record->intrusion_ns = 0;
    record->kernels = record->copies = record->check_age_max_ns = 0;
    record->first_release_ns = 0;
    uses->begun_ns = upto_ns;
}

void uses_close(struct uses *uses, const struct gate_host *hosts, int count, uint64_t now_ns) {
    if (uses->live)
        flush(uses, hosts, count, now_ns);
    uses->live = false;
}

/* What bubble the record is of, by the board of its host. */
static void name_bubble(struct uses *uses, const struct sfill_training_board *board) {
    int section = idle_section(board, uses->uuid);
    if (section < 0)
        return;
    const struct sfill_gpu_section *gpu = &board->gpus[section];
    uses->record.bubble_seq = LOAD(gpu->bubble_seq) | 1;
    uses->record.bubble_begin_ns = LOAD(gpu->bubble_begin_ns);
    uses->record.cause = LOAD(gpu->bubble_cause);
}

static void begin(struct uses *uses, const struct gate_host *hosts, int count,
                  const struct idle_view *view, uint64_t epoch, uint64_t now_ns) {
    uses->live = true;
    uses->epoch = epoch;
    uses->begun_ns = now_ns;
    uses->record = (struct sfill_use){.gpu = uses->gpu};
    if (count > 0) {
        int host = view->host < count ? view->host : 0;
        uses->record.host_board_id = hosts[host].board_id;
        uses->record.bubble_seq = view->bubble_seq;
        uses->record.bubble_begin_ns = view->since_ns;
        uses->record.cause = view->cause;
        if (uses->ignoring)
            name_bubble(uses, hosts[host].board);
    }
    intrusion_begin(&uses->intrusion, hosts, count, uses->uuid, now_ns);
}

/* The last of our work may have run in a later bubble than the one it was meant for. That one's
 * end is watched too. */
static void end_of_use(struct uses *uses, const struct gate_host *hosts, int count,
                       uint64_t now_ns) {
    bool goes_on = intrusion_goes_on(&uses->intrusion, hosts, count);
    uint64_t host_id = uses->record.host_board_id;
    uses_close(uses, hosts, count, now_ns);
    for (int i = 0; goes_on && i < count; i++) {
        struct idle_view view = {.host = i};
        if (hosts[i].board_id != host_id)
            continue;
        begin(uses, hosts, count, &view, idle_epoch(hosts, count, uses->uuid), now_ns);
        name_bubble(uses, hosts[i].board);
    }
}

void uses_released(struct uses *uses, const struct gate_host *hosts, int count,
                   const struct idle_view *view, bool compute, bool ignoring, uint64_t now_ns) {
    uint64_t epoch = ignoring ? 0 : view->epoch;
    if (uses->live && uses->epoch != epoch && !ignoring)
        uses_close(uses, hosts, count, now_ns);
    uses->ignoring = ignoring;
    if (!uses->live)
        begin(uses, hosts, count, view, epoch, now_ns);
    struct sfill_use *record = &uses->record;
    if (!record->first_release_ns)
        record->first_release_ns = now_ns;
    record->kernels += compute;
    record->copies += !compute;
    uint64_t age = ignoring ? 0 : now_ns - view->checked_ns;
    if (age > record->check_age_max_ns)
        record->check_age_max_ns = age > UINT32_MAX ? UINT32_MAX : (uint32_t)age;
}

void uses_done(struct uses *uses, const struct flight_done *done) {
    intrusion_ran(&uses->intrusion, done->begin_ns, done->end_ns);
    if (done->start_ns)
        intrusion_took_over(&uses->intrusion, done->start_ns);
    uses->looked = false;
    if (!uses->live)
        return;
    uses->record.gpu_time_ns += done->busy_ns;
    show_open(uses, uses->record.gpu_time_ns);
    if (done->end_ns > uses->record.last_done_ns)
        uses->record.last_done_ns = done->end_ns;
    if (uses->board)
        atomic_store_explicit(&uses->board->gpus[uses->gpu].done_ns, uses->record.last_done_ns,
                              memory_order_relaxed);
}

uint64_t uses_resume(struct uses *uses, const struct gate_host *hosts, int count, uint64_t now_ns) {
    if (!uses->live || uses->ignoring)
        return 0;
    uses->settled = intrusion_poll(&uses->intrusion, hosts, count, now_ns);
    uses->looked = true;
    uint64_t first_ns = 0;
    for (int i = 0; i < uses->intrusion.count; i++) {
        uint64_t resume_ns = uses->intrusion.watches[i].resume_ns;
        if (resume_ns && (!first_ns || resume_ns < first_ns))
            first_ns = resume_ns;
    }
    return first_ns;
}

void uses_poll(struct uses *uses, const struct gate_host *hosts, int count, bool in_flight,
               uint64_t now_ns) {
    if (!uses->live)
        return;
    if (!uses->looked)
        uses->settled = intrusion_poll(&uses->intrusion, hosts, count, now_ns);
    uses->looked = false;
    uint64_t upto = in_flight ? uses->intrusion.last_done_ns : now_ns;
    bool resumed = intrusion_resumed(&uses->intrusion);
    uint64_t age = now_ns - uses->begun_ns;
    uint64_t quiet = now_ns - uses->intrusion.last_done_ns;
    if (uses->ignoring && age > IGNORING_NS)
        uses_close(uses, hosts, count, upto);
    else if (age > PART_NS)
        flush(uses, hosts, count, upto);
    else if (!in_flight && uses->settled && !uses->ignoring && (resumed || quiet > QUIET_NS) &&
             intrusion_handed_back(&uses->intrusion, now_ns))
        end_of_use(uses, hosts, count, now_ns);
}

bool uses_resumed(const struct uses *uses) {
    return uses->live && !uses->ignoring && intrusion_resumed(&uses->intrusion);
}

bool uses_wants_polls(const struct uses *uses, uint64_t now_ns) {
    if (!uses->live || uses->ignoring)
        return false;
    return intrusion_resumed(&uses->intrusion) || now_ns - uses->intrusion.last_done_ns < SETTLE_NS;
}
