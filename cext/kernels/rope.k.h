/* rope.k.h: RoPE: the cos/sin table, the rotation of heads (T, H, D) by it, and position_scale, a factor per position. */
#ifndef SATCHEL_ROPE_K_H
#define SATCHEL_ROPE_K_H

#include "port.h"

KERNEL(rope_table, GROUP) {
    int n = c->v[2].shape[0], t = m.group[1], i = m.group[0] * m.threads + m.thread;
    float angle, scale = ((CONSTANT arg_rope_table *)c->arg)->scale;
    if (t >= rows_of(c, c->v) || i >= n)
        return;
    angle = (float)i32_at(c->v + 1, t) * ROW(const float, c->v + 2, 0)[i];
    ROW(float, c->v, t)[i] = cosf(angle) * scale;
    ROW(float, c->v, t)[n + i] = sinf(angle) * scale;
}

/* A head before RoPE: x + bias, then its rms_norm: / size * norm. bias, norm: NULL where there is none. */
typedef struct {
    DEVICE const float *x, *bias, *norm;
    float size;
} rope_head;

FN float rope_input(rope_head h, int i) {
    float x = h.bias ? h.x[i] + h.bias[i] : h.x[i];
    return h.norm ? x / h.size * h.norm[i] : x;
}

/* Element i of a head after RoPE of its first n_rot elements. */
FN float rope_of(rope_head h, DEVICE const float *cos_sin, int n_rot, int style, int i) {
    int half = n_rot / 2, first, second, pair;
    if (i >= n_rot)
        return rope_input(h, i);
    pair = style == HAL_ROPE_HALVES ? i % half : i / 2;
    first = style == HAL_ROPE_HALVES ? pair : 2 * pair;
    second = style == HAL_ROPE_HALVES ? pair + half : 2 * pair + 1;
    return i == first ? rope_input(h, first) * cos_sin[pair] - rope_input(h, second) * cos_sin[half + pair]
                      : rope_input(h, first) * cos_sin[half + pair] + rope_input(h, second) * cos_sin[pair];
}

FN rope_head plain_head(DEVICE const float *x) {
    rope_head h;
    h.x = x;
    h.bias = h.norm = NULL;
    h.size = 1.0f;
    return h;
}

FN float rope_at(DEVICE const float *x, DEVICE const float *cos_sin, int n_rot, int style, int i) {
    return rope_of(plain_head(x), cos_sin, n_rot, style, i);
}

/* A pair of elements after RoPE, and their places in the head; second is -1 where a is an element past n_rot, alone. */
typedef struct {
    int first, second;
    float a, b;
} rope_pair;

/* Pair `pair` of a head of D elements: those below n_rot / 2 are rotated, those up to D - n_rot / 2 are elements past n_rot.
 * Each input is loaded once. The numbers are rope_of's. */
FN rope_pair rope_rotate(rope_head h, DEVICE const float *cos_sin, int n_rot, int style, int pair) {
    int half = n_rot / 2;
    float a, b, cosine, sine;
    rope_pair r;
    if (pair >= half) {
        r.first = pair + half;
        r.second = -1;
        r.a = rope_input(h, r.first);
        r.b = 0.0f;
        return r;
    }
    r.first = style == HAL_ROPE_HALVES ? pair : 2 * pair;
    r.second = style == HAL_ROPE_HALVES ? pair + half : 2 * pair + 1;
    a = rope_input(h, r.first);
    b = rope_input(h, r.second);
    cosine = cos_sin[pair];
    sine = cos_sin[half + pair];
    r.a = a * cosine - b * sine;
    r.b = a * sine + b * cosine;
    return r;
}

FN void rope_put(rope_pair r, DEVICE float *y) {
    y[r.first] = r.a;
    if (r.second >= 0)
        y[r.second] = r.b;
}

/* One group per token; a thread computes a pair. The output may be x itself. */
KERNEL(rope, GROUP) {
    int t = m.group[1], d = c->v[1].shape[2], n_rot = c->v[2].shape[1], pairs = d - n_rot / 2;
    int i = m.group[0] * m.threads + m.thread, head = i / pairs;
    DEVICE float *y;
    rope_pair r;
    if (t >= rows_of(c, c->v) || head >= c->v[1].shape[1])
        return;
    y = ROW(float, c->v, t) + (int64_t)head * d;
    r = rope_rotate(plain_head(ROW(const float, c->v + 1, t) + (int64_t)head * d), ROW(const float, c->v + 2, t), n_rot,
                    ((CONSTANT arg_rope *)c->arg)->style, i % pairs);
    rope_put(r, y);
}

KERNEL(position_scale, GROUP) {
    CONSTANT arg_position_scale *a = (CONSTANT arg_position_scale *)c->arg;
    int t = m.group[0] * m.threads + m.thread;
    if (t < rows_of(c, c->v))
        *ROW(float, c->v, t) =
            1.0f + a->slope * logf(1.0f + floorf(((float)i32_at(c->v + 1, t) + 1.0f) / (float)a->step));
}

#endif
