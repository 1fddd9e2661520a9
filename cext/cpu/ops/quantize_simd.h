/* quantize_simd.h: quantizers of activation rows. The AVX2 versions give exactly the bits of the plain ones in
 * quant/<format>.h, which other sets use.
 */
#ifndef SATCHEL_CPU_QUANTIZE_SIMD_H
#define SATCHEL_CPU_QUANTIZE_SIMD_H

#include "formats.h"
#include "simd/simd.h"
#include "types.h"

#if defined(__AVX2__)

static inline __m256i abs_bits(const float *x) {
    return _mm256_and_si256(_mm256_loadu_si256((const __m256i *)x), _mm256_set1_epi32(0x7FFFFFFF));
}

static inline uint32_t most_lane(__m256i m) {
    __m128i x = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    x = _mm_max_epi32(x, _mm_shuffle_epi32(x, 0x4E));
    x = _mm_max_epi32(x, _mm_shuffle_epi32(x, 0xB1));
    return (uint32_t)_mm_cvtsi128_si32(x);
}

/* Packs four vectors of eight int32, which fit int8, to 32 bytes in order. */
static inline __m256i pack_codes(const __m256i *q) {
    __m256i low = _mm256_packs_epi32(q[0], q[1]), high = _mm256_packs_epi32(q[2], q[3]);
    return _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

static inline int32_t sum_16(const int8_t *qs) {
    __m128i x = _mm_xor_si128(_mm_loadu_si128((const __m128i *)qs), _mm_set1_epi8(-128));
    x = _mm_sad_epu8(x, _mm_setzero_si128());
    return _mm_cvtsi128_si32(x) + _mm_extract_epi16(x, 4) - 16 * 128;
}

static inline void block_32(const float *x, block_a8_32 *out) {
    __m256i m = _mm256_max_epi32(_mm256_max_epi32(abs_bits(x), abs_bits(x + 8)),
                                 _mm256_max_epi32(abs_bits(x + 16), abs_bits(x + 24)));
    uint32_t most = most_lane(m);
    float inverse = most ? 127.0f / f32_from_bits(most) : 0.0f;
    __m256i q[4];
    out->d = f16_to_f32(f32_to_f16(most >= 0x7F800000u ? f32_nan() : f32_from_bits(most) / 127.0f));
    if (most >= 0x7F800000u || !f32_is_finite(inverse)) {
        out->sum = 0;
        memset(out->qs, 0, 32);
        return;
    }
    for (int i = 0; i < 4; i++) {
        __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), _mm256_set1_ps(inverse));
        q[i] = _mm256_cvtps_epi32(_mm256_round_ps(v, 8));
    }
    _mm256_storeu_si256((__m256i *)out->qs, pack_codes(q));
    out->sum = sum_16(out->qs) + sum_16(out->qs + 16);
}

static inline void row_a8_32(const float *x, block_a8_32 *out, int n_blocks) {
    for (int i = 0; i < n_blocks; i++)
        block_32(x + 32 * i, out + i);
}

/* The first of 256 elements whose magnitude has these bits. */
static inline float first_of(const float *x, uint32_t most) {
    for (int i = 0; i < 256; i += 8) {
        __m256i same = _mm256_cmpeq_epi32(abs_bits(x + i), _mm256_set1_epi32((int32_t)most));
        int mask = _mm256_movemask_ps(_mm256_castsi256_ps(same));
        if (mask)
            return x[i + __builtin_ctz((unsigned)mask)];
    }
    return 0.0f;
}

static inline void block_256(const float *x, block_a8_256 *out) {
    __m256i m = abs_bits(x), q[4];
    uint32_t most;
    float extreme, scale;
    for (int i = 8; i < 256; i += 8)
        m = _mm256_max_epi32(m, abs_bits(x + i));
    most = most_lane(m);
    extreme = first_of(x, most);
    scale = most ? -127.0f / extreme : 0.0f;
    if (most >= 0x7F800000u || !most || !f32_is_finite(scale)) {
        memset(out, 0, sizeof *out);
        out->d = most >= 0x7F800000u ? f32_nan() : 0.0f;
        return;
    }
    for (int i = 0; i < 256; i += 32) {
        for (int j = 0; j < 4; j++) {
            __m256 v = _mm256_mul_ps(_mm256_set1_ps(scale), _mm256_loadu_ps(x + i + 8 * j));
            q[j] = _mm256_min_epi32(_mm256_cvtps_epi32(_mm256_round_ps(v, 8)), _mm256_set1_epi32(127));
        }
        _mm256_storeu_si256((__m256i *)(out->qs + i), pack_codes(q));
        out->sums[i / 16] = (int16_t)sum_16(out->qs + i);
        out->sums[i / 16 + 1] = (int16_t)sum_16(out->qs + i + 16);
        out->sums32[i / 32] = (int16_t)(out->sums[i / 16] + out->sums[i / 16 + 1]);
    }
    out->d = 1.0f / scale;
    memset(out->pad, 0, sizeof out->pad);
}

static inline void row_a8_256(const float *x, block_a8_256 *out, int n_blocks) {
    for (int i = 0; i < n_blocks; i++)
        block_256(x + 256 * i, out + i);
}

#else
#define row_a8_32 a8_32_quantize
#define row_a8_256 a8_256_quantize
#endif

static inline void row_f16(const float *x, uint16_t *out, int n) {
    int i = 0;
    for (; i + LANES <= n; i += LANES)
        vf_store_f16(out + i, vf_load(x + i));
    for (; i < n; i++)
        out[i] = f32_to_f16(x[i]);
}

static inline void row_bf16(const float *x, uint16_t *out, int n) {
    for (int i = 0; i < n; i++)
        out[i] = f32_to_bf16(x[i]);
}

enum { QUANTIZE_F16 = 1, QUANTIZE_BF16 = 30 };

static inline int is_activation(uint32_t format) {
    return format == TYPE_a8_32 || format == TYPE_a8_256 || format == TYPE_bf16x2 || format == QUANTIZE_F16 ||
           format == QUANTIZE_BF16;
}

/* Address of element n, a multiple of 256, of a row of this format. */
static inline uint8_t *quantize_at(uint32_t format, uint8_t *row, int64_t n) {
    switch (format) {
    case TYPE_a8_32:
        return row + n / 32 * (int64_t)sizeof(block_a8_32);
    case TYPE_a8_256:
        return row + n / 256 * (int64_t)sizeof(block_a8_256);
    case TYPE_bf16x2:
        return row + n / 32 * (int64_t)sizeof(block_bf16x2);
    }
    return row + 2 * n;
}

static inline void quantize_row(uint32_t format, const float *x, void *y, int n) {
    switch (format) {
    case TYPE_a8_32:
        row_a8_32(x, y, n / 32);
        break;
    case TYPE_a8_256:
        row_a8_256(x, y, n / 256);
        break;
    case TYPE_bf16x2:
        bf16x2_quantize(x, y, n / 32);
        break;
    case QUANTIZE_F16:
        row_f16(x, y, n);
        break;
    case QUANTIZE_BF16:
        row_bf16(x, y, n);
        break;
    }
}

#endif
