/* product_float.h: products of f32, f16 and bf16 weights with float32 activations; sums are in order of k, with fused
 * multiply-add where the set has it.
 *
 * A word holds one f32, or elements 2 i and 2 i + 1 of f16 and bf16.
 */
#ifndef SATCHEL_CPU_PRODUCT_FLOAT_H
#define SATCHEL_CPU_PRODUCT_FLOAT_H

#include "product_columns.h"

/* The first or second element of a word of the rows from `part` on. */
VI_INLINE vf f32_at(const uint8_t *line, int part, int second) {
    (void)second;
    return (vf)vi_load(line + 4 * LANES * part);
}
VI_INLINE vf f16_at(const uint8_t *line, int part, int second) {
    return vf_load_f16((const uint16_t *)(line + LINE / 2 * second + 2 * LANES * part));
}
VI_INLINE vf bf16_at(const uint8_t *line, int part, int second) {
    vi w = vi_load(line + 4 * LANES * part);
    return second ? vf_high_bf16(w) : vf_low_bf16(w);
}

#define PRODUCT_FLOAT(stem, each)                                                                                      \
    VI_INLINE void stem##_columns(const product *p, const uint8_t *panel, const uint8_t *x, float *out, int n) {       \
        for (int part = 0; part < LANE_PARTS; part++) {                                                                \
            const uint8_t *line = panel;                                                                               \
            vf sum[MOST_COLUMNS];                                                                                      \
            UNROLL_FOR (int c = 0; c < n; c++)                                                                         \
                sum[c] = vf_set(0);                                                                                    \
            for (int64_t k = 0; k < p->k; k += (each), line += LINE) {                                                 \
                if (n == 1)                                                                                            \
                    fetch(line, LINE, n);                                                                              \
                UNROLL_FOR (int i = 0; i < (each); i++) {                                                              \
                    vf w = stem##_at(line, part, i);                                                                   \
                    UNROLL_FOR (int c = 0; c < n; c++)                                                                 \
                        sum[c] = vf_fma(w, vf_set(((const float *)(x + p->x_stride * (uint64_t)c))[k + i]), sum[c]);   \
                }                                                                                                      \
            }                                                                                                          \
            UNROLL_FOR (int c = 0; c < n; c++)                                                                         \
                vf_store(out + p->pitch * c + LANES * part, sum[c]);                                                   \
        }                                                                                                              \
    }                                                                                                                  \
    PRODUCT_COLUMNS(stem)

#if defined(__AVX512BF16__)
/* Products of words of two bfloat16 with bf16x2 activations: the high halves of each pair, then, without HAL_FAST, the low
 * ones. */
#define PRODUCT_PAIRS(stem)                                                                                            \
    VI_INLINE void stem##_pairs_columns(const product *p, const uint8_t *panel, const uint8_t *x, float *out, int n) { \
        int halves = p->flags & HAL_FAST ? 1 : 2;                                                                      \
        vf sum[MOST_COLUMNS];                                                                                          \
        UNROLL_FOR (int c = 0; c < n; c++)                                                                             \
            sum[c] = vf_set(0);                                                                                        \
        for (int64_t k = 0; k < p->k; k += 32) {                                                                       \
            if (n == 1)                                                                                                \
                fetch(panel + 32 * k, 16 * LINE, n);                                                                   \
            UNROLL_FOR (int i = 0; i < 16; i++) {                                                                      \
                __m512bh w = (__m512bh)vi_load(panel + 32 * k + LINE * i);                                             \
                UNROLL_FOR (int c = 0; c < n; c++) {                                                                   \
                    const uint8_t *a = x + p->x_stride * (uint64_t)c + 4 * k + 4 * i;                                  \
                    sum[c] = _mm512_dpbf16_ps(sum[c], w, (__m512bh)vi_set_at(a));                                      \
                    if (halves == 2)                                                                                   \
                        sum[c] = _mm512_dpbf16_ps(sum[c], w, (__m512bh)vi_set_at(a + 64));                             \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
        UNROLL_FOR (int c = 0; c < n; c++)                                                                             \
            vf_store(out + p->pitch * c, sum[c]);                                                                      \
    }                                                                                                                  \
    PRODUCT_COLUMNS(stem##_pairs)
#endif

#if defined(__AMX_BF16__)
#include "amx_bf16.h"
#endif

#endif
