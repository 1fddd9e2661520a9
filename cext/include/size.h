/* size.h: saturating arithmetic for sizes in bytes that are computed from untrusted numbers (files, plans).
 *
 * A sum or product that overflows 64 bits becomes SIZE_TOO_MUCH and stays so. No buffer is that large, so one comparison with
 * the buffer's size is check enough. A negative number cast to uint64_t is larger than any buffer too. Owns nothing.
 */
#ifndef SATCHEL_SIZE_H
#define SATCHEL_SIZE_H

#include <stdint.h>

#define SIZE_TOO_MUCH UINT64_MAX

static inline uint64_t size_add(uint64_t a, uint64_t b) {
    return a > SIZE_TOO_MUCH - b ? SIZE_TOO_MUCH : a + b;
}

static inline uint64_t size_mul(uint64_t a, uint64_t b) {
    return b && a > SIZE_TOO_MUCH / b ? SIZE_TOO_MUCH : a * b;
}

/* n rounded up to a multiple of `line`. */
static inline uint64_t size_line_up(uint64_t n, uint64_t line) {
    return size_mul(n / line + (n % line != 0), line);
}

#endif
