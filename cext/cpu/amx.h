/* amx.h: Intel's tiles: how they are set up, and the order in which a product walks columns and panels with them.
 *
 * A tile of 16 rows of 64 bytes is at once 16 words of a panel, the codes of 64 numbers of 16 rows, and 64 codes of 16
 * columns; the product of the two is 16 columns by 16 rows. Tiles 0-3 are sums, 4 and 5 hold columns, 6 and 7 weights.
 * A product is cut into one of whole tiles of columns and one of what is left, with tiles of so many rows, or without
 * tiles where that is too little. Who calls amx_begin ends with amx_end on the same thread.
 */
#ifndef SATCHEL_CPU_AMX_H
#define SATCHEL_CPU_AMX_H

#include "product_columns.h"

enum { TILE = 16, TILE_BYTES = 1024 };

typedef struct {
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} tile_config;

/* Tiles of `columns` columns, of `k` bytes of each; k / 4 words of weights. */
static inline void amx_begin(int columns, int k) {
    _Alignas(64) tile_config c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        c.bytes[i] = (uint16_t)(i == 4 || i == 5 ? k : 64);
        c.rows[i] = (uint8_t)(i < 6 ? columns : k / 4);
    }
    __asm__ volatile("" : : "r"(&c) : "memory"); /* gcc's _tile_loadconfig says it reads 8 bytes: all must be written */
    _tile_loadconfig(&c);
}

static inline void amx_end(void) {
    _tile_release();
}

/* Calls `tiled` for a multiple of 16 columns and for the rest, or `plain` for less than `least` columns. */
static inline void amx_cut(const product *p, int least, void (*tiled)(const product *), void (*plain)(const product *)) {
    product part = *p;
    part.n = p->n < TILE ? p->n : p->n / TILE * TILE;
    (part.n < least ? plain : tiled)(&part);
    part.x += part.x_stride * (uint64_t)part.n;
    part.out += part.pitch * part.n;
    part.n = p->n - part.n;
    if (part.n > 0)
        (part.n < least ? plain : tiled)(&part);
}

static inline int columns_a_tile(const product *p) {
    return p->n < TILE ? p->n : TILE;
}

#endif
