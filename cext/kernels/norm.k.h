/* norm.k.h: rms_norm, with a residual or without, and layer_norm of x (T, D) or (T, H, D) with weight w (D). One group per row
 * of D. */
#ifndef SATCHEL_NORM_K_H
#define SATCHEL_NORM_K_H

#include "port.h"

KERNEL(rms_norm, GROUP) {
    LOCAL float *room = (LOCAL float *)m.local;
    DEVICE const float *x, *r, *w = ROW(const float, c->v + 2, 0);
    DEVICE float *y;
    int d = c->v[2].shape[0];
    float eps = ((CONSTANT arg_rms_norm *)c->arg)->eps, sum = 0;
    if (m.group[1] >= rows_of(c, c->v))
        return;
    x = ROW(const float, c->v + 1, m.group[1]) + (int64_t)m.group[0] * d;
    r = c->n_in == 3 ? ROW(const float, c->v + 3, m.group[1]) + (int64_t)m.group[0] * d : NULL;
    y = ROW(float, c->v, m.group[1]) + (int64_t)m.group[0] * d;
    for (int i = m.thread; i < d; i += m.threads)
        sum += x[i] * x[i];
    sum = sqrtf(group_sum(m, sum, room) / (float)d + eps);
    for (int i = m.thread; i < d; i += m.threads)
        y[i] = r ? x[i] / sum * w[i] + r[i] : x[i] / sum * w[i];
}

/* Two passes: the variance is the mean of (x - mean)^2. E[x^2] - mean^2 would cancel where the mean is large. */
KERNEL(layer_norm, GROUP) {
    LOCAL float *room = (LOCAL float *)m.local;
    DEVICE const float *x, *w = ROW(const float, c->v + 2, 0),
                           *bias = c->n_in == 3 ? ROW(const float, c->v + 3, 0) : NULL;
    DEVICE float *y;
    int d = c->v[2].shape[0];
    float eps = ((CONSTANT arg_layer_norm *)c->arg)->eps, sum = 0, mean;
    if (m.group[1] >= rows_of(c, c->v))
        return;
    x = ROW(const float, c->v + 1, m.group[1]) + (int64_t)m.group[0] * d;
    y = ROW(float, c->v, m.group[1]) + (int64_t)m.group[0] * d;
    for (int i = m.thread; i < d; i += m.threads)
        sum += x[i];
    mean = group_sum(m, sum, room) / (float)d;
    sum = 0;
    for (int i = m.thread; i < d; i += m.threads)
        sum += (x[i] - mean) * (x[i] - mean);
    sum = sqrtf(group_sum(m, sum, room) / (float)d + eps);
    for (int i = m.thread; i < d; i += m.threads)
        y[i] = (x[i] - mean) / sum * w[i] + (bias ? bias[i] : 0.0f);
}

#endif
