/* internal.h: what the files of the search library share. Each instruction set has its own copy of the loops, of which it exports
 * one table; search.c has the list of tables. */
#ifndef SATCHEL_SEARCH_INTERNAL_H
#define SATCHEL_SEARCH_INTERNAL_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "search.h"
#include "simd/simd.h"

/* The groups of a tile, side by side; a vector has LANES of them. WIDE in quant/search/lanes.py. */
enum { WIDE = 32 };

#define SEARCH_INLINE static inline __attribute__((always_inline))

/* f(w, ...), compiled once with weights and once without, where `w` is the constant NULL. */
#define SEARCH_WEIGHED(f, w, ...) ((w) ? f((w), __VA_ARGS__) : f(NULL, __VA_ARGS__))

/* True for lanes in which a comparison held. */
SEARCH_INLINE vf choose(vf_mask which, vf yes, vf no) {
    return vf_where(which, yes, no);
}

SEARCH_INLINE vf size_of(vf x) {
    return (vf)((vf_mask)x & 0x7FFFFFFF);
}

/* The nearest whole number from low to high; NaN stays. vf_round is exact below 2^22, and further out the bounds are all that
 * counts. */
SEARCH_INLINE vf code_of(vf scaled, vf low, vf high) {
    return vf_min(high, vf_max(low, vf_round(scaled)));
}

/* 1 / step, but 0 for 0. */
SEARCH_INLINE vf inverse_of(vf step) {
    return choose((vf_mask)(step != vf_set(0)), vf_set(1) / step, vf_set(0));
}

static inline const float *weights_of(const search_f32 *w) {
    return w ? w->at : NULL;
}

#endif
