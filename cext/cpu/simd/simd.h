/* simd.h: vf, a vector of LANES floats, and its operations for each instruction set.
 *
 * vf_fma is fused where the set has the instruction, vf_fused always. vf_sum adds lanes in a fixed order, so a reduction
 * depends on its length and the set alone. A tail of n < LANES elements is loaded with zeros after it.
 */
#ifndef SATCHEL_CPU_SIMD_H
#define SATCHEL_CPU_SIMD_H

#include <string.h>

#include "half.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#define LANES 16
typedef __m512 vf;
static inline vf vf_set(float x) {
    return _mm512_set1_ps(x);
}
static inline vf vf_load(const float *p) {
    return _mm512_loadu_ps(p);
}
static inline void vf_store(float *p, vf x) {
    _mm512_storeu_ps(p, x);
}
static inline vf vf_fma(vf a, vf b, vf c) {
    return _mm512_fmadd_ps(a, b, c);
}
static inline vf vf_max(vf a, vf b) {
    return _mm512_max_ps(a, b);
}
static inline vf vf_min(vf a, vf b) {
    return _mm512_min_ps(a, b);
}
static inline vf vf_round(vf x) {
    return _mm512_roundscale_ps(x, 8);
}
static inline vf vf_scale(vf x, vf power) {
    return _mm512_scalef_ps(x, power);
}
static inline vf vf_load_f16(const uint16_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
static inline void vf_store_f16(uint16_t *p, vf x) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(x, 8));
}
static inline vf vf_load_bf16(const uint16_t *p) {
    __m512i bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}
static inline float vf_sum(vf x) {
    __m256 y = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 z = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    z = _mm_add_ps(z, _mm_movehl_ps(z, z));
    return _mm_cvtss_f32(_mm_add_ss(z, _mm_movehdup_ps(z)));
}
#elif defined(__AVX2__)
#include <immintrin.h>
#define LANES 8
typedef __m256 vf;
static inline vf vf_set(float x) {
    return _mm256_set1_ps(x);
}
static inline vf vf_load(const float *p) {
    return _mm256_loadu_ps(p);
}
static inline void vf_store(float *p, vf x) {
    _mm256_storeu_ps(p, x);
}
static inline vf vf_fma(vf a, vf b, vf c) {
    return _mm256_fmadd_ps(a, b, c);
}
static inline vf vf_max(vf a, vf b) {
    return _mm256_max_ps(a, b);
}
static inline vf vf_min(vf a, vf b) {
    return _mm256_min_ps(a, b);
}
static inline vf vf_round(vf x) {
    return _mm256_round_ps(x, 8);
}
static inline vf vf_scale(vf x, vf power) {
    /* Two factors, because 2^power alone may not be a normal number; -200 <= power <= 200. */
    __m256i n = _mm256_cvtps_epi32(power), half = _mm256_srai_epi32(n, 1), bias = _mm256_set1_epi32(127);
    __m256i rest = _mm256_sub_epi32(n, half);
    x = _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23)));
    return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23)));
}
static inline vf vf_load_f16(const uint16_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
static inline void vf_store_f16(uint16_t *p, vf x) {
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x, 8));
}
static inline vf vf_load_bf16(const uint16_t *p) {
    __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
}
static inline float vf_sum(vf x) {
    __m128 z = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    z = _mm_add_ps(z, _mm_movehl_ps(z, z));
    return _mm_cvtss_f32(_mm_add_ss(z, _mm_movehdup_ps(z)));
}
#else
#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__wasm_simd128__)
#include <wasm_simd128.h>
#endif
#define LANES 4
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vf_int __attribute__((vector_size(16)));
static inline vf vf_set(float x) {
    return (vf){x, x, x, x};
}
static inline vf vf_load(const float *p) {
    vf x;
    memcpy(&x, p, sizeof x);
    return x;
}
static inline void vf_store(float *p, vf x) {
    memcpy(p, &x, sizeof x);
}
static inline vf vf_pick(vf_int which, vf a, vf b) {
    return (vf)((which & (vf_int)a) | (~which & (vf_int)b));
}
/* As x86's maxps: b if the operands are unordered, so a NaN in b stays. */
static inline vf vf_max(vf a, vf b) {
    return vf_pick(a > b, a, b);
}
static inline vf vf_min(vf a, vf b) {
    return vf_pick(a < b, a, b);
}
static inline vf vf_round(vf x) {
    vf big = vf_set(12582912.0f); /* 1.5 * 2^23: what is added to it is rounded to an integer; |x| < 2^22 */
    return (x + big) - big;
}
static inline vf vf_scale(vf x, vf power) {
    vf_int n = (vf_int)(power + vf_set(12582912.0f)) - (vf_int)vf_set(12582912.0f), half = n >> 1;
    x = x * (vf)((half + 127) << 23);
    return x * (vf)((n - half + 127) << 23);
}
#if defined(__aarch64__)
static inline vf vf_fma(vf a, vf b, vf c) {
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
static inline vf vf_load_f16(const uint16_t *p) {
    return (vf)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
static inline void vf_store_f16(uint16_t *p, vf x) {
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)x)));
}
static inline vf vf_load_bf16(const uint16_t *p) {
    return (vf)vshll_n_u16(vld1_u16(p), 16);
}
#else
static inline vf vf_fma(vf a, vf b, vf c) {
    return a * b + c;
}
static inline vf vf_load_f16(const uint16_t *p) {
    return (vf){f16_to_f32(p[0]), f16_to_f32(p[1]), f16_to_f32(p[2]), f16_to_f32(p[3])};
}
static inline void vf_store_f16(uint16_t *p, vf x) {
    for (int i = 0; i < LANES; i++)
        p[i] = f32_to_f16(x[i]);
}
static inline vf vf_load_bf16(const uint16_t *p) {
    return (vf){bf16_to_f32(p[0]), bf16_to_f32(p[1]), bf16_to_f32(p[2]), bf16_to_f32(p[3])};
}
#endif
static inline float vf_sum(vf x) {
    return (x[0] + x[2]) + (x[1] + x[3]);
}
#endif

#if LANES > 4 || defined(__aarch64__)
static inline vf vf_fused(vf a, vf b, vf c) {
    return vf_fma(a, b, c);
}
#else
/* Emulates fused multiply-add, faster than libm: the product is exact in double; the sum is rounded to odd in double, so the
 * rounding to 24 bits is correct (Boldo & Melquiond, "Emulation of a FMA and correctly rounded sums", 2008). Knuth's two-sum
 * gives the rounding error exactly. */
static inline vf vf_fused(vf a, vf b, vf c) {
    typedef double vd __attribute__((vector_size(8 * LANES)));
    typedef int64_t vl __attribute__((vector_size(8 * LANES)));
    vd product = __builtin_convertvector(a, vd) * __builtin_convertvector(b, vd), add = __builtin_convertvector(c, vd);
    vd sum = product + add, part = sum - product, lost = (product - (sum - part)) + (add - part);
    vl away = (vl)((lost < 0) ^ (sum < 0)) | 1; /* -1 if the sum's magnitude was rounded up, else 1 */
    vl even = ((vl)sum & 1) - 1;
    sum = (vd)((vl)sum + (away & even & (vl)((lost < 0) | (lost > 0))));
    return __builtin_convertvector(sum, vf);
}
#endif

static inline float vf_most(vf x) {
    float a[LANES], most;
    vf_store(a, x);
    most = a[0];
    for (int i = 1; i < LANES; i++)
        most = a[i] > most ? a[i] : most;
    return most;
}

static inline vf vf_load_n(const float *p, int n) {
    float a[LANES] = {0};
    memcpy(a, p, sizeof(float) * (size_t)n);
    return vf_load(a);
}

static inline void vf_store_n(float *p, vf x, int n) {
    float a[LANES];
    vf_store(a, x);
    memcpy(p, a, sizeof(float) * (size_t)n);
}

/* e^x to about one unit in the last place: x = n ln 2 + r, |r| <= ln 2 / 2, and e^r by its series to r^7. */
static inline vf vf_exp(vf x) {
    vf n, r, y;
    x = vf_min(vf_set(90.0f), vf_max(vf_set(-105.0f), x));
    n = vf_round(x * vf_set(1.44269504f));
    /* ln 2 in two parts; the first has enough trailing zeros that its product with n is exact */
    r = vf_fma(n, vf_set(-0.693145752f), x);
    r = vf_fma(n, vf_set(-1.42860677e-6f), r);
    y = vf_set(1.0f / 5040);
    y = vf_fma(y, r, vf_set(1.0f / 720));
    y = vf_fma(y, r, vf_set(1.0f / 120));
    y = vf_fma(y, r, vf_set(1.0f / 24));
    y = vf_fma(y, r, vf_set(1.0f / 6));
    y = vf_fma(y, r, vf_set(0.5f));
    y = vf_fma(y, r, vf_set(1.0f));
    y = vf_fma(y, r, vf_set(1.0f));
    return vf_scale(y, n);
}

/* a where the lanes of `which` are all ones, b where they are zero. */
typedef int32_t vf_mask __attribute__((vector_size(4 * LANES)));
static inline vf vf_where(vf_mask which, vf a, vf b) {
    return (vf)((which & (vf_mask)a) | (~which & (vf_mask)b));
}

/* tanh x; below 1/4 by its series to x^9, because 1 - e^-2x cancels there. */
static inline vf vf_tanh(vf x) {
    vf size = vf_max(x, vf_set(0) - x), square = x * x, t, y, near;
    vf_mask small = (vf_mask)(size < vf_set(0.25f)), negative = (vf_mask)(x < vf_set(0));
    near = vf_fma(square, vf_set(62.0f / 2835), vf_set(-17.0f / 315));
    near = vf_fma(square, near, vf_set(2.0f / 15));
    near = vf_fma(square, near, vf_set(-1.0f / 3));
    near = vf_fma(x * square, near, x);
    t = vf_exp(vf_set(-2.0f) * size);
    y = (vf_set(1) - t) / (vf_set(1) + t);
    return vf_where(small, near, vf_where(negative, vf_set(0) - y, y));
}

#endif
