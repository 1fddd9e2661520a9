/* tile_256.h: products of super-blocks of 256 for more columns than a pass takes, where the set has 32 registers of 16 lanes and
 * no AMX. The sums are those of product_256.h.
 *
 * Two panels' super-blocks are unpacked to scratch as bytes of codes; tiles of both panels times four columns read them. So
 * an activation is loaded once for two products: with one panel, which needs a load for each, loads are the limit.
 */
#ifndef SATCHEL_CPU_TILE_256_H
#define SATCHEL_CPU_TILE_256_H

#include "unpack_256.h"

#if LANES == 16 && !defined(__AMX_INT8__)
enum { TILES_FROM = 16 /* with fewer columns, unpacking to scratch costs more than tiles save */, TILE_COLUMNS = 4 };

/* The super-blocks that the next tiles read. A group of codes prefetches `rate` lines of each panel's. */
typedef struct {
    const uint8_t *words[TOGETHER];
    int done, lines, rate;
} tile_next;

VI_INLINE void tile_fetch(tile_next *next) {
    for (int i = 0; i < next->rate && next->done < next->lines; i++, next->done++)
        UNROLL_FOR (int j = 0; j < TOGETHER; j++)
            __builtin_prefetch(next->words[j] + LINE * next->done, 0, 3);
}

/* isum[n i + c] += group_sum() of panel i and column c for group g. */
VI_INLINE void tile_sums(const uint8_t *codes, const scales_256 *s, int g, int scales, int offset, const uint8_t *x,
                         uint64_t x_stride, vi *isum, int panels, int n) {
    int each = 8 / scales;
    UNROLL_FOR (int h = 0; h < scales; h++) {
        vi dots[TOGETHER * TILE_COLUMNS], q[TOGETHER];
        UNROLL_FOR (int i = 0; i < panels * n; i++)
            dots[i] = vi_set(0);
        UNROLL_FOR (int j = 0; j < each; j++) {
            UNROLL_FOR (int i = 0; i < panels; i++)
                q[i] = vi_load(codes + CODE_BYTES * i + LINE * (8 * g + each * h + j));
            UNROLL_FOR (int c = 0; c < n; c++) {
                vi y = vi_set_at(x + x_stride * (uint64_t)c + 32 * g + 4 * (each * h + j));
                UNROLL_FOR (int i = 0; i < panels; i++)
                    dots[n * i + c] =
                        offset == SIGNED_CODES ? dot4_signed(dots[n * i + c], q[i], y) : dot4(dots[n * i + c], q[i], y);
            }
        }
        UNROLL_FOR (int i = 0; i < panels; i++)
            UNROLL_FOR (int c = 0; c < n; c++)
                isum[n * i + c] += dots[n * i + c] * s[i].scale[scales * g + h];
    }
}

/* Adds a super-block of each panel times n columns to their sums. */
VI_INLINE void tile_columns(const wide_256 *f, const uint8_t *codes, const scales_256 *s, tile_next *next,
                            const uint8_t *x, uint64_t x_stride, float *sums, int scales, int offset, int panels,
                            int n) {
    vi isum[TOGETHER * TILE_COLUMNS];
    UNROLL_FOR (int i = 0; i < panels * n; i++)
        isum[i] = vi_set(0);
    for (int g = 0, groups = opaque(8); g < groups; g++) {
        tile_fetch(next);
        tile_sums(codes, s, g, scales, offset, x, x_stride, isum, panels, n);
    }
    UNROLL_FOR (int c = 0; c < n; c++, sums += 16 * TOGETHER) {
        const block_a8_256 *a = (const block_a8_256 *)(x + x_stride * (uint64_t)c);
        int lift = offset == SIGNED_CODES ? offset : f->offset, minimums = f->minimums ? 8 * scales : 0;
        UNROLL_FOR (int i = 0; i < panels; i++)
            vf_store(sums + 16 * i,
                     add_super(isum[n * i + c], s + i, 8 * scales, lift, minimums, a, vf_load(sums + 16 * i)));
    }
}

typedef void (*tile_fn)(const wide_256 *, const uint8_t *codes, const scales_256 *, tile_next *, const uint8_t *x,
                        uint64_t x_stride, float *sums);

/* Variants: one or two panels, 8 or 16 scales, unsigned or signed codes. Of TILES_FROM columns no tile has less than two. */
#define TILE_FUNCTION(stem, size)                                                                                      \
    static void stem##_columns##size(const wide_256 *f, const uint8_t *codes, const scales_256 *s, tile_next *next,    \
                                     const uint8_t *x, uint64_t x_stride, float *sums) {                               \
        tile_columns(f, codes, s, next, x, x_stride, sums, stem##_SCALES, stem##_OFFSET, stem##_PANELS, size);         \
    }
#define TILE_VARIANT(stem, scales, offset, panels)                                                                     \
    enum { stem##_SCALES = scales, stem##_OFFSET = offset, stem##_PANELS = panels };                                   \
    TILE_FUNCTION(stem, 2)                                                                                             \
    TILE_FUNCTION(stem, 3)                                                                                             \
    TILE_FUNCTION(stem, 4)
#define TILE_ROW(stem) {NULL, NULL, stem##_columns2, stem##_columns3, stem##_columns4}
TILE_VARIANT(tile_8, 1, 0, 2)
TILE_VARIANT(tile_16, 2, 0, 2)
TILE_VARIANT(tile_signed_8, 1, SIGNED_CODES, 2)
TILE_VARIANT(tile_signed_16, 2, SIGNED_CODES, 2)
TILE_VARIANT(tile_last_8, 1, 0, 1)
TILE_VARIANT(tile_last_16, 2, 0, 1)
TILE_VARIANT(tile_last_signed_8, 1, SIGNED_CODES, 1)
TILE_VARIANT(tile_last_signed_16, 2, SIGNED_CODES, 1)
static const tile_fn tile_passes[TOGETHER][4][TILE_COLUMNS + 1] = {
    {TILE_ROW(tile_last_8), TILE_ROW(tile_last_16), TILE_ROW(tile_last_signed_8), TILE_ROW(tile_last_signed_16)},
    {TILE_ROW(tile_8), TILE_ROW(tile_16), TILE_ROW(tile_signed_8), TILE_ROW(tile_signed_16)}};

/* Super-block number `block` of one or two panels from number `first` on, times all columns. The next ones: the following
 * panels' of the same number, or the first panels' of the next number. */
static inline void tile_block(const product *p, const wide_256 *f, int first, int64_t block) {
    int panels = panels_from(p, first), passes = (p->n + TILE_COLUMNS - 1) / TILE_COLUMNS;
    int last = first + TOGETHER >= p->panels, after = last ? 0 : first + TOGETHER;
    const tile_fn *table = tile_passes[panels - 1][2 * (f->offset == SIGNED_CODES) + (f->groups == 16)];
    float *sums = sums_of(p, first);
    const uint8_t *x = p->x + sizeof(block_a8_256) * (uint64_t)block;
    scales_256 s[TOGETHER];
    tile_next next = {.lines = (int)(f->bytes / LINE)};
    next.rate = (next.lines + 8 * passes - 1) / (8 * passes);
    for (int i = 0; i < TOGETHER; i++) {
        const uint8_t *base = p->w + p->stride * (uint64_t)(after + i);
        next.words[i] = base + p->head + f->bytes * (uint64_t)(block + last);
        __builtin_prefetch(base + f->tail * 16 * (block + last), 0, 3);
    }
    for (int i = 0; i < panels; i++) {
        const uint8_t *base = p->w + p->stride * (uint64_t)(first + i);
        f->unpack(base + p->head + f->bytes * (uint64_t)block, base + f->tail * 16 * block, s + i,
                  p->scratch + CODE_BYTES * i);
    }
    for (int from = 0, size; from < p->n; from += size, passes--) {
        size = (p->n - from + passes - 1) / passes;
        table[size](f, p->scratch, s, &next, x + p->x_stride * (uint64_t)from, p->x_stride,
                    sums + 16 * TOGETHER * from);
    }
}

static inline void tile_product(const product *p, const wide_256 *f) {
    clear_sums(p);
    for (int64_t block = 0; block < p->k / 256; block++)
        for (int first = 0; first < p->panels; first += TOGETHER)
            tile_block(p, f, first, block);
    write_sums(p);
}
#else
enum { TILES_FROM = INT32_MAX };

static inline void tile_product(const product *p, const wide_256 *f) {
    (void)p, (void)f;
}
#endif

#endif
