/* product_float.h: products of f32, f16 and bf16 weights with float32 activations, sums fused and in the order of k.
 *
 * A word holds one f32, or the numbers 2 i and 2 i + 1 of f16 and bf16.
 */
#ifndef SATCHEL_CPU_PRODUCT_FLOAT_H
#define SATCHEL_CPU_PRODUCT_FLOAT_H

#include "product_columns.h"

VI_INLINE vf f32_low(vi x) { return (vf)x; }
VI_INLINE vf f16_low(vi x) { return vf_halves(x); }
VI_INLINE vf f16_high(vi x) { return vf_halves(vi_shift_right(x, 16)); }
VI_INLINE vf bf16_low(vi x) { return vf_low_bf16(x); }
VI_INLINE vf bf16_high(vi x) { return vf_high_bf16(x); }
#define f32_high f32_low

#define PRODUCT_FLOAT(stem, each)                                                                                   \
    VI_INLINE void stem##_columns(const product *p, const uint8_t *panel, const uint8_t *x, float *out, int n) {    \
        for (int part = 0; part < LANE_PARTS; part++) {                                                             \
            const uint8_t *words = panel + 4 * LANES * part;                                                        \
            vf sum[MOST_COLUMNS];                                                                                   \
            UNROLL for (int c = 0; c < n; c++)                                                                      \
                sum[c] = vf_set(0);                                                                                 \
            for (int64_t k = 0; k < p->k; k += (each), words += LINE) {                                             \
                vi w = vi_load(words);                                                                              \
                if (n == 1)                                                                                         \
                    fetch(words, LINE);                                                                             \
                UNROLL for (int c = 0; c < n; c++) {                                                                \
                    const float *a = (const float *)(x + p->x_stride * (uint64_t)c) + k;                            \
                    sum[c] = vf_fma(stem##_low(w), vf_set(a[0]), sum[c]);                                           \
                    if ((each) == 2)                                                                                \
                        sum[c] = vf_fma(stem##_high(w), vf_set(a[(each) - 1]), sum[c]);                             \
                }                                                                                                   \
            }                                                                                                       \
            UNROLL for (int c = 0; c < n; c++)                                                                      \
                vf_store(out + p->pitch * c + LANES * part, sum[c]);                                                \
        }                                                                                                           \
    }                                                                                                               \
    PRODUCT_COLUMNS(stem)

#endif
