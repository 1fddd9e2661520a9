/* block_256.h: products of super-blocks of 256 that unpack the codes in registers, again in each pass over the weights, unless
 * there are so many columns that tiles are faster: of AMX, or of tile_256.h.
 *
 * PRODUCT_256 defines a format's products from the functions that product_256.h requires: exact ones, and fast ones for
 * HAL_FAST.
 */
#ifndef SATCHEL_CPU_BLOCK_256_H
#define SATCHEL_CPU_BLOCK_256_H

#include "tile_256.h"

#define COLUMNS_256(stem, groups, offset)                                                                              \
    BLOCK_256(stem, groups, offset, (offset) == 0 ? 8 : 0)                                                             \
    BLOCK_COLUMNS(stem, a8_256)

#if defined(__AMX_INT8__)
#define EXACT_256(stem, groups, offset) COLUMNS_256(stem, groups, offset) AMX_256(stem, groups, offset)
#define CUT_256(p, least, many, few) amx_cut(p, least, many, few)
#else
#define EXACT_256(stem, groups, offset)                                                                                \
    COLUMNS_256(stem, groups, offset)                                                                                  \
    static void stem##_exact(const product *p) {                                                                       \
        if (p->n >= TILES_FROM)                                                                                        \
            tile_product(p, &stem##_wide);                                                                             \
        else                                                                                                           \
            stem##_product(p);                                                                                         \
    }
#define CUT_256(p, least, many, few) ((p)->n < (least) ? few : many)(p)
#endif
#include "fast_256.h"

/* most: the largest code. */
#define PRODUCT_256(stem, groups, offset, most)                                                                        \
    WIDE_UNPACK(stem, groups, offset, (offset) == 0 ? 8 : 0)                                                           \
    EXACT_256(stem, groups, offset)                                                                                    \
    FAST_256(stem, groups, offset, most)                                                                               \
    EXPAND_256(stem)                                                                                                   \
    static void stem##_256(const product *p) {                                                                         \
        if (p->flags & HAL_FAST)                                                                                       \
            CUT_256(p, FAST_COLUMNS, stem##_fast, stem##_exact);                                                       \
        else                                                                                                           \
            stem##_exact(p);                                                                                           \
    }

#endif
