/* amx_256.h: products of super-blocks of 256 with a8_256 activations on AMX tiles, bit-identical to product_256.h.
 *
 * scale * code has at most 14 bits. It is split into two byte planes, low (unsigned) and high (signed), so a tile sums a whole
 * super-block in int32 without group scales: sum = low + 256 * high. The float sums follow in product_256.h's order.
 */
#ifndef SATCHEL_CPU_AMX_256_H
#define SATCHEL_CPU_AMX_256_H

#include "amx.h"

enum { PLANE = 4096, FROM_COLUMNS = 9 /* with fewer columns, unpacking costs more than tiles save */ };

/* Stores both planes of codes of one panel's super-block, in order of words. */
VI_INLINE void store_planes(const vi *q, vi scale, int offset, uint8_t *low) {
    __m512i byte = _mm512_set1_epi16(255), s = (__m512i)((scale & 0xFFFF) | scale << 16);
    __m512i shift = _mm512_mullo_epi16(s, _mm512_set1_epi16((short)offset));
    UNROLL_FOR (int j = 0; j < 4; j++) {
        __m512i x = (__m512i)q[j], even = _mm512_and_si512(x, byte), odd = _mm512_srli_epi16(x, 8);
        even = _mm512_sub_epi16(_mm512_mullo_epi16(even, s), shift);
        odd = _mm512_sub_epi16(_mm512_mullo_epi16(odd, s), shift);
        vi_store(low + LINE * j, (vi)_mm512_ternarylogic_epi32(byte, even, _mm512_slli_epi16(odd, 8), 0xCA));
        vi_store(low + PLANE + LINE * j, (vi)_mm512_ternarylogic_epi32(byte, _mm512_srli_epi16(even, 8), odd, 0xCA));
    }
}

/* Products of a tile of columns (of one super-block) with the planes of `panels` panels: int32 (panels, low and high,
 * columns, 16). */
VI_INLINE void multiply_256(const uint8_t *x, uint64_t x_stride, const uint8_t *planes, int panels, uint8_t *results) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    UNROLL_FOR (int k = 0; k < 4; k++) {
        const uint8_t *w = planes + TILE_BYTES * k;
        _tile_loadd(4, x + 64 * k, x_stride);
        _tile_loadd(6, w, LINE);
        _tile_loadd(7, w + PLANE, LINE);
        _tile_dpbsud(0, 4, 6);
        _tile_dpbssd(1, 4, 7);
        if (panels == 1)
            continue;
        _tile_loadd(6, w + 2 * PLANE, LINE);
        _tile_loadd(7, w + 3 * PLANE, LINE);
        _tile_dpbsud(2, 4, 6);
        _tile_dpbssd(3, 4, 7);
    }
    _tile_stored(0, results, LINE);
    _tile_stored(1, results + TILE_BYTES, LINE);
    _tile_stored(2, results + 2 * TILE_BYTES, LINE);
    _tile_stored(3, results + 3 * TILE_BYTES, LINE);
}

/* Adds a tile's results to the sums of its columns. */
VI_INLINE void add_256(const uint8_t *x, uint64_t x_stride, const scales_256 *s, int panels, int minimums,
                       const uint8_t *results, float *sums, int columns) {
    for (int c = 0; c < columns; c++, sums += 16 * TOGETHER, results += LINE) {
        const block_a8_256 *a = (const block_a8_256 *)(x + x_stride * (uint64_t)c);
        vf d = vf_set(a->d);
        UNROLL_FOR (int i = 0; i < panels; i++) {
            vi low = vi_load(results + 2 * TILE_BYTES * i), high = vi_load(results + 2 * TILE_BYTES * i + TILE_BYTES);
            vf sum = vf_fma(vi_to_vf(low + (high << 8)), s[i].d * d, vf_load(sums + 16 * i));
            if (minimums)
                sum = vf_fma(-vi_to_vf(pairs_by(minimums, s[i].pairs, a)), s[i].min * d, sum);
            vf_store(sums + 16 * i, sum);
        }
    }
}

/* One super-block of one or two panels times all columns. Software-pipelined: the vector code of a tile overlaps the tile
 * instructions of the next. */
VI_INLINE void block_256(const product *p, int first, int64_t block, const scales_256 *s, int panels, int minimums) {
    const uint8_t *x = p->x + sizeof(block_a8_256) * (uint64_t)block;
    uint8_t *results = p->scratch + WEIGHTS_BYTES;
    float *sums = sums_of(p, first);
    int columns = columns_a_tile(p), half = 4 * TILE_BYTES;
    uint64_t step = p->x_stride * (uint64_t)columns;
    multiply_256(x, p->x_stride, p->scratch, panels, results);
    for (int done = 0; done < p->n; done += columns, x += step, sums += 16 * TOGETHER * columns) {
        const uint8_t *ready = results + half * (done / TILE % 2);
        if (done + columns < p->n)
            multiply_256(x + step, p->x_stride, p->scratch, panels, results + half * ((done / TILE + 1) % 2));
        add_256(x, p->x_stride, s, panels, minimums, ready, sums, columns);
    }
}

#define AMX_256(stem, groups, offset)                                                                                  \
    static void stem##_planes(const uint8_t *words, const uint8_t *tail, scales_256 *s, uint8_t *planes) {             \
        stem##_panel_scales(words, tail, s);                                                                           \
        for (int g = 0; g < 8; g++) {                                                                                  \
            vi q[8];                                                                                                   \
            fetch_part(words, (int)sizeof(block_##stem) / 4 * LINE, g, SEVERAL);                                       \
            stem##_panel_codes(words, g, q);                                                                           \
            store_planes(q, s->scale[(groups) / 8 * g], offset, planes + 8 * LINE * g);                                \
            store_planes(q + 4, s->scale[(groups) / 8 * g + (groups) / 16], offset, planes + 8 * LINE * g + 4 * LINE); \
        }                                                                                                              \
    }                                                                                                                  \
    static void stem##_tiled(const product *p) {                                                                       \
        amx_begin(columns_a_tile(p), 64);                                                                              \
        clear_sums(p);                                                                                                 \
        for (int64_t i = 0, blocks = p->k / 256, pairs = (p->panels + 1) / TOGETHER; i < blocks * pairs; i++) {        \
            int64_t b = p->n > TILE ? i / pairs : i % blocks;                                                          \
            int first = TOGETHER * (int)(p->n > TILE ? i % pairs : i / blocks);                                        \
            int panels = panels_from(p, first);                                                                        \
            scales_256 s[TOGETHER];                                                                                    \
            for (int j = 0; j < panels; j++) {                                                                         \
                const uint8_t *panel = p->w + p->stride * (uint64_t)(first + j);                                       \
                stem##_planes(panel + p->head + sizeof(block_##stem) / 4 * LINE * (uint64_t)b, panel + 32 * b, s + j,  \
                              p->scratch + 2 * PLANE * j);                                                             \
            }                                                                                                          \
            if (panels == 1)                                                                                           \
                block_256(p, first, b, s, 1, (offset) ? 0 : 8);                                                        \
            else                                                                                                       \
                block_256(p, first, b, s, 2, (offset) ? 0 : 8);                                                        \
        }                                                                                                              \
        write_sums(p);                                                                                                 \
        amx_end();                                                                                                     \
    }                                                                                                                  \
    static void stem##_exact(const product *p) {                                                                       \
        amx_cut(p, FROM_COLUMNS, stem##_tiled, stem##_product);                                                        \
    }

#endif
