/* formats.k.h: dequantizes rows of weights in every format, and multiplies them with float32 columns, by a switch over the
 * format's number. cext/quant defines the blocks. A row is cut into parts of 32 elements (or one); lane l takes parts l, l +
 * WAVE and so on, so the order of a sum depends on its length and the format alone.
 */
#ifndef SATCHEL_FORMATS_K_H
#define SATCHEL_FORMATS_K_H

#include "modes.h"
#include "port.h"

enum { I32 = 26 };
enum { COLUMNS = LINEAR_COLUMNS };

/* PART_<elements of a block>: elements of a part. Then how part i of a row is unpacked. */
#define PART_1 1
#define PART_32 32
#define PART_64 32
#define PART_128 32
#define PART_256 32
#define UNPACK_1(stem, row, i, out) stem##_unpack((row) + (i), out)
#define UNPACK_32(stem, row, i, out) stem##_unpack((row) + (i), out)
#define UNPACK_64(stem, row, i, out) stem##_part((row) + (i) / 2, (i) % 2, out)
#define UNPACK_128(stem, row, i, out) stem##_part((row) + (i) / 4, (i) % 4, out)
#define UNPACK_256(stem, row, i, out) stem##_part((row) + (i) / 8, (i) % 8, out)

/* Of several weights side by side: the one that output row *row belongs to; *row becomes the row within it. */
FN CONSTANT gpu_view *weight_at(CONSTANT gpu_call *c, int n_weights, THREAD int64_t *row) {
    CONSTANT gpu_view *w = c->v + 2;
    for (int i = 1; i < n_weights && *row >= w->shape[0]; i++, w++)
        *row -= w->shape[0];
    return w;
}

FN float sum_of_products(THREAD const float *w, DEVICE const float *x, int n, float sum) {
    for (int e = 0; e < n; e++)
        sum = fmaf(w[e], x[e], sum);
    return sum;
}

/* For each format, two functions: dequantize a row of k elements to `out`; and sums[j] = this lane's part of the dot product of
 * the row with column j of n. Columns are `pitch` floats apart. A part is unpacked once for all columns. */
#define CPU_WEIGHT(stem, id, block, act)                                                                               \
    FN_CALL void unpack_row_##stem(int thread, int threads, DEVICE const block_##stem *row, DEVICE float *out,         \
                                   int k) {                                                                            \
        float w[PART_##block];                                                                                         \
        for (int i = thread; i < k / PART_##block; i += threads) {                                                     \
            UNPACK_##block(stem, row, i, w);                                                                           \
            for (int e = 0; e < PART_##block; e++)                                                                     \
                out[(int64_t)i * PART_##block + e] = w[e];                                                             \
        }                                                                                                              \
    }                                                                                                                  \
    FN_CALL void multiply_##stem(int lane, DEVICE const block_##stem *row, DEVICE const float *x, int64_t pitch,       \
                                 int n, int k, THREAD float *sums) {                                                   \
        float w[PART_##block];                                                                                         \
        for (int j = 0; j < n; j++)                                                                                    \
            sums[j] = 0;                                                                                               \
        NOT_UNROLLED                                                                                                   \
        for (int i = lane; i < k / PART_##block; i += WAVE) {                                                          \
            UNPACK_##block(stem, row, i, w);                                                                           \
            NOT_UNROLLED                                                                                               \
            for (int j = 0; j < n; j++)                                                                                \
                sums[j] = sum_of_products(w, x + pitch * j + (int64_t)i * PART_##block, PART_##block, sums[j]);        \
        }                                                                                                              \
    }
#include "types.inc"
#undef CPU_WEIGHT

/* Dequantizes a row of k elements, by all threads of the group. */
FN void unpack_row(self m, uint32_t format, DEVICE const char *row, DEVICE float *out, int k) {
    switch (format) {
#define CPU_WEIGHT(stem, id, block, act)                                                                               \
    case id:                                                                                                           \
        unpack_row_##stem(m.thread, m.threads, (DEVICE const block_##stem *)row, out, k);                              \
        break;
#include "types.inc"
#undef CPU_WEIGHT
    }
}

/* sums[j] = dot product of the row with column j of n <= COLUMNS, by one wave; all lanes get the sums. */
FN_CALL void multiply_row(self m, uint32_t format, DEVICE const char *row, DEVICE const float *x, int64_t pitch, int n,
                          int k, THREAD float *sums) {
    switch (format) {
#define CPU_WEIGHT(stem, id, block, act)                                                                               \
    case id:                                                                                                           \
        multiply_##stem(m.lane, (DEVICE const block_##stem *)row, x, pitch, n, k, sums);                               \
        break;
#include "types.inc"
#undef CPU_WEIGHT
    }
    for (int j = 0; j < n; j++)
        sums[j] = wave_sum(m, sums[j]);
}

/* Bytes of k elements in any format of an activation. */
FN_CALL int64_t bytes_of(uint32_t format, int64_t k) {
    switch (format) {
#define CPU_WEIGHT(stem, id, block, act)                                                                               \
    case id:                                                                                                           \
        return k / (block) * (int64_t)sizeof(block_##stem);
#define CPU_ONLY_ACT(stem, id, block)                                                                                  \
    case id:                                                                                                           \
        return k / (block) * (int64_t)sizeof(block_##stem);
#include "types.inc"
#undef CPU_ONLY_ACT
#undef CPU_WEIGHT
    case I32:
        return 4 * k;
    }
    return 0;
}

#endif
