/* product.h: the product of packed weights (panel.h) with activation columns, per weight format and instruction set.
 *
 * Each lane of a vector is a row of the weight, so a result is one sequential sum over its row's blocks: it depends on the
 * format alone, never on how many columns pass together. Formats whose products are made alike are a family, a folder of
 * product/: product_<family>.c is one unit of every instruction set, and includes the folder's files. A file
 * product/<family>/<format>.h defines PRODUCT_<format>, an entry of its family's table; a format without one runs on the plain
 * product of its header (product_plain.c).
 */
#ifndef SATCHEL_CPU_PRODUCT_H
#define SATCHEL_CPU_PRODUCT_H

#include "cpu.h"

enum { PRODUCT_PANELS = 16 /* the most that one product takes */ };

/* out[j * pitch + i] = row i of these panels (16 rows each) times column j. k: numbers of a row. */
typedef struct {
    const uint8_t *w;
    uint64_t stride;      /* bytes of a panel */
    uint64_t head;        /* bytes of the tails at its head */
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

struct product_kernel {
    uint32_t format, act;
    void (*run)(const product *);
    uint32_t needs; /* flags of hal_options without which this product is not exact enough to be taken */
};

#ifdef CPU_ISA
/* The table of a family, which ends with an entry without `run`. */
#define PRODUCT_FAMILY(name) const product_kernel CPU_NAME(products_##name)[]
#define PRODUCT_ENTRY(stem, act) {TYPE_##stem, TYPE_##act, stem##_product}
#endif

/* The product of a set for these formats; NULL: it has none that the flags allow. */
const product_kernel *product_find(const cpu_set *, uint32_t format, uint32_t act, uint32_t flags);

/* Products for many columns walk K outside and panels, two by two, inside: what a step reads of all columns stays in the
 * cache for all panels, and each panel is unpacked once. Their scratch: the unpacked weights of two panels, what tiles
 * give, the sums (panels / 2, columns, 2 panels of 16) in float32, and unpacked weights of all panels, or a part of K of all
 * columns. */
enum { TOGETHER = 2, WEIGHTS_BYTES = TOGETHER * 2 * 4096, RESULTS_BYTES = 4 * 4096 };
enum { PANELS_BYTES = PRODUCT_PANELS * 4096, COLUMNS_BYTES = 4608 /* of 16 */ };

/* Bytes of scratch that any product of n columns needs, for rows of k numbers: a row of any format, unpacked, fits too. */
static inline uint64_t product_scratch(int64_t k, int n) {
    uint64_t row = sizeof(double) * (uint64_t)k;
    uint64_t sums = sizeof(float) * 16 * PRODUCT_PANELS * (uint64_t)n, columns = COLUMNS_BYTES * ((uint64_t)n + 15) / 16;
    uint64_t all = WEIGHTS_BYTES + RESULTS_BYTES + sums + (columns > PANELS_BYTES ? columns : PANELS_BYTES);
    return row > all ? row : all;
}

#endif
