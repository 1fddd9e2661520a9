/* product.c: the table of products of one instruction set; see product.h. */
#include <stddef.h>

#include "panel.h"
#include "product_256.h"
#include "product_32.h"
#include "product_expand.h"
#include "product_float.h"
#include "wide_256.h"

#define PRODUCT_ENTRY(stem, act) {TYPE_##stem, TYPE_##act, stem##_product}

/* A format without kernels of its own: rows come out of the panel one by one and meet the plain product. */
#define PRODUCT_PLAIN(stem, act)                                                                                    \
    static void stem##_product(const product *p) {                                                                  \
        const panel_format *f = panel_format_find(TYPE_##stem);                                                     \
        int blocks = (int)(p->k / BLOCK_##stem);                                                            \
        for (int i = 0; i < 16 * p->panels; i++) {                                                                  \
            panel_unpack_row(f, p->k, i % 16, p->w + p->stride * (uint64_t)(i / 16), p->scratch);                   \
            for (int c = 0; c < p->n; c++)                                                                          \
                p->out[p->pitch * c + i] =                                                                          \
                    stem##_dot((const void *)p->scratch, (const void *)(p->x + p->x_stride * (uint64_t)c), blocks); \
        }                                                                                                           \
    }
#include "products.inc"
#include "products_plain.inc"

static const product_kernel kernels[] = {
#include "products_table.inc"
};

const product_kernel *CPU_NAME(product_find)(uint32_t format, uint32_t act, uint32_t flags) {
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (kernels[i].format == format && kernels[i].act == act && (kernels[i].needs & ~flags) == 0)
            return kernels + i;
    return NULL;
}

uint64_t CPU_NAME(product_scratch)(int64_t k, int n) {
    uint64_t row = sizeof(double) * (uint64_t)k; /* of any format */
    return row > scratch_bytes(n) ? row : scratch_bytes(n);
}
