/* amx.h: the order in which a product walks columns and panels with Intel's tiles (amx_tiles.h).
 *
 * A tile of 16 rows of 64 bytes is at once 16 words of a panel, the codes of 64 numbers of 16 rows, and 64 codes of 16
 * columns; the product of the two is 16 columns by 16 rows. Tiles 0-3 are sums, 4 and 5 hold columns, 6 and 7 weights.
 * A product is cut into one of whole tiles of columns and one of what is left, with tiles of so many rows, or without
 * tiles where that is too little.
 */
#ifndef SATCHEL_CPU_AMX_H
#define SATCHEL_CPU_AMX_H

#include "amx_tiles.h"
#include "product_columns.h"

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
