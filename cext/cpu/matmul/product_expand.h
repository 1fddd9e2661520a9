/* product_expand.h: products of dequantized weights with float32 or bfloat16 activations.
 *
 * A slice of a panel at a time is dequantized to float32 in scratch: element k of 16 rows, then element k + 1. A result is the
 * sum of partial sums over runs of 64 elements; each partial sum is in order of k, with fused multiply-add where the set has
 * it. A format's <stem>_expand() dequantizes one block of some lanes; EXPAND_256 (unpack_256.h) and EXPAND_32 (product_32.h)
 * make it from the functions of the integer products.
 */
#ifndef SATCHEL_CPU_PRODUCT_EXPAND_H
#define SATCHEL_CPU_PRODUCT_EXPAND_H

#include "product_columns.h"

typedef struct {
    void (*expand)(const uint8_t *words, const uint8_t *tail, float *to); /* elements are 16 floats apart */
    uint64_t bytes;                                                       /* bytes of a panel's block, without tails */
    int tail, block;
} expand_format;

/* The product of a weight with float32 or, if `is_bf16`, bfloat16 activations; in product_expand.c. */
void CPU_NAME(expand_product)(const product *, const expand_format *, int is_bf16);

#define EXPAND(stem)                                                                                                   \
    static const expand_format stem##_expanded = {stem##_expand, sizeof(block_##stem) / 4 * LINE,                      \
                                                  sizeof(block_##stem) % 4, BLOCK_##stem};                             \
    static void stem##_by_f32(const product *p) {                                                                      \
        CPU_NAME(expand_product)(p, &stem##_expanded, 0);                                                              \
    }                                                                                                                  \
    static void stem##_by_bf16(const product *p) {                                                                     \
        CPU_NAME(expand_product)(p, &stem##_expanded, 1);                                                              \
    }
#define EXPAND_ENTRIES(stem)                                                                                           \
    {TYPE_##stem, TYPE_f32, stem##_by_f32}, {                                                                          \
        TYPE_##stem, TYPE_bf16, stem##_by_bf16                                                                         \
    }

/* Byte i of lanes of codes as a float, without bias and scale; offset as in the integer products. */
VI_INLINE vf code_at(vi q, int i, int offset) {
    int is_signed = offset == SIGNED_CODES && SIGNED_BIAS == 0;
    return vi_to_vf(is_signed ? vi_signed_byte(q, i) : vi_byte(q, i) - lift_of(offset));
}

#endif
