/* views.h: checks of a plan's views (shape, stride, bounds) that every backend makes at compile(). A function named _fault
 * gives NULL, or a text that says what is wrong. Owns nothing.
 */
#ifndef SATCHEL_VIEWS_H
#define SATCHEL_VIEWS_H

#include "backend.h"

static inline const char *view_shape_fault(const hal_view *v) {
    if (v->ndim < 1 || v->ndim > 4)
        return "ndim must lie between 1 and 4";
    for (uint32_t i = 0; i < 4; i++)
        if (v->shape[i] < 1 || (i >= v->ndim && v->shape[i] != 1))
            return "each of its ndim sizes must be at least 1 and the rest 1";
    if (v->count >= HAL_COUNTS)
        return "count names none of the step block's counts";
    return NULL;
}

/* Elements of one dense row, the product of all dimensions but the first; 0 where they exceed 32 bits. */
static inline uint64_t view_width(const hal_view *v) {
    uint64_t n = 1;
    for (uint32_t i = 1; i < v->ndim; i++)
        n = n > UINT32_MAX ? n : n * (uint64_t)v->shape[i];
    return n > UINT32_MAX ? 0 : n;
}

/* Checks that a view lies inside a buffer of `most` bytes. A block of its format has `block` elements and `bytes` bytes.
 * view_shape_fault() has passed. */
static inline const char *view_bounds_fault(const hal_view *v, uint32_t block, uint32_t bytes, uint64_t most) {
    uint64_t width = view_width(v), row = width / block * bytes;
    if (!width || (v->ndim > 1 ? (uint64_t)v->shape[v->ndim - 1] : 1) % block)
        return "its last size is no whole number of blocks, or its rows are too large";
    if (v->shape[0] > 1 && v->stride < row)
        return "its stride is smaller than its row";
    /* offset + (shape[0] - 1) * stride + row <= most, rearranged so that nothing overflows */
    if (v->offset > most || row > most - v->offset)
        return "it ends outside of its buffer";
    if (v->shape[0] > 1 && (most - v->offset - row) / (uint64_t)(v->shape[0] - 1) < v->stride)
        return "it ends outside of its buffer";
    return NULL;
}

#endif
