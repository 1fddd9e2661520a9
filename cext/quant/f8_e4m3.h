/*
 * F8_E4M3 (an extension of ours): 128 codes of the eight-bit float E4M3 under one float32 scale, x = d * value(q), as
 * FP8 checkpoints keep their weights. Bias 7, no infinity: 0x7F and 0xFF are NaN, 448 is the largest number. A code is
 * a bfloat16 exactly: with bf16x2 a block's products are summed in float32 before its scale. Products with float32 are
 * those of decoded numbers, summed in runs of 64.
 */
#ifndef SATCHEL_QUANT_F8_E4M3_H
#define SATCHEL_QUANT_F8_E4M3_H

#include "bf16x2.h"
#include "f32.h"

typedef struct {
    float d;
    uint8_t qs[128];
} block_f8_e4m3;

_Static_assert(sizeof(block_f8_e4m3) == 132, "block_f8_e4m3 is a float and 128 bytes");
#define SATCHEL_WEIGHT_f8_e4m3 2001, 128, bf16x2 /* our number, elements of a block, activations */

/* Shifting the bits to float32's fields gives the value times 2^-120, exactly, for subnormals too. */
static inline float f8_e4m3_value(uint8_t q) {
    uint32_t sign = (uint32_t)(q & 0x80) << 24, bits = (uint32_t)(q & 0x7F) << 20;
#ifdef FLUSHED /* a GPU that flushes denormals to zero */
    if (bits < 0x00800000u)
        return f32_from_bits(sign | f32_bits((float)(q & 0x7F) * 0x1p-9f));
#endif
    return f32_from_bits(sign | (bits == 0x07F00000u ? 0x7FC00000u : f32_bits(f32_from_bits(bits) * 0x1p120f)));
}

/* The functions of a format of eight-bit floats, from its <stem>_value(code). */
#define F8_FORMAT(stem)                                                                                                \
    static inline void stem##_part(DEVICE const block_##stem *b, int g, THREAD float *out) {                           \
        int i;                                                                                                         \
        for (i = 0; i < 32; i++)                                                                                       \
            out[i] = b->d * stem##_value(b->qs[32 * g + i]);                                                           \
    }                                                                                                                  \
    static inline void stem##_unpack(DEVICE const block_##stem *b, THREAD float *out) {                                \
        int g;                                                                                                         \
        for (g = 0; g < 4; g++)                                                                                        \
            stem##_part(b, g, out + 32 * g);                                                                           \
    }                                                                                                                  \
    static inline float stem##_dot(const block_##stem *w, const block_bf16x2 *a, int n_blocks) {                       \
        float sum = 0.0f;                                                                                              \
        int n, i;                                                                                                      \
        for (n = 0; n < n_blocks; n++) {                                                                               \
            float block = 0.0f;                                                                                        \
            for (i = 0; i < 128; i++)                                                                                  \
                block = fmaf(stem##_value(w[n].qs[i]), bf16x2_at(a, 128 * n + i), block);                              \
            sum = fmaf(block, w[n].d, sum);                                                                            \
        }                                                                                                              \
        return sum;                                                                                                    \
    }                                                                                                                  \
    static inline float stem##_dot_f32(const block_##stem *w, const block_f32 *a, int n_blocks) {                      \
        float sum = 0.0f;                                                                                              \
        int n, i;                                                                                                      \
        for (n = 0; n < 2 * n_blocks; n++) {                                                                           \
            const block_##stem *b = w + n / 2;                                                                         \
            float run = 0.0f;                                                                                          \
            for (i = 0; i < 64; i++)                                                                                   \
                run = fmaf(b->d * stem##_value(b->qs[64 * (n % 2) + i]), a[64 * n + i].x, run);                        \
            sum += run;                                                                                                \
        }                                                                                                              \
        return sum;                                                                                                    \
    }

F8_FORMAT(f8_e4m3)

#endif
