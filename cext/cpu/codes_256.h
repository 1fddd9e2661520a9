/* codes_256.h: what several formats of 256 share in taking codes and scales from panels. */
#ifndef SATCHEL_CPU_CODES_256_H
#define SATCHEL_CPU_CODES_256_H

#include "points_at.h"
#include "product_256.h"

/* Codes of two bits of group g; their words begin at `first`. */
VI_INLINE void pairs_of_bits(const uint8_t *words, int first, int g, vi *q) {
    UNROLL for (int j = 0; j < 8; j++)
        q[j] = vi_shift_right(word(words, first + 8 * (g / 4) + j), 2 * (g % 4)) & 0x03030303;
}

/* No group scales: the tail half is d. */
VI_INLINE void one_scale(const uint8_t *tail, scales_256 *s) {
    UNROLL for (int g = 0; g < 8; g++)
        s->scale[g] = vi_set(1);
    scale_pairs(s, 8);
    s->d = vf_load_f16((const uint16_t *)tail);
}

/* Scales of 16, 2 q + 1 for each nibble of the two words from `first` on; the tail half is d, in eighths. */
VI_INLINE void nibble_scales(const uint8_t *words, const uint8_t *tail, int first, scales_256 *s) {
    UNROLL for (int g = 0; g < 16; g++)
        s->scale[g] = (vi_shift_right(word(words, first + g / 8), 4 * (g % 8)) & 15) * 2 + 1;
    scale_pairs(s, 16);
    s->d = vf_load_f16((const uint16_t *)tail) * vf_set(0.125f);
}

enum { IQ_LIFT = 64 /* how much too high the codes of iq2 and iq3 stand */ };

/* In bit 3 of each byte that bit of the byte of signs: there a coordinate's number has its sign as an index of values,
 * which are those of a plus sign, then, from 8 on, those of a minus sign. */
VI_INLINE vi sign_at(vi signs, int bit) {
    return (bit < 3 ? signs << (3 - bit) : vi_shift_right(signs, bit - 3)) & 0x08080808;
}

static const uint8_t iq2_values[16] = {[0] = IQ_LIFT + 8, IQ_LIFT + 25, IQ_LIFT + 43,
                                       [8] = IQ_LIFT - 8, IQ_LIFT - 25, IQ_LIFT - 43};

/* The eighth signs in the place of the scale, which is shifted out: bits 28-31 make each field's number of signs even. */
VI_INLINE vi even_signs(vi word) {
    vi signs = word & 0x0FFFFFFF, parity = signs ^ vi_shift_right(signs, 16);
    parity ^= vi_shift_right(parity, 8);
    return signs | (parity ^ vi_shift_right(parity, 4)) << 28;
}

#if defined(__AVX512VBMI__)
#define FOUR_TIMES(...) __VA_ARGS__, __VA_ARGS__, __VA_ARGS__, __VA_ARGS__
#define SIXTEEN_TIMES(...) FOUR_TIMES(FOUR_TIMES(__VA_ARGS__))
#define IQ2_VALUES IQ_LIFT + 8, IQ_LIFT + 25, IQ_LIFT + 43, 0
/* Values by bits 0-1 and by bits 4-5 of an index, whatever the other ones are. */
static const uint8_t iq2_low[64] = {SIXTEEN_TIMES(IQ2_VALUES)};
static const uint8_t iq2_high[64] = {SIXTEEN_TIMES(IQ_LIFT + 8), SIXTEEN_TIMES(IQ_LIFT + 25), SIXTEEN_TIMES(IQ_LIFT + 43)};

/* Values of 64 indexes, less than IQ_LIFT by as much as they are more where the byte of signs has this bit. */
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
/* The same for point i of four, whose halves are in two planes. */
VI_INLINE void iq2_from_planes(__m512i low, __m512i high, int i, vi signs, int bit, int next, vi *q) {
    q[0] = iq2_value(iq2_low, four_of(low, i), signs, bit);
    q[1] = iq2_value(iq2_low, four_of(high, i), signs, next);
}
#endif

/* `lift`: in each byte 0 or 2, for the shift. */
VI_INLINE void iq1_codes(vi point, vi lift, vi *q) {
    q[0] = ((point & 0x03030303) << 3) + lift;
    q[1] = (vi_shift_right(point, 1) & 0x18181818) + lift;
}

#endif
