/* kv_rows.h: converts rows of a KV cache between float32 and every cache format. A row is one head of one position.
 *
 * f32, f16, bf16 and fp8 store each element alone; q8_0 and q4_0 store blocks of 32 with one f16 scale, bit-identical to the
 * definition (quant/cache.py). A block with a NaN or an infinity gets the scale NaN.
 */
#ifndef SATCHEL_CPU_KV_ROWS_H
#define SATCHEL_CPU_KV_ROWS_H

#include "fp8.h"
#include "q4_0.h"
#include "q8_0.h"
#include "simd/simd.h"

enum { KV_F32 = 0, KV_F16 = 1, KV_Q4_0 = 2, KV_Q8_0 = 8, KV_BF16 = 30, KV_FP8 = 1008, KV_BLOCK = 32 };

/* Vectors of LANES small integers. */
typedef int8_t kv_i8 __attribute__((vector_size(LANES)));
typedef uint8_t kv_u8 __attribute__((vector_size(LANES)));
typedef uint16_t kv_u16 __attribute__((vector_size(2 * LANES)));
typedef int32_t kv_i32 __attribute__((vector_size(4 * LANES)));

/* Bytes of n elements, whole blocks; 0: not a cache format. */
static inline uint64_t kv_bytes(uint32_t format, int64_t n) {
    switch (format) {
    case KV_F32:
        return 4 * (uint64_t)n;
    case KV_F16:
    case KV_BF16:
        return 2 * (uint64_t)n;
    case KV_FP8:
        return (uint64_t)n;
    case KV_Q4_0:
        return (uint64_t)n / KV_BLOCK * sizeof(block_q4_0);
    case KV_Q8_0:
        return (uint64_t)n / KV_BLOCK * sizeof(block_q8_0);
    }
    return 0;
}

static inline void kv_load_half(uint32_t format, const uint16_t *from, float *to, int n) {
    int i = 0;
    if (format == KV_F16)
        for (; i + LANES <= n; i += LANES)
            vf_store(to + i, vf_load_f16(from + i));
    else
        for (; i + LANES <= n; i += LANES)
            vf_store(to + i, vf_load_bf16(from + i));
    for (; i < n; i++)
        to[i] = format == KV_F16 ? f16_to_f32(from[i]) : bf16_to_f32(from[i]);
}

static inline kv_u8 kv_bytes_at(const void *from) {
    kv_u8 x;
    memcpy(&x, from, sizeof x);
    return x;
}

static inline vf kv_floats(kv_i8 x) {
    return (vf) __builtin_convertvector(__builtin_convertvector(x, kv_i32), vf);
}

/* Converts by way of f16 and a factor of 256, the difference of exponent biases, so subnormals need no special case. */
static inline void kv_load_fp8(const uint8_t *from, float *to, int n) {
    int i = 0;
    for (; i + LANES <= n; i += LANES) {
        kv_u16 x = __builtin_convertvector(kv_bytes_at(from + i), kv_u16), size = x & 0x7F;
        kv_u16 bits = (x & 0x80) << 8 | size << 7 | ((kv_u16)(size == 0x7F) & 0x7E00);
        uint16_t halves[LANES];
        memcpy(halves, &bits, sizeof bits);
        vf_store(to + i, vf_load_f16(halves) * vf_set(256.0f));
    }
    for (; i < n; i++)
        to[i] = f8_e4m3_value(from[i]);
}

static inline void kv_load_q4_0(const block_q4_0 *b, float *to) {
    vf d = vf_set(f16_to_f32(b->d));
    for (int i = 0; i < KV_BLOCK / 2; i += LANES) {
        kv_u8 x = kv_bytes_at(b->qs + i);
        vf_store(to + i, d * kv_floats((kv_i8)(x & 15) - 8));
        vf_store(to + i + KV_BLOCK / 2, d * kv_floats((kv_i8)(x >> 4) - 8));
    }
}

/* Dequantizes n elements, whole blocks, to float32. */
static inline void kv_load(uint32_t format, const void *from, float *to, int n) {
    const block_q8_0 *eight = from;
    const block_q4_0 *four = from;
    switch (format) {
    case KV_F32:
        memcpy(to, from, sizeof(float) * (size_t)n);
        break;
    case KV_Q8_0:
        for (int i = 0; i < n; i += KV_BLOCK)
            q8_0_unpack(eight++, to + i);
        break;
    case KV_Q4_0:
        for (int i = 0; i < n; i += KV_BLOCK)
            kv_load_q4_0(four++, to + i);
        break;
    case KV_FP8:
        kv_load_fp8(from, to, n);
        break;
    default:
        kv_load_half(format, from, to, n);
    }
}

/* Bits of the block's largest magnitude, compared as integers: a NaN is above infinity, and that above all finite numbers. */
static inline uint32_t kv_most(const float *x) {
    uint32_t most = 0;
    for (int i = 0; i < KV_BLOCK; i++) {
        uint32_t a = f32_bits(x[i]) & 0x7FFFFFFFu;
        most = a > most ? a : most;
    }
    return most;
}

/* Nearest codes of x * inverse; all 0 if the inverse or an element of the block is not finite. */
static inline void kv_codes(const float *x, float inverse, uint32_t most, int8_t *codes) {
    float q[KV_BLOCK] = {0};
    if (most < 0x7F800000u && f32_is_finite(inverse))
        for (int i = 0; i < KV_BLOCK; i += LANES)
            vf_store(q + i, vf_round(vf_load(x + i) * vf_set(inverse)));
    for (int i = 0; i < KV_BLOCK; i++)
        codes[i] = (int8_t)q[i];
}

static inline void kv_store_q8_0(const float *x, block_q8_0 *y) {
    uint32_t most = kv_most(x);
    float size = f32_from_bits(most);
    y->d = f32_to_f16(most < 0x7F800000u ? size / 127.0f : f32_nan());
    kv_codes(x, most ? 127.0f / size : 0.0f, most, y->qs);
}

/* d = m / -8 for m, the first element of largest magnitude, so that m gets the code -8; the code 8 is clipped to 7. */
static inline void kv_store_q4_0(const float *x, block_q4_0 *y) {
    uint32_t most = kv_most(x);
    float extreme = 0.0f;
    int8_t q[KV_BLOCK];
    for (int i = KV_BLOCK - 1; i >= 0; i--)
        extreme = (f32_bits(x[i]) & 0x7FFFFFFFu) == most ? x[i] : extreme;
    y->d = f32_to_f16(most < 0x7F800000u ? extreme / -8.0f : f32_nan());
    kv_codes(x, most ? -8.0f / extreme : 0.0f, most, q);
    for (int i = 0; i < KV_BLOCK / 2; i++) {
        int low = q[i] > 7 ? 7 : q[i], high = q[i + 16] > 7 ? 7 : q[i + 16];
        y->qs[i] = (uint8_t)((low + 8) | (high + 8) << 4);
    }
}

static inline void kv_store_half(uint32_t format, const float *x, uint16_t *to, int n) {
    int i = 0;
    if (format == KV_F16)
        for (; i + LANES <= n; i += LANES)
            vf_store_f16(to + i, vf_load(x + i));
    for (; i < n; i++)
        to[i] = format == KV_F16 ? f32_to_f16(x[i]) : f32_to_bf16(x[i]);
}

/* Quantizes n elements, whole blocks, to the cache's format. */
static inline void kv_store(uint32_t format, const float *x, void *to, int n) {
    block_q8_0 *eight = to;
    block_q4_0 *four = to;
    switch (format) {
    case KV_F32:
        memcpy(to, x, sizeof(float) * (size_t)n);
        break;
    case KV_Q8_0:
        for (int i = 0; i < n; i += KV_BLOCK)
            kv_store_q8_0(x + i, eight++);
        break;
    case KV_Q4_0:
        for (int i = 0; i < n; i += KV_BLOCK)
            kv_store_q4_0(x + i, four++);
        break;
    case KV_FP8:
        fp8_quantize(x, to, n);
        break;
    default:
        kv_store_half(format, x, to, n);
    }
}

#endif
