/* product.h: the product of packed weights (panel.h) with activation columns, per weight format and instruction set.
 *
 * Each lane of a vector is a row of the weight, so a result is one sequential sum over its row's blocks: it depends on the
 * format alone, never on how many columns pass together. A file product/<format>.h defines PRODUCT_<format>, an entry of
 * the table of product.c; a format without one runs on the plain product of its header.
 */
#ifndef SATCHEL_CPU_PRODUCT_H
#define SATCHEL_CPU_PRODUCT_H

#include "cpu.h"

enum { PRODUCT_PANELS = 16 /* the most that one product takes */ };

/* out[j * pitch + i] = row i of these panels (16 rows each) times column j. k: numbers of a row. */
typedef struct {
    const uint8_t *w;
    uint64_t stride;      /* bytes of a panel */
    uint64_t head;        /* bytes of its lone parts */
    int panels;
    int64_t k;
    const uint8_t *x;     /* columns in the activations' format */
    uint64_t x_stride;    /* bytes from one column to the next */
    int n;                /* at least 1 */
    float *out;
    int64_t pitch;        /* floats */
    uint8_t *scratch;     /* product_scratch() bytes */
    uint32_t flags;       /* of hal_options */
} product;

typedef struct {
    uint32_t format, act;
    void (*run)(const product *);
    uint32_t needs; /* flags of hal_options without which this product is not exact enough to be taken */
} product_kernel;

const product_kernel *CPU_NAME(product_find)(uint32_t format, uint32_t act, uint32_t flags); /* NULL: there is none */
uint64_t CPU_NAME(product_scratch)(int64_t k, int n);

#endif
