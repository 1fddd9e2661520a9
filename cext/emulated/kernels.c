/* kernels.c: the portable kernels compiled for this CPU. */
#include "kernels.h"
#include "packed_linear.k.h"
#include "packed_rows.k.h"

/* rms_norm by one thread of the group: a second kernel for tests of selection, whose order of sums differs. */
KERNEL(rms_norm_serial, GROUP) {
    int d = c->v[2].shape[0];
    float eps = ((const arg_rms_norm *)c->arg)->eps, sum = 0;
    const float *x = ROW(const float, c->v + 1, m.group[1]) + (int64_t)m.group[0] * d,
                *w = ROW(const float, c->v + 2, 0);
    float *y = ROW(float, c->v, m.group[1]) + (int64_t)m.group[0] * d;
    if (m.thread || m.group[1] >= rows_of(c, c->v))
        return;
    for (int i = 0; i < d; i++)
        sum += x[i] * x[i];
    for (int i = 0; i < d; i++)
        y[i] = x[i] / sqrtf(sum / (float)d + eps) * w[i];
}
