/* product_32.h: products of blocks of 32 with a8_32 activations, in exact integers within a block.
 *
 * A format defines two functions. <stem>_panel_codes gives the codes of a block as eight vectors of bytes: unsigned, below 128
 * and biased by `offset`, or signed where offset is SIGNED_CODES. <stem>_panel_scale gives d and, with MINIMUMS, m; TAIL_SCALE
 * and PAIR_SCALE define it. A longer block (a multiple of 32) is processed in parts of 32, each with its own block of
 * activations.
 */
#ifndef SATCHEL_CPU_PRODUCT_32_H
#define SATCHEL_CPU_PRODUCT_32_H

#include "column_pairs.h"
#include "product_columns.h"
#include "product_expand.h"

VI_INLINE vi block_start(int offset, int32_t sum) {
    return offset == SIGNED_CODES ? start_signed(sum) : vi_set(-offset * sum);
}

VI_INLINE vi block_sum(const vi *q, int offset, const block_a8_32 *a) {
    vi sum = block_start(offset, a->sum);
    UNROLL_FOR (int j = 0; j < 8; j++) {
        vi x = vi_set_at(a->qs + 4 * j);
        sum = offset == SIGNED_CODES ? dot4_signed(sum, q[j], x) : dot4(sum, q[j], x);
    }
    return sum;
}

/* Adds a block's integer sums, scaled, to a row's float sum. */
VI_INLINE vf add_block(vi isum, int offset, vf d, vf m, const block_a8_32 *a, vf sum) {
    if (offset == MINIMUMS)
        return vf_fused(vf_fused(vi_to_vf(isum), d, vf_set((float)a->sum) * m), vf_set(a->d), sum);
    return vf_fused(vi_to_vf(isum), d * vf_set(a->d), sum);
}

/* add_block() for n columns, whose blocks are at x + x_stride * c. */
VI_INLINE void add_columns(const vi *q, int offset, vf d, vf m, const uint8_t *x, uint64_t x_stride, vf *sum, int n) {
    int c = 0;
#if defined(COLUMN_PAIRS)
    vi pairs[8], dots[2];
    pair_words(q, pairs);
    UNROLL_FOR (; c + 1 < n; c += 2) {
        const block_a8_32 *a = (const block_a8_32 *)(x + x_stride * (uint64_t)c);
        const block_a8_32 *b = (const block_a8_32 *)(x + x_stride * (uint64_t)(c + 1));
        pair_dots(pairs, 8, a->qs, b->qs, dots);
        sum[c] = add_block(block_start(offset, a->sum) + dots[0], offset, d, m, a, sum[c]);
        sum[c + 1] = add_block(block_start(offset, b->sum) + dots[1], offset, d, m, b, sum[c + 1]);
    }
#endif
    UNROLL_FOR (; c < n; c++) {
        const block_a8_32 *a = (const block_a8_32 *)(x + x_stride * (uint64_t)c);
        sum[c] = add_block(block_sum(q, offset, a), offset, d, m, a, sum[c]);
    }
}

/* Parts of 32 in a block. A loop over several is not unrolled. */
#define PARTS_32(stem) (BLOCK_##stem == 32 ? 1 : opaque(BLOCK_##stem / 32))

#define COLUMNS_32(stem, offset)                                                                                       \
    VI_INLINE void stem##_block(const uint8_t *words, const uint8_t *tail, const uint8_t *x, uint64_t x_stride,        \
                                vf *sum, int n) {                                                                      \
        vi q[8];                                                                                                       \
        vf m, d = stem##_panel_scale(words, tail, &m);                                                                 \
        for (int i = 0, parts = PARTS_32(stem); i < parts; i++) {                                                      \
            fetch_part_of(words, (int)sizeof(block_##stem) / 4 * LINE, i, BLOCK_##stem / 32, n);                       \
            stem##_panel_codes(words, i, q);                                                                           \
            add_columns(q, offset, d, m, x + sizeof(block_a8_32) * (uint64_t)i, x_stride, sum, n);                     \
        }                                                                                                              \
    }                                                                                                                  \
    BLOCK_COLUMNS(stem, a8_32)

/* Scales: d is the tail (f16), or d and m are the two f16 of word 0. */
#define TAIL_SCALE(stem)                                                                                               \
    VI_INLINE vf stem##_panel_scale(const uint8_t *words, const uint8_t *tail, vf *m) {                                \
        (void)words;                                                                                                   \
        return *m = vf_load_f16((const uint16_t *)tail);                                                               \
    }
#define PAIR_SCALE(stem)                                                                                               \
    VI_INLINE vf stem##_panel_scale(const uint8_t *words, const uint8_t *tail, vf *m) {                                \
        (void)tail;                                                                                                    \
        *m = vf_halves(vi_shift_right(word(words, 0), 16));                                                            \
        return vf_halves(word(words, 0));                                                                              \
    }

/* Four words of nibbles at word `first`: the low ones are codes 0-15, the high ones 16-31. */
VI_INLINE void nibbles_32(const uint8_t *words, int first, vi *q) {
    UNROLL_FOR (int j = 0; j < 8; j++)
        q[j] = vi_shift_right(word(words, first + j % 4), 4 * (j / 4)) & 0x0F0F0F0F;
}

/* Adds fifth bits from a word that q5_pack_word() rearranged: bit j of byte i belongs to code 4 j + i. */
VI_INLINE void fifths_32(vi bits, vi *q) {
    UNROLL_FOR (int j = 0; j < 8; j++)
        q[j] |= (j < 4 ? bits << (4 - j) : vi_shift_right(bits, j - 4)) & 0x10101010;
}

/* Dequantizes 32 codes with one scale. */
static void expand_32(const vi *q, int offset, vf d, vf m, float *to) {
    for (int j = 0; j < 8; j++)
        UNROLL_FOR (int i = 0; i < 4; i++) {
            vf x = d * code_at(q[j], i, offset);
            if (offset == MINIMUMS)
                x = x + m;
            vf_store(to + 16 * (4 * j + i), x);
        }
}

#define EXPAND_32(stem, offset)                                                                                        \
    static void stem##_expand(const uint8_t *words, const uint8_t *tail, float *to) {                                  \
        vf m, d = stem##_panel_scale(words, tail, &m);                                                                 \
        for (int i = 0; i < BLOCK_##stem / 32; i++) {                                                                  \
            vi q[8];                                                                                                   \
            fetch_part_of(words, (int)sizeof(block_##stem) / 4 * LINE, i, BLOCK_##stem / 32, SEVERAL);                 \
            stem##_panel_codes(words, i, q);                                                                           \
            expand_32(q, offset, d, m, to + 16 * 32 * i);                                                              \
        }                                                                                                              \
    }                                                                                                                  \
    EXPAND(stem)

#if defined(__AMX_INT8__)
#include "amx_32.h"
#define PRODUCT_32(stem, offset) COLUMNS_32(stem, offset) AMX_32(stem, offset) EXPAND_32(stem, offset)
#define ENTRY_32(stem) {TYPE_##stem, TYPE_a8_32, stem##_amx}, EXPAND_ENTRIES(stem)
#else
#define PRODUCT_32(stem, offset) COLUMNS_32(stem, offset) EXPAND_32(stem, offset)
#define ENTRY_32(stem) PRODUCT_ENTRY(stem, a8_32), EXPAND_ENTRIES(stem)
#endif

#endif
