/* amx_bf16.h: products of bf16 and f16 weights with bf16x2 activations on AMX tiles, for any number of columns.
 *
 * A panel's words of bf16 already are a tile's rows. An f16 weight is split exactly into two planes of bfloat16: its upper
 * eight significant bits and the rest. Accumulators stay in tiles over a slice of K and in memory between slices, always in
 * float32. Each 32 elements are multiplied, plane by plane, with the high and then the low halves of the activations; this
 * order does not depend on the number of columns.
 */
#ifndef SATCHEL_CPU_AMX_BF16_H
#define SATCHEL_CPU_AMX_BF16_H

#include "amx.h"

enum { SUMS_STRIDE = 4 * 16 * TOGETHER, SLICE_BF16 = 256, SLICE_F16 = 128 };

/* The weights of one pass: `k` elements, a multiple of 32, of one or two panels. */
typedef struct {
    const uint8_t *w;
    uint64_t panel, plane; /* bytes from one to the next */
    int k, panels, planes, halves;
    int few; /* 1: few columns, so weights come from memory and are prefetched */
} bf16_slice;

VI_INLINE void tiles_bf16(int panels, int tiles, float *sums, int64_t next, int store) {
    if (store) {
        _tile_stored(0, sums, SUMS_STRIDE);
        if (panels == 2)
            _tile_stored(1, sums + 16, SUMS_STRIDE);
        if (tiles == 2)
            _tile_stored(2, sums + next, SUMS_STRIDE);
        if (tiles == 2 && panels == 2)
            _tile_stored(3, sums + next + 16, SUMS_STRIDE);
        return;
    }
    _tile_loadd(0, sums, SUMS_STRIDE);
    if (panels == 2)
        _tile_loadd(1, sums + 16, SUMS_STRIDE);
    if (tiles == 2)
        _tile_loadd(2, sums + next, SUMS_STRIDE);
    if (tiles == 2 && panels == 2)
        _tile_loadd(3, sums + next + 16, SUMS_STRIDE);
}

/* Multiplies one or two tiles of columns, `step` bytes apart, with a slice and adds to their sums, `next` floats apart. */
VI_INLINE void multiply_bf16(const uint8_t *x, uint64_t x_stride, uint64_t step, const bf16_slice *s, int panels,
                             int tiles, float *sums, int64_t next) {
    const uint8_t *w = s->w;
    tiles_bf16(panels, tiles, sums, next, 0);
    for (int i = 0; i < s->k / 32; i++, x += sizeof(block_bf16x2), w += TILE_BYTES)
        for (int plane = 0; plane < s->planes; plane++) {
            if (s->few)
                fetch(w, TILE_BYTES, SEVERAL);
            if (s->few && panels == 2)
                fetch(w + s->panel, TILE_BYTES, SEVERAL);
            _tile_loadd(6, w + s->plane * (uint64_t)plane, LINE);
            if (panels == 2)
                _tile_loadd(7, w + s->plane * (uint64_t)plane + s->panel, LINE);
            for (int half = 0; half < s->halves; half++) {
                _tile_loadd(4, x + 64 * half, x_stride);
                _tile_dpbf16ps(0, 4, 6);
                if (panels == 2)
                    _tile_dpbf16ps(1, 4, 7);
                if (tiles == 1)
                    continue;
                _tile_loadd(5, x + step + 64 * half, x_stride);
                _tile_dpbf16ps(2, 5, 6);
                if (panels == 2)
                    _tile_dpbf16ps(3, 5, 7);
            }
        }
    tiles_bf16(panels, tiles, sums, next, 1);
}

/* A slice that begins at element k, times all columns. */
VI_INLINE void columns_bf16(const product *p, int first, int64_t k, const bf16_slice *s, int panels) {
    const uint8_t *x = p->x + sizeof(block_bf16x2) * (uint64_t)(k / 32);
    int columns = columns_a_tile(p);
    uint64_t step = p->x_stride * (uint64_t)columns;
    int64_t next = 16 * TOGETHER * columns;
    float *sums = sums_of(p, first);
    for (int done = 0; done < p->n; done += 2 * columns, x += 2 * step, sums += 2 * next)
        if (done + columns < p->n)
            multiply_bf16(x, p->x_stride, step, s, panels, 2, sums, next);
        else
            multiply_bf16(x, p->x_stride, step, s, panels, 1, sums, next);
}

/* Splits `k` elements of 16 rows of f16 into planes: words of the upper parts at `to`, of the lower ones `plane` bytes on. */
VI_INLINE void planes_f16(const uint8_t *words, int k, uint8_t *to, uint64_t plane) {
    vi upper = vi_set((int32_t)0xFFFF0000);
    for (int i = 0; i < k / 2; i++) {
        vf a = f16_at(words + LINE * i, 0, 0), b = f16_at(words + LINE * i, 0, 1);
        vi ah = (vi)a & upper, bh = (vi)b & upper;
        vi al = (vi)(a - (vf)ah), bl = (vi)(b - (vf)bh);
        vi_store(to + LINE * i, vi_shift_right(ah, 16) | bh);
        vi_store(to + plane + LINE * i, vi_shift_right(al, 16) | (bl & upper));
    }
}

/* One slice of two panels, or of a single last one, from element k on, times all columns. */
static void slice_of(const product *p, int is_f16, int first, int64_t k, int64_t most) {
    const uint8_t *w = p->w + p->stride * (uint64_t)first + LINE * k / 2;
    bf16_slice s = {.w = is_f16 ? p->scratch : w,
                    .panel = is_f16 ? 2 * 4096 : p->stride,
                    .plane = 4096,
                    .k = (int)(p->k - k < most ? p->k - k : most),
                    .panels = panels_from(p, first),
                    .planes = is_f16 ? 2 : 1,
                    .halves = p->flags & HAL_FAST ? 1 : 2,
                    .few = p->n <= TILE && !is_f16};
    for (int i = 0; i < s.panels && is_f16; i++)
        planes_f16(w + p->stride * (uint64_t)i, s.k, p->scratch + 2 * 4096 * i, 4096);
    if (s.panels == TOGETHER)
        columns_bf16(p, first, k, &s, 2);
    else
        columns_bf16(p, first, k, &s, 1);
}

/* Many columns: the outer loop is over K, see product_columns.h. Few: the product is memory-bound, so panels are read from end
 * to end. */
static void slices_bf16(const product *p, int is_f16) {
    int64_t most = is_f16 ? SLICE_F16 : SLICE_BF16;
    amx_begin(columns_a_tile(p), 64);
    clear_sums(p);
    if (p->n <= TILE)
        for (int first = 0; first < p->panels; first += TOGETHER)
            for (int64_t k = 0; k < p->k; k += most)
                slice_of(p, is_f16, first, k, most);
    else
        for (int64_t k = 0; k < p->k; k += most)
            for (int first = 0; first < p->panels; first += TOGETHER)
                slice_of(p, is_f16, first, k, most);
    write_sums(p);
    amx_end();
}

static void bf16_tiled(const product *p) {
    slices_bf16(p, 0);
}

static void f16_tiled(const product *p) {
    slices_bf16(p, 1);
}

static void bf16_amx(const product *p) {
    amx_cut(p, 1, bf16_tiled, bf16_tiled);
}

static void f16_amx(const product *p) {
    amx_cut(p, 1, f16_tiled, f16_tiled);
}

#endif
