/* product.h: matrix product of packed weights (panel.h) with activation columns, per weight format and instruction set.
 *
 * A vector lane is a row of the weight, so a result is one sequential sum over its row's blocks. Its bits depend on the format
 * alone, never on how many columns are computed together. Formats with the same method are a family, a folder of product/:
 * product_<family>.c includes the folder's files and is compiled once per instruction set. A file product/<family>/<format>.h
 * defines PRODUCT_<format>, an entry of its family's table; a format without one uses the plain product of its header
 * (product_plain.c).
 */
#ifndef SATCHEL_CPU_PRODUCT_H
#define SATCHEL_CPU_PRODUCT_H

#include "cpu.h"
#include "weights/panel.h"

enum { PRODUCT_PANELS = 16 /* most panels of one product */ };

/* Arguments of a product: out[j * pitch + i] = dot product of row i of the panels (16 rows each) and column j. k: elements of a
 * row. */
typedef struct {
    const uint8_t *w;
    uint64_t stride; /* bytes of a panel */
    uint64_t head;   /* bytes of the tails at a panel's head */
    int panels;
    int64_t k;
    const uint8_t *x;  /* columns in the activations' format */
    uint64_t x_stride; /* bytes from one column to the next */
    int n;             /* number of columns, at least 1 */
    float *out;
    int64_t pitch;    /* floats from column to column of out */
    uint8_t *scratch; /* product_scratch() bytes */
    uint32_t flags;   /* of hal_options */
} product;

struct product_kernel {
    uint32_t format, act;
    void (*run)(const product *);
    uint32_t needs; /* flags of hal_options that must be set to use this product (HAL_FAST for an inexact one) */
};

#ifdef CPU_ISA
/* The table of a family; its last entry has run == NULL. */
#define PRODUCT_FAMILY(name) const product_kernel CPU_NAME(products_##name)[]
#define PRODUCT_ENTRY(stem, act) {TYPE_##stem, TYPE_##act, stem##_product}
#endif

/* The product of a set for these formats; NULL: none that the flags allow. */
const product_kernel *product_find(const cpu_set *, uint32_t format, uint32_t act, uint32_t flags);

/* Checks the formats of n weights, the inputs from the second on, and of x: NULL, or what is wrong. */
static inline const char *check_weights(const cpu_call *c, int n) {
    for (const cpu_view *w = c->v + 2; w < c->v + 2 + n; w++) {
        const panel_format *f = panel_format_find(w->format);
        if (!f || w->shape[w->ndim - 1] % f->block)
            return "each weight must have a format that has a product";
        if (!product_find(c->set, w->format, c->v[1].format, c->flags))
            return "x must have the activation format of the weight's product";
    }
    return NULL;
}

/* Products for many columns loop over K outside and over pairs of panels inside: a slice of K of all columns stays in the
 * cache for all panels, and each panel is unpacked once. Their scratch: unpacked weights of two panels; tile results; sums
 * (panels / 2, columns, 2 * 16) in float32; and unpacked weights of all panels, or a slice of K of all columns. */
enum { TOGETHER = 2, WEIGHTS_BYTES = TOGETHER * 2 * 4096, RESULTS_BYTES = 4 * 4096 };
enum { PANELS_BYTES = PRODUCT_PANELS * 4096, COLUMNS_BYTES = 4608 /* for 16 columns */ };

/* Bytes of scratch that suffice for any product of n columns with rows of k elements, and for one unpacked row. */
static inline uint64_t product_scratch(int64_t k, int n) {
    uint64_t row = sizeof(double) * (uint64_t)k;
    uint64_t sums = sizeof(float) * 16 * PRODUCT_PANELS * (uint64_t)n,
             columns = COLUMNS_BYTES * ((uint64_t)n + 15) / 16;
    uint64_t all = WEIGHTS_BYTES + RESULTS_BYTES + sums + (columns > PANELS_BYTES ? columns : PANELS_BYTES);
    return row > all ? row : all;
}

#endif
