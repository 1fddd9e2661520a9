/* check.h: helpers of the portable kernels' check and grid functions, which run on the host at compile(). They see the maximum
 * shapes; a view does not tell its number of dimensions, unused ones are 1.
 */
#ifndef SATCHEL_KERNEL_CHECK_H
#define SATCHEL_KERNEL_CHECK_H

#include <string.h>

#include "kernel.h"

enum { F32 = 0, I32 = HAL_FORMAT_I32 };
enum {
    THREADS = 256,
    WAVES = 4 /* per group of independent waves */,
    MOST_TOKENS = 65535 /* limit of a grid dimension */
};

static inline int64_t width(const gpu_view *v) {
    return (int64_t)v->shape[1] * v->shape[2] * v->shape[3];
}

/* Whether v is a vector of n numbers, dense in its last dimension or `stride` bytes apart in its first. */
static inline int is_list(const gpu_view *v, uint32_t format, int64_t n) {
    return v->format == format && v->shape[0] == n && width(v) == 1;
}

static inline int same_rows(const gpu_view *a, const gpu_view *b) {
    return memcmp(a->shape + 1, b->shape + 1, 3 * sizeof(int32_t)) == 0;
}

static inline int same_shape(const gpu_view *a, const gpu_view *b) {
    return a->shape[0] == b->shape[0] && same_rows(a, b);
}

/* Elements of a block of a weight's format; 0: the format is unknown, or the weight is packed. */
static inline int block_of(uint32_t format) {
    switch (format) {
#define CPU_WEIGHT(stem, id, block, act)                                                                               \
    case id:                                                                                                           \
        return block;
#include "types.inc"
#undef CPU_WEIGHT
    }
    return 0;
}

/* Checks of kernels: what a kernel needs beyond the op's rules (shapes.h), which hold already. */
static inline const char *any_shape(const gpu_call *c, const gpu_traits *t) {
    (void)c, (void)t;
    return NULL;
}

static inline const char *few_tokens(int64_t tokens) {
    return tokens <= MOST_TOKENS ? NULL : "tokens must be no more than 65535";
}

/* The output has a row a token. */
static inline const char *few_rows(const gpu_call *c, const gpu_traits *t) {
    (void)t;
    return few_tokens(c->v[0].shape[0]);
}

static inline uint32_t parts(int64_t n, int64_t of) {
    return (uint32_t)((n + of - 1) / of);
}

static inline gpu_grid grid_of(int64_t x, int64_t y, int64_t z, uint32_t threads, uint64_t local) {
    return (gpu_grid){{(uint32_t)x, (uint32_t)y, (uint32_t)z}, threads, (uint32_t)local, 0};
}

/* Threads of a group for n elements: n rounded up to whole waves, at most `most`. */
static inline uint32_t threads_for(const gpu_traits *t, int64_t n, uint32_t most) {
    uint32_t waves = parts(n, t->wave), all = most / (uint32_t)t->wave;
    return (waves < 1 ? 1 : waves < all ? waves : all) * (uint32_t)t->wave;
}

#endif
