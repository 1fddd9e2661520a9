/*
 * Q5_K: 256 numbers in eight groups of 32, five bits each; group g holds x = (d * scale[g]) * q - (dmin *
 * min[g]).
 *
 * scales[12] and the nibbles qs are packed as in q4_k; bit g of qh[i] is the top bit of number i of group g.
 * All products are exact in float32, so only the subtraction rounds.
 */
#ifndef SATCHEL_QUANT_Q5_K_H
#define SATCHEL_QUANT_Q5_K_H

#include "q4_k.h"

typedef struct {
    uint16_t d;
    uint16_t dmin;
    uint8_t scales[12];
    uint8_t qh[32];
    uint8_t qs[128];
} block_q5_k;

_Static_assert(sizeof(block_q5_k) == 176, "block_q5_k is two halves, 12 bytes of scales and 160 of codes");
#define SATCHEL_WEIGHT_q5_k 13, 256, a8_256 /* GGUF number, elements of a block, activations */

/* Code i (0..31) of group g (0..7). */
static inline int q5_k_code(DEVICE const block_q5_k *b, int g, int i) {
    int low = (b->qs[32 * (g / 2) + i] >> (4 * (g % 2))) & 15;
    return low | (((b->qh[i] >> g) & 1) << 4);
}

Q4_K_FORMAT(q5_k)

#endif
