/* daemon.c - slurmd: nothing is done here for jobs (prolog and epilog tell the agent). Says once
 * in slurmd's log what the plugin will use, and what an operator would otherwise find out by jobs
 * that fail. */
#include "plugin.h"
#include "library.h"

void daemon_start(void) {
    slurm_info("spank_fill: socket=%s preload=%s partition=%s", arguments.socket,
               *arguments.preload ? arguments.preload : "(the agent's)", arguments.partition);
    const char *defect = *arguments.preload ? library_defect(arguments.preload) : NULL;
    if (defect)
        slurm_error("spank_fill: preload=%s %s: no fill job can run here, and training runs "
                    "without a monitor",
                    arguments.preload, defect);
    if (arguments.limits.default_mib > arguments.limits.max_mib)
        slurm_error("spank_fill: default_mem= is more than max_mem=");
}
