/* plugin.c - spank_fill.so: says who it is, registers the options and hands every call to the
 * file of its context. Built against the headers of the Slurm it is to run in (22.05 to 26.05). */
#include "plugin.h"

SPANK_PLUGIN(fill, 1)

struct arguments arguments;

static int take_option(int value, const char *text, int remote) {
    if (remote)
        step_option((enum option)value);
    else
        allocator_option((enum option)value, text);
    return ESPANK_SUCCESS;
}

/* has_arg 2: the value is optional and must follow an equals sign. */
static struct spank_option options[] = {
    {"fill", "mem=SIZE",
     "run as a fill job: inference in the idle moments of GPUs that training holds; SIZE of GPU "
     "memory with K, M, G or T, MiB without a letter (environment: SFILL_FILL)",
     2, OPTION_FILL, take_option},
    {"fill-host", "off|observe|on[,mem=SIZE][,slowdown=PCT][,share=timeslice|mps]",
     "lend the idle moments of this job's GPUs to fill jobs; at most mem=SIZE of GPU memory and "
     "slowdown=PCT per cent of time; share=timeslice refuses MPS, share=mps asks for it; alone it "
     "means on (environment: SFILL_FILL_HOST)",
     2, OPTION_FILL_HOST, take_option},
};

int slurm_spank_init(spank_t spank, int count, char *words[]) {
    arguments_default(&arguments);
    for (int i = 0; i < count; i++) {
        const char *wrong = argument_set(&arguments, words[i]);
        if (wrong) /* the site's mistake must not stop its jobs */
            slurm_error("spank_fill: plugstack.conf: argument '%s' %s", words[i], wrong);
    }
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        spank_option_register(spank, &options[i]);
    switch (spank_context()) {
    case S_CTX_LOCAL:
    case S_CTX_ALLOCATOR:
        allocator_start(spank);
        break;
    case S_CTX_SLURMD:
        daemon_start();
        break;
    default:
        break;
    }
    return ESPANK_SUCCESS;
}

int slurm_spank_init_post_opt(spank_t spank, int count, char *words[]) {
    (void)count, (void)words;
    switch (spank_context()) {
    case S_CTX_LOCAL:
    case S_CTX_ALLOCATOR:
        return allocator_options_done(spank);
    case S_CTX_REMOTE:
        return step_options_done(spank);
    default:
        return ESPANK_SUCCESS;
    }
}

int slurm_spank_task_init_privileged(spank_t spank, int count, char *words[]) {
    (void)count, (void)words;
    return step_task_privileged(spank);
}

int slurm_spank_task_init(spank_t spank, int count, char *words[]) {
    (void)count, (void)words;
    return step_task(spank);
}
