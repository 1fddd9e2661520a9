/*
 * TQ1_0: 256 ternary digits under one f16 scale, x = d * (digit - 1), five digits to a byte.
 *
 * A byte is the fraction that its digits write in base three, times 256, rounded up. Digit k is the part above 256 of 3 * (byte *
 * 3^k modulo 256). The first 32 bytes hold 160 numbers: byte i those at i, i + 32 and so on. The next 16 bytes hold 80 in the same
 * way; the four bytes of qh hold the last 16, four digits each.
 */
#ifndef SATCHEL_QUANT_TQ1_0_H
#define SATCHEL_QUANT_TQ1_0_H

#include "a8_256.h"

typedef struct {
    uint8_t qs[48];
    uint8_t qh[4];
    uint16_t d;
} block_tq1_0;

_Static_assert(sizeof(block_tq1_0) == 54, "block_tq1_0 is 52 bytes of digits and a half");
#define TAIL_tq1_0 52                        /* in a panel: offset of the tail bytes, d */
#define SATCHEL_WEIGHT_tq1_0 34, 256, a8_256 /* GGUF number, elements of a block, activations */

static inline int8_t tq1_0_digit(uint8_t byte, int k) {
    QUANT_LOCAL uint8_t power[5] = {1, 3, 9, 27, 81};
    return (int8_t)(((uint8_t)(byte * power[k]) * 3 >> 8) - 1);
}

/* Codes 32 g .. 32 g + 31 and the scales of each 16. */
static inline void tq1_0_part_codes(DEVICE const block_tq1_0 *b, int g, THREAD int8_t *code, THREAD int8_t *scale) {
    int i;
    scale[0] = scale[1] = 1;
    for (i = 0; i < 32; i++)
        code[i] = g < 5             ? tq1_0_digit(b->qs[i], g)
                  : g < 7 || i < 16 ? tq1_0_digit(b->qs[32 + i % 16], 2 * g - 10 + i / 16)
                                    : tq1_0_digit(b->qh[i % 4], i / 4 - 4);
}

A8_256_FORMAT(tq1_0, f16_to_f32(b->d))

#endif
