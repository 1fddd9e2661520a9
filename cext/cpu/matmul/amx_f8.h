/* amx_f8.h: products of FP8 weights (E4M3, E5M2) with bf16x2 activations on AMX tiles, for any number of columns.
 *
 * Every FP8 code is a bfloat16 exactly. A block of 128 is summed as bfloat16 from 0 on, in the order of amx_bf16.h; the result
 * times the block's scale is added to the row's sum. This does not depend on the number of columns. Few columns: panels are
 * read from end to end, two at a time. Many: one block of all panels is converted to bfloat16, then multiplied with two tiles
 * of columns at a time.
 */
#ifndef SATCHEL_CPU_AMX_F8_H
#define SATCHEL_CPU_AMX_F8_H

#include "amx.h"

enum { F8_NUMBERS = 128, F8_STEPS = F8_NUMBERS / 32, F8_LINES = F8_NUMBERS / 4, F8_WORDS = LINE * (F8_LINES + 1) };
enum { F8_WEIGHTS = F8_STEPS * TILE_BYTES, F8_COLUMNS = 2 * 2 * F8_STEPS * TILE_BYTES };

/* Conversion of an FP8 format to bfloat16: normal numbers by another exponent bias, subnormal ones by tables. */
typedef struct {
    int fraction;    /* bits of the fraction */
    uint8_t special; /* bits that are all set in infinities and NaNs */
    /* upper byte of the bfloat16, indexed by the exponent without its last bit (E4M3: with the sign above it) */
    uint8_t high[16];
    uint8_t small_high[8], small_low[8]; /* bytes of subnormals, indexed by the fraction */
} f8_format;

/* Four codes of 16 rows as two words of bfloat16. */
VI_INLINE void f8_pairs(const f8_format *f, __m512i codes, uint8_t *to) {
    const __m512i order = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    const __m512i high_of = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)f->high));
    const __m512i small_high = _mm512_broadcast_i32x4(_mm_loadl_epi64((const __m128i *)f->small_high));
    const __m512i small_low = _mm512_broadcast_i32x4(_mm_loadl_epi64((const __m128i *)f->small_low));
    const __m512i special = _mm512_set1_epi8((char)f->special), sign = _mm512_set1_epi8((char)0x80);
    const int fraction = (1 << f->fraction) - 1, exponent = 0x7F & ~fraction;
    __m512i c = _mm512_shuffle_epi8(codes, order); /* two codes of each of four rows, then the other two */
    __m512i part = _mm512_and_si512(c, _mm512_set1_epi8((char)fraction));
    __mmask64 small = _mm512_testn_epi8_mask(c, _mm512_set1_epi8((char)exponent));
    __mmask64 odd = _mm512_cmpeq_epi8_mask(_mm512_and_si512(c, special), special);
    __m512i low = _mm512_and_si512(_mm512_slli_epi16(c, (unsigned)(7 - f->fraction)),
                                   _mm512_set1_epi8((char)(0xFF & (0xFF << (7 - f->fraction)))));
    __m512i high = _mm512_shuffle_epi8(
        high_of, _mm512_and_si512(_mm512_srli_epi16(c, (unsigned)(f->fraction + 1)), _mm512_set1_epi8(15)));
    low = _mm512_mask_shuffle_epi8(low, small, small_low, part);
    high = _mm512_mask_shuffle_epi8(high, small, small_high, part);
    high = _mm512_mask_mov_epi8(high, odd, _mm512_set1_epi8(0x7F));
    high = _mm512_ternarylogic_epi64(high, c, sign, 0xF8); /* high | c & sign */
    _mm512_storeu_si512(to, _mm512_unpacklo_epi8(low, high));
    _mm512_storeu_si512(to + LINE, _mm512_unpackhi_epi8(low, high));
}

/* Converts step number `step`, 32 elements, of a block's words to a tile. */
VI_INLINE void f8_tile(const f8_format *f, const uint8_t *words, int step, uint8_t *tiles) {
    const uint8_t *line = words + LINE * (1 + 8 * step);
    for (int i = 0; i < 8; i++)
        f8_pairs(f, (__m512i)vi_load(line + LINE * i), tiles + TILE_BYTES * step + 2 * LINE * i);
}

static inline const uint8_t *f8_words(const product *p, int panel, int64_t block) {
    return p->w + p->stride * (uint64_t)panel + F8_WORDS * (uint64_t)block;
}

/* One step. `x`: the tile of the activations' high halves; the low halves are `half` bytes on, other columns `step` on. */
VI_INLINE void f8_multiply(const product *p, const uint8_t *w, const uint8_t *x, uint64_t x_stride, uint64_t half,
                           uint64_t step, int panels, int tiles) {
    int halves = p->flags & HAL_FAST ? 1 : 2;
    _tile_loadd(6, w, LINE);
    if (panels == 2)
        _tile_loadd(7, w + F8_WEIGHTS, LINE);
    for (int h = 0; h < halves; h++) {
        _tile_loadd(4, x + half * (uint64_t)h, x_stride);
        _tile_dpbf16ps(0, 4, 6);
        if (panels == 2)
            _tile_dpbf16ps(1, 4, 7);
        if (tiles == 1)
            continue;
        _tile_loadd(5, x + step + half * (uint64_t)h, x_stride);
        _tile_dpbf16ps(2, 5, 6);
        if (panels == 2)
            _tile_dpbf16ps(3, 5, 7);
    }
}

VI_INLINE void f8_zero(void) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

VI_INLINE void f8_store(float *results, int panels, int tiles) {
    _tile_stored(0, results, LINE);
    if (panels == 2)
        _tile_stored(1, results + TILE * 16, LINE);
    if (tiles == 2)
        _tile_stored(2, results + 2 * TILE * 16, LINE);
    if (tiles == 2 && panels == 2)
        _tile_stored(3, results + 3 * TILE * 16, LINE);
}

/* Adds the results of a block, times its scales, to the sums of columns from `column` on: one or two panels, tiles of `columns`
 * columns. */
VI_INLINE void f8_add(const product *p, const float *results, int panel, int column, int64_t block, int panels,
                      int tiles, int columns) {
    float *sums = sums_of(p, panel) + 16 * TOGETHER * column;
    vf d[TOGETHER];
    for (int i = 0; i < panels; i++)
        d[i] = (vf)word(f8_words(p, panel + i, block), 0);
    for (int t = 0; t < tiles; t++, results += TOGETHER * 16 * TILE)
        for (int c = 0; c < columns; c++, sums += 16 * TOGETHER)
            UNROLL_FOR (int i = 0; i < panels; i++)
                vf_store(sums + 16 * i, vf_fma(vf_load(results + 16 * (c + TILE * i)), d[i], vf_load(sums + 16 * i)));
}

/* One tile of columns times all blocks of one or two panels. The next block is unpacked while tiles multiply this one. */
VI_INLINE void f8_few(const product *p, const f8_format *f, int first, int panels) {
    uint8_t *w[2] = {p->scratch, p->scratch + 2 * F8_WEIGHTS};
    float *results = (float *)(void *)(p->scratch + WEIGHTS_BYTES);
    int64_t blocks = p->k / F8_NUMBERS;
    for (int i = 0; i < panels; i++)
        for (int step = 0; step < F8_STEPS; step++)
            f8_tile(f, f8_words(p, first + i, 0), step, w[0] + F8_WEIGHTS * i);
    for (int64_t b = 0; b < blocks; b++) {
        f8_zero();
        for (int step = 0; step < F8_STEPS; step++) {
            const uint8_t *x = p->x + sizeof(block_bf16x2) * (uint64_t)(F8_STEPS * b + step);
            f8_multiply(p, w[b % 2] + TILE_BYTES * step, x, p->x_stride, 64, 0, panels, 1);
            for (int i = 0; i < panels && b + 1 < blocks; i++) {
                const uint8_t *words = f8_words(p, first + i, b + 1);
                fetch(words + 8 * LINE * step, 8 * LINE, SEVERAL);
                f8_tile(f, words, step, w[(b + 1) % 2] + F8_WEIGHTS * i);
            }
        }
        f8_store(results, panels, 1);
        f8_add(p, results, first, 0, b, panels, 1, columns_a_tile(p));
    }
}

/* Copies a block of `tiles` tiles of columns to contiguous tiles: columns are often so far apart that they conflict in a
 * cache. */
static void f8_columns(const product *p, int column, int tiles, int64_t block, uint8_t *to) {
    for (int c = 0; c < TILE * tiles; c++) {
        const uint8_t *x = p->x + p->x_stride * (uint64_t)(column + c) + 2 * LINE * F8_STEPS * (uint64_t)block;
        uint8_t *tile = to + F8_COLUMNS / 2 * (c / TILE) + LINE * (c % TILE);
        UNROLL_FOR (int i = 0; i < 2 * F8_STEPS; i++)
            vi_store(tile + TILE_BYTES * i, vi_load(x + LINE * i));
    }
}

/* Prefetches part i of 8 of a block of two tiles of columns. */
VI_INLINE void f8_ask(const product *p, int column, int64_t block, int i) {
    uintptr_t x = (uintptr_t)p->x + F8_STEPS * sizeof(block_bf16x2) * (uint64_t)block;
    for (int c = column + 4 * i; c < column + 4 * i + 4; c++)
        UNROLL_FOR (int j = 0; j < 2 * F8_STEPS; j++)
            __builtin_prefetch((const void *)(x + p->x_stride * (uint64_t)c + (uintptr_t)(LINE * j)), 0, 2);
}

/* A block of all unpacked panels times one or two tiles of columns. Results are added while the next ones are computed. */
VI_INLINE void f8_panels(const product *p, int column, int64_t block, int tiles) {
    float *results = (float *)(void *)(p->scratch + WEIGHTS_BYTES);
    int pairs = p->panels / 2, ping = 4 * TILE * 16;
    for (int i = 0; i <= pairs; i++) {
        const uint8_t *w = panels_of(p) + 2 * F8_WEIGHTS * i;
        if (i < pairs) {
            if (column + 2 * TILE < p->n)
                f8_ask(p, column + 2 * TILE, block, i);
            else
                f8_ask(p, 0, block + 1, i);
            f8_zero();
            for (int step = 0; step < F8_STEPS; step++)
                f8_multiply(p, w + TILE_BYTES * step, p->scratch + 2 * TILE_BYTES * step, LINE, TILE_BYTES,
                            F8_COLUMNS / 2, 2, tiles);
            f8_store(results + ping * (i % 2), 2, tiles);
        }
        if (i > 0)
            f8_add(p, results + ping * ((i - 1) % 2), 2 * i - 2, column, block, 2, tiles, TILE);
    }
    if (p->panels % 2 == 0)
        return;
    f8_zero();
    for (int step = 0; step < F8_STEPS; step++)
        f8_multiply(p, panels_of(p) + F8_WEIGHTS * (p->panels - 1) + TILE_BYTES * step,
                    p->scratch + 2 * TILE_BYTES * step, LINE, TILE_BYTES, F8_COLUMNS / 2, 1, tiles);
    f8_store(results, 1, tiles);
    f8_add(p, results, p->panels - 1, column, block, 1, tiles, TILE);
}

/* Whole tiles of columns. The outer loop is over K: a block of all panels is unpacked once. */
VI_INLINE void f8_many(const product *p, const f8_format *f) {
    for (int64_t b = 0; b < p->k / F8_NUMBERS; b++) {
        for (int i = 0; i < p->panels; i++)
            for (int step = 0; step < F8_STEPS; step++)
                f8_tile(f, f8_words(p, i, b), step, panels_of(p) + F8_WEIGHTS * i);
        for (int c = 0; c < p->n; c += 2 * TILE) {
            int tiles = c + TILE < p->n ? 2 : 1;
            f8_columns(p, c, tiles, b, p->scratch);
            if (tiles == 2)
                f8_panels(p, c, b, 2);
            else
                f8_panels(p, c, b, 1);
        }
    }
}
_Static_assert((int)WEIGHTS_BYTES >= (int)F8_COLUMNS, "two tiles of columns fit the scratch of unpacked weights");
_Static_assert((int)WEIGHTS_BYTES >= 4 * (int)F8_WEIGHTS, "so do two blocks of two panels");
_Static_assert((int)RESULTS_BYTES >= 2 * 4 * (int)TILE_BYTES, "the results of two pairs of panels fit");
_Static_assert((int)PANELS_BYTES >= (int)PRODUCT_PANELS * (int)F8_WEIGHTS, "a block of all panels fits");

VI_INLINE void f8_tiles(const product *p, const f8_format *f) {
    amx_begin(columns_a_tile(p), 64);
    clear_sums(p);
    if (p->n > TILE)
        f8_many(p, f);
    else
        for (int first = 0; first < p->panels; first += TOGETHER)
            if (panels_from(p, first) == TOGETHER)
                f8_few(p, f, first, 2);
            else
                f8_few(p, f, first, 1);
    write_sums(p);
    amx_end();
}

#define PRODUCT_F8(stem, ...)                                                                                          \
    static void stem##_tiled(const product *p) {                                                                       \
        static const f8_format format = {__VA_ARGS__};                                                                 \
        f8_tiles(p, &format);                                                                                          \
    }                                                                                                                  \
    static void stem##_amx(const product *p) {                                                                         \
        amx_cut(p, 1, stem##_tiled, stem##_tiled);                                                                     \
    }

#endif
