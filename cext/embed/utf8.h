/* utf8.h: code points of a text, and a decoder of bytes that come in pieces. */
#ifndef SATCHEL_EMBED_UTF8_H
#define SATCHEL_EMBED_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* The code points of `size` bytes, to `points` (NULL, or room for as many as bytes); their number, or -1 - i where byte i begins no
 * character. */
int64_t utf8_points(const char *text, int64_t size, uint32_t *points);
/* Bytes of a code point in UTF-8. */
int utf8_size(uint32_t point);

/* Bytes of a character that is not whole yet. All zeros at first. */
typedef struct {
    uint8_t bytes[4];
    int have, need;
    uint8_t low, high; /* bounds of the next byte */
} utf8_stream;

enum { UTF8_GROWTH = 3 }; /* a byte becomes at most so many; and as many may come of what waited */

/* Writes the whole characters of what waits and of these bytes to `out`, which has room for UTF8_GROWTH * (size + 1) bytes; each
 * sequence of bytes that is no character, as long as it might have become one, becomes U+FFFD. Gives the number of bytes. */
size_t utf8_feed(utf8_stream *, const uint8_t *bytes, size_t size, char *out);
/* What waits, as U+FFFD. */
size_t utf8_flush(utf8_stream *, char *out);

#endif
