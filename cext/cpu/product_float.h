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

#if defined(__AVX512BF16__)
/* Words of two bfloat16 with bf16x2 activations: first the high halves of each pair, then, unless asked to be fast, the
 * low ones. */
#define PRODUCT_PAIRS(stem)                                                                                         \
    VI_INLINE void stem##_pairs_columns(const product *p, const uint8_t *panel, const uint8_t *x, float *out, int n) { \
        int halves = p->flags & HAL_FAST ? 1 : 2;                                                                   \
        vf sum[MOST_COLUMNS];                                                                                       \
        UNROLL for (int c = 0; c < n; c++)                                                                          \
            sum[c] = vf_set(0);                                                                                     \
        for (int64_t k = 0; k < p->k; k += 32) {                                                                    \
            if (n == 1)                                                                                             \
                fetch(panel + 32 * k, 16 * LINE);                                                                   \
            UNROLL for (int i = 0; i < 16; i++) {                                                                   \
                __m512bh w = (__m512bh)vi_load(panel + 32 * k + LINE * i);                                          \
                UNROLL for (int c = 0; c < n; c++) {                                                                \
                    const uint8_t *a = x + p->x_stride * (uint64_t)c + 4 * k + 4 * i;                               \
                    sum[c] = _mm512_dpbf16_ps(sum[c], w, (__m512bh)vi_set_at(a));                                   \
                    if (halves == 2)                                                                                \
                        sum[c] = _mm512_dpbf16_ps(sum[c], w, (__m512bh)vi_set_at(a + 64));                          \
                }                                                                                                   \
            }                                                                                                       \
        }                                                                                                           \
        UNROLL for (int c = 0; c < n; c++)                                                                          \
            vf_store(out + p->pitch * c, sum[c]);                                                                   \
    }                                                                                                               \
    PRODUCT_COLUMNS(stem##_pairs)
#endif

#endif
