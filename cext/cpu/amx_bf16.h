/* amx_bf16.h: products of bf16 weights with bf16x2 activations in tiles, for any number of columns.
 *
 * A panel's words are a tile's rows as they lie. The sums stay in tiles over SLICE numbers, then rest in memory, exact
 * float32 both; each 32 numbers meet first the high, then the low halves of the activations, whatever the columns are.
 */
#ifndef SATCHEL_CPU_AMX_BF16_H
#define SATCHEL_CPU_AMX_BF16_H

#include "amx.h"

enum { SLICE = 256, SUMS_STRIDE = 4 * 16 * TOGETHER };

/* `k` numbers (a multiple of 32) of one or two panels with one or two tiles of columns, added to their sums. */
VI_INLINE void multiply_bf16(const uint8_t *x, uint64_t x_stride, uint64_t step, const uint8_t *w, uint64_t w_stride, int k,
                             int panels, int tiles, int halves, float *sums, int64_t next) {
    _tile_loadd(0, sums, SUMS_STRIDE);
    if (panels == 2)
        _tile_loadd(1, sums + 16, SUMS_STRIDE);
    if (tiles == 2)
        _tile_loadd(2, sums + next, SUMS_STRIDE);
    if (tiles == 2 && panels == 2)
        _tile_loadd(3, sums + next + 16, SUMS_STRIDE);
    for (int i = 0; i < k / 32; i++, x += sizeof(block_bf16x2), w += TILE_BYTES) {
        _tile_loadd(6, w, LINE);
        if (panels == 2)
            _tile_loadd(7, w + w_stride, LINE);
        for (int half = 0; half < halves; half++) {
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
    _tile_stored(0, sums, SUMS_STRIDE);
    if (panels == 2)
        _tile_stored(1, sums + 16, SUMS_STRIDE);
    if (tiles == 2)
        _tile_stored(2, sums + next, SUMS_STRIDE);
    if (tiles == 2 && panels == 2)
        _tile_stored(3, sums + next + 16, SUMS_STRIDE);
}

/* One slice of one or two panels with all columns. */
VI_INLINE void slice_bf16(const product *p, int first, int64_t k, const uint8_t *w, int panels, int halves) {
    const uint8_t *x = p->x + sizeof(block_bf16x2) * (uint64_t)(k / 32);
    int columns = columns_a_tile(p), size = p->k - k < SLICE ? (int)(p->k - k) : SLICE;
    uint64_t step = p->x_stride * (uint64_t)columns;
    int64_t next = 16 * TOGETHER * columns;
    float *sums = sums_of(p, first);
    for (int done = 0; done < p->n; done += 2 * columns, x += 2 * step, sums += 2 * next)
        if (done + columns < p->n)
            multiply_bf16(x, p->x_stride, step, w, p->stride, size, panels, 2, halves, sums, next);
        else
            multiply_bf16(x, p->x_stride, step, w, p->stride, size, panels, 1, halves, sums, next);
}

static void bf16_tiled(const product *p) {
    int halves = p->flags & HAL_FAST ? 1 : 2;
    amx_begin(columns_a_tile(p), 64);
    clear_sums(p);
    for (int64_t k = 0; k < p->k; k += SLICE)
        for (int first = 0; first < p->panels; first += TOGETHER) {
            const uint8_t *w = p->w + p->stride * (uint64_t)first + LINE * k / 2;
            if (panels_from(p, first) == TOGETHER)
                slice_bf16(p, first, k, w, 2, halves);
            else
                slice_bf16(p, first, k, w, 1, halves);
        }
    write_sums(p);
    amx_end();
}

static void bf16_amx(const product *p) {
    amx_cut(p, 1, bf16_tiled, bf16_tiled);
}

#endif
