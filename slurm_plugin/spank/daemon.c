/* daemon.c - slurmd: nothing is done here for jobs (prolog and epilog tell the agent). Says once
 * in slurmd's log what the plugin will use, and what an operator would otherwise find out by jobs
 * that fail. */
#include "plugin.h"
#include <string.h>
#include <unistd.h>

void daemon_start(void) {
    slurm_info("spank_fill: socket=%s preload=%s partition=%s", arguments.socket,
               *arguments.preload ? arguments.preload : "(the agent's)", arguments.partition);
    if (*arguments.preload && access(arguments.preload, R_OK) != 0)
        slurm_error("spank_fill: preload=%s can't be read: no fill job can run here, and training "
                    "runs without a monitor",
                    arguments.preload);
    if (arguments.limits.default_mib > arguments.limits.max_mib)
        slurm_error("spank_fill: default_mem= is more than max_mem=");
}
