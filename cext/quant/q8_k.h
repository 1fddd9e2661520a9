/*
 * Q8_K: 256 signed bytes under one float32 scale, x = d * q, with the sums of each 16 codes, which decoding does not
 * need. Elsewhere a format of activations; a file can hold it. Products are summed in float32, runs of 64 first.
 */
#ifndef SATCHEL_QUANT_Q8_K_H
#define SATCHEL_QUANT_Q8_K_H

#include "f32.h"

typedef struct {
    float d;
    int8_t qs[256];
    int16_t sums[16];
} block_q8_k;

_Static_assert(sizeof(block_q8_k) == 292, "block_q8_k is a float, 256 bytes and 16 sums");
#define SATCHEL_WEIGHT_q8_k 15, 256, f32 /* GGUF number, elements of a block, activations */

/* Numbers 32 g .. 32 g + 31. */
static inline void q8_k_part(DEVICE const block_q8_k *b, int g, THREAD float *out) {
    int i;
    for (i = 0; i < 32; i++)
        out[i] = b->d * (float)b->qs[32 * g + i];
}

static inline void q8_k_unpack(DEVICE const block_q8_k *b, THREAD float *out) {
    int g;
    for (g = 0; g < 8; g++)
        q8_k_part(b, g, out + 32 * g);
}

static inline float q8_k_dot(const block_q8_k *w, const block_f32 *a, int n_blocks) {
    float sum = 0.0f;
    int n, i;
    for (n = 0; n < 4 * n_blocks; n++) {
        const block_q8_k *b = w + n / 4;
        float run = 0.0f;
        for (i = 0; i < 64; i++)
            run = fmaf(b->d * (float)b->qs[64 * (n % 4) + i], a[64 * n + i].x, run);
        sum += run;
    }
    return sum;
}

#endif
