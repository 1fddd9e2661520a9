/* dot.h: products of weight rows with activation columns, per pair of weight and activation format.
 *
 * DOT_FUNCTIONS(name, stem, act, inner) makes the functions of one pair from an inner product over 1 row and `n` columns
 * that is inlined with n constant, 1, 2, 4 and 8: the format's own plain one from quant/<format>.h. Sums of one row and
 * column come in one order whatever n is.
 */
#ifndef SATCHEL_CPU_DOT_H
#define SATCHEL_CPU_DOT_H

#include "formats.h"
#include "types.h"

enum { DOT_SIZES = 4, DOT_COLUMNS = 1 << (DOT_SIZES - 1) };

/* sums[column * pitch + row] for `rows` rows of `blocks` blocks, `stride` bytes apart. */
typedef void (*dot_fn)(const uint8_t *w, uint64_t stride, int rows, const void *const *x, int blocks, float *sums,
                       int pitch);

typedef struct {
    uint32_t id, block, act;
    dot_fn run[DOT_SIZES];
} dot_kernel;

#define DOT_INLINE static inline __attribute__((always_inline))
#define DOT_TABLE(name) dot1_##name, dot2_##name, dot4_##name, dot8_##name

/* One column reads weights faster than they come unasked: each row asks for the bytes that lie AHEAD of it. Past the end
 * of a weight this asks for what nobody reads, which costs nothing and cannot fault. */
enum { AHEAD = 2048, LINE = 64 };

DOT_INLINE void fetch_row(const uint8_t *row, uint64_t bytes) {
    for (uint64_t i = AHEAD; i < AHEAD + bytes; i += LINE)
        __builtin_prefetch((const void *)((uintptr_t)row + i));
}

#define DOT_FUNCTION(name, stem, act, inner, n)                                                                     \
    __attribute__((unused)) static void dot##n##_##name(const uint8_t *w, uint64_t stride, int rows, const void *const *x, int blocks,     \
                                float *sums, int pitch) {                                                           \
        const block_##act *a[n];                                                                                    \
        for (int j = 0; j < n; j++)                                                                                 \
            a[j] = x[j];                                                                                            \
        for (int i = 0; i < rows; i++) {                                                                            \
            if (n == 1)                                                                                             \
                fetch_row(w + stride * (uint64_t)i, stride);                                                        \
            inner((const block_##stem *)(w + stride * (uint64_t)i), a, blocks, sums + i, pitch, n);                 \
        }                                                                                                           \
    }
#define DOT_FUNCTIONS(name, stem, act, inner)                                                                       \
    DOT_FUNCTION(name, stem, act, inner, 1)                                                                         \
    DOT_FUNCTION(name, stem, act, inner, 2)                                                                         \
    DOT_FUNCTION(name, stem, act, inner, 4)                                                                         \
    DOT_FUNCTION(name, stem, act, inner, 8)

#define DOT_PLAIN(name, stem, act, dot)                                                                             \
    DOT_INLINE void plain_##name(const block_##stem *w, const block_##act *const *a, int blocks, float *sums,      \
                                 int pitch, int n) {                                                                \
        for (int j = 0; j < n; j++)                                                                                 \
            sums[j * pitch] = dot(w, a[j], blocks);                                                                 \
    }
#define CPU_WEIGHT(stem, id, block, act) DOT_PLAIN(stem, stem, act, stem##_dot)
#include "types.inc"
#undef CPU_WEIGHT

#define CPU_WEIGHT(stem, id, block, act) DOT_FUNCTIONS(stem, stem, act, plain_##stem)
#include "types.inc"
#undef CPU_WEIGHT

/* For rows that are no whole number of bf16x2's blocks. */
DOT_PLAIN(f16_f32, f16, f32, f16_dot_f32)
DOT_PLAIN(bf16_f32, bf16, f32, bf16_dot_f32)
DOT_FUNCTIONS(f16_f32, f16, f32, plain_f16_f32)
DOT_FUNCTIONS(bf16_f32, bf16, f32, plain_bf16_f32)

#endif
