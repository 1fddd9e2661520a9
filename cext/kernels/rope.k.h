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

/* One group per token; a thread rotates a pair, or copies an element past n_rot. The output may be x itself. */
KERNEL(rope, GROUP) {
    int t = m.group[1], d = c->v[1].shape[2], n_rot = c->v[2].shape[1], half = n_rot / 2;
    int i = m.group[0] * m.threads + m.thread, head = i / (d - half), pair = i % (d - half), first, second;
    int style = ((CONSTANT arg_rope *)c->arg)->style, halves = style == HAL_ROPE_HALVES;
    DEVICE const float *x, *cos_sin;
    DEVICE float *y;
    if (t >= rows_of(c, c->v) || head >= c->v[1].shape[1])
        return;
    x = ROW(const float, c->v + 1, t) + (int64_t)head * d;
    y = ROW(float, c->v, t) + (int64_t)head * d;
    cos_sin = ROW(const float, c->v + 2, t);
    first = pair >= half ? pair + half : halves ? pair : 2 * pair;
    second = halves ? pair + half : 2 * pair + 1;
    if (pair >= half)
        y[first] = x[first];
    else {
        float a = rope_at(x, cos_sin, n_rot, style, first);
        float b = rope_at(x, cos_sin, n_rot, style, second);
        y[first] = a;
        y[second] = b;
    }
}

KERNEL(position_scale, GROUP) {
    CONSTANT arg_position_scale *a = (CONSTANT arg_position_scale *)c->arg;
    int t = m.group[0] * m.threads + m.thread;
    if (t < rows_of(c, c->v))
        *ROW(float, c->v, t) =
            1.0f + a->slope * logf(1.0f + floorf(((float)i32_at(c->v + 1, t) + 1.0f) / (float)a->step));
}

#endif
