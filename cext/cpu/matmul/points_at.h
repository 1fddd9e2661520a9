/* points_at.h: codebook lookup by byte permutations (AVX-512 VBMI, vpermi2b) instead of gathers: 64 points at a time, four of
 * each of 16 rows, from tables planes_<format> (points.h) of two bytes per point.
 *
 * Plane 0 has the first half of a point's coordinates, plane 1 the second: four of two bits in a byte, or two of four bits.
 * Gathers use the load ports, permutations the arithmetic ports, so the gain falls with the codebook's size: formats look up
 * all points this way (256 points), every second word (512), or none.
 */
#ifndef SATCHEL_CPU_POINTS_AT_H
#define SATCHEL_CPU_POINTS_AT_H

#include "simd/vi.h"

#if defined(__AVX512VBMI__)
enum { UPPER_BYTES = 0xC /* mask of a lane's two upper bytes */ };

/* The bytes of each lane become its eight bits from bit a, b, c and d on; bits past the lane's end come from another lane. */
VI_INLINE __m512i bits_at(vi x, int a, int b, int c, int d) {
    uint64_t at = (uint64_t)(a & 63) | (uint64_t)(b & 63) << 8 | (uint64_t)(c & 63) << 16 | (uint64_t)(d & 63) << 24;
    uint64_t next = (at + 0x20202020u) & 0x3F3F3F3Fu;
    return _mm512_multishift_epi64_epi8(_mm512_set1_epi64((long long)(at | next << 32)), (__m512i)x);
}

/* The lower two bytes of each lane of x, the upper two of y. */
VI_INLINE __m512i lower_and_upper(__m512i x, __m512i y) {
    return _mm512_mask_mov_epi8(x, UPPER_BYTES * 0x1111111111111111ull, y);
}

/* The bits of a lane's four bytes from `first` on, `step` apart, as a mask. */
VI_INLINE __mmask64 mask_at(vi x, int first, int step) {
    return _mm512_movepi8_mask(bits_at(x, first - 7, first + step - 7, first + 2 * step - 7, first + 3 * step - 7));
}

VI_INLINE __m512i plane_128(const uint8_t *plane, __m512i which) {
    return _mm512_permutex2var_epi8(_mm512_load_si512(plane), which, _mm512_load_si512(plane + LANES * 4));
}

VI_INLINE __m512i plane_256(const uint8_t *plane, __m512i which) {
    return _mm512_mask_blend_epi8(_mm512_movepi8_mask(which), plane_128(plane, which), plane_128(plane + 128, which));
}

/* Looks up a plane of 512 points; bit_8: the ninth bit of each index. */
VI_INLINE __m512i plane_512(const uint8_t *plane, __m512i which, __mmask64 bit_8) {
    return _mm512_mask_blend_epi8(bit_8, plane_256(plane, which), plane_256(plane + 256, which));
}

/* The coordinates of point i of four from a plane with four per byte; bits above a coordinate's two belong to others. */
VI_INLINE __m512i four_of(__m512i plane, int i) {
    return bits_at((vi)plane, 8 * i, 8 * i + 2, 8 * i + 4, 8 * i + 6);
}

/* The three-bit coordinates from two planes with two per byte. */
VI_INLINE vi two_and_two_of(__m512i low, __m512i high, int i) {
    __m512i first = bits_at((vi)low, 8 * i, 8 * i + 4, 0, 0), second = bits_at((vi)high, 0, 0, 8 * i, 8 * i + 4);
    return (vi)lower_and_upper(first, second) & 0x07070707;
}
#endif

#endif
