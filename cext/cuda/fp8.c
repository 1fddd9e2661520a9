/* fp8.c: kernel table of products of FP8 weights on FP8 tensor cores (fp8.cu, fp8_wide.cu). Other devices, and calls that these
 * don't take, use kernels that multiply in bfloat16 or float32.
 */
#include "fp8_shape.h"
#include "products.h"
#include "tables.h"

enum { LEAST_ARCH = 89, HOPPER = 90, WAVE_BYTES = 16 * FP8_ROW };

static const char *weights_fault(const gpu_call *c, uint32_t mode) {
    int last = (int)c->n_in - (mode & PRODUCT_ADD ? 1 : 0), i;
    int64_t rows = 0;
    if (last < 2 || last >= GPU_VIEWS || (mode & PRODUCT_GATED && last != 3) || (mode & PRODUCT_ADD && last != 2))
        return "wrong number of weights";
    for (i = 2; i <= last; i++) {
        const gpu_view *w = c->v + i;
        if ((w->format != FP8_E4M3 && w->format != FP8_E5M2) || w->format != c->v[2].format)
            return "weights must be all F8_E4M3 or all F8_E5M2";
        if (w->shape[1] != c->v[1].shape[1] || w->shape[1] % FP8_K || w->shape[2] != 1 || w->data % 4 || w->stride % 4)
            return "weights must be (N, K) with x's K, a multiple of 128";
        rows += w->shape[0];
    }
    if (rows > INT32_MAX - 64 * FP8_TEAMS)
        return "the weights have too many rows";
    if (mode & PRODUCT_GATED ? c->v[2].shape[0] != c->v[3].shape[0] || c->v[0].shape[1] != c->v[2].shape[0]
                             : c->v[0].shape[1] != rows)
        return "the output's columns are not the weights' rows";
    return cuda_activations_fault(c, mode);
}

/* Columns of a tile: the smallest size that holds all tokens. */
static int tile_of(int tokens, int most) {
    int n = 8;
    while (n < tokens && n < most)
        n *= 2;
    return n;
}

static const char *check_few(const gpu_call *c, const gpu_traits *t, uint32_t mode, int columns) {
    const char *fault = weights_fault(c, mode);
    int tokens = c->v[0].shape[0];
    if (fault)
        return fault;
    if (t->arch < LEAST_ARCH)
        return "needs compute capability 8.9";
    if (t->arch == HOPPER && tokens > FP8_FEW)
        return "sm_90 has better for so many columns";
    if (tile_of(tokens, FP8_MOST) != columns)
        return "it is made for another number of columns";
    return t->shared >= FP8_WAVES * WAVE_BYTES ? 0 : "too little shared memory";
}

static const char *check_wide(const gpu_call *c, const gpu_traits *t, uint32_t mode, int columns, int fast) {
    const char *fault = weights_fault(c, mode);
    if (fault)
        return fault;
    if (t->arch != HOPPER || t->shared < FP8_ROOM + 4096)
        return "it is made for sm_90";
    if (!(t->flags & HAL_FAST) != !fast)
        return fast ? "it rounds activations to FP8, which --precision fast allows"
                    : "with --precision fast there is a quicker one";
    if (c->v[0].shape[0] > FP8_TOKENS)
        return "bfloat16 tiles are quicker for so many columns";
    return tile_of(c->v[0].shape[0], 2 * FP8_MOST) == columns ? 0 : "it is made for another number of columns";
}

static uint64_t scratch(const gpu_call *c, const gpu_traits *t) {
    (void)t;
    return fp8_scratch(c);
}

static void grid_quantize(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    (void)t;
    g->groups[0] = (uint32_t)(fp8_blocks(c) + 7) / 8;
    g->groups[1] = (uint32_t)c->v[0].shape[0];
    g->threads = 256;
}

static void grid_few(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    (void)t;
    g->groups[0] = (uint32_t)((fp8_slots(c) + 15) / 16);
    g->groups[1] = (uint32_t)((c->v[0].shape[0] + fp8_columns(c) - 1) / fp8_columns(c));
    g->threads = 32 * FP8_WAVES;
    g->shared = FP8_WAVES * WAVE_BYTES;
}

static void grid_wide(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    fp8_cut cut = fp8_cut_of(c, t->units);
    int64_t groups = cut.parts == 1 && cut.tiles > t->units ? t->units : cut.tiles * cut.parts;
    int stage = fp8_stage(fp8_columns(c), fp8_halves(c), cut.teams);
    g->groups[0] = (uint32_t)groups;
    g->cluster = cut.parts > 1 ? (uint32_t)cut.parts : 0;
    g->threads = (uint32_t)(128 * cut.teams + FP8_LOADERS);
    g->shared = (uint32_t)(fp8_stages(stage) * stage + 1024 + 16 * FP8_STAGES + 8 * 64 * cut.teams);
}

/* A check knows neither mode nor kernel, so each entry has its own. */
#define FEW_CHECK(name, mode, n)                                                                                       \
    static const char *few_##name##_##n(const gpu_call *c, const gpu_traits *t) {                                      \
        return check_few(c, t, mode, n);                                                                               \
    }
#define WIDE_CHECK(name, mode, n)                                                                                      \
    static const char *wide_##name##_##n(const gpu_call *c, const gpu_traits *t) {                                     \
        return check_wide(c, t, mode, n, 0);                                                                           \
    }                                                                                                                  \
    static const char *fast_##name##_##n(const gpu_call *c, const gpu_traits *t) {                                     \
        return check_wide(c, t, mode, n, 1);                                                                           \
    }
#define CHECKS(name, mode)                                                                                             \
    FEW_CHECK(name, mode, 8)                                                                                           \
    FEW_CHECK(name, mode, 16)                                                                                          \
    FEW_CHECK(name, mode, 32)                                                                                          \
    FEW_CHECK(name, mode, 64) WIDE_CHECK(name, mode, 32) WIDE_CHECK(name, mode, 64) WIDE_CHECK(name, mode, 128)
CHECKS(plain, 0)
CHECKS(add, PRODUCT_ADD)
CHECKS(gated, PRODUCT_GATED)

/* fp8_wide copies what fp8_quantize wrote in bulk, which is not ordered where both are launched early (columns_fetch.cuh). */
#define ENTRY(op_, check_, mode_, n, kernel, grid)                                                                     \
    {.op = op_,                                                                                                        \
     .check = check_##_##n,                                                                                            \
     .scratch = scratch,                                                                                               \
     .mode = (mode_) | (n) << FP8_COLUMNS,                                                                             \
     .launch = {{"fp8_quantize", grid_quantize, !((mode_) & FP8_WIDE)}, {kernel "_" #n, grid, 1}}},
#define WIDE(op, name, mode, n)                                                                                        \
    ENTRY(op, fast_##name, (mode) | FP8_WIDE, n, "fp8_wide_fast", grid_wide)                                           \
    ENTRY(op, wide_##name, (mode) | FP8_WIDE, n, "fp8_wide", grid_wide)
#define ENTRIES(op, name, mode)                                                                                        \
    ENTRY(op, few_##name, mode, 8, "fp8_few", grid_few)                                                                \
    ENTRY(op, few_##name, mode, 16, "fp8_few", grid_few)                                                               \
    ENTRY(op, few_##name, mode, 32, "fp8_few", grid_few)                                                               \
    ENTRY(op, few_##name, mode, 64, "fp8_few", grid_few)                                                               \
    WIDE(op, name, mode, 32)                                                                                           \
    WIDE(op, name, mode, 64)                                                                                           \
    WIDE(op, name, mode, 128)

const gpu_kernel cuda_fp8_kernels[] = {
    ENTRIES("linear", plain, 0) ENTRIES("linear_add", add, PRODUCT_ADD)
        ENTRIES("linear_swiglu", gated, PRODUCT_GATED){0},
};
