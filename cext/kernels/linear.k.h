/* linear.k.h: matrix products of activations (T, K) with weights (N, K). A wave computes one row of a weight for up to COLUMNS
 * tokens; the waves of a group take adjacent rows. Modes: several weights, their results concatenated; one weight, plus a
 * residual; gate and up weights with SwiGLU.
 */
#ifndef SATCHEL_LINEAR_K_H
#define SATCHEL_LINEAR_K_H

#include "gated.k.h"
#include "formats.k.h"

KERNEL(linear, GROUP) {
    CONSTANT gpu_view *y = c->v, *x = c->v + 1, *w;
    int64_t row = (int64_t)m.group[0] * m.waves + m.wave, place = row, pitch = (int64_t)(x->stride / sizeof(float));
    int first = m.group[1] * COLUMNS, n = rows_of(c, y) - first, k = x->shape[1], gated_by = c->mode == LINEAR_GATED;
    float sums[2][COLUMNS];
    n = n < COLUMNS ? n : COLUMNS;
    if (n <= 0 || row >= y->shape[1])
        return;
    w = weight_at(c, c->mode == LINEAR_PLAIN ? (int)c->n_in - 1 : 1, &place);
    for (int i = 0; i <= gated_by; i++)
        multiply_row(m, w[i].format, ROW(const char, w + i, place), ROW(const float, x, first), pitch, n, k, sums[i]);
    for (int j = m.lane; j < n; j += WAVE) {
        float sum = sums[0][j];
        if (c->mode == LINEAR_ADD)
            sum += ROW(const float, c->v + 3, first + j)[row];
        ROW(float, y, first + j)[row] = gated_by ? gated(sum, sums[1][j]) : sum;
    }
}

#endif
