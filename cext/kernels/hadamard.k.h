/* hadamard.k.h: rotates heads (T, H, D) by the Walsh-Hadamard matrix in blocks of n, the largest power of two that divides D:
 * log2(n) levels of sums and differences in local memory, then the scale factor. One group per head.
 */
#ifndef SATCHEL_HADAMARD_K_H
#define SATCHEL_HADAMARD_K_H

#include "port.h"

KERNEL(hadamard, GROUP) {
    LOCAL float *x = (LOCAL float *)m.local;
    int d = c->v[0].shape[2], n = d & -d, t = m.group[1];
    int64_t at = (int64_t)m.group[0] * d;
    float factor = 1.0f / sqrtf((float)n);
    if (t >= rows_of(c, c->v))
        return;
    for (int i = m.thread; i < d; i += m.threads)
        x[i] = ROW(const float, c->v + 1, t)[at + i];
    for (int h = 1; h < n; h *= 2) {
        BARRIER(m);
        for (int p = m.thread; p < d / 2; p += m.threads) {
            int i = p / h * 2 * h + p % h;
            float a = x[i], b = x[i + h];
            x[i] = a + b;
            x[i + h] = a - b;
        }
    }
    BARRIER(m);
    for (int i = m.thread; i < d; i += m.threads)
        ROW(float, c->v, t)[at + i] = x[i] * factor;
}

#endif
