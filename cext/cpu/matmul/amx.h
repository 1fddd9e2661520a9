/* amx.h: blocking of matrix products over Intel AMX tiles (amx_tiles.h).
 *
 * A tile has 16 rows of 64 bytes. A weight tile is 16 words of a panel: 64 codes each of 16 rows. An activation tile is 64
 * codes each of 16 columns. Their product is 16 columns by 16 rows. Tiles 0-3 are accumulators, 4 and 5 hold columns, 6 and 7
 * weights. A product is split into whole tiles of 16 columns and a remainder. The remainder uses tiles of fewer rows, or no
 * tiles where it has too few columns.
 */
#ifndef SATCHEL_CPU_AMX_H
#define SATCHEL_CPU_AMX_H

#include "simd/amx_tiles.h"
#include "product_columns.h"

/* Calls `tiled` for a multiple of 16 columns and then for the rest, or `plain` for a rest below `least` columns. */
static inline void amx_cut(const product *p, int least, void (*tiled)(const product *),
                           void (*plain)(const product *)) {
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
