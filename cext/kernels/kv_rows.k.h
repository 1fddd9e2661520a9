/* kv_rows.k.h: reads and writes rows of a KV cache in every cache format. A row is one head of one position. Quantization is
 * bit-identical to the definition (quant/cache.py). A unit of a row is one element, or a block of 32 that share a scale.
 */
#ifndef SATCHEL_KV_ROWS_K_H
#define SATCHEL_KV_ROWS_K_H

#include "port.h"

enum { KV_F32 = 0, KV_F16 = 1, KV_Q4_0 = 2, KV_Q8_0 = 8, KV_BF16 = 30, KV_FP8 = 1008, KV_BLOCK = 32 };

/* Whether a format's units are blocks rather than elements. */
FN int kv_in_blocks(uint32_t format) {
    return format == KV_Q8_0 || format == KV_Q4_0;
}

FN int64_t kv_bytes(uint32_t format, int n) {
    switch (format) {
    case KV_F32:
        return 4 * (int64_t)n;
    case KV_F16:
    case KV_BF16:
        return 2 * (int64_t)n;
    case KV_FP8:
        return n;
    case KV_Q4_0:
        return n / KV_BLOCK * (int64_t)sizeof(block_q4_0);
    default:
        return n / KV_BLOCK * (int64_t)sizeof(block_q8_0);
    }
}

/* Element i of a row, dequantized. */
FN float kv_at(uint32_t format, DEVICE const char *row, int i) {
    DEVICE const block_q8_0 *eight = (DEVICE const block_q8_0 *)row + i / KV_BLOCK;
    DEVICE const block_q4_0 *four = (DEVICE const block_q4_0 *)row + i / KV_BLOCK;
    int j = i % KV_BLOCK;
    switch (format) {
    case KV_F32:
        return ((DEVICE const float *)row)[i];
    case KV_F16:
        return f16_to_f32(((DEVICE const uint16_t *)row)[i]);
    case KV_BF16:
        return bf16_to_f32(((DEVICE const uint16_t *)row)[i]);
    case KV_FP8:
        return f8_e4m3_value(((DEVICE const uint8_t *)row)[i]);
    case KV_Q4_0:
        return f16_to_f32(four->d) * (float)((four->qs[j % 16] >> (4 * (j / 16)) & 15) - 8);
    default:
        return f16_to_f32(eight->d) * (float)eight->qs[j];
    }
}

/* Dot product of a row of n elements with q. */
FN float kv_dot(uint32_t format, DEVICE const char *row, LOCAL const float *q, int n) {
    float sum = 0;
#define KV_SUM(format)                                                                                                 \
    case format:                                                                                                       \
        for (int i = 0; i < n; i++)                                                                                    \
            sum = fmaf(kv_at(format, row, i), q[i], sum);                                                              \
        break;
    switch (format) {
        KV_SUM(KV_F32)
        KV_SUM(KV_F16)
        KV_SUM(KV_BF16)
        KV_SUM(KV_FP8)
        KV_SUM(KV_Q4_0)
        KV_SUM(KV_Q8_0)
    }
#undef KV_SUM
    return sum;
}

/* Bits of a block's largest magnitude, compared as integers: a NaN is above infinity, and that above all finite numbers. */
FN uint32_t kv_most(THREAD const float *x) {
    uint32_t most = 0;
    for (int i = 0; i < KV_BLOCK; i++) {
        uint32_t a = f32_bits(x[i]) & 0x7FFFFFFFu;
        most = a > most ? a : most;
    }
    return most;
}

/* The nearest code; 0 if the inverse scale or an element of the block is not finite. */
FN int kv_code(float x, float inverse, uint32_t most) {
    return most < 0x7F800000u && f32_is_finite(inverse) ? f32_round_even(x * inverse) : 0;
}

FN void kv_store_q8_0(THREAD const float *x, DEVICE block_q8_0 *y) {
    uint32_t most = kv_most(x);
    float size = f32_from_bits(most), inverse = most ? 127.0f / size : 0.0f;
    y->d = f32_to_f16(most < 0x7F800000u ? size / 127.0f : f32_nan());
    for (int i = 0; i < KV_BLOCK; i++)
        y->qs[i] = (int8_t)kv_code(x[i], inverse, most);
}

/* d = m / -8 for m, the first element of largest magnitude, so that m gets the code -8; the code 8 is clipped to 7. */
FN void kv_store_q4_0(THREAD const float *x, DEVICE block_q4_0 *y) {
    uint32_t most = kv_most(x);
    float extreme = 0.0f, inverse;
    for (int i = KV_BLOCK - 1; i >= 0; i--)
        extreme = (f32_bits(x[i]) & 0x7FFFFFFFu) == most ? x[i] : extreme;
    inverse = most ? -8.0f / extreme : 0.0f;
    y->d = f32_to_f16(most < 0x7F800000u ? extreme / -8.0f : f32_nan());
    for (int i = 0; i < KV_BLOCK / 2; i++) {
        int low = kv_code(x[i], inverse, most), high = kv_code(x[i + 16], inverse, most);
        y->qs[i] = (uint8_t)(((low > 7 ? 7 : low) + 8) | ((high > 7 ? 7 : high) + 8) << 4);
    }
}

/* Stores x as element i of a row in a format whose units are elements. */
FN void kv_store_one(uint32_t format, float x, DEVICE char *row, int i) {
    switch (format) {
    case KV_F32:
        ((DEVICE float *)row)[i] = x;
        break;
    case KV_F16:
        ((DEVICE uint16_t *)row)[i] = f32_to_f16(x);
        break;
    case KV_BF16:
        ((DEVICE uint16_t *)row)[i] = f32_to_bf16(x);
        break;
    default:
        ((DEVICE uint8_t *)row)[i] = fp8_of(x);
    }
}

/* Quantizes a block's elements and stores them as block i of a row. */
FN void kv_store_block(uint32_t format, THREAD const float *x, DEVICE char *row, int i) {
    if (format == KV_Q4_0)
        kv_store_q4_0(x, (DEVICE block_q4_0 *)row + i);
    else
        kv_store_q8_0(x, (DEVICE block_q8_0 *)row + i);
}

#endif
