/* codes_256.h: helpers that extract codes and scales of super-block formats from panels. */
#ifndef SATCHEL_CPU_CODES_256_H
#define SATCHEL_CPU_CODES_256_H

#include "points_at.h"
#include "product_256.h"

/* Two-bit codes of group g; their words begin at `first`. */
VI_INLINE void pairs_of_bits(const uint8_t *words, int first, int g, vi *q) {
    UNROLL_FOR (int j = 0; j < 8; j++)
        q[j] = vi_shift_right(word(words, first + 8 * (g / 4) + j), 2 * (g % 4)) & 0x03030303;
}

/* Scales of a format without group scales: the tail (f16) is d. */
VI_INLINE void one_scale(const uint8_t *tail, scales_256 *s) {
    UNROLL_FOR (int g = 0; g < 8; g++)
        s->scale[g] = vi_set(1);
    scale_pairs(s, 8);
    s->d = vf_load_f16((const uint16_t *)tail);
}

/* Scales of groups of 16: 2 q + 1 for each nibble q of the two words from `first` on, times d / 8; the tail (f16) is d. */
VI_INLINE void nibble_scales(const uint8_t *words, const uint8_t *tail, int first, scales_256 *s) {
    UNROLL_FOR (int g = 0; g < 16; g++)
        s->scale[g] = (vi_shift_right(word(words, first + g / 8), 4 * (g % 8)) & 15) * 2 + 1;
    scale_pairs(s, 16);
    s->d = vf_load_f16((const uint16_t *)tail) * vf_set(0.125f);
}

enum { IQ_LIFT = 64 /* bias that makes codes of iq2 and iq3 unsigned */ };

/* Moves bit `bit` of each byte of signs to bit 3, the sign bit of a value's index: a table of values has the positive values,
 * then, from 8 on, the negative ones. */
VI_INLINE vi sign_at(vi signs, int bit) {
    return (bit < 3 ? signs << (3 - bit) : vi_shift_right(signs, bit - 3)) & 0x08080808;
}

static const uint8_t iq2_values[16] = {[0] = IQ_LIFT + 8, IQ_LIFT + 25, IQ_LIFT + 43,
                                       [8] = IQ_LIFT - 8, IQ_LIFT - 25, IQ_LIFT - 43};

/* Replaces the scale by the eighth signs, the parities of each field's seven signs (a group has an even number of minus
 * signs). */
VI_INLINE vi even_signs(vi word) {
    vi signs = word & 0x0FFFFFFF, parity = signs ^ vi_shift_right(signs, 16);
    parity ^= vi_shift_right(parity, 8);
    return signs | (parity ^ vi_shift_right(parity, 4)) << 28;
}

#if defined(__AVX512VBMI__)
#define FOUR_TIMES(...) __VA_ARGS__, __VA_ARGS__, __VA_ARGS__, __VA_ARGS__
#define SIXTEEN_TIMES(...) FOUR_TIMES(FOUR_TIMES(__VA_ARGS__))
#define IQ2_VALUES IQ_LIFT + 8, IQ_LIFT + 25, IQ_LIFT + 43, 0
/* Tables of values indexed by bits 0-1 or by bits 4-5; the other bits do not matter. */
static const uint8_t iq2_low[64] = {SIXTEEN_TIMES(IQ2_VALUES)};
static const uint8_t iq2_high[64] = {SIXTEEN_TIMES(IQ_LIFT + 8), SIXTEEN_TIMES(IQ_LIFT + 25),
                                     SIXTEEN_TIMES(IQ_LIFT + 43)};

/* Values of 64 indexes, biased by IQ_LIFT: IQ_LIFT - v where the byte of signs has this bit, else IQ_LIFT + v. */
VI_INLINE vi iq2_value(const uint8_t *values, __m512i which, vi signs, int bit) {
    __m512i q = _mm512_permutexvar_epi8(which, _mm512_loadu_si512(values));
    __mmask64 minus = _mm512_test_epi8_mask((__m512i)signs, _mm512_set1_epi8((char)(1 << bit)));
    return (vi)_mm512_mask_sub_epi8(q, minus, _mm512_set1_epi8((char)(2 * IQ_LIFT)), q);
}
#endif

/* The eight coordinates of a point as two vectors, with their signs at two bits of the bytes of signs. */
VI_INLINE void iq2_coordinates(vi point, vi signs, int bit, int next, vi *q) {
#if defined(__AVX512VBMI__)
    q[0] = iq2_value(iq2_low, (__m512i)point, signs, bit);
    q[1] = iq2_value(iq2_high, (__m512i)point, signs, next);
#else
    q[0] = vi_lookup(iq2_values, (point & 0x03030303) | sign_at(signs, bit));
    q[1] = vi_lookup(iq2_values, (vi_shift_right(point, 4) & 0x03030303) | sign_at(signs, next));
#endif
}

#if defined(__AVX512VBMI__)
/* As iq2_coordinates, for point i of four, whose halves are in two planes. */
VI_INLINE void iq2_from_planes(__m512i low, __m512i high, int i, vi signs, int bit, int next, vi *q) {
    q[0] = iq2_value(iq2_low, four_of(low, i), signs, bit);
    q[1] = iq2_value(iq2_low, four_of(high, i), signs, next);
}
#endif

/* `lift`: 0 or 2 in each byte, for the sign of the group's delta. */
VI_INLINE void iq1_codes(vi point, vi lift, vi *q) {
    q[0] = ((point & 0x03030303) << 3) + lift;
    q[1] = (vi_shift_right(point, 1) & 0x18181818) + lift;
}

#endif
