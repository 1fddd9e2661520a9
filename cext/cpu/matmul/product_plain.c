/* product_plain.c: products of formats without a file in product/. Each row is unpacked from its panel and multiplied by the
 * <format>_dot of the format's header.
 */
#include "weights/panel.h"
#include "product_columns.h"

#define PRODUCT_PLAIN(stem, act)                                                                                       \
    static void stem##_product(const product *p) {                                                                     \
        const panel_format *f = panel_format_find(TYPE_##stem);                                                        \
        int blocks = (int)(p->k / BLOCK_##stem);                                                                       \
        for (int i = 0; i < 16 * p->panels; i++) {                                                                     \
            panel_unpack_row(f, p->k, i % 16, p->w + p->stride * (uint64_t)(i / 16), p->scratch);                      \
            for (int c = 0; c < p->n; c++)                                                                             \
                p->out[p->pitch * c + i] =                                                                             \
                    stem##_dot((const void *)p->scratch, (const void *)(p->x + p->x_stride * (uint64_t)c), blocks);    \
        }                                                                                                              \
    }
#include "products_plain.inc"

PRODUCT_FAMILY(plain) = {
#include "products_plain_table.inc"
};
