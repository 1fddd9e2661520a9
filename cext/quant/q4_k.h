/*
 * Q4_K: 256 numbers in eight groups of 32, four bits each; group g holds x = (d * scale[g]) * q - (dmin *
 * min[g]).
 *
 * scales[12] packs eight 6-bit scales and eight 6-bit minimums: bytes 0-3 hold scale 0-3 in the low six bits,
 * bytes 4-7 minimum 0-3; bytes 8-11 hold the low four bits of scale 4-7 (low nibble) and of minimum 4-7 (high
 * nibble), whose upper two bits are the top bits of bytes 0-3 and 4-7. qs: 32 bytes serve two groups, the
 * even one in the low nibbles, the odd one in the high. d * scale and its product with q are exact in
 * float32, so only the subtraction rounds: the result does not depend on fused multiply-add.
 */
#ifndef SATCHEL_QUANT_Q4_K_H
#define SATCHEL_QUANT_Q4_K_H

#include "a8_256.h"

typedef struct {
    uint16_t d;
    uint16_t dmin;
    uint8_t scales[12];
    uint8_t qs[128];
} block_q4_k;

_Static_assert(sizeof(block_q4_k) == 144, "block_q4_k is two halves, 12 bytes of scales and 128 of codes");
#define SATCHEL_WEIGHT_q4_k 12, 256, a8_256 /* GGUF number, elements of a block, activations */

/* The 6-bit scale and minimum of group g of a q4_k or q5_k block. */
static inline void q4_k_scale(DEVICE const uint8_t *packed, int g, THREAD uint8_t *scale, THREAD uint8_t *min) {
    int low = g % 4;
    *scale = g < 4 ? packed[g] & 63 : (uint8_t)((packed[low + 8] & 15) | ((packed[low] >> 6) << 4));
    *min = g < 4 ? packed[g + 4] & 63 : (uint8_t)((packed[low + 8] >> 4) | ((packed[low + 4] >> 6) << 4));
}

/* The scales and minimums of all eight groups. */
static inline void q4_k_scales(DEVICE const uint8_t *packed, THREAD uint8_t *scale, THREAD uint8_t *min) {
    int g;
    for (g = 0; g < 8; g++)
        q4_k_scale(packed, g, scale + g, min + g);
}

/* Code i (0..31) of group g (0..7). */
static inline int q4_k_code(DEVICE const block_q4_k *b, int g, int i) {
    return (b->qs[32 * (g / 2) + i] >> (4 * (g % 2))) & 15;
}

/* The functions of a format that is packed as q4_k is, from its <stem>_code(b, g, i). */
#define Q4_K_FORMAT(stem)                                                                                              \
    static inline void stem##_part(DEVICE const block_##stem *b, int g, THREAD float *out) {                           \
        uint8_t scale, min;                                                                                            \
        float step, low;                                                                                               \
        int i;                                                                                                         \
        q4_k_scale(b->scales, g, &scale, &min);                                                                        \
        step = f16_to_f32(b->d) * (float)scale;                                                                        \
        low = f16_to_f32(b->dmin) * (float)min;                                                                        \
        for (i = 0; i < 32; i++)                                                                                       \
            out[i] = step * (float)stem##_code(b, g, i) - low;                                                         \
    }                                                                                                                  \
    static inline void stem##_unpack(DEVICE const block_##stem *b, THREAD float *out) {                                \
        int g;                                                                                                         \
        for (g = 0; g < 8; g++)                                                                                        \
            stem##_part(b, g, out + 32 * g);                                                                           \
    }                                                                                                                  \
    static inline float stem##_dot(const block_##stem *w, const block_a8_256 *a, int n_blocks) {                       \
        float sum = 0.0f;                                                                                              \
        int n, g, i;                                                                                                   \
        for (n = 0; n < n_blocks; n++) {                                                                               \
            int32_t isum = 0, msum = 0;                                                                                \
            uint8_t scale[8], min[8];                                                                                  \
            q4_k_scales(w[n].scales, scale, min);                                                                      \
            for (g = 0; g < 8; g++) {                                                                                  \
                int32_t part = 0;                                                                                      \
                for (i = 0; i < 32; i++)                                                                               \
                    part += stem##_code(w + n, g, i) * a[n].qs[32 * g + i];                                            \
                isum += scale[g] * part;                                                                               \
                msum += min[g] * a[n].sums32[g];                                                                       \
            }                                                                                                          \
            sum = fmaf((float)isum, f16_to_f32(w[n].d) * a[n].d, sum);                                                 \
            sum = fmaf(-(float)msum, f16_to_f32(w[n].dmin) * a[n].d, sum);                                             \
        }                                                                                                              \
        return sum;                                                                                                    \
    }

Q4_K_FORMAT(q4_k)

#endif
