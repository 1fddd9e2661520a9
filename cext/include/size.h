/* size.h: sizes in bytes from numbers of files and plans. A sum or product that 64 bits do not hold becomes SIZE_TOO_MUCH and
 * stays so, which no buffer holds: comparing a size with what there is needs no other check. A negative number that was
 * cast counts as far too much as well. Owns nothing.
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

/* The next multiple of `line`. */
static inline uint64_t size_line_up(uint64_t n, uint64_t line) {
    return size_mul(n / line + (n % line != 0), line);
}

#endif
