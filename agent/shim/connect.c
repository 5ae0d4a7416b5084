/* connect.c - client of the agent's socket (agent/PROTOCOL.md). */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "connect.h"
#include "own_fd.h"
#include "shim.h"

#define DEFAULT_SOCKET "/run/sfill/sfilld.sock"
enum { MESSAGE_BYTES = 4096, ATTACH_MS = 50, ATTACH_MOST_MS = 10000, NS_PER_MS = 1000000 };

static struct own_fd connection = OWN_FD_NONE;

static int ms_left(uint64_t deadline_ns) {
    uint64_t now = shim_now_ns();
    return now >= deadline_ns ? 0 : (int)((deadline_ns - now + NS_PER_MS - 1) / NS_PER_MS);
}

static const char *socket_path(void) {
    const char *path = getenv("SFILL_SOCKET");
    return path && *path ? path : DEFAULT_SOCKET;
}

static int open_socket(uint64_t deadline_ns) {
    const char *path = socket_path();
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) {
        shim_log(1, "SFILL_SOCKET is longer than %zu characters", sizeof address.sun_path - 1);
        return -1;
    }
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    while (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        /* EAGAIN: the agent's queue of callers is full just now. */
        if ((errno != EAGAIN && errno != EINTR) || ms_left(deadline_ns) == 0) {
            close(fd);
            return -1;
        }
        poll(NULL, 0, 1);
    }
    return fd;
}

static bool send_on(int fd, const char *text, int passed_fd) {
    struct iovec part = {.iov_base = (void *)text, .iov_len = strlen(text)};
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (passed_fd >= 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(head), &passed_fd, sizeof passed_fd);
    }
    return sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)part.iov_len;
}

/* Takes the first descriptor of a message, closes any others. */
static int take_descriptor(struct msghdr *message) {
    int first = -1;
    for (struct cmsghdr *head = CMSG_FIRSTHDR(message); head; head = CMSG_NXTHDR(message, head)) {
        if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(head) + i * sizeof fd, sizeof fd);
            if (first < 0)
                first = fd;
            else
                close(fd);
        }
    }
    return first;
}

/* Length of the message, 0 when nothing came in time, -1 when the connection is gone. */
static int receive_on(int socket_fd, char *text, size_t size, int *fd, int timeout_ms) {
    *fd = -1;
    struct pollfd wait = {.fd = socket_fd, .events = POLLIN};
    int ready = poll(&wait, 1, timeout_ms);
    if (ready <= 0)
        return ready == 0 || errno == EINTR ? 0 : -1;
    struct iovec part = {.iov_base = text, .iov_len = size - 1};
    union {
        char bytes[CMSG_SPACE(4 * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    ssize_t length = recvmsg(socket_fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (length <= 0)
        return length < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : -1;
    text[length] = '\0';
    *fd = take_descriptor(&message);
    return (int)length;
}

uint64_t connect_number(const char *text, const char *key) {
    size_t length = strlen(key);
    for (const char *line = strchr(text, '\n'); line; line = strchr(line, '\n')) {
        line++;
        if (strncmp(line, key, length) == 0 && line[length] == '=')
            return strtoull(line + length + 1, NULL, 10);
    }
    return 0;
}

static bool verb_is(const char *text, const char *verb) {
    size_t length = strlen(verb);
    return strncmp(text, verb, length) == 0 && (text[length] == '\n' || text[length] == '\0');
}

/* Says hello on a fresh connection and reads what the agent makes of this process. */
static bool greet(int fd, enum shim_role wish, int board_fd, struct shim_answer *answer,
                  uint64_t deadline_ns) {
    char text[MESSAGE_BYTES + 1];
    snprintf(text, sizeof text, "attach\nversion=%u\nrole=%s%s\n", SFILL_LAYOUT_VERSION,
             wish == SHIM_GATE ? "gate" : "monitor", board_fd >= 0 ? "\nreattach=1" : "");
    if (!send_on(fd, text, board_fd))
        return false;
    int length = 0, left = 0;
    while (length == 0 && (left = ms_left(deadline_ns)) > 0)
        length = receive_on(fd, text, sizeof text, &answer->board_fd, left);
    if (length <= 0)
        return false;
    answer->board_id = connect_number(text, "board_id");
    answer->size_bytes = connect_number(text, "size");
    answer->job_id = connect_number(text, "job_id");
    answer->memory_limit_bytes = connect_number(text, "memory_limit_bytes");
    answer->rescue_ms = connect_number(text, "rescue_ms");
    answer->role = verb_is(text, "monitor") ? SHIM_MONITOR
                   : verb_is(text, "gate")  ? SHIM_GATE
                                            : SHIM_ASIDE;
    if (answer->role == SHIM_ASIDE && answer->board_fd >= 0) {
        close(answer->board_fd);
        answer->board_fd = -1;
    }
    return true;
}

static bool attach(enum shim_role wish, int board_fd, struct shim_answer *answer, int timeout_ms) {
    memset(answer, 0, sizeof *answer);
    answer->board_fd = -1;
    uint64_t deadline_ns = shim_now_ns() + (uint64_t)timeout_ms * NS_PER_MS;
    int fd = open_socket(deadline_ns);
    if (fd < 0)
        return false;
    if (!greet(fd, wish, board_fd, answer, deadline_ns)) {
        close(fd);
        return false;
    }
    int old = own_fd_keep(&connection, fd);
    if (old >= 0)
        close(old);
    return true;
}

/* How long the start of a program may wait for the agent. */
static int attach_ms(void) {
    const char *text = getenv("SFILL_ATTACH_MS");
    char *end = NULL;
    long wanted = text ? strtol(text, &end, 10) : ATTACH_MS;
    if (text && (end == text || *end || wanted < 1 || wanted > ATTACH_MOST_MS)) {
        shim_log(1, "SFILL_ATTACH_MS=%s is not a number from 1 to %d", text, ATTACH_MOST_MS);
        return ATTACH_MS;
    }
    return (int)wanted;
}

enum shim_role shim_attach(struct shim_answer *answer) {
    const char *text = getenv("SFILL_ROLE");
    enum shim_role wish = text && strcmp(text, "gate") == 0 ? SHIM_GATE : SHIM_MONITOR;
    int most_ms = attach_ms();
    bool answered = attach(wish, -1, answer, most_ms);
    if (answered && answer->role != SHIM_ASIDE)
        return answer->role;
    int level = wish == SHIM_GATE ? 1 : 2; /* a fill that stands still has to know why */
    const char *so = wish == SHIM_GATE ? ": the gate stays shut" : "";
    if (answered)
        shim_log(level, "the agent has no part for this process%s", so);
    else
        shim_log(level, "no answer from the agent at %.108s within %d ms%s", socket_path(), most_ms,
                 wish == SHIM_GATE ? ": the gate is shut until one comes" : "");
    /* A fill without an agent holds all it does; a training goes on as if we were not here. */
    if (wish == SHIM_GATE)
        return answer->role = SHIM_GATE;
    connect_close();
    return SHIM_ASIDE;
}

bool shim_reattach(enum shim_role role, int board_fd, struct shim_answer *answer, int timeout_ms) {
    return attach(role, board_fd, answer, timeout_ms) && answer->role == role;
}

bool shim_ask(char *text, size_t size, int timeout_ms) {
    uint64_t deadline_ns = shim_now_ns() + (uint64_t)timeout_ms * NS_PER_MS;
    int fd = open_socket(deadline_ns), length = 0, left = 0, passed_fd = -1;
    if (fd < 0)
        return false;
    if (send_on(fd, text, -1))
        while (length == 0 && (left = ms_left(deadline_ns)) > 0)
            length = receive_on(fd, text, size, &passed_fd, left);
    if (passed_fd >= 0)
        close(passed_fd);
    close(fd);
    return length > 0;
}

int shim_connection(void) { return own_fd(&connection); }

int shim_receive(char *text, size_t size, int *fd, int timeout_ms) {
    int socket_fd = own_fd(&connection);
    if (socket_fd < 0) {
        *fd = -1;
        return -1;
    }
    int length = receive_on(socket_fd, text, size, fd, timeout_ms);
    if (length < 0)
        connect_close();
    return length;
}

int shim_send(const char *text) {
    int fd = own_fd(&connection);
    return fd >= 0 && send_on(fd, text, -1) ? 0 : -1;
}

void connect_close(void) { own_fd_close(&connection); }
