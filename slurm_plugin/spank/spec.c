/* spec.c - strict parser of the option values: every byte is accounted for, or the user reads one
 * sentence that names the key, what is wrong and what is allowed. */
#include "spec.h"
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define MAX_SLOWDOWN_BP 2000 /* 20 %, as the agent allows */
#define SHOWN_BYTES 40       /* of a wrong word, in an error */

/* One item between commas: `key=value`, or a bare word when value is NULL. */
struct item {
    const char *key;
    size_t key_length;
    const char *value;
    size_t value_length;
};

struct parse {
    const char *origin;
    const char *allowed; /* how the whole option may look */
    char *error;
};

static bool __attribute__((format(printf, 2, 3)))
fail(const struct parse *parse, const char *format, ...) {
    int used = snprintf(parse->error, SPEC_ERROR_SIZE, "%s: ", parse->origin);
    va_list list;
    va_start(list, format);
    if (used > 0 && used < SPEC_ERROR_SIZE)
        vsnprintf(parse->error + used, (size_t)(SPEC_ERROR_SIZE - used), format, list);
    va_end(list);
    return false;
}

/* A word of the user's for an error: cut, and without bytes that could upset a terminal. */
static const char *shown(const char *text, size_t length, char out[SHOWN_BYTES + 4]) {
    size_t n = length < SHOWN_BYTES ? length : SHOWN_BYTES;
    for (size_t i = 0; i < n; i++)
        out[i] = isprint((unsigned char)text[i]) ? text[i] : '?';
    strcpy(out + n, length > n ? "..." : "");
    return out;
}

static bool is_key(const struct item *item, const char *key) {
    return item->key_length == strlen(key) && !memcmp(item->key, key, item->key_length);
}

/* Takes the next item off *text; a trailing comma leaves an empty item for the caller to refuse. */
static struct item next_item(const char **text) {
    const char *begin = *text;
    size_t length = strcspn(begin, ",");
    const char *equals = memchr(begin, '=', length);
    struct item item = {begin, length, NULL, 0};
    if (equals) {
        item.key_length = (size_t)(equals - begin);
        item.value = equals + 1;
        item.value_length = length - item.key_length - 1;
    }
    *text = begin[length] ? begin + length + 1 : NULL;
    return item;
}

/* What no 64 bits hold counts as the most that they do: the caller's own limit refuses it. */
static bool parse_number(const char **text, const char *end, uint64_t *number) {
    const char *p = *text;
    uint64_t value = 0;
    for (; p < end && *p >= '0' && *p <= '9'; p++)
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*p - '0'), &value))
            value = UINT64_MAX;
    if (p == *text)
        return false;
    *text = p;
    *number = value;
    return true;
}

static uint64_t times(uint64_t number, uint64_t factor) {
    uint64_t product;
    return __builtin_mul_overflow(number, factor, &product) ? UINT64_MAX : product;
}

bool spec_parse_size(const char *text, size_t length, uint64_t *mib) {
    const char *end = text + length;
    uint64_t number;
    if (!parse_number(&text, end, &number) || number == 0 || end - text > 1)
        return false;
    switch (text < end ? *text : 'M') {
    case 'K':
    case 'k':
        *mib = number / 1024 + (number % 1024 != 0);
        return true;
    case 'M':
    case 'm':
        *mib = number;
        return true;
    case 'G':
    case 'g':
        *mib = times(number, 1024);
        return true;
    case 'T':
    case 't':
        *mib = times(number, 1024 * 1024);
        return true;
    default:
        return false;
    }
}

static bool parse_memory(const struct parse *parse, const struct item *item, uint64_t max_mib,
                         uint64_t *mib) {
    char word[SHOWN_BYTES + 4], most[24];
    spec_format_size(max_mib, most, sizeof most);
    if (*mib)
        return fail(parse, "mem= is given twice; give it once");
    if (!item->value || item->value_length == 0)
        return fail(parse, "mem= has no value; write a size of at most %s, as in mem=16G", most);
    const char *value = shown(item->value, item->value_length, word);
    if (!spec_parse_size(item->value, item->value_length, mib)) {
        *mib = 0;
        return fail(parse,
                    "mem=%s is not a size; write a whole number above 0 and K, M, G or T "
                    "(MiB without a letter), at most %s, as in mem=16G",
                    value, most);
    }
    if (*mib > max_mib)
        return fail(parse, "mem=%s is more than this site allows; the most is mem=%s", value, most);
    return true;
}

/* "1%", "0.5%", "2": per cent of wall time with at most two decimals. */
static bool parse_percent(const char *text, size_t length, uint32_t *bp) {
    const char *end = text + length;
    uint64_t whole, part = 0;
    if (!parse_number(&text, end, &whole) || whole > 100)
        return false;
    if (text < end && *text == '.') {
        const char *digits = ++text;
        if (!parse_number(&text, end, &part) || text - digits > 2)
            return false;
        if (text - digits == 1)
            part *= 10;
    }
    if (text < end && *text == '%')
        text++;
    *bp = (uint32_t)(whole * 100 + part);
    return text == end && *bp > 0 && *bp <= MAX_SLOWDOWN_BP;
}

static bool parse_slowdown(const struct parse *parse, const struct item *item, uint32_t *bp) {
    static const char *allowed = "write a per cent figure from 0.01 to 20, as in slowdown=1%";
    char word[SHOWN_BYTES + 4];
    if (*bp)
        return fail(parse, "slowdown= is given twice; give it once");
    if (!item->value || item->value_length == 0)
        return fail(parse, "slowdown= has no value; %s", allowed);
    if (!parse_percent(item->value, item->value_length, bp)) {
        *bp = 0;
        return fail(parse, "slowdown=%s is no such figure; %s",
                    shown(item->value, item->value_length, word), allowed);
    }
    return true;
}

static bool is_value(const struct item *item, const char *value) {
    return item->value_length == strlen(value) && !memcmp(item->value, value, item->value_length);
}

static bool parse_share(const struct parse *parse, const struct item *item,
                        enum host_share *share) {
    static const char *allowed = "write share=timeslice or share=mps";
    char word[SHOWN_BYTES + 4];
    if (*share != SHARE_UNSAID)
        return fail(parse, "share= is given twice; give it once");
    if (!item->value || item->value_length == 0)
        return fail(parse, "share= has no value; %s", allowed);
    if (is_value(item, "timeslice"))
        *share = SHARE_TIMESLICE;
    else if (is_value(item, "mps"))
        *share = SHARE_MPS;
    else
        return fail(parse, "share=%s is no way to share a GPU; %s",
                    shown(item->value, item->value_length, word), allowed);
    return true;
}

static bool unknown(const struct parse *parse, const struct item *item) {
    char word[SHOWN_BYTES + 4];
    if (item->key_length == 0)
        return fail(parse, "a key is missing; allowed is %s", parse->allowed);
    return fail(parse, "'%s' is not known; allowed is %s", shown(item->key, item->key_length, word),
                parse->allowed);
}

bool spec_parse_fill(const char *text, const char *origin, const struct spec_limits *limits,
                     struct fill_spec *spec, char error[SPEC_ERROR_SIZE]) {
    struct parse parse = {origin, "mem=SIZE", error};
    *spec = (struct fill_spec){0};
    if (text && !*text)
        return fail(&parse, "the value is empty; write %s, or leave the = out for the default",
                    parse.allowed);
    while (text) {
        struct item item = next_item(&text);
        if (!is_key(&item, "mem"))
            return unknown(&parse, &item);
        if (!parse_memory(&parse, &item, limits->max_mib, &spec->memory_mib))
            return false;
    }
    if (!spec->memory_mib)
        spec->memory_mib =
            limits->default_mib < limits->max_mib ? limits->default_mib : limits->max_mib;
    return true;
}

static bool parse_mode(const struct item *item, enum host_mode *mode) {
    if (item->value)
        return false;
    if (is_key(item, "off"))
        *mode = HOST_OFF;
    else if (is_key(item, "observe"))
        *mode = HOST_OBSERVE;
    else if (is_key(item, "on"))
        *mode = HOST_ON;
    else
        return false;
    return true;
}

/* A key that says how much, or in which way, a job lends. */
static bool parse_lending(const struct parse *parse, const struct item *item,
                          const struct spec_limits *limits, struct host_spec *spec) {
    bool memory = is_key(item, "mem"), slowdown = is_key(item, "slowdown");
    if (!memory && !slowdown && !is_key(item, "share"))
        return unknown(parse, item);
    if (spec->mode != HOST_ON)
        return fail(parse, "%s= goes with 'on' only, as in on,mem=20G,slowdown=1%%",
                    memory     ? "mem"
                    : slowdown ? "slowdown"
                               : "share");
    if (memory)
        return parse_memory(parse, item, limits->max_mib, &spec->memory_mib);
    return slowdown ? parse_slowdown(parse, item, &spec->slowdown_bp)
                    : parse_share(parse, item, &spec->share);
}

bool spec_parse_host(const char *text, const char *origin, const struct spec_limits *limits,
                     struct host_spec *spec, char error[SPEC_ERROR_SIZE]) {
    struct parse parse = {
        origin, "off, observe or on[,mem=SIZE][,slowdown=PCT][,share=timeslice|mps]", error};
    char word[SHOWN_BYTES + 4];
    *spec = (struct host_spec){.mode = HOST_ON};
    if (!text) /* --fill-host alone: lend */
        return true;
    if (!*text)
        return fail(&parse, "the value is empty; allowed is %s", parse.allowed);
    struct item item = next_item(&text);
    if (!parse_mode(&item, &spec->mode))
        return fail(&parse, "begins with '%s' instead of a mode; allowed is %s",
                    shown(item.key, strcspn(item.key, ","), word), parse.allowed);
    while (text) {
        item = next_item(&text);
        if (!parse_lending(&parse, &item, limits, spec))
            return false;
    }
    return true;
}

void spec_format_size(uint64_t mib, char *text, size_t size) {
    if (mib % 1024 == 0)
        snprintf(text, size, "%lluG", (unsigned long long)(mib / 1024));
    else
        snprintf(text, size, "%lluM", (unsigned long long)mib);
}

void spec_format_fill(const struct fill_spec *spec, char text[SPEC_TEXT_SIZE]) {
    char memory[24];
    spec_format_size(spec->memory_mib, memory, sizeof memory);
    snprintf(text, SPEC_TEXT_SIZE, "mem=%s", memory);
}

void spec_format_host(const struct host_spec *spec, char text[SPEC_TEXT_SIZE]) {
    static const char *modes[] = {"off", "observe", "on"};
    static const char *shares[] = {"", ",share=timeslice", ",share=mps"};
    char memory[24];
    int used = snprintf(text, SPEC_TEXT_SIZE, "%s", modes[spec->mode]);
    if (spec->memory_mib) {
        spec_format_size(spec->memory_mib, memory, sizeof memory);
        used += snprintf(text + used, (size_t)(SPEC_TEXT_SIZE - used), ",mem=%s", memory);
    }
    if (spec->slowdown_bp) {
        unsigned whole = spec->slowdown_bp / 100, part = spec->slowdown_bp % 100;
        char *end = text + used;
        size_t room = (size_t)(SPEC_TEXT_SIZE - used);
        if (part == 0)
            used += snprintf(end, room, ",slowdown=%u%%", whole);
        else if (part % 10 == 0)
            used += snprintf(end, room, ",slowdown=%u.%u%%", whole, part / 10);
        else
            used += snprintf(end, room, ",slowdown=%u.%02u%%", whole, part);
    }
    snprintf(text + used, (size_t)(SPEC_TEXT_SIZE - used), "%s", shares[spec->share]);
}
