/* column_pairs.h: integer products of two columns at a time by Arm's i8mm (smmla: 2 x 8 by 8 x 2 bytes).
 *
 * Gives the same integers as dot4 in half as many instructions. COLUMN_PAIRS is defined where the set has i8mm.
 */
#ifndef SATCHEL_CPU_COLUMN_PAIRS_H
#define SATCHEL_CPU_COLUMN_PAIRS_H

#include "simd/vi.h"

#if defined(__ARM_FEATURE_MATMUL_INT8)
#define COLUMN_PAIRS

/* Transposes eight words of four rows to smmla operands, eight bytes of each row: rows 0 and 1, then 2 and 3; words 0 and 1
 * first. */
VI_INLINE void pair_words(const vi *q, vi *pairs) {
    for (int i = 0; i < 8; i += 2) {
        pairs[i] = (vi)vzip1q_s32((int32x4_t)q[i], (int32x4_t)q[i + 1]);
        pairs[i + 1] = (vi)vzip2q_s32((int32x4_t)q[i], (int32x4_t)q[i + 1]);
    }
}

/* sums[0], sums[1]: dot products of 4 or 8 words with the activations at x and at y. */
VI_INLINE void pair_dots(const vi *pairs, int words, const void *x, const void *y, vi *sums) {
    int32x4_t low = vdupq_n_s32(0), high = low; /* rows 0 and 1, 2 and 3: x, y, x, y */
    for (int i = 0; i < words; i += 2) {
        int8x16_t both = vcombine_s8(vld1_s8((const int8_t *)x + 4 * i), vld1_s8((const int8_t *)y + 4 * i));
        low = vmmlaq_s32(low, (int8x16_t)pairs[i], both);
        high = vmmlaq_s32(high, (int8x16_t)pairs[i + 1], both);
    }
    sums[0] = (vi)vuzp1q_s32(low, high);
    sums[1] = (vi)vuzp2q_s32(low, high);
}
#endif

#endif
