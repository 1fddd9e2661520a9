/* wide_256.h: products of super-blocks of 256 whose codes are expensive to unpack, so they are unpacked once for all columns.
 *
 * A format defines the functions that product_256.h requires. One column unpacks codes in registers. For more, a panel's
 * super-block is unpacked to scratch as bytes of codes (64 lines) and scales, which passes of columns, or tiles, read. The
 * reading functions are common to all formats, and the sums are those of product_256.h.
 */
#ifndef SATCHEL_CPU_WIDE_256_H
#define SATCHEL_CPU_WIDE_256_H

#include "codes_256.h"
#include "tile_256.h"

#if LANES > 4 || defined(__aarch64__)
enum { ONE_COLUMN = 1 };
#else
enum { ONE_COLUMN = 0 /* without dot-product instructions, registers gain nothing for one column */ };
#endif

/* Unpacks super-block number `block` of a panel; s: one set of scales per vector of lanes. */
static void wide_unpack(const product *p, const wide_256 *f, int panel, int64_t block, scales_256 *s, uint8_t *codes) {
    const uint8_t *base = p->w + p->stride * (uint64_t)panel;
    for (int part = 0; part < LANE_PARTS; part++)
        f->unpack(base + p->head + f->bytes * (uint64_t)block + 4 * LANES * part,
                  base + f->tail * (16 * block + LANES * part), s + part, codes + 4 * LANES * part);
}

typedef void (*wide_fn)(const wide_256 *, const uint8_t *codes, const scales_256 *, const uint8_t *x, uint64_t x_stride,
                        float *sums);

/* Adds one super-block of some lanes times n columns to their sums. */
VI_INLINE void wide_columns(const wide_256 *f, const uint8_t *codes, const scales_256 *s, const uint8_t *x,
                            uint64_t x_stride, float *sums, int scales, int offset, int n) {
    vi isum[MOST_COLUMNS];
    UNROLL_FOR (int c = 0; c < n; c++)
        isum[c] = vi_set(0);
    for (int g = 0, groups = opaque(8); g < groups; g++) {
        vi q[8];
        UNROLL_FOR (int j = 0; j < 8; j++)
            q[j] = vi_load(codes + LINE * (8 * g + j));
        group_sums(q, s->scale + scales * g, scales, offset, 0, x + 32 * g, x_stride, isum, n);
    }
    UNROLL_FOR (int c = 0; c < n; c++, sums += 16 * TOGETHER) {
        const block_a8_256 *a = (const block_a8_256 *)(x + x_stride * (uint64_t)c);
        int lift = offset == SIGNED_CODES ? offset : f->offset;
        vf_store(sums, add_super(isum[c], s, 8 * scales, lift, f->minimums ? 8 * scales : 0, a, vf_load(sums)));
    }
}

/* Variants: unsigned codes with 8 or 16 scales, then signed codes. */
#define WIDE_FUNCTION(stem, size)                                                                                      \
    static void stem##_columns##size(const wide_256 *f, const uint8_t *codes, const scales_256 *s, const uint8_t *x,   \
                                     uint64_t x_stride, float *sums) {                                                 \
        wide_columns(f, codes, s, x, x_stride, sums, stem##_SCALES, stem##_OFFSET, size);                              \
    }
enum { wide_8_SCALES = 1, wide_8_OFFSET = 0, wide_16_SCALES = 2, wide_16_OFFSET = 0 };
enum { wide_signed_8_SCALES = 1, wide_signed_8_OFFSET = SIGNED_CODES };
enum { wide_signed_16_SCALES = 2, wide_signed_16_OFFSET = SIGNED_CODES };
COLUMN_SIZES(WIDE_FUNCTION, wide_8)
COLUMN_SIZES(WIDE_FUNCTION, wide_16)
COLUMN_SIZES(WIDE_FUNCTION, wide_signed_8)
COLUMN_SIZES(WIDE_FUNCTION, wide_signed_16)
static const wide_fn wide_passes[4][MOST_COLUMNS + 1] = {COLUMN_TABLE(wide_8), COLUMN_TABLE(wide_16),
                                                         COLUMN_TABLE(wide_signed_8), COLUMN_TABLE(wide_signed_16)};

/* One super-block of a panel times all columns. */
static void wide_block(const product *p, const wide_256 *f, int panel, int64_t block) {
    const wide_fn *table = wide_passes[2 * (f->offset == SIGNED_CODES) + (f->groups == 16)];
    float *sums = sums_of(p, panel / TOGETHER * TOGETHER) + 16 * (panel % TOGETHER);
    const uint8_t *x = p->x + sizeof(block_a8_256) * (uint64_t)block;
    scales_256 s[LANE_PARTS];
    wide_unpack(p, f, panel, block, s, p->scratch);
    for (int from = 0, size; from < p->n; from += size) {
        size = pass_size(p->n - from);
        for (int part = 0; part < LANE_PARTS; part++)
            table[size](f, p->scratch + 4 * LANES * part, s + part, x + p->x_stride * (uint64_t)from, p->x_stride,
                        sums + 16 * TOGETHER * from + LANES * part);
    }
}

static void wide_product(const product *p, const wide_256 *f) {
    int64_t blocks = p->k / 256;
    clear_sums(p);
    for (int64_t i = 0; i < blocks * p->panels; i++)
        wide_block(p, f, (int)(p->n > MANY ? i % p->panels : i / blocks), p->n > MANY ? i / p->panels : i % blocks);
    write_sums(p);
}

#if defined(__AMX_INT8__)
/* One super-block of up to two panels times all columns, on AMX tiles. */
static void wide_tiles(const product *p, const wide_256 *f, int first, int64_t block) {
    int panels = panels_from(p, first), lift = lift_of(f->offset);
    _Alignas(64) uint8_t codes[CODE_BYTES];
    scales_256 s[TOGETHER];
    for (int i = 0; i < panels; i++) {
        wide_unpack(p, f, first + i, block, s + i, codes);
        for (int h = 0; h < 16; h++) {
            vi q[4];
            UNROLL_FOR (int j = 0; j < 4; j++)
                q[j] = vi_load(codes + LINE * (4 * h + j));
            store_planes(q, s[i].scale[f->groups == 16 ? h : h / 2], lift, p->scratch + 2 * PLANE * i + 4 * LINE * h);
        }
    }
    if (panels == 1)
        block_256(p, first, block, s, 1, f->minimums);
    else
        block_256(p, first, block, s, 2, f->minimums);
}

static void wide_tiled(const product *p, const wide_256 *f) {
    int64_t blocks = p->k / 256, pairs = (p->panels + 1) / TOGETHER;
    amx_begin(columns_a_tile(p), 64);
    clear_sums(p);
    for (int64_t i = 0; i < blocks * pairs; i++)
        wide_tiles(p, f, TOGETHER * (int)(p->n > TILE ? i % pairs : i / blocks), p->n > TILE ? i / pairs : i % blocks);
    write_sums(p);
    amx_end();
}

#define WIDE_EXACT(stem)                                                                                               \
    static void stem##_tiled(const product *p) {                                                                       \
        wide_tiled(p, &stem##_wide);                                                                                   \
    }                                                                                                                  \
    static void stem##_256(const product *p) {                                                                         \
        amx_cut(p, FROM_COLUMNS, stem##_tiled, stem##_few);                                                            \
    }
#else
#define WIDE_EXACT(stem)                                                                                               \
    static void stem##_256(const product *p) {                                                                         \
        stem##_few(p);                                                                                                 \
    }
#endif

#define WIDE_256(stem, groups, offset, minimums)                                                                       \
    BLOCK_256(stem, groups, offset, minimums)                                                                          \
    BLOCK_PASS(stem, a8_256)                                                                                           \
    WIDE_UNPACK(stem, groups, offset, minimums)                                                                        \
    static void stem##_few(const product *p) {                                                                         \
        if (p->n >= TILES_FROM)                                                                                        \
            tile_product(p, &stem##_wide);                                                                             \
        else if (!ONE_COLUMN || p->n > 1)                                                                              \
            wide_product(p, &stem##_wide);                                                                             \
        else                                                                                                           \
            for (int i = 0; i < p->panels; i++)                                                                        \
                stem##_columns(p, p->w + p->stride * (uint64_t)i, p->x, p->out + 16 * i, 1);                           \
    }                                                                                                                  \
    WIDE_EXACT(stem)                                                                                                   \
    EXPAND_256(stem)

#endif
