/* account.c - the device memory that a fill job holds on a GPU, all of its processes together.
 *
 * Each process writes what it holds into its own place of a page that the agent hands to all of
 * them (board.h). Who wants more writes first, then adds up: two that ask at once may both be
 * refused, but never both get what only one may have. No lock is shared, so a process that dies at
 * any point leaves nothing held; the agent clears its place. Without a page nothing is granted. */
#include <pthread.h>
#include <sys/mman.h>
#include "gate.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* taken after a GPU's, never before */

/* The caller holds the lock. */
static void show(struct gate_gpu *gpu) {
    atomic_store(&gpu->face->memory_bytes, gpu->held_bytes);
    if (gpu->account)
        atomic_store(&gpu->account->places[gpu->account_place].bytes, gpu->held_bytes);
}

static uint64_t plus(uint64_t a, uint64_t b) {
    uint64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

uint64_t account_sum(const struct gate_gpu *gpu) {
    uint64_t sum = atomic_load(&gpu->face->memory_bytes);
    const struct sfill_account_page *page = gpu->account;
    if (!page)
        return sum;
    uint32_t used = atomic_load(&page->places_used);
    for (uint32_t i = 0; i < used && i < SFILL_MAX_PLACES; i++)
        if (i != gpu->account_place)
            sum = plus(sum, atomic_load(&page->places[i].bytes));
    return sum;
}

void account_add(struct gate_gpu *gpu, int64_t bytes) {
    pthread_mutex_lock(&lock);
    gpu->held_bytes += (uint64_t)bytes;
    show(gpu);
    pthread_mutex_unlock(&lock);
}

enum account_answer account_take(struct gate_gpu *gpu, uint64_t bytes, uint64_t limit) {
    enum account_answer answer = ACCOUNT_GRANTED;
    pthread_mutex_lock(&lock);
    gpu->held_bytes += bytes;
    show(gpu);
    if (limit && (bytes > limit || account_sum(gpu) > limit))
        answer = ACCOUNT_OVER;
    else if (!gpu->account || atomic_load(&gpu->account->complete) != 1)
        answer = ACCOUNT_UNKNOWN;
    if (answer != ACCOUNT_GRANTED) {
        gpu->held_bytes -= bytes;
        show(gpu);
    }
    pthread_mutex_unlock(&lock);
    return answer;
}

/* Our place in a page, by the board that the agent gave us; -1: none. */
static int own_place(const struct sfill_account_page *page) {
    uint64_t board_id = gate.board->head.board_id;
    uint32_t used = atomic_load(&page->places_used);
    for (uint32_t i = 0; board_id && i < used && i < SFILL_MAX_PLACES; i++)
        if (atomic_load(&page->places[i].board_id) == board_id)
            return (int)i;
    return -1;
}

void account_map(struct gate_gpu *gpu, struct sfill_account_page *page) {
    int place = page ? own_place(page) : -1;
    if (page && place < 0) {
        shim_log(1, "the agent's account of device memory has no place for this process");
        munmap(page, sizeof *page);
        page = NULL;
    }
    pthread_mutex_lock(&gpu->lock);
    pthread_mutex_lock(&lock);
    struct sfill_account_page *old = gpu->account;
    gpu->account = page;
    gpu->account_place = page ? (uint32_t)place : 0;
    show(gpu);
    pthread_mutex_unlock(&lock);
    pthread_mutex_unlock(&gpu->lock);
    if (old)
        munmap(old, sizeof *old);
}

void account_show(struct gate_gpu *gpu) { account_add(gpu, 0); }
