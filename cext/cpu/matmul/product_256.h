/* product_256.h: products of super-blocks of 256 with a8_256 activations, in exact integers within a super-block.
 *
 * A format defines two functions for the lanes at `words`. <stem>_panel_scales gives its scales. <stem>_panel_codes gives
 * codes 32 g .. 32 g + 31 of each row as eight vectors of bytes: unsigned, below 128 and biased by `offset`, or signed where
 * offset is SIGNED_CODES. `groups`: 8 or 16 scales per super-block. A format with `minimums` (8 or 16 per super-block) has
 * offset 0, and `pairs` holds the minimums as pairs of int16, to be multiplied with the activations' sums; else `pairs` holds
 * the scales (scale_pairs()).
 */
#ifndef SATCHEL_CPU_PRODUCT_256_H
#define SATCHEL_CPU_PRODUCT_256_H

#include "column_pairs.h"
#include "product_columns.h"

typedef struct {
    vi scale[16];
    vi pairs[8];
    vf d, min;
} scales_256;

/* Two adjacent bytes of each lane, 0 and 1 or 2 and 3, as a pair of 16-bit integers, without or with sign. */
VI_INLINE vi byte_pair(vi x, int first) {
    return vi_byte(x, first) | vi_byte(x, first + 1) << 16;
}
VI_INLINE vi signed_pair(vi x, int first) {
    return (vi_signed_byte(x, first) & 0xFFFF) | vi_signed_byte(x, first + 1) << 16;
}

/* The scales as pairs, for formats without minimums. */
VI_INLINE void scale_pairs(scales_256 *s, int groups) {
    UNROLL_FOR (int i = 0; i < groups / 2; i++)
        s->pairs[i] = (s->scale[2 * i] & 0xFFFF) | s->scale[2 * i + 1] << 16;
}

VI_INLINE vi dot4_codes(int offset, vi sum, vi q, const int8_t *x) {
    return offset == SIGNED_CODES ? dot4_signed(sum, q, vi_set_at(x)) : dot4_at(sum, q, x);
}

/* Sum over 32 codes of scale * code * activation, with one or two scales. `chains`: 2 dependency chains where one would be
 * latency-bound. */
VI_INLINE vi group_sum(const vi *q, const vi *scale, int scales, int offset, const int8_t *x, vi sum, int chains) {
    vi a = vi_set(0), b = vi_set(0);
    UNROLL_FOR (int j = 0; j < 4; j++)
        a = dot4_codes(offset, a, q[j], x + 4 * j);
    if (scales == 1 && chains == 1)
        b = a;
    UNROLL_FOR (int j = 4; j < 8; j++)
        b = dot4_codes(offset, b, q[j], x + 4 * j);
    if (scales == 2)
        return sum + a * scale[0] + b * scale[1];
    return sum + (chains == 1 ? b : a + b) * scale[0];
}

#if defined(DOT4_IN_16_BITS)
/* The same for unsigned codes below 64: two products of four bytes fit 16 bits, so pairs of words are added there, and the scale
 * is applied where they become 32 bits. */
VI_INLINE vi small_group_sum(const vi *q, const vi *scale, int scales, const int8_t *x, vi sum) {
    vi both[2];
    UNROLL_FOR (int i = 0; i < scales; i++)
        both[i] = (scale[i] & 0xFFFF) | scale[i] << 16;
    UNROLL_FOR (int j = 0; j < 8; j += 2)
        sum = dot2(sum, dot4_pairs(q[j], x + 4 * j, q[j + 1], x + 4 * j + 4), both[scales == 2 ? j / 4 : 0]);
    return sum;
}
#endif

/* isum[c] += group_sum() of column c, for n columns; its activations begin at x + x_stride * c. small: codes are unsigned and
 * below 64. */
VI_INLINE void group_sums(const vi *q, const vi *scale, int scales, int offset, int small, const uint8_t *x,
                          uint64_t x_stride, vi *isum, int n) {
    int c = 0;
#if defined(DOT4_IN_16_BITS)
    UNROLL_FOR (; small && c < n; c++)
        isum[c] = small_group_sum(q, scale, scales, (const int8_t *)(x + x_stride * (uint64_t)c), isum[c]);
#else
    (void)small;
#endif
#if defined(COLUMN_PAIRS)
    vi pairs[8], a[2], b[2] = {vi_set(0), vi_set(0)};
    pair_words(q, pairs);
    UNROLL_FOR (; c + 1 < n; c += 2) {
        const uint8_t *y = x + x_stride * (uint64_t)c, *z = y + x_stride;
        pair_dots(pairs, 8 / scales, y, z, a);
        if (scales == 2)
            pair_dots(pairs + 4, 4, y + 16, z + 16, b);
        isum[c] += a[0] * scale[0] + b[0] * scale[scales - 1];
        isum[c + 1] += a[1] * scale[0] + b[1] * scale[scales - 1];
    }
#endif
    UNROLL_FOR (; c < n; c++)
        isum[c] =
            group_sum(q, scale, scales, offset, (const int8_t *)(x + x_stride * (uint64_t)c), isum[c], n < 4 ? 2 : 1);
}

VI_INLINE vi pair_sum(const vi *pairs, int n, const int16_t *sums) {
    vi sum = vi_set(0);
    UNROLL_FOR (int i = 0; i < n; i++)
        sum = dot2_at(sum, pairs[i], sums + 2 * i);
    return sum;
}

/* Dot product of the pairs with the activations' sums: 8 sums of 32, or 16 sums of 16. */
VI_INLINE vi pairs_by(int sums, const vi *pairs, const block_a8_256 *a) {
    return pair_sum(pairs, sums / 2, sums == 8 ? a->sums32 : a->sums);
}

/* Adds a super-block's integer sums, scaled, to a row's float sum. */
VI_INLINE vf add_super(vi isum, const scales_256 *s, int groups, int offset, int minimums, const block_a8_256 *a,
                       vf sum) {
    vf d = vf_set(a->d);
    if (lift_of(offset) != 0)
        isum -= pairs_by(groups, s->pairs, a) * lift_of(offset);
    sum = vf_fused(vi_to_vf(isum), s->d * d, sum);
    return minimums ? vf_fused(-vi_to_vf(pairs_by(minimums, s->pairs, a)), s->min * d, sum) : sum;
}

/* Whether codes are unsigned and below 64, by their offset: those of IQ_LIFT are not, nor signed ones. */
#define SMALL_CODES(offset) ((offset) >= 0 && (offset) < 64)

#define BLOCK_256(stem, groups, offset, minimums)                                                                      \
    VI_INLINE void stem##_block(const uint8_t *words, const uint8_t *tail, const uint8_t *x, uint64_t x_stride,        \
                                vf *sum, int n) {                                                                      \
        enum { BYTES = (int)sizeof(block_##stem) / 4 * LINE };                                                         \
        scales_256 s;                                                                                                  \
        vi isum[MOST_COLUMNS];                                                                                         \
        stem##_panel_scales(words, tail, &s);                                                                          \
        UNROLL_FOR (int c = 0; c < n; c++)                                                                             \
            isum[c] = vi_set(0);                                                                                       \
        UNROLL_FOR (int g = 0; g < 8; g++) {                                                                           \
            vi q[8];                                                                                                   \
            fetch_part(words, BYTES, g, n);                                                                            \
            stem##_panel_codes(words, g, q);                                                                           \
            group_sums(q, s.scale + (groups) / 8 * g, (groups) / 8, offset, SMALL_CODES(offset), x + 32 * g, x_stride, \
                       isum, n);                                                                                       \
        }                                                                                                              \
        UNROLL_FOR (int c = 0; c < n; c++) {                                                                           \
            const block_a8_256 *a = (const block_a8_256 *)(x + x_stride * (uint64_t)c);                                \
            sum[c] = add_super(isum[c], &s, groups, offset, minimums, a, sum[c]);                                      \
        }                                                                                                              \
    }
#if defined(__AMX_INT8__)
#include "amx_256.h"
#endif

#define ENTRY_256(stem) {TYPE_##stem, TYPE_a8_256, stem##_256}, EXPAND_ENTRIES(stem)

#endif
