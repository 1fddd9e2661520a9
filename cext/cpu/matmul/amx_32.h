/* amx_32.h: products of blocks of 32 with a8_32 activations on AMX tiles, exact within a block as in product_32.h.
 *
 * The sums of a tile must share one scale, so they are stored after each group of 32. Four groups of all columns are laid out
 * side by side; then one or two panels at a time are unpacked and multiplied with them. Operands are signed bytes. A format
 * whose values (code times scale) times activation codes sum exactly in float32 uses bfloat16 operands instead (OF_NUMBERS).
 */
#ifndef SATCHEL_CPU_AMX_32_H
#define SATCHEL_CPU_AMX_32_H

#include "amx.h"

enum { OF_CODES, OF_CODES_AND_MINIMUMS, OF_NUMBERS };
/* Unrolls a loop over groups. Where their number is not known, AT_ONCE times and not more, for loops within such loops would have
 * a hundred kilobytes of code that never runs. */
#define UNROLL_GROUPS _Pragma("GCC unroll 4") for
enum { AT_ONCE = 4, FROM_COLUMNS_32 = 9, COLUMNS_AHEAD = 8 };

/* The scales of up to four groups of a panel. */
typedef struct {
    vf d[AT_ONCE], m[AT_ONCE];
} scales_32;

/* Header of four groups of a tile of columns. The tiles' operands follow it: per group 16 rows of row_32() bytes. */
typedef struct {
    float d[AT_ONCE][TILE], sum[AT_ONCE][TILE];
} columns_32;
_Static_assert((int)sizeof(columns_32) + AT_ONCE * TILE * LINE == COLUMNS_BYTES, "groups of a tile of columns");

static inline int row_32(int kind) {
    return kind == OF_NUMBERS ? LINE : LINE / 2;
}

/* Tile number i of columns. */
static inline columns_32 *columns_at(const product *p, int i, int kind) {
    return (columns_32 *)(void *)(panels_of(p) +
                                  (sizeof(columns_32) + AT_ONCE * TILE * (size_t)row_32(kind)) * (size_t)i);
}

/* Copies `groups` groups of all columns, from activation block number `block` on, to the layout that tiles load. */
VI_INLINE void lay_columns(const product *p, int64_t block, int groups, int kind) {
    for (int c = 0; c < p->n; c++) {
        const block_a8_32 *a = (const block_a8_32 *)(p->x + p->x_stride * (uint64_t)c) + block;
        columns_32 *to = columns_at(p, c / TILE, kind);
        uint8_t *row = (uint8_t *)(to + 1) + row_32(kind) * (c % TILE);
        uintptr_t next = (uintptr_t)a + p->x_stride * COLUMNS_AHEAD;
        UNROLL_FOR (int i = 0; i < AT_ONCE * (int)sizeof *a; i += LINE)
            __builtin_prefetch((const void *)(next + (uintptr_t)i), 0, 3);
        for (int g = 0; g < groups; g++, a++, row += TILE * row_32(kind)) {
            __m256i q = _mm256_loadu_si256((const __m256i *)(const void *)a->qs);
            to->d[g][c % TILE] = a->d;
            to->sum[g][c % TILE] = (float)a->sum;
            if (kind == OF_NUMBERS) {
                __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(q)));
                __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(q, 1)));
                _mm512_storeu_si512(row, (__m512i)_mm512_cvtne2ps_pbh(high, low));
            } else {
                _mm256_storeu_si256((__m256i *)(void *)row, q);
            }
        }
    }
}

/* Multiplies group g of one or two panels, unpacked at `w`, with a tile of columns. Groups alternate between two accumulator
 * pairs. */
VI_INLINE void multiply_32(const columns_32 *x, const uint8_t *w, int g, int panels, int kind) {
    int row = row_32(kind);
    const uint8_t *rows = (const uint8_t *)(x + 1) + TILE * row * g;
    _tile_loadd(6, w + TILE * row * g, LINE);
    if (panels == 2)
        _tile_loadd(7, w + TILE * row * (AT_ONCE + g), LINE);
#define MULTIPLY_32(sum, rows, weights)                                                                                \
    _tile_zero(sum);                                                                                                   \
    if (kind == OF_NUMBERS)                                                                                            \
        _tile_dpbf16ps(sum, rows, weights);                                                                            \
    else                                                                                                               \
        _tile_dpbssd(sum, rows, weights);
    if (g % 2 == 0) {
        _tile_loadd(4, rows, row);
        MULTIPLY_32(0, 4, 6)
        if (panels == 1)
            return;
        MULTIPLY_32(1, 4, 7)
    } else {
        _tile_loadd(5, rows, row);
        MULTIPLY_32(2, 5, 6)
        if (panels == 1)
            return;
        MULTIPLY_32(3, 5, 7)
    }
#undef MULTIPLY_32
}

/* Stores the results of group g to `results` (groups, 2, columns, 16). */
VI_INLINE void store_32(int g, int panels, uint8_t *results) {
    results += 2 * TILE_BYTES * g;
    if (g % 2 == 0) {
        _tile_stored(0, results, LINE);
        if (panels == 2)
            _tile_stored(1, results + TILE_BYTES, LINE);
    } else {
        _tile_stored(2, results, LINE);
        if (panels == 2)
            _tile_stored(3, results + TILE_BYTES, LINE);
    }
}

/* Adds the results of some groups to the sums of columns `from` to `to` of a tile. */
VI_INLINE void add_32(const columns_32 *x, const scales_32 *s, int groups, int panels, int kind, const uint8_t *results,
                      float *sums, int from, int to) {
    for (int c = from; c < to; c++)
        UNROLL_FOR (int i = 0; i < panels; i++) {
            vf sum = vf_load(sums + 16 * (TOGETHER * c + i));
            UNROLL_GROUPS (int g = 0; g < groups; g++) {
                const uint8_t *result = results + TILE_BYTES * (2 * g + i) + LINE * c;
                vf d = vf_set(x->d[g][c]);
                if (kind == OF_NUMBERS)
                    sum = vf_fma((vf)vi_load(result), d, sum);
                else if (kind == OF_CODES)
                    sum = vf_fma(vi_to_vf(vi_load(result)), s[i].d[g] * d, sum);
                else
                    sum =
                        vf_fma(vf_fma(vi_to_vf(vi_load(result)), s[i].d[g], vf_set(x->sum[g][c]) * s[i].m[g]), d, sum);
            }
            vf_store(sums + 16 * (TOGETHER * c + i), sum);
        }
}

/* `groups` groups of panel `first` (and the next one, for two panels) times all columns. Software-pipelined: part of a tile's
 * vector code overlaps each group of the next tile. */
VI_INLINE void groups_32(const product *p, int first, const scales_32 *scales, int groups, int panels, int kind) {
    uint8_t *results = p->scratch + WEIGHTS_BYTES;
    float *sums = sums_of(p, first);
    int columns = columns_a_tile(p), half = 2 * AT_ONCE * TILE_BYTES, tiles = (p->n + TILE - 1) / TILE;
    scales_32 s[TOGETHER]; /* a copy: the compiler knows that tile stores don't alias it */
    for (int i = 0; i < panels && kind != OF_NUMBERS; i++)
        s[i] = scales[i];
    for (int g = 0; g < groups; g++) {
        multiply_32(columns_at(p, 0, kind), p->scratch, g, panels, kind);
        store_32(g, panels, results);
    }
    for (int i = 0; i + 1 < tiles; i++, sums += 16 * TOGETHER * TILE)
        UNROLL_GROUPS (int g = 0; g < groups; g++) {
            multiply_32(columns_at(p, i + 1, kind), p->scratch, g, panels, kind);
            add_32(columns_at(p, i, kind), s, groups, panels, kind, results + half * (i % 2), sums, TILE * g / groups,
                   TILE * (g + 1) / groups);
            store_32(g, panels, results + half * ((i + 1) % 2));
        }
    add_32(columns_at(p, tiles - 1, kind), s, groups, panels, kind, results + half * ((tiles - 1) % 2), sums, 0,
           columns);
}

static __attribute__((noinline)) void few_groups_32(const product *p, int first, const scales_32 *s, int groups,
                                                    int kind) {
    if (panels_from(p, first) == 1)
        groups_32(p, first, s, groups, 1, kind);
    else
        groups_32(p, first, s, groups, 2, kind);
}

/* The common case, all groups of two panels, is unrolled. */
VI_INLINE void some_groups_32(const product *p, int first, const scales_32 *s, int groups, int kind) {
    if (groups == AT_ONCE && panels_from(p, first) == TOGETHER)
        groups_32(p, first, s, AT_ONCE, TOGETHER, kind);
    else
        few_groups_32(p, first, s, groups, kind);
}

/* All of K and all panels. `unpack` gives the scales of up to AT_ONCE groups of a panel and writes their tile operands,
 * AT_ONCE * TILE * row_32() bytes per panel. If it gives 0, tile sums would round, and `fallback` computes the groups. */
typedef int (*unpack_32_fn)(const product *, const uint8_t *panel, int64_t group, int groups, scales_32 *, uint8_t *to);
typedef void (*fallback_32_fn)(const product *, int first, int64_t group, int groups);

VI_INLINE void tiles_32(const product *p, unpack_32_fn unpack, fallback_32_fn fallback, int kind) {
    amx_begin(columns_a_tile(p), row_32(kind));
    clear_sums(p);
    for (int64_t group = 0, left = p->k / 32; left > 0; group += AT_ONCE, left -= AT_ONCE) {
        int groups = left < AT_ONCE ? (int)left : AT_ONCE;
        lay_columns(p, group, groups, kind);
        for (int first = 0; first < p->panels; first += TOGETHER) {
            scales_32 s[TOGETHER];
            int fits = 1;
            for (int i = 0; i < panels_from(p, first); i++)
                fits &= unpack(p, p->w + p->stride * (uint64_t)(first + i), group, groups, s + i,
                               p->scratch + AT_ONCE * TILE * row_32(kind) * i);
            if (fits)
                some_groups_32(p, first, s, groups, kind);
            else
                fallback(p, first, group, groups);
        }
    }
    write_sums(p);
    amx_end();
}

/* Stores codes as the tiles' signed bytes; `offset` as in product_32.h. */
VI_INLINE void store_codes(const vi *q, int offset, uint8_t *to) {
    UNROLL_FOR (int j = 0; j < 8; j++) {
        vi x = q[j];
        if (offset > 0)
            x = (vi)_mm512_sub_epi8((__m512i)x, _mm512_set1_epi8((char)offset));
        vi_store(to + LINE * j, offset == SIGNED_CODES ? sign_codes(x) : x);
    }
}

#define AMX_32(stem, offset)                                                                                           \
    static int stem##_unpack_groups(const product *p, const uint8_t *panel, int64_t group, int groups, scales_32 *s,   \
                                    uint8_t *codes) {                                                                  \
        for (int i = 0; i < groups; i++) {                                                                             \
            int64_t number = (group + i) / (BLOCK_##stem / 32);                                                        \
            const uint8_t *words = panel + p->head + sizeof(block_##stem) / 4 * LINE * (uint64_t)number;               \
            vi q[8];                                                                                                   \
            s->d[i] = stem##_panel_scale(words, panel + sizeof(block_##stem) % 4 * 16 * (uint64_t)number, s->m + i);   \
            stem##_panel_codes(words, (int)((group + i) % (BLOCK_##stem / 32)), q);                                    \
            store_codes(q, offset, codes + 8 * LINE * i);                                                              \
        }                                                                                                              \
        return 1;                                                                                                      \
    }                                                                                                                  \
    static void stem##_tiled(const product *p) {                                                                       \
        tiles_32(p, stem##_unpack_groups, NULL, (int)(offset) == MINIMUMS ? OF_CODES_AND_MINIMUMS : OF_CODES);         \
    }                                                                                                                  \
    static void stem##_amx(const product *p) {                                                                         \
        amx_cut(p, FROM_COLUMNS_32, stem##_tiled, stem##_product);                                                     \
    }

#endif
