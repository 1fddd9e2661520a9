/*
 * A8_256: 256 signed bytes with one float32 scale, x = d * q, and the sums of each 16 and each 32 codes. An activation
 * format: operand of the weights in super-blocks of 256, whose minimums or offsets need the sums. A block fills five
 * lines of 64 bytes, its codes first; the padding is zero.
 *
 * The quantizer, in float32: m = the first x of largest magnitude, with its sign; s = -127 / m; q = min(127,
 * round(s * x)), ties to even; d = 1 / s. Two edge cases: if s is not finite, d and all q are 0; if any x is an
 * infinity or NaN, d is NaN and all q are 0.
 */
#ifndef SATCHEL_QUANT_A8_256_H
#define SATCHEL_QUANT_A8_256_H

#include <math.h>

#include "half.h"

typedef struct {
    int8_t qs[256];
    int16_t sums[16];
    int16_t sums32[8];
    float d;
    uint8_t pad[12];
} block_a8_256;

_Static_assert(sizeof(block_a8_256) == 320, "block_a8_256 is 256 bytes, 24 sums, a float and 12 bytes of nothing");
#define SATCHEL_ACTIVATION_a8_256 1256, 256 /* our number, elements of a block */

/* The first element of largest magnitude, with its sign; NaN counts above infinity. */
static inline float a8_256_extreme(THREAD const float *x) {
    uint32_t most = 0;
    float extreme = 0.0f;
    int i;
    for (i = 0; i < 256; i++) {
        uint32_t a = f32_bits(x[i]) & 0x7FFFFFFFu;
        if (a > most) {
            most = a;
            extreme = x[i];
        }
    }
    return extreme;
}

static inline void a8_256_quantize_block(const float *x, block_a8_256 *out) {
    float extreme = a8_256_extreme(x);
    float scale = extreme == 0.0f ? 0.0f : -127.0f / extreme;
    int i;
    memset(out, 0, sizeof *out);
    if (!f32_is_finite(extreme)) {
        out->d = f32_nan();
        return;
    }
    if (extreme == 0.0f || !f32_is_finite(scale))
        return;
    for (i = 0; i < 256; i++) {
        int32_t q = f32_round_even(scale * x[i]);
        out->qs[i] = (int8_t)(q > 127 ? 127 : q);
        out->sums[i / 16] = (int16_t)(out->sums[i / 16] + out->qs[i]);
        out->sums32[i / 32] = (int16_t)(out->sums32[i / 32] + out->qs[i]);
    }
    out->d = 1.0f / scale;
}

static inline void a8_256_quantize(const float *x, block_a8_256 *out, int n_blocks) {
    int i;
    for (i = 0; i < n_blocks; i++)
        a8_256_quantize_block(x + 256 * i, out + i);
}

static inline void a8_256_unpack(DEVICE const block_a8_256 *b, THREAD float *out) {
    int i;
    for (i = 0; i < 256; i++)
        out[i] = b->d * (float)b->qs[i];
}

/* For weights in groups of 16, x = (d * scale) * code: dequantizes 32 of them; and adds a block of 256 to a dot product, exact
 * in integers within the block, then one fused multiply-add. */
static inline void a8_256_weights(THREAD const int8_t *code, THREAD const int8_t *scale, float d, THREAD float *out) {
    int i;
    for (i = 0; i < 32; i++)
        out[i] = (d * (float)scale[i / 16]) * (float)code[i];
}

static inline float a8_256_add(const int8_t *code, const int8_t *scale, float d, const block_a8_256 *a, float sum) {
    int32_t isum = 0;
    int g, i;
    for (g = 0; g < 16; g++) {
        int32_t part = 0;
        for (i = 16 * g; i < 16 * g + 16; i++)
            part += code[i] * a->qs[i];
        isum += scale[g] * part;
    }
    return fmaf((float)isum, d * a->d, sum);
}

/* The functions of such a format, from its <stem>_part_codes(b, g, code, scale), which gives codes 32 g .. 32 g + 31 and the
 * scales of each 16, and from the step d of a block b. */
#define A8_256_FORMAT(stem, step)                                                                                      \
    static inline void stem##_part(DEVICE const block_##stem *b, int g, THREAD float *out) {                           \
        int8_t code[32], scale[2];                                                                                     \
        stem##_part_codes(b, g, code, scale);                                                                          \
        a8_256_weights(code, scale, step, out);                                                                        \
    }                                                                                                                  \
    static inline void stem##_unpack(DEVICE const block_##stem *b, THREAD float *out) {                                \
        int g;                                                                                                         \
        for (g = 0; g < 8; g++)                                                                                        \
            stem##_part(b, g, out + 32 * g);                                                                           \
    }                                                                                                                  \
    static inline float stem##_dot(const block_##stem *w, const block_a8_256 *a, int n_blocks) {                       \
        float sum = 0.0f;                                                                                              \
        int n, g;                                                                                                      \
        for (n = 0; n < n_blocks; n++) {                                                                               \
            const block_##stem *b = w + n;                                                                             \
            int8_t code[256], scale[16];                                                                               \
            for (g = 0; g < 8; g++)                                                                                    \
                stem##_part_codes(b, g, code + 32 * g, scale + 2 * g);                                                 \
            sum = a8_256_add(code, scale, step, a + n, sum);                                                           \
        }                                                                                                              \
        return sum;                                                                                                    \
    }

#endif
