/* account_race.c - processes of one job that ask for memory at once, as fast as they can; built
 * with agent/shim/account.c by test_fill_account.py.
 *
 *     account_race PROCESSES ROUNDS
 *
 * The limit holds one of them. Prints how often one was granted, and how often while another held.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "gate.h"

struct gate_state gate;
struct shared {
    struct sfill_account_page page;
    _Atomic uint32_t ready, holders;
    _Atomic uint64_t granted, together;
};

void shim_log(int level, const char *format, ...) {
    (void)level;
    va_list values;
    va_start(values, format);
    vfprintf(stderr, format, values);
    va_end(values);
    exit(1); /* the account says nothing unless it fails */
}

static void ask(struct shared *shared, uint32_t processes, uint64_t board_id, long rounds) {
    static struct sfill_fill_board board;
    static struct gate_gpu gpu = {.lock = PTHREAD_MUTEX_INITIALIZER};
    board.head.board_id = board_id;
    gate.board = &board;
    gpu.face = &board.gpus[0];
    account_map(&gpu, &shared->page);
    atomic_fetch_add(&shared->ready, 1);
    while (atomic_load(&shared->ready) < processes)
        ;
    for (long i = 0; i < rounds; i++) {
        if (account_take(&gpu, 1, 1) != ACCOUNT_GRANTED)
            continue;
        atomic_fetch_add(&shared->granted, 1);
        if (atomic_fetch_add(&shared->holders, 1) != 0)
            atomic_fetch_add(&shared->together, 1);
        atomic_fetch_sub(&shared->holders, 1);
        account_add(&gpu, -1);
    }
}

int main(int count, char **values) {
    uint32_t processes = count > 1 ? (uint32_t)atoi(values[1]) : 2;
    long rounds = count > 2 ? atol(values[2]) : 1000;
    struct shared *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 1;
    shared->page.complete = 1;
    shared->page.places_used = processes;
    for (uint32_t i = 0; i < processes; i++)
        shared->page.places[i].board_id = i + 1;
    for (uint32_t i = 0; i < processes; i++) {
        if (fork() == 0) {
            ask(shared, processes, i + 1, rounds);
            _exit(0);
        }
    }
    int status, failed = 0;
    while (wait(&status) > 0)
        failed |= status;
    printf("{\"granted\": %llu, \"together\": %llu}\n", (unsigned long long)shared->granted,
           (unsigned long long)shared->together);
    return failed != 0;
}
