/*
 * Q3_K: 256 numbers in sixteen groups of 16, three bits each, with signed six-bit scales: x = (d * (scale[g] - 32)) * (q - 4).
 *
 * The lower two bits of q lie in qs as in q2_k; bit g of hmask[i] is the third bit of number i of run g of 32. The low nibble of
 * scale g is nibble g / 8 of byte g % 8 of scales; its upper two bits are bits 2 (g / 4) and up of byte 8 + g % 4. Decoding is
 * exact.
 */
#ifndef SATCHEL_QUANT_Q3_K_H
#define SATCHEL_QUANT_Q3_K_H

#include "q2_k.h"

typedef struct {
    uint8_t hmask[32];
    uint8_t qs[64];
    uint8_t scales[12];
    uint16_t d;
} block_q3_k;

_Static_assert(sizeof(block_q3_k) == 110, "block_q3_k is 32 bytes of top bits, 64 of codes, 12 of scales and a half");
#define TAIL_q3_k 108                       /* in a panel: offset of the tail bytes, d */
#define SATCHEL_WEIGHT_q3_k 11, 256, a8_256 /* GGUF number, elements of a block, activations */

/* Codes 32 g .. 32 g + 31 without their offset of 4, and the scales of each 16 without theirs of 32. */
static inline void q3_k_part_codes(DEVICE const block_q3_k *b, int g, THREAD int8_t *code, THREAD int8_t *scale) {
    int i;
    for (i = 0; i < 2; i++) {
        int s = 2 * g + i, low = (b->scales[s % 8] >> (4 * (s / 8))) & 15,
            high = (b->scales[8 + s % 4] >> (2 * (s / 4))) & 3;
        scale[i] = (int8_t)((low | high << 4) - 32);
    }
    for (i = 0; i < 32; i++)
        code[i] = (int8_t)((q2_k_part_code(b->qs, g, i) | ((b->hmask[i] >> g) & 1) << 2) - 4);
}

A8_256_FORMAT(q3_k, f16_to_f32(b->d))

#endif
