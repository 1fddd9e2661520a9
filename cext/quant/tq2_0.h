/*
 * TQ2_0: 256 codes of two bits under one f16 scale, x = d * (q - 1), for weights that are -1, 0 or 1; laid
 * out as q2_k's codes. Nothing rounds.
 */
#ifndef SATCHEL_QUANT_TQ2_0_H
#define SATCHEL_QUANT_TQ2_0_H

#include "q2_k.h"

typedef struct {
    uint8_t qs[64];
    uint16_t d;
} block_tq2_0;

_Static_assert(sizeof(block_tq2_0) == 66, "block_tq2_0 is 64 bytes of codes and a half");
#define TAIL_tq2_0 64                        /* in a panel: offset of the tail bytes, d */
#define SATCHEL_WEIGHT_tq2_0 35, 256, a8_256 /* GGUF number, elements of a block, activations */

/* Codes 32 g .. 32 g + 31 and the scales of each 16. */
static inline void tq2_0_part_codes(DEVICE const block_tq2_0 *b, int g, THREAD int8_t *code, THREAD int8_t *scale) {
    int i;
    scale[0] = scale[1] = 1;
    for (i = 0; i < 32; i++)
        code[i] = (int8_t)(q2_k_part_code(b->qs, g, i) - 1);
}

static inline void tq2_0_codes(DEVICE const block_tq2_0 *b, THREAD int8_t *code, THREAD int8_t *scale) {
    int g;
    for (g = 0; g < 8; g++)
        tq2_0_part_codes(b, g, code + 32 * g, scale + 2 * g);
}

static inline void tq2_0_part(DEVICE const block_tq2_0 *b, int g, THREAD float *out) {
    int8_t code[32], scale[2];
    tq2_0_part_codes(b, g, code, scale);
    a8_256_weights(code, scale, f16_to_f32(b->d), out);
}

static inline void tq2_0_unpack(DEVICE const block_tq2_0 *b, THREAD float *out) {
    int g;
    for (g = 0; g < 8; g++)
        tq2_0_part(b, g, out + 32 * g);
}

static inline float tq2_0_dot(const block_tq2_0 *w, const block_a8_256 *a, int n_blocks) {
    float sum = 0.0f;
    int n;
    for (n = 0; n < n_blocks; n++) {
        int8_t code[256], scale[16];
        tq2_0_codes(w + n, code, scale);
        sum = a8_256_add(code, scale, f16_to_f32(w[n].d), a + n, sum);
    }
    return sum;
}

#endif
