/* utf8.c: see utf8.h. The decoder is that of Python with errors="replace". */
#include <string.h>

#include "utf8.h"

static const char replacement[] = "\xEF\xBF\xBD";

/* Takes one byte: 1: the character is whole, 0: more is needed, -1: it is no part of it. */
static int take(utf8_stream *s, uint8_t byte) {
    if (!s->have) {
        s->low = byte == 0xE0 ? 0xA0 : byte == 0xF0 ? 0x90 : 0x80;
        s->high = byte == 0xED ? 0x9F : byte == 0xF4 ? 0x8F : 0xBF;
        s->need = byte < 0x80 ? 1 : byte < 0xC2 ? 0 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : byte < 0xF5 ? 4 : 0;
    } else if (byte < s->low || byte > s->high) {
        return -1;
    } else {
        s->low = 0x80;
        s->high = 0xBF;
    }
    s->bytes[s->have++] = byte;
    return s->need ? s->have == s->need : -1;
}

size_t utf8_feed(utf8_stream *s, const uint8_t *bytes, size_t size, char *out) {
    size_t made = 0;
    for (size_t i = 0; i < size; i++) {
        int had = s->have, taken = take(s, bytes[i]);
        if (!taken)
            continue;
        if (taken > 0) {
            memcpy(out + made, s->bytes, (size_t)s->have);
            made += (size_t)s->have;
        } else {
            memcpy(out + made, replacement, 3);
            made += 3;
            i -= had > 0; /* the byte that did not go on may begin another character */
        }
        s->have = 0;
    }
    return made;
}

size_t utf8_flush(utf8_stream *s, char *out) {
    size_t made = s->have ? 3 : 0;
    memcpy(out, replacement, made);
    s->have = 0;
    return made;
}

int utf8_size(uint32_t point) {
    return point < 0x80 ? 1 : point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
}

int64_t utf8_points(const char *text, int64_t size, uint32_t *points) {
    utf8_stream s = {0};
    int64_t made = 0, begin = 0;
    for (int64_t i = 0; i < size; i++) {
        int taken = take(&s, (uint8_t)text[i]);
        uint32_t point = s.bytes[0];
        if (taken < 0)
            return -1 - begin;
        if (!taken)
            continue;
        if (s.have > 1)
            point &= 0x7Fu >> s.have;
        for (int k = 1; k < s.have; k++)
            point = point << 6 | (s.bytes[k] & 0x3F);
        if (points)
            points[made] = point;
        made++;
        s.have = 0;
        begin = i + 1;
    }
    return s.have ? -1 - begin : made;
}
