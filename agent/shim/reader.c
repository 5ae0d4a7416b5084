/* reader.c - what the agent hands to a gate: its board, policy pages, training boards.
 *
 * All of it is mapped by the helper thread and read by whoever holds the GPU's lock. What does
 * not look as board.h says is not mapped, and then the list in the policy page and the map
 * differ, which keeps the gate shut. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "gate.h"
#include "own_fd.h"

static struct own_fd own_board = OWN_FD_NONE; /* kept for the agent after it comes back */

/* A mapping of a shared object, or NULL if it is not what it should be. */
static void *map(int fd, size_t size, uint64_t magic, int protection) {
    struct stat status;
    if (fd < 0 || fstat(fd, &status) != 0 || status.st_size < (off_t)size)
        return NULL;
    void *at = mmap(NULL, size, protection, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        return NULL;
    madvise(at, size, MADV_DONTFORK);
    struct {
        uint64_t magic;
        uint32_t version, size_bytes;
    } head;
    memcpy(&head, at, sizeof head); /* boards and pages begin alike */
    if (head.magic == magic && head.version == SFILL_LAYOUT_VERSION && head.size_bytes >= size)
        return at;
    shim_log(1, "the agent sent memory of another layout");
    munmap(at, size);
    return NULL;
}

/* The process's own board. Later ones (an agent that came back without the old one) take the
 * place of the first at the same address, so that nobody has to be told. */
bool reader_adopt(const struct shim_answer *answer) {
    size_t size = sizeof(struct sfill_fill_board);
    if (!gate.board) { /* until the agent gives one, a private one keeps the counts */
        void *own = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (own == MAP_FAILED)
            return false;
        gate.board = own;
    }
    gate.job_id = answer->job_id;
    gate.memory_limit_bytes = answer->memory_limit_bytes;
    if (answer->board_fd < 0)
        return true;
    struct stat status;
    if (fstat(answer->board_fd, &status) != 0 || status.st_size < (off_t)size)
        return false;
    void *at =
        mmap(gate.board, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, answer->board_fd, 0);
    if (at == MAP_FAILED)
        return false;
    madvise(at, size, MADV_DONTFORK);
    int before = own_fd_keep(&own_board, answer->board_fd);
    if (before >= 0 && before != answer->board_fd)
        close(before);
    uint32_t used = atomic_load(&gate.gpus_used);
    for (uint32_t i = 0; i < used; i++)
        memcpy(gate.board->gpus[i].uuid, atomic_load(&gate.gpus[i])->uuid, SFILL_UUID_BYTES);
    atomic_store(&gate.board->gpus_used, used);
    for (uint32_t i = 0; i < used; i++)
        account_show(atomic_load(&gate.gpus[i]));
    return true;
}

int reader_board_fd(void) { return own_fd(&own_board); }

static void forget_host(struct gate_gpu *gpu, int index) {
    uint64_t now_ns = shim_now_ns();
    uses_close(&gpu->uses, gpu->hosts, gpu->hosts_count, now_ns);
    munmap((void *)(uintptr_t)gpu->hosts[index].board, sizeof(struct sfill_training_board));
    gpu->hosts[index] = gpu->hosts[--gpu->hosts_count];
    gpu->predictor = (struct predictor){0};
}

static void take_board(struct gate_gpu *gpu, uint64_t board_id, int fd) {
    const struct sfill_training_board *board =
        map(fd, sizeof(struct sfill_training_board), SFILL_MAGIC_TRAINING, PROT_READ);
    if (!board)
        return;
    pthread_mutex_lock(&gpu->lock);
    for (int i = gpu->hosts_count - 1; i >= 0; i--)
        if (gpu->hosts[i].board_id == board_id)
            forget_host(gpu, i);
    if (gpu->hosts_count < SFILL_MAX_BOARDS)
        gpu->hosts[gpu->hosts_count++] = (struct gate_host){board_id, board};
    else
        munmap((void *)(uintptr_t)board, sizeof *board);
    pthread_mutex_unlock(&gpu->lock);
}

static void take_page(struct gate_gpu *gpu, int fd) {
    const struct sfill_policy_page *page =
        map(fd, sizeof(struct sfill_policy_page), SFILL_MAGIC_POLICY, PROT_READ);
    if (page && strncmp(page->uuid, gpu->uuid, SFILL_UUID_BYTES) != 0) {
        munmap((void *)(uintptr_t)page, sizeof *page);
        return;
    }
    pthread_mutex_lock(&gpu->lock);
    const struct sfill_policy_page *old = gpu->page.page;
    policy_map(&gpu->page, page);
    pthread_mutex_unlock(&gpu->lock);
    if (old)
        munmap((void *)(uintptr_t)old, sizeof *old);
}

static void take_account(struct gate_gpu *gpu, int fd) {
    struct sfill_account_page *page =
        map(fd, sizeof *page, SFILL_MAGIC_ACCOUNT, PROT_READ | PROT_WRITE);
    if (page && strncmp(page->uuid, gpu->uuid, SFILL_UUID_BYTES) != 0) {
        munmap(page, sizeof *page);
        return;
    }
    if (page)
        account_map(gpu, page);
}

static void drop_board(uint64_t board_id) {
    uint32_t used = atomic_load(&gate.gpus_used);
    for (uint32_t g = 0; g < used; g++) {
        struct gate_gpu *gpu = atomic_load(&gate.gpus[g]);
        pthread_mutex_lock(&gpu->lock);
        for (int i = gpu->hosts_count - 1; i >= 0; i--)
            if (gpu->hosts[i].board_id == board_id)
                forget_host(gpu, i);
        pthread_mutex_unlock(&gpu->lock);
    }
}

void reader_forget_all(void) {
    atomic_store(&gate.evicted, false);
    uint32_t used = atomic_load(&gate.gpus_used);
    for (uint32_t g = 0; g < used; g++) {
        struct gate_gpu *gpu = atomic_load(&gate.gpus[g]);
        pthread_mutex_lock(&gpu->lock);
        while (gpu->hosts_count > 0)
            forget_host(gpu, gpu->hosts_count - 1);
        const struct sfill_policy_page *page = gpu->page.page;
        policy_map(&gpu->page, NULL);
        gate_show(gpu, SFILL_CLOSED_STALE);
        pthread_mutex_unlock(&gpu->lock);
        account_map(gpu, NULL);
        if (page)
            munmap((void *)(uintptr_t)page, sizeof *page);
    }
}

/* Value of a key in a message, copied; false when it is absent or too long. */
static bool value_of(const char *text, const char *key, char *value, size_t size) {
    size_t length = strlen(key);
    for (const char *line = strchr(text, '\n'); line; line = strchr(line, '\n')) {
        line++;
        if (strncmp(line, key, length) != 0 || line[length] != '=')
            continue;
        size_t end = strcspn(line + length + 1, "\n");
        if (end >= size)
            return false;
        memcpy(value, line + length + 1, end);
        value[end] = 0;
        return true;
    }
    return false;
}

static bool is_verb(const char *text, const char *verb) {
    size_t length = strlen(verb);
    return strncmp(text, verb, length) == 0 && (text[length] == '\n' || text[length] == 0);
}

static void take_message(const char *text, int fd) {
    char uuid[SFILL_UUID_BYTES] = "", id[24] = "";
    value_of(text, "uuid", uuid, sizeof uuid);
    value_of(text, "board_id", id, sizeof id);
    if (is_verb(text, "drop")) {
        drop_board(strtoull(id, NULL, 10));
    } else if (is_verb(text, "evict")) {
        atomic_store(&gate.evicted, true);
    } else if (is_verb(text, "policy") || is_verb(text, "board") || is_verb(text, "account")) {
        struct gate_gpu *gpu = gate_gpu_named(uuid);
        if (gpu && text[0] == 'p')
            take_page(gpu, fd);
        else if (gpu && text[0] == 'a')
            take_account(gpu, fd);
        else if (gpu)
            take_board(gpu, strtoull(id, NULL, 10), fd);
    }
}

bool reader_take(int timeout_ms) {
    char text[4097];
    int fd = -1;
    int got = shim_receive(text, sizeof text, &fd, timeout_ms);
    if (got > 0)
        take_message(text, fd);
    if (fd >= 0)
        close(fd);
    return got >= 0;
}
