/* spec.h - what may stand after --fill= and --fill-host=. Knows nothing of Slurm, so that the
 * plugin, the prolog's sfill-hook and the unit tests read specs by the same rules. */
#ifndef SFILL_SPEC_H
#define SFILL_SPEC_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SPEC_TEXT_SIZE 128                   /* longest canonical spec, with its end */
#define SPEC_ERROR_SIZE 320                  /* longest sentence about a wrong spec, with its end */
#define SPEC_MAX_MIB (1024ull * 1024 * 1024) /* 1 PiB: no site maximum lies above this */

struct spec_limits {
    uint64_t default_mib; /* memory of a fill that names none */
    uint64_t max_mib;     /* most that mem= may say at this site */
};

enum host_mode { HOST_OFF, HOST_OBSERVE, HOST_ON };
enum host_share { SHARE_UNSAID, SHARE_TIMESLICE, SHARE_MPS }; /* unsaid: the node's setting */

struct fill_spec {
    uint64_t memory_mib;
};

struct host_spec {
    enum host_mode mode;
    uint64_t memory_mib;  /* most that may be lent; 0: not said */
    uint32_t slowdown_bp; /* budget in 1/100 of a per cent of wall time; 0: not said */
    enum host_share share;
};

/* Size as a user writes it: a whole number, then K, M, G or T (powers of 1024); no letter means
 * MiB, as in Slurm's --mem. Rounded up to MiB. False when it is no size or is 0. */
bool spec_parse_size(const char *text, size_t length, uint64_t *mib);

/* `text` NULL means that the option stood alone. `origin` is what the user wrote ("--fill",
 * "SFILL_FILL") and begins the sentence in `error` when the answer is false. */
bool spec_parse_fill(const char *text, const char *origin, const struct spec_limits *limits,
                     struct fill_spec *spec, char error[SPEC_ERROR_SIZE]);
bool spec_parse_host(const char *text, const char *origin, const struct spec_limits *limits,
                     struct host_spec *spec, char error[SPEC_ERROR_SIZE]);

/* Canonical texts: "mem=16G", "observe", "on,mem=20G,slowdown=1%,share=mps".
 * They parse to the same spec. */
void spec_format_size(uint64_t mib, char *text, size_t size);
void spec_format_fill(const struct fill_spec *spec, char text[SPEC_TEXT_SIZE]);
void spec_format_host(const struct host_spec *spec, char text[SPEC_TEXT_SIZE]);
#endif
