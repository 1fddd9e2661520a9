/*
 * A8_32: 32 signed bytes with one scale, x = d * q, and the sum of the codes. An activation format: operand of the
 * weights in blocks of 32, whose minimums or offsets need the sum.
 *
 * The quantizer, in float32: amax = max |x|, d = amax / 127, q = round(x * (127 / amax)), ties to even. d is then
 * rounded to f16 (nearest even) and stored as float32. Two edge cases: if 127 / amax is not finite, all q are 0; if
 * any x is an infinity or NaN, d is NaN and all q are 0.
 */
#ifndef SATCHEL_QUANT_A8_32_H
#define SATCHEL_QUANT_A8_32_H

#include <math.h>

#include "half.h"

typedef struct {
    float d;
    int32_t sum;
    int8_t qs[32];
} block_a8_32;

_Static_assert(sizeof(block_a8_32) == 40, "block_a8_32 is a float, a sum and 32 bytes");
#define SATCHEL_ACTIVATION_a8_32 1032, 32 /* our number, elements of a block */

/* Largest |x| of 32 floats as its bits: NaN and infinity are the largest, so one compare finds either. */
static inline uint32_t a8_32_most(THREAD const float *x) {
    uint32_t most = 0;
    int i;
    for (i = 0; i < 32; i++) {
        uint32_t a = f32_bits(x[i]) & 0x7FFFFFFFu;
        most = a > most ? a : most;
    }
    return most;
}

static inline void a8_32_quantize_block(const float *x, block_a8_32 *out) {
    uint32_t most = a8_32_most(x);
    float inverse = most ? 127.0f / f32_from_bits(most) : 0.0f;
    int i;
    memset(out, 0, sizeof *out);
    out->d = f16_to_f32(f32_to_f16(most >= 0x7F800000u ? f32_nan() : f32_from_bits(most) / 127.0f));
    if (most >= 0x7F800000u || !f32_is_finite(inverse))
        return;
    for (i = 0; i < 32; i++) {
        out->qs[i] = (int8_t)f32_round_even(x[i] * inverse);
        out->sum += out->qs[i];
    }
}

static inline void a8_32_quantize(const float *x, block_a8_32 *out, int n_blocks) {
    int i;
    for (i = 0; i < n_blocks; i++)
        a8_32_quantize_block(x + 32 * i, out + i);
}

static inline void a8_32_unpack(DEVICE const block_a8_32 *b, THREAD float *out) {
    float d = b->d;
    int i;
    for (i = 0; i < 32; i++)
        out[i] = d * (float)b->qs[i];
}

#endif
