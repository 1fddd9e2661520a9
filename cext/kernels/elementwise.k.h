/* elementwise.k.h: swiglu, geglu, swiglu_limited, gelu, soft_cap, sigmoid, softplus, add, mul and pad. A thread computes one element; a
 * group's elements are of one row. */
#ifndef SATCHEL_ELEMENTWISE_K_H
#define SATCHEL_ELEMENTWISE_K_H

#include "gated.k.h"
#include "modes.h"
#include "port.h"

/* The number of its row that a thread makes; -1: none. */
FN int64_t own_number(CONSTANT gpu_call *c, self m) {
    int64_t i = (int64_t)m.group[0] * m.threads + m.thread;
    return i < width_of(c->v) && m.group[1] < rows_of(c, c->v) ? i : -1;
}

KERNEL(swiglu, GROUP) {
    int64_t i = own_number(c, m);
    int row = m.group[1];
    if (i >= 0)
        ROW(float, c->v, row)[i] = gated(ROW(const float, c->v + 1, row)[i], ROW(const float, c->v + 2, row)[i]);
}

KERNEL(geglu, GROUP) {
    int64_t i = own_number(c, m);
    int row = m.group[1], style = ((CONSTANT arg_geglu *)c->arg)->style;
    if (i >= 0)
        ROW(float, c->v, row)
    [i] = gelu_of(ROW(const float, c->v + 1, row)[i], style) * ROW(const float, c->v + 2, row)[i];
}

KERNEL(swiglu_limited, GROUP) {
    CONSTANT arg_swiglu_limited *a = (CONSTANT arg_swiglu_limited *)c->arg;
    int64_t i = own_number(c, m);
    int row = m.group[1];
    if (i >= 0)
        ROW(float, c->v, row)
    [i] = gated_within(ROW(const float, c->v + 1, row)[i], ROW(const float, c->v + 2, row)[i], a->limit, a->alpha);
}

/* Of small numbers by its series, where 1 - 2 / (e^2x + 1) would cancel: not every target has a hyperbolic tangent. */
FN float tanh_of(float x) {
    float a = fabsf(x), s = x * x, big = 1.0f - 2.0f / (expf(2.0f * a) + 1.0f);
    if (a < 0.3f)
        return x * (1.0f + s * (-0.33333333f + s * (0.13333333f + s * (-0.053968254f + s * 0.021869489f))));
    return x < 0 ? -big : big; /* of a NaN one */
}

/* ln(1 + e) of 0 < e <= 1. What 1 + e lost of e is in their ratio (Kahan; Hewlett-Packard's 15C handbook, 1982). */
FN float log1p_of(float e) {
    float u = 1.0f + e;
    return u == 1.0f ? e : logf(u) * (e / (u - 1.0f));
}

/* ln(1 + e^x) = max(x, 0) + ln(1 + e^-|x|): nothing overflows, and small results keep their digits. */
FN float softplus_of(float x) {
    return (x > 0 ? x : 0) + log1p_of(expf(x > 0 ? -x : x));
}

FN float unary_of(CONSTANT gpu_call *c, float x) {
    switch (c->mode) {
    case UNARY_GELU:
        return gelu_of(x, ((CONSTANT arg_gelu *)c->arg)->style);
    case UNARY_CAP:
        return ((CONSTANT arg_soft_cap *)c->arg)->cap * tanh_of(x / ((CONSTANT arg_soft_cap *)c->arg)->cap);
    case UNARY_SIGMOID:
        return 1.0f / (1.0f + expf(-x));
    default:
        return softplus_of(x);
    }
}

KERNEL(unary, GROUP) {
    int64_t i = own_number(c, m);
    int row = m.group[1];
    if (i >= 0)
        ROW(float, c->v, row)[i] = unary_of(c, ROW(const float, c->v + 1, row)[i]);
}

/* The number of a row of b that meets number i of a row of a; both have as many dimensions. */
FN int64_t broadcast_number(CONSTANT gpu_view *a, CONSTANT gpu_view *b, int64_t i) {
    int64_t width = width_of(b), first, second, third;
    if (width == 1 || width == width_of(a))
        return width == 1 ? 0 : i;
    first = b->shape[1] > 1 ? i / a->shape[3] / a->shape[2] : 0;
    second = b->shape[2] > 1 ? i / a->shape[3] % a->shape[2] : 0;
    third = b->shape[3] > 1 ? i % a->shape[3] : 0;
    return (first * b->shape[2] + second) * b->shape[3] + third;
}

/* The second operand broadcasts to the first: the host gave it as many dimensions. */
KERNEL(pair, GROUP) {
    int64_t i = own_number(c, m);
    int row = m.group[1], other = c->v[2].shape[0] > 1 ? row : 0;
    float a, b;
    if (i < 0)
        return;
    a = ROW(const float, c->v + 1, row)[i];
    b = ROW(const float, c->v + 2, other)[broadcast_number(c->v + 1, c->v + 2, i)];
    ROW(float, c->v, row)[i] = c->mode == PAIR_MUL ? a * b : a + b;
}

/* The last dimension is the last that is not 1 in the output, which has zeros around it. */
KERNEL(pad, GROUP) {
    CONSTANT gpu_view *y = c->v, *x = c->v + 1;
    int64_t i = own_number(c, m), from;
    int row = m.group[1], to = y->shape[3] > 1 ? y->shape[3] : y->shape[2] > 1 ? y->shape[2] : y->shape[1];
    int width = y->shape[3] > 1 ? x->shape[3] : y->shape[2] > 1 ? x->shape[2] : x->shape[1];
    if (i < 0)
        return;
    from = i % to - ((CONSTANT arg_pad *)c->arg)->before;
    ROW(float, y, row)[i] = inside(from, width) ? ROW(const float, x, row)[i / to * width + from] : 0;
}

#endif
