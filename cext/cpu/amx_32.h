/* amx_32.h: products of blocks of 32 with a8_32 activations in tiles, exact within a block as in product_32.h.
 *
 * A tile's sums are those of one scale, so they leave the tile group by group, of 32 or of 16 `numbers`. Four groups of one
 * or two panels are unpacked to signed codes at a time.
 */
#ifndef SATCHEL_CPU_AMX_32_H
#define SATCHEL_CPU_AMX_32_H

#include "amx.h"

enum { AT_ONCE = 4, CODES = 8 * LINE /* bytes of 16 rows' codes of 32 numbers */, FROM_COLUMNS_32 = 9 };

/* The scales of up to four groups of a panel. */
typedef struct {
    vf d[AT_ONCE], m[AT_ONCE];
} scales_32;

/* The activations of group number g of a column, and their block. */
VI_INLINE const block_a8_32 *group_block(const uint8_t *x, int g, int numbers) {
    return (const block_a8_32 *)x + g * numbers / 32;
}

VI_INLINE const int8_t *group_codes(const uint8_t *x, int g, int numbers) {
    return group_block(x, g, numbers)->qs + g * numbers % 32;
}

/* Tile sums of some groups of one or two panels with a tile of columns: int32 (groups, 2, columns, 16). The codes of a panel
 * are AT_ONCE * CODES bytes. */
VI_INLINE void multiply_32(const uint8_t *x, uint64_t x_stride, const uint8_t *codes, int groups, int panels, int numbers,
                           uint8_t *results) {
    for (int g = 0; g < groups; g++, results += 2 * TILE_BYTES) {
        const uint8_t *w = codes + LINE / 4 * numbers * g;
        if (g % 2 == 0) { /* other tiles than the group before */
            _tile_zero(0);
            _tile_loadd(4, group_codes(x, g, numbers), x_stride);
            _tile_loadd(6, w, LINE);
            _tile_dpbssd(0, 4, 6);
            _tile_stored(0, results, LINE);
        } else {
            _tile_zero(2);
            _tile_loadd(5, group_codes(x, g, numbers), x_stride);
            _tile_loadd(6, w, LINE);
            _tile_dpbssd(2, 5, 6);
            _tile_stored(2, results, LINE);
        }
        if (panels == 1)
            continue;
        _tile_loadd(7, w + AT_ONCE * CODES, LINE);
        if (g % 2 == 0) {
            _tile_zero(1);
            _tile_dpbssd(1, 4, 7);
            _tile_stored(1, results + TILE_BYTES, LINE);
        } else {
            _tile_zero(3);
            _tile_dpbssd(3, 5, 7);
            _tile_stored(3, results + TILE_BYTES, LINE);
        }
    }
}

/* Adds the results of some groups to the sums of `columns` columns, from `x` on. */
VI_INLINE void add_32(const uint8_t *x, uint64_t x_stride, const scales_32 *s, int groups, int panels, int numbers,
                      int minimums, const uint8_t *results, float *sums, int columns) {
    for (int c = 0; c < columns; c++, x += x_stride, results += LINE, sums += 16 * TOGETHER)
        UNROLL for (int i = 0; i < panels; i++) {
            vf sum = vf_load(sums + 16 * i);
            UNROLL for (int g = 0; g < groups; g++) {
                const block_a8_32 *a = group_block(x, g, numbers);
                vf d = vf_set(a->d);
                sum = vf_fma(vi_to_vf(vi_load(results + TILE_BYTES * (2 * g + i))), s[i].d[g] * d, sum);
                if (minimums)
                    sum = vf_fma(vf_set((float)a->sum), s[i].m[g] * d, sum);
            }
            vf_store(sums + 16 * i, sum);
        }
}

/* Some groups of panel `first` and, of two, the next, from the block of activations number `block` on, with all columns; the
 * vector work of a tile runs beside the tile work of the next. */
VI_INLINE void groups_32(const product *p, int first, int64_t block, const scales_32 *s, int groups, int panels, int numbers,
                         int minimums) {
    const uint8_t *x = p->x + sizeof(block_a8_32) * (uint64_t)block;
    uint8_t *results = p->scratch + WEIGHTS_BYTES;
    float *sums = sums_of(p, first);
    int columns = columns_a_tile(p), half = 2 * AT_ONCE * TILE_BYTES;
    uint64_t step = p->x_stride * (uint64_t)columns;
    multiply_32(x, p->x_stride, p->scratch, groups, panels, numbers, results);
    for (int done = 0; done < p->n; done += columns, x += step, sums += 16 * TOGETHER * columns) {
        const uint8_t *ready = results + half * (done / TILE % 2);
        if (done + columns < p->n)
            multiply_32(x + step, p->x_stride, p->scratch, groups, panels, numbers, results + half * ((done / TILE + 1) % 2));
        add_32(x, p->x_stride, s, groups, panels, numbers, minimums, ready, sums, columns);
    }
}

static __attribute__((noinline)) void few_groups_32(const product *p, int first, int64_t block, const scales_32 *s, int groups,
                                                    int numbers, int minimums) {
    if (panels_from(p, first) == 1)
        groups_32(p, first, block, s, groups, 1, numbers, minimums);
    else
        groups_32(p, first, block, s, groups, 2, numbers, minimums);
}

/* The common case, all groups of two panels, is unrolled. */
VI_INLINE void some_groups_32(const product *p, int first, int64_t block, const scales_32 *s, int groups, int numbers,
                              int minimums) {
    if (groups == AT_ONCE && panels_from(p, first) == TOGETHER)
        groups_32(p, first, block, s, AT_ONCE, TOGETHER, numbers, minimums);
    else
        few_groups_32(p, first, block, s, groups, numbers, minimums);
}

/* All of K with all panels: `unpack` gives the scales of up to AT_ONCE groups of a panel, and to `codes` their codes. */
typedef void (*unpack_32_fn)(const product *, const uint8_t *panel, int64_t group, int groups, scales_32 *, uint8_t *codes);

VI_INLINE void tiles_32(const product *p, unpack_32_fn unpack, int numbers, int minimums) {
    amx_begin(columns_a_tile(p), numbers);
    clear_sums(p);
    for (int64_t group = 0, left = p->k / numbers; left > 0; group += AT_ONCE, left -= AT_ONCE)
        for (int first = 0; first < p->panels; first += TOGETHER) {
            int groups = left < AT_ONCE ? (int)left : AT_ONCE;
            scales_32 s[TOGETHER];
            for (int i = 0; i < panels_from(p, first); i++)
                unpack(p, p->w + p->stride * (uint64_t)(first + i), group, groups, s + i, p->scratch + AT_ONCE * CODES * i);
            some_groups_32(p, first, group * numbers / 32, s, groups, numbers, minimums);
        }
    write_sums(p);
    amx_end();
}

/* Codes as the tiles want them, signed; `offset` as product_32.h has it. */
VI_INLINE void store_codes(const vi *q, int offset, uint8_t *to) {
    UNROLL for (int j = 0; j < 8; j++) {
        vi x = q[j];
        if (offset > 0)
            x = (vi)_mm512_sub_epi8((__m512i)x, _mm512_set1_epi8((char)offset));
        vi_store(to + LINE * j, offset == SIGNED_CODES ? sign_codes(x) : x);
    }
}

#define AMX_32(stem, offset)                                                                                        \
    static void stem##_unpack_groups(const product *p, const uint8_t *panel, int64_t group, int groups, scales_32 *s, \
                                     uint8_t *codes) {                                                              \
        for (int i = 0; i < groups; i++) {                                                                          \
            int64_t number = (group + i) / (BLOCK_##stem / 32);                                                     \
            const uint8_t *words = panel + p->head + sizeof(block_##stem) / 4 * LINE * (uint64_t)number;            \
            vi q[8];                                                                                                \
            s->d[i] = stem##_panel_scale(words, panel + sizeof(block_##stem) % 4 * 16 * (uint64_t)number, s->m + i); \
            stem##_panel_codes(words, (int)((group + i) % (BLOCK_##stem / 32)), q);                                 \
            store_codes(q, offset, codes + CODES * i);                                                              \
        }                                                                                                           \
    }                                                                                                               \
    static void stem##_tiled(const product *p) {                                                                    \
        tiles_32(p, stem##_unpack_groups, 32, (int)(offset) == MINIMUMS);                                           \
    }                                                                                                               \
    static void stem##_amx(const product *p) {                                                                      \
        amx_cut(p, FROM_COLUMNS_32, stem##_tiled, stem##_product);                                                  \
    }

#endif
