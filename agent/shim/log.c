/* log.c - one line on standard error, when SFILL_LOG asks for it. */
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "shim.h"

enum { LOG_DEFAULT = 1, LOG_MOST = 2, LINE_BYTES = 400 };

static int level_wanted(void) {
    static _Atomic int cached = -1;
    int level = atomic_load(&cached);
    if (level < 0) {
        const char *text = getenv("SFILL_LOG");
        bool known = text && text[0] >= '0' && text[0] <= '0' + LOG_MOST && !text[1];
        level = known ? text[0] - '0' : LOG_DEFAULT;
        if (atomic_exchange(&cached, level) < 0 && text && !known)
            shim_log(1, "SFILL_LOG=%.20s is not 0, 1 or 2: taken as %d", text, LOG_DEFAULT);
    }
    return level;
}

void shim_log(int level, const char *format, ...) {
    if (level > level_wanted())
        return;
    char line[LINE_BYTES];
    int used = snprintf(line, sizeof line, "specinf[%d]: ", (int)getpid());
    va_list arguments;
    va_start(arguments, format);
    int more = vsnprintf(line + used, sizeof line - (size_t)used - 1, format, arguments);
    va_end(arguments);
    if (more < 0)
        return;
    size_t length = strlen(line);
    line[length++] = '\n';
    /* One write, so that lines of several processes do not mix; a full pipe may drop it. */
    if (write(STDERR_FILENO, line, length) < 0)
        return;
}
