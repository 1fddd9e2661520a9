/* product_columns.h: common loops of all products: passes of 1 to 8 columns over panels, unrolled for each size.
 *
 * PRODUCT_COLUMNS(stem, columns) makes a table entry's function from `columns`, which is inlined with n constant. Columns are
 * split into passes of nearly equal size, so no pass is left with a single column.
 */
#ifndef SATCHEL_CPU_PRODUCT_COLUMNS_H
#define SATCHEL_CPU_PRODUCT_COLUMNS_H

#include "formats.h"
#include "product.h"
#include "types.h"
#include "simd/vi.h"

#define UNROLL_FOR _Pragma("GCC unroll 16") for

/* n, hidden from the compiler: a loop of n iterations is not unrolled. */
VI_INLINE int opaque(int n) {
    __asm__("" : "+r"(n));
    return n;
}

enum { LANE_PARTS = 16 / LANES, LINE = 64, AHEAD = 6144, FAR_AHEAD = 8192, SEVERAL = 2 };
enum { SIGNED_CODES = -1, MINIMUMS = 0 }; /* special values of `offset`, the bias of codes */
enum { MANY = 16 /* from so many columns on, the outer loop is over K */ };

/* The bias of codes in the integer sums. */
VI_INLINE int lift_of(int offset) {
    return offset == SIGNED_CODES ? SIGNED_BIAS : offset;
}

typedef void (*columns_fn)(const product *, const uint8_t *panel, const uint8_t *x, float *out);

/* Passes of up to 8 columns where the set has enough registers, else up to 4. */
#if LANES == 16 || defined(__ARM_FEATURE_MATMUL_INT8)
enum { MOST_COLUMNS = 8 };
#define COLUMN_SIZES(each, stem) each(stem, 1) each(stem, 2) each(stem, 3) each(stem, 4) each(stem, 6) each(stem, 8)
#define COLUMN_TABLE(stem)                                                                                             \
    {NULL, stem##_columns1, stem##_columns2, stem##_columns3, stem##_columns4, NULL, stem##_columns6,                  \
     NULL, stem##_columns8}
static const uint8_t first_pass[MOST_COLUMNS + 1] = {0, 1, 2, 3, 4, 3, 6, 4, 8};
#else
enum { MOST_COLUMNS = 4 };
#define COLUMN_SIZES(each, stem) each(stem, 1) each(stem, 2) each(stem, 3) each(stem, 4)
#define COLUMN_TABLE(stem) {NULL, stem##_columns1, stem##_columns2, stem##_columns3, stem##_columns4}
static const uint8_t first_pass[MOST_COLUMNS + 1] = {0, 1, 2, 3, 4};
#endif

/* Columns of the next pass, of `left` remaining ones: passes have about equal sizes. */
static inline int pass_size(int left) {
    int passes = (left + MOST_COLUMNS - 1) / MOST_COLUMNS;
    return first_pass[(left + passes - 1) / passes];
}

static inline void run_passes(const product *p, const columns_fn *table) {
    for (int from = 0, size; from < p->n; from += size) {
        size = pass_size(p->n - from);
        for (int i = 0; i < p->panels; i++)
            table[size](p, p->w + p->stride * (uint64_t)i, p->x + p->x_stride * (uint64_t)from,
                        p->out + p->pitch * from + 16 * i);
    }
}

#define COLUMNS_FUNCTION(stem, size)                                                                                   \
    static void stem##_columns##size(const product *p, const uint8_t *panel, const uint8_t *x, float *out) {           \
        stem##_columns(p, panel, x, out, size);                                                                        \
    }
#define PRODUCT_COLUMNS(stem)                                                                                          \
    COLUMN_SIZES(COLUMNS_FUNCTION, stem)                                                                               \
    static const columns_fn stem##_passes[MOST_COLUMNS + 1] = COLUMN_TABLE(stem);                                      \
    static void stem##_product(const product *p) {                                                                     \
        run_passes(p, stem##_passes);                                                                                  \
    }

/* Prefetches weights: the hardware prefetcher alone is too slow. Prefetching past a weight's end is harmless. A single column
 * (n = 1) is memory-bound: its lines are prefetched from further ahead and into L2, which allows more outstanding misses than
 * L1. Several columns compute for longer than memory takes, and their lines go to L1. */
VI_INLINE void fetch(const uint8_t *p, int bytes, int n) {
    UNROLL_FOR (int i = 0; i < bytes; i += LINE)
        if (n == 1)
            __builtin_prefetch((const void *)((uintptr_t)p + (uintptr_t)(FAR_AHEAD + i)), 0, 2);
        else
            __builtin_prefetch((const void *)((uintptr_t)p + (uintptr_t)(AHEAD + i)), 0, 3);
}

/* Prefetches part number `part` of `parts` of a block's bytes. All at once would exceed the outstanding misses, and so would
 * the parts if the compiler, for which a prefetch has no place, put them together: the barrier keeps pairs of them apart. */
VI_INLINE void fetch_part_of(const uint8_t *p, int bytes, int part, int parts, int n) {
    int from = bytes / LINE * part / parts, to = bytes / LINE * (part + 1) / parts;
    if (part % 2 == 0)
        __asm__ volatile("" ::: "memory");
    fetch(p + LINE * from, LINE * (to - from), n);
}

VI_INLINE void fetch_part(const uint8_t *p, int bytes, int part, int n) {
    fetch_part_of(p, bytes, part, 8, n);
}

/* Prefetches as many lines as a panel's head has. The blocks of a panel prefetch no more bytes than they have, so without this
 * so many lines of each panel would be missed. */
static inline void fetch_head(const product *p, const uint8_t *panel, int n) {
    for (uint64_t i = 0; i < p->head; i += LINE)
        fetch(panel + i, LINE, n);
}

/* Makes a pass over all blocks from <stem>_block, which adds one block of the lanes at `words` to the sums of n columns. */
#define BLOCK_PASS(stem, act)                                                                                          \
    VI_INLINE void stem##_columns(const product *p, const uint8_t *panel, const uint8_t *x, float *out, int n) {       \
        enum { BYTES = (int)sizeof(block_##stem) / 4 * LINE, TAIL = (int)sizeof(block_##stem) % 4 };                   \
        enum { X_BYTES = (int)sizeof(block_##act) * (BLOCK_##stem / BLOCK_##act) };                                    \
        for (int part = 0; part < LANE_PARTS; part++) {                                                                \
            const uint8_t *words = panel + p->head + 4 * LANES * part, *tail = panel + TAIL * LANES * part;            \
            vf sum[MOST_COLUMNS];                                                                                      \
            UNROLL_FOR (int c = 0; c < n; c++)                                                                         \
                sum[c] = vf_set(0);                                                                                    \
            fetch_head(p, panel, n);                                                                                   \
            for (int64_t b = 0; b < p->k / BLOCK_##stem; b++)                                                          \
                stem##_block(words + BYTES * b, tail + 16 * TAIL * b, x + X_BYTES * b, p->x_stride, sum, n);           \
            UNROLL_FOR (int c = 0; c < n; c++)                                                                         \
                vf_store(out + p->pitch * c + LANES * part, sum[c]);                                                   \
        }                                                                                                              \
    }
#define BLOCK_COLUMNS(stem, act) BLOCK_PASS(stem, act) PRODUCT_COLUMNS(stem)

/* The sums of the two panels from number `first`, which is even, on. */
static inline float *sums_of(const product *p, int first) {
    return (float *)(p->scratch + WEIGHTS_BYTES + RESULTS_BYTES) + (int64_t)16 * first * p->n;
}

static inline uint8_t *panels_of(const product *p) {
    return (uint8_t *)sums_of(p, PRODUCT_PANELS);
}

static inline void clear_sums(const product *p) {
    memset(sums_of(p, 0), 0, sizeof(float) * 16 * (size_t)(p->panels + p->panels % TOGETHER) * (size_t)p->n);
}

static inline void write_sums(const product *p) {
    for (int c = 0; c < p->n; c++)
        for (int i = 0; i < p->panels; i++) {
            float *to = p->out + p->pitch * c + 16 * i;
            __builtin_prefetch((const void *)((uintptr_t)to + 4 * sizeof(float) * (uintptr_t)p->pitch), 1, 3);
            memcpy(to, sums_of(p, i / TOGETHER * TOGETHER) + 16 * (TOGETHER * c + i % TOGETHER), sizeof(float) * 16);
        }
}

static inline int panels_from(const product *p, int first) {
    return p->panels - first < TOGETHER ? 1 : TOGETHER;
}

/* Word i of a block for the lanes at `words`. */
VI_INLINE vi word(const uint8_t *words, int i) {
    return vi_load(words + 64 * i);
}

#endif
