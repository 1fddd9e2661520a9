/* amx_32.h: products of blocks of 32 with a8_32 activations in tiles, exact within a block as in product_32.h.
 *
 * A tile's sums are those of one block, so they leave the tile block by block; eight blocks of one or two panels are
 * unpacked to signed codes at a time, and their float sums stay in registers for a tile of columns and a panel.
 */
#ifndef SATCHEL_CPU_AMX_32_H
#define SATCHEL_CPU_AMX_32_H

#include "amx.h"

enum { AT_ONCE = 8, CODES = 8 * LINE /* bytes of 16 rows' codes of a block */, FROM_COLUMNS_32 = 9 };

/* The scales of up to eight blocks of a panel. */
typedef struct {
    vf d[AT_ONCE], m[AT_ONCE];
} scales_32;

/* Tile sums of `blocks` blocks with a tile of columns: int32 (blocks, columns, 16). */
VI_INLINE void multiply_32(const uint8_t *x, uint64_t x_stride, const uint8_t *codes, int blocks, uint8_t *results) {
    for (int b = 0; b < blocks; b += 2) {
        _tile_zero(0);
        _tile_loadd(4, x + sizeof(block_a8_32) * (uint64_t)b, x_stride);
        _tile_loadd(6, codes + CODES * b, LINE);
        _tile_dpbssd(0, 4, 6);
        _tile_stored(0, results + TILE_BYTES * b, LINE);
        if (b + 1 == blocks)
            return;
        _tile_zero(1);
        _tile_loadd(5, x + sizeof(block_a8_32) * (uint64_t)(b + 1), x_stride);
        _tile_loadd(7, codes + CODES * (b + 1), LINE);
        _tile_dpbssd(1, 5, 7);
        _tile_stored(1, results + TILE_BYTES * (b + 1), LINE);
    }
}

/* Adds the results of `blocks` blocks to the sums of `columns` columns, from `x` on. */
VI_INLINE void add_32(const block_a8_32 *const *x, const scales_32 *s, int blocks, int minimums, const uint8_t *results,
                      float *sums, int columns) {
    for (int c = 0; c < columns; c++, sums += 16 * TOGETHER) {
        vf sum = vf_load(sums);
        for (int b = 0; b < blocks; b++) {
            const block_a8_32 *a = x[c] + b;
            vf d = vf_set(a->d);
            sum = vf_fma(vi_to_vf(vi_load(results + TILE_BYTES * b + LINE * c)), s->d[b] * d, sum);
            if (minimums)
                sum = vf_fma(vf_set((float)a->sum), s->m[b] * d, sum);
        }
        vf_store(sums, sum);
    }
}

/* Up to eight blocks of one panel with all columns. */
VI_INLINE void blocks_32(const product *p, int64_t block, const uint8_t *codes, const scales_32 *s, int blocks,
                         int minimums, float *sums) {
    const uint8_t *x = p->x + sizeof(block_a8_32) * (uint64_t)block;
    uint8_t *results = p->scratch + WEIGHTS_BYTES;
    int columns = columns_a_tile(p);
    for (int done = 0; done < p->n; done += columns, sums += 16 * TOGETHER * columns) {
        const block_a8_32 *a[TILE];
        for (int c = 0; c < columns; c++)
            a[c] = (const block_a8_32 *)(x + p->x_stride * (uint64_t)(done + c));
        multiply_32((const uint8_t *)a[0]->qs, p->x_stride, codes, blocks, results);
        add_32(a, s, blocks, minimums, results, sums, columns);
    }
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
    static void stem##_unpack_8(const product *p, const uint8_t *panel, int64_t block, int blocks, scales_32 *s,    \
                                uint8_t *codes) {                                                                   \
        for (int i = 0; i < blocks; i++) {                                                                          \
            const uint8_t *words = panel + p->head + sizeof(block_##stem) / 4 * LINE * (uint64_t)(block + i);       \
            vi q[8];                                                                                                \
            s->d[i] = (offset) == MINIMUMS ? vf_halves(word(words, 0))                                              \
                                           : vf_load_f16((const uint16_t *)(panel + 32 * (block + i)));             \
            s->m[i] = (offset) == MINIMUMS ? vf_halves(vi_shift_right(word(words, 0), 16)) : s->d[i];               \
            stem##_panel_codes(words, q);                                                                           \
            store_codes(q, offset, codes + CODES * i);                                                              \
        }                                                                                                           \
    }                                                                                                               \
    static void stem##_tiled(const product *p) {                                                                    \
        amx_begin(columns_a_tile(p), 32);                                                                           \
        clear_sums(p);                                                                                              \
        for (int64_t b = 0, left = p->k / 32; left > 0; b += AT_ONCE, left -= AT_ONCE)                              \
            for (int i = 0; i < p->panels; i++) {                                                                   \
                int blocks = left < AT_ONCE ? (int)left : AT_ONCE;                                                  \
                float *sums = sums_of(p, i / TOGETHER * TOGETHER) + 16 * (i % TOGETHER);                            \
                scales_32 s;                                                                                        \
                stem##_unpack_8(p, p->w + p->stride * (uint64_t)i, b, blocks, &s, p->scratch);                      \
                if (blocks == AT_ONCE)                                                                              \
                    blocks_32(p, b, p->scratch, &s, AT_ONCE, (offset) == MINIMUMS, sums);                           \
                else                                                                                                \
                    blocks_32(p, b, p->scratch, &s, blocks, (offset) == MINIMUMS, sums);                            \
            }                                                                                                       \
        write_sums(p);                                                                                              \
        amx_end();                                                                                                  \
    }                                                                                                               \
    static void stem##_amx(const product *p) {                                                                      \
        amx_cut(p, FROM_COLUMNS_32, stem##_tiled, stem##_product);                                                  \
    }

#endif
