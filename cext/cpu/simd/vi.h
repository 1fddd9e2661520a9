/* vi.h: vi, a vector of LANES 32-bit integers, for the integer products of panels; simd.h has the vector of floats.
 *
 * Arithmetic, shifts and masks are the compiler's vector operators; this header adds the rest. A lane of codes or activations
 * is four bytes. dot4 takes unsigned codes below 128. dot4_signed takes signed codes in the form that sign_codes() gives, into
 * sums that start_signed() initialized; both correct for instructions whose one operand is unsigned. vi_lookup looks up bytes
 * in a table of 16; vi_gather looks up lanes in a table of words.
 */
#ifndef SATCHEL_CPU_VI_H
#define SATCHEL_CPU_VI_H

#include "simd.h"

typedef int32_t vi __attribute__((vector_size(4 * LANES)));
typedef uint32_t vu __attribute__((vector_size(4 * LANES)));

#define VI_INLINE static inline __attribute__((always_inline))

VI_INLINE vi vi_load(const void *p) {
    vi x;
    memcpy(&x, p, sizeof x);
    return x;
}
VI_INLINE void vi_store(void *p, vi x) {
    memcpy(p, &x, sizeof x);
}
VI_INLINE vi vi_set(int32_t x) {
    return (vi){0} + x;
}
/* Zero-extends LANES bytes to lanes. */
VI_INLINE vi vi_load_bytes(const uint8_t *p) {
#if LANES == 16
    return (vi)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
#elif LANES == 8
    return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
#else
    return (vi){p[0], p[1], p[2], p[3]};
#endif
}
VI_INLINE vi vi_set_at(const void *p) {
    int32_t x;
    memcpy(&x, p, sizeof x);
    return vi_set(x);
}
VI_INLINE vi vi_shift_right(vi x, int n) {
    return (vi)((vu)x >> (uint32_t)n);
} /* logical shift */
VI_INLINE vf vi_to_vf(vi x) {
    return (vf) __builtin_convertvector(x, vf);
}

/* Byte n (0..3) of each lane, without or with its sign. */
VI_INLINE vi vi_byte(vi x, int n) {
    return vi_shift_right(x, 8 * n) & 255;
}
VI_INLINE vi vi_signed_byte(vi x, int n) {
    return x << (24 - 8 * n) >> 24;
}

/* Per lane: sum plus four products of bytes; a's bytes are unsigned or signed (is_signed), b's signed. */
VI_INLINE vi dot4_plain(vi sum, vi a, vi b, int is_signed) {
    for (int n = 0; n < 4; n++)
        sum += (is_signed ? vi_signed_byte(a, n) : vi_byte(a, n)) * vi_signed_byte(b, n);
    return sum;
}

/* Per lane: sum plus two products of int16. */
VI_INLINE vi dot2_plain(vi sum, vi a, vi b) {
    return sum + (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
}

#if defined(__AVX512VNNI__)
#define SIGNED_BIAS 128
VI_INLINE vi dot4(vi sum, vi a, vi b) {
    return (vi)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
}
VI_INLINE vi dot2(vi sum, vi a, vi b) {
    return (vi)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
}
VI_INLINE vf vf_halves(vi x) {
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)x));
}
#elif defined(__AVX2__)
#if defined(__AVXVNNI__)
#define SIGNED_BIAS 128
VI_INLINE vi dot4(vi sum, vi a, vi b) {
    return (vi)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)a, (__m256i)b);
}
#else
VI_INLINE vi dot4(vi sum, vi a, vi b) {
    __m256i pairs = _mm256_maddubs_epi16((__m256i)a, (__m256i)b); /* 127 * 127 * 2 fits */
    return sum + (vi)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}
VI_INLINE vi dot4_signed(vi sum, vi a, vi b) { /* |a| may be 128, |b| is at most 127 */
    return dot4(sum, (vi)_mm256_abs_epi8((__m256i)a), (vi)_mm256_sign_epi8((__m256i)b, (__m256i)a));
}
#endif
VI_INLINE vi dot2(vi sum, vi a, vi b) {
    return sum + (vi)_mm256_madd_epi16((__m256i)a, (__m256i)b);
}
VI_INLINE vf vf_halves(vi x) {
    __m256i low = (__m256i)(x & 0xFFFF);
    return _mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1)));
}
#elif defined(__aarch64__)
#if defined(__ARM_FEATURE_DOTPROD)
VI_INLINE vi dot4(vi sum, vi a, vi b) {
    return (vi)vdotq_s32((int32x4_t)sum, (int8x16_t)a, (int8x16_t)b);
}
#else
VI_INLINE vi dot4(vi sum, vi a, vi b) { /* 128 * 127 * 2 fits 16 bits */
    int16x8_t low = vmull_s8(vget_low_s8((int8x16_t)a), vget_low_s8((int8x16_t)b));
    int16x8_t high = vmull_high_s8((int8x16_t)a, (int8x16_t)b);
    return (vi)vpadalq_s16((int32x4_t)sum, vpaddq_s16(low, high));
}
#endif
VI_INLINE vi dot4_signed(vi sum, vi a, vi b) {
    return dot4(sum, a, b);
}
VI_INLINE vi dot2(vi sum, vi a, vi b) {
    int32x4_t low = vmull_s16(vget_low_s16((int16x8_t)a), vget_low_s16((int16x8_t)b));
    return sum + (vi)vpaddq_s32(low, vmull_high_s16((int16x8_t)a, (int16x8_t)b));
}
VI_INLINE vf vf_halves(vi x) {
    return (vf)vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32((uint32x4_t)x)));
}
#elif defined(__wasm_simd128__)
/* Bytes 0 and 2, then 1 and 3 of each lane, as 16-bit numbers. */
VI_INLINE vi dot4_signed(vi sum, vi a, vi b) {
    v128_t even = wasm_i32x4_dot_i16x8(wasm_i16x8_shr(wasm_i16x8_shl((v128_t)a, 8), 8),
                                       wasm_i16x8_shr(wasm_i16x8_shl((v128_t)b, 8), 8));
    v128_t odd = wasm_i32x4_dot_i16x8(wasm_i16x8_shr((v128_t)a, 8), wasm_i16x8_shr((v128_t)b, 8));
    return sum + (vi)even + (vi)odd;
}
#if defined(__wasm_relaxed_simd__)
VI_INLINE vi dot4(vi sum, vi a, vi b) { /* exact on every engine, because a has 7 bits */
    return (vi)wasm_i32x4_relaxed_dot_i8x16_i7x16_add((v128_t)b, (v128_t)a, (v128_t)sum);
}
/* Pairs of int16 whose sums are dot4(0, a, lane at x) + dot4(0, b, lane at y), for a and b below 64: 63 * 127 * 4 fits. */
#define DOT4_IN_16_BITS
VI_INLINE vi dot4_pairs(vi a, const int8_t *x, vi b, const int8_t *y) {
    return (vi)wasm_i16x8_add(wasm_i16x8_relaxed_dot_i8x16_i7x16(wasm_v128_load32_splat(x), (v128_t)a),
                              wasm_i16x8_relaxed_dot_i8x16_i7x16(wasm_v128_load32_splat(y), (v128_t)b));
}
#else
VI_INLINE vi dot4(vi sum, vi a, vi b) {
    v128_t even = wasm_i32x4_dot_i16x8(wasm_v128_and((v128_t)a, wasm_i16x8_splat(255)),
                                       wasm_i16x8_shr(wasm_i16x8_shl((v128_t)b, 8), 8));
    v128_t odd = wasm_i32x4_dot_i16x8(wasm_u16x8_shr((v128_t)a, 8), wasm_i16x8_shr((v128_t)b, 8));
    return sum + (vi)even + (vi)odd;
}
#endif
VI_INLINE vi dot2(vi sum, vi a, vi b) {
    return sum + (vi)wasm_i32x4_dot_i16x8((v128_t)a, (v128_t)b);
}
VI_INLINE vf vf_halves(vi x) {
    vf y;
    for (int i = 0; i < LANES; i++)
        y[i] = f16_to_f32((uint16_t)x[i]);
    return y;
}
#else
VI_INLINE vi dot4(vi sum, vi a, vi b) {
    return dot4_plain(sum, a, b, 0);
}
VI_INLINE vi dot4_signed(vi sum, vi a, vi b) {
    return dot4_plain(sum, a, b, 1);
}
VI_INLINE vi dot2(vi sum, vi a, vi b) {
    return dot2_plain(sum, a, b);
}
VI_INLINE vf vf_halves(vi x) {
    vf y;
    for (int i = 0; i < LANES; i++)
        y[i] = f16_to_f32((uint16_t)x[i]);
    return y;
}
#endif

/* As dot4, with one lane of b broadcast from an address: one instruction with a broadcast operand, which gcc 12 splits in
 * two. */
#if defined(__AVX512VNNI__)
VI_INLINE vi dot4_at(vi sum, vi a, const void *b) {
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(a), "m"(*(const char (*)[4])b));
    return sum;
}
VI_INLINE vi dot2_at(vi sum, vi a, const void *b) {
    __asm__("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(a), "m"(*(const char (*)[4])b));
    return sum;
}
#else
VI_INLINE vi dot4_at(vi sum, vi a, const void *b) {
    return dot4(sum, a, vi_set_at(b));
}
VI_INLINE vi dot2_at(vi sum, vi a, const void *b) {
    return dot2(sum, a, vi_set_at(b));
}
#endif

#if defined(SIGNED_BIAS) /* codes are stored as a + 128, unsigned; start_signed() subtracts the bias from the sum */
VI_INLINE vi sign_codes(vi a) {
    return a ^ (int32_t)0x80808080;
}
VI_INLINE vi dot4_signed(vi sum, vi a, vi b) {
    return dot4(sum, a, b);
}
#else
#define SIGNED_BIAS 0
VI_INLINE vi sign_codes(vi a) {
    return a;
}
#endif

/* Entry of a signed code in a table for vi_lookup. */
#define SIGN_CODE(x) (uint8_t)((x) + SIGNED_BIAS)

#if defined(__AVX512BW__)
VI_INLINE vi vi_lookup(const uint8_t *table, vi which) {
    __m512i t = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)table));
    return (vi)_mm512_shuffle_epi8(t, (__m512i)which);
}
VI_INLINE vi vi_gather(const uint32_t *table, vi which) {
    return (vi)_mm512_i32gather_epi32((__m512i)which, table, 4);
}
#elif defined(__AVX2__)
VI_INLINE vi vi_lookup(const uint8_t *table, vi which) {
    __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table));
    return (vi)_mm256_shuffle_epi8(t, (__m256i)which);
}
VI_INLINE vi vi_gather(const uint32_t *table, vi which) {
    return (vi)_mm256_i32gather_epi32((const int *)table, (__m256i)which, 4);
}
#else
#if defined(__aarch64__)
VI_INLINE vi vi_lookup(const uint8_t *table, vi which) {
    return (vi)vqtbl1q_u8(vld1q_u8(table), (uint8x16_t)which);
}
#elif defined(__wasm_simd128__)
VI_INLINE vi vi_lookup(const uint8_t *table, vi which) {
    return (vi)wasm_i8x16_swizzle(wasm_v128_load(table), (v128_t)which);
}
#else
/* Not inlined: it is long, and kernels use it many times. */
static __attribute__((noinline, unused)) vi vi_lookup(const uint8_t *table, vi which) {
    uint8_t bytes[sizeof which];
    memcpy(bytes, &which, sizeof bytes);
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = table[bytes[i] & 15];
    return vi_load(bytes);
}
#endif
VI_INLINE vi vi_gather(const uint32_t *table, vi which) {
    vi y;
    for (int i = 0; i < LANES; i++)
        y[i] = (int32_t)table[which[i]];
    return y;
}
#endif

/* Initial value of a sum of signed codes; sum: the sum of the activations. */
VI_INLINE vi start_signed(int32_t sum) {
    return vi_set(-SIGNED_BIAS * sum);
}

/* 16-bit numbers in the low and high halves of lanes as bfloat16. */
VI_INLINE vf vf_low_bf16(vi x) {
    return (vf)(x << 16);
}
VI_INLINE vf vf_high_bf16(vi x) {
    return (vf)(x & (int32_t)0xFFFF0000);
}

#endif
