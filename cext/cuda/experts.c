/* experts.c: kernel tables of experts.cu, expert_tiles.cu, expert_warp.cu and expert_scaled.cu: mixture-of-experts products with packed
 * weights, and head_linear.
 *
 * A pair is a token and one of its experts. With few pairs, each pair has groups of its own. With many, the kernels of
 * expert_tiles.cu, or without wgmma of expert_warp.cu, read an expert's weights once for all its tokens: tiles of 32 pairs for
 * batches, of 128 (64) for prompts. Where those cannot (gate and up of two formats, more experts) each expert has groups. With
 * --precision fast MXFP4 weights are multiplied by block-scaled tensor cores where there are such (expert_scaled.cu).
 */
#include "check.h"
#include "expert_warp.h"
#include "family.h"
#include "tables.h"

enum { MADE_FOR = HOPPER_ARCH, MOST_FEW = 128, PART_BYTES = 64 << 10, MOST_BESIDE = 8, MXFP4 = 39 /* GGUF's number */ };
enum { MOST_NARROW = 40, MOST_NARROW_WARP = 24 /* pairs of an expert in the mean, as measured */ };

static int matrices_of(const gpu_call *c, uint32_t mode) {
    (void)c;
    return mode == EXPERTS_GATED ? 2 : 1;
}

static int packed_stack(const gpu_view *w, const gpu_view *like) {
    return w->format & PACKED_FLAG && packed_bytes(w->format) && w->shape[0] == like->shape[0] &&
           w->shape[1] == like->shape[1] && w->shape[2] == like->shape[2];
}

/* Checks common to both kernels. */
static const char *fault_of(const gpu_call *c, const gpu_traits *t, uint32_t mode) {
    const gpu_view *y = c->v, *x = c->v + 1, *w = c->v + 2, *ids = c->v + c->n_in;
    int matrices = matrices_of(c, mode), by_head = mode == EXPERTS_BY_HEAD;
    int64_t k = w->shape[2];
    if (t->arch < OLD_ARCH)
        return "needs compute capability 7.5";
    if (c->n_in != (uint32_t)(1 + matrices + !by_head) || !packed_stack(w, w) || !packed_stack(w + matrices - 1, w))
        return "weights must be packed (E, N, K), of one shape";
    if (x->format != F32 || y->format != F32 || x->shape[0] != y->shape[0] || y->shape[2] != w->shape[1] ||
        (width(x) != k && width(x) != k * y->shape[1]) || x->data % 16 || x->stride % 16 || k % 4)
        return "x must be f32, (T, K) or (T, k, K), rows at multiples of 16 bytes, and the output f32 (T, k, N)";
    if (by_head ? y->shape[1] != w->shape[0] || width(x) != k * y->shape[1]
                : ids->format != I32 || ids->shape[0] != y->shape[0] || ids->shape[1] != y->shape[1])
        return "ids must be i32 (T, k); of heads, each has a matrix";
    return w->shape[0] <= 65535 && (int64_t)y->shape[0] * y->shape[1] <= INT32_MAX
               ? NULL
               : "too many experts or pairs of token and expert";
}

static int tiles_of(const gpu_call *c) {
    return (c->v[2].shape[1] + TILE_ROWS - 1) / TILE_ROWS;
}

static int chunks_of(const gpu_call *c) {
    return (c->v[2].shape[2] + CHUNK - 1) / CHUNK;
}

/* Tiles per group of `few`: about one group per SM, limited by the memory of partial sums. */
static int few_tiles(const gpu_call *c, const gpu_traits *t, uint32_t mode) {
    int pairs = c->v[0].shape[0] * c->v[0].shape[1], groups = (t->units + pairs - 1) / pairs;
    int per = (tiles_of(c) + groups - 1) / groups, room = (t->arch < LEAST_ARCH ? PART_BYTES / 2 : PART_BYTES) /
                                                          (matrices_of(c, mode) * chunks_of(c) * TILE_ROWS * 4);
    return per < room ? per : room > 1 ? room : 1;
}

static uint32_t few_shared(const gpu_call *c, const gpu_traits *t, uint32_t mode) {
    return (uint32_t)(expert_acts(chunks_of(c), 1) +
                      few_tiles(c, t, mode) * matrices_of(c, mode) * chunks_of(c) * TILE_ROWS * 4);
}

static uint32_t many_shared(const gpu_call *c) {
    return (uint32_t)expert_acts(chunks_of(c), expert_columns(chunks_of(c)));
}

static const char *check_few(const gpu_call *c, const gpu_traits *t, uint32_t mode) {
    const char *fault = fault_of(c, t, mode);
    if (!fault && (int64_t)c->v[0].shape[0] * c->v[0].shape[1] > MOST_FEW)
        fault = "more pairs of token and expert than it takes";
    return fault || few_shared(c, t, mode) <= (uint32_t)t->shared ? fault : "its rows are too long for shared memory";
}

static const char *check_many(const gpu_call *c, const gpu_traits *t, uint32_t mode) {
    const char *fault = fault_of(c, t, mode);
    return fault || (int64_t)many_shared(c) + 4 * EXPERT_WINDOW + 1024 <= t->shared
               ? fault
               : "its rows are too long for shared memory";
}

static const char *same_format(const gpu_call *c, uint32_t mode) {
    return c->v[2].format == c->v[1 + matrices_of(c, mode)].format ? NULL : "weights of two formats";
}

static void grid_few(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    int per = few_tiles(c, t, c->mode);
    *g = grid_of((tiles_of(c) + per - 1) / per, (int64_t)c->v[0].shape[0] * c->v[0].shape[1], 1, EXPERT_WAVES * 32,
                 few_shared(c, t, c->mode));
}

static void grid_many(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    int64_t pairs = (int64_t)c->v[0].shape[0] * c->v[0].shape[1], beside = pairs / 512;
    (void)t;
    beside = beside < 1 ? 1 : beside < MOST_BESIDE ? beside : MOST_BESIDE;
    *g = grid_of((tiles_of(c) + EXPERT_WAVES - 1) / EXPERT_WAVES, c->v[2].shape[0], beside, EXPERT_WAVES * 32,
                 many_shared(c));
}

/* --- tiles: calls that expert_tiles.cu can compute, and those that it is the fastest for */

static const char *able_sorted(const gpu_call *c, uint32_t mode) {
    if (c->v[2].shape[0] > EXPERT_MOST || c->v[0].shape[0] > INT32_MAX / chunks_of(c) / c->v[0].shape[1])
        return "more experts or rows than it takes";
    return same_format(c, mode);
}

static const char *able_tiles(const gpu_call *c, const gpu_traits *t, uint32_t mode, int most) {
    const char *fault = fault_of(c, t, mode);
    if (fault)
        return fault;
    if (t->arch != MADE_FOR || t->shared < expert_room_of(most, packed_bytes(c->v[2].format)).bytes)
        return "it is made for sm_90";
    return able_sorted(c, mode);
}

/* So few pairs of an expert, in the mean, that tiles are narrow. */
static const char *narrow(const gpu_call *c, int most) {
    int64_t pairs = (int64_t)c->v[0].shape[0] * c->v[0].shape[1];
    return pairs <= (int64_t)most * c->v[2].shape[0] ? NULL : "it is made for fewer tokens";
}

static const char *check_narrow(const gpu_call *c, const gpu_traits *t, uint32_t mode) {
    const char *fault = able_tiles(c, t, mode, EXPERT_NARROW);
    return fault ? fault : narrow(c, MOST_NARROW);
}

static const char *check_wide(const gpu_call *c, const gpu_traits *t, uint32_t mode) {
    return able_tiles(c, t, mode, EXPERT_WIDE);
}

static void grid_list(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    int64_t rows = (int64_t)c->v[0].shape[0] * (width(c->v + 1) == c->v[2].shape[2] ? 1 : c->v[0].shape[1]);
    int64_t groups = (rows * chunks_of(c) * (CHUNK / 16) + EXPERT_LIST_THREADS - 1) / EXPERT_LIST_THREADS;
    int sorters = t->arch == MADE_FOR && (int64_t)c->v[0].shape[0] * c->v[0].shape[1] > 2 * EXPERT_LIST_THREADS
                      ? EXPERT_SORTERS
                      : 1;
    groups = (groups < 2 * t->units ? groups : 2 * t->units) + sorters;
    *g = grid_of((groups + sorters - 1) / sorters * sorters, 1, 1, EXPERT_LIST_THREADS, 0);
    g->cluster = sorters > 1 ? (uint32_t)sorters : 0;
}

static void grid_tiles(const gpu_call *c, const gpu_traits *t, gpu_grid *g, int most) {
    expert_room r = expert_room_of(most, packed_bytes(c->v[2].format));
    *g = grid_of((int64_t)t->units * r.groups, 1, 1, EXPERT_THREADS, (uint64_t)r.bytes);
}

static void grid_narrow(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    grid_tiles(c, t, g, EXPERT_NARROW);
}

static void grid_wide(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    grid_tiles(c, t, g, EXPERT_WIDE);
}

static uint64_t scratch_narrow(const gpu_call *c, const gpu_traits *t) {
    (void)t;
    return expert_scratch_of(c, EXPERT_NARROW).bytes;
}

static uint64_t scratch_wide(const gpu_call *c, const gpu_traits *t) {
    (void)t;
    return expert_scratch_of(c, EXPERT_WIDE).bytes;
}

/* --- the same without wgmma: expert_warp.cu */

/* scaled: 1: of expert_scaled.cu, whose steps have the blocks' scales too. */
static expert_warp_shape warp_shape(const gpu_call *c, const gpu_traits *t, int most, int scaled) {
    return expert_warp_shape_of(most, scaled, packed_bytes(c->v[2].format), t->shared);
}

static const char *able_warp(const gpu_call *c, const gpu_traits *t, uint32_t mode, int most) {
    const char *fault = fault_of(c, t, mode);
    if (fault)
        return fault;
    if (t->arch < LEAST_ARCH || t->arch == HOPPER_ARCH || !warp_shape(c, t, most, 0).warps)
        return "it is made for devices without wgmma, and more shared memory";
    return able_sorted(c, mode);
}

/* A third group makes up for tiles that are half as wide. */
static const char *check_warp_narrow(const gpu_call *c, const gpu_traits *t, uint32_t mode) {
    const char *fault = able_warp(c, t, mode, EXPERT_NARROW);
    return fault ? fault : narrow(c, warp_shape(c, t, EXPERT_NARROW, 0).groups > 2 ? MOST_NARROW : MOST_NARROW_WARP);
}

static void grid_warp(const gpu_call *c, const gpu_traits *t, gpu_grid *g, int most, int scaled) {
    expert_warp_shape s = warp_shape(c, t, most, scaled);
    *g = grid_of((int64_t)t->units * s.groups, 1, 1, 32 * (uint32_t)s.warps, (uint64_t)s.bytes);
}

static void grid_warp_narrow(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    grid_warp(c, t, g, EXPERT_NARROW, 0);
}

static void grid_warp_wide(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    grid_warp(c, t, g, EXPERT_WARP_WIDE, 0);
}

static uint64_t scratch_warp_wide(const gpu_call *c, const gpu_traits *t) {
    (void)t;
    return expert_scratch_of(c, EXPERT_WARP_WIDE).bytes;
}

/* --- MXFP4 by block-scaled tensor cores: expert_scaled.cu */

/* 8.9 computes the same without such tensor cores: for tests, and for `satchel tune`. */
static const char *able_scaled(const gpu_call *c, const gpu_traits *t, uint32_t mode, int most) {
    const char *fault = fault_of(c, t, mode);
    if (fault)
        return fault;
    if (c->v[2].format != (MXFP4 | PACKED_FLAG))
        return "weights must be MXFP4";
    if (!(t->flags & HAL_FAST))
        return "it rounds activations to MXFP8, which --precision fast allows";
    if ((t->arch != FP8_ARCH && t->arch / 10 != SCALED_ARCH / 10) || !warp_shape(c, t, most, 1).warps)
        return "it is made for compute capability 8.9, 12.0 and 12.1";
    return able_sorted(c, mode);
}

static const char *check_scaled(const gpu_call *c, const gpu_traits *t, uint32_t mode, int most) {
    const char *fault = able_scaled(c, t, mode, most);
    if (fault)
        return fault;
    if (t->arch < SCALED_ARCH)
        return "it is made for block-scaled tensor cores";
    if ((int64_t)c->v[0].shape[0] * c->v[0].shape[1] <= MOST_FEW)
        return "so few pairs have a kernel of their own";
    return most == EXPERT_NARROW ? narrow(c, MOST_NARROW_WARP) : NULL;
}

static void grid_scaled_narrow(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    grid_warp(c, t, g, EXPERT_NARROW, 1);
}

static void grid_scaled_wide(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    grid_warp(c, t, g, EXPERT_WARP_WIDE, 1);
}

static uint64_t scratch_scaled_narrow(const gpu_call *c, const gpu_traits *t) {
    (void)t;
    return scaled_scratch_of(c, EXPERT_NARROW).bytes;
}

static uint64_t scratch_scaled_wide(const gpu_call *c, const gpu_traits *t) {
    (void)t;
    return scaled_scratch_of(c, EXPERT_WARP_WIDE).bytes;
}

#define SCALED_CHECK(kind, name, mode, most)                                                                           \
    static const char *scaled_##kind##_##name(const gpu_call *c, const gpu_traits *t) {                                \
        return check_scaled(c, t, mode, most);                                                                         \
    }                                                                                                                  \
    static const char *able_scaled_##kind##_##name(const gpu_call *c, const gpu_traits *t) {                           \
        return able_scaled(c, t, mode, most);                                                                          \
    }
#define SCALED_CHECKS(name, mode)                                                                                      \
    SCALED_CHECK(narrow, name, mode, EXPERT_NARROW)                                                                    \
    SCALED_CHECK(wide, name, mode, EXPERT_WARP_WIDE)
#define SCALED_TILES(op_, kind, name, mode_, n)                                                                        \
    {.op = op_,                                                                                                        \
     .check = scaled_##kind##_##name,                                                                                  \
     .scratch = scratch_scaled_##kind,                                                                                 \
     .mode = mode_,                                                                                                    \
     .format_of = 2,                                                                                                   \
     .launch = {{"expert_list_scaled_" #n, grid_list, 1, 1}, {"expert_scaled_" #n, grid_scaled_##kind, 1}},            \
     .able = able_scaled_##kind##_##name}
#define SCALED(op, name, mode) SCALED_TILES(op, narrow, name, mode, 32), SCALED_TILES(op, wide, name, mode, 64)

#define TILE_CHECKS(name, mode)                                                                                        \
    static const char *narrow_##name(const gpu_call *c, const gpu_traits *t) {                                         \
        return check_narrow(c, t, mode);                                                                               \
    }                                                                                                                  \
    static const char *wide_##name(const gpu_call *c, const gpu_traits *t) {                                           \
        return check_wide(c, t, mode);                                                                                 \
    }                                                                                                                  \
    static const char *able_narrow_##name(const gpu_call *c, const gpu_traits *t) {                                    \
        return able_tiles(c, t, mode, EXPERT_NARROW);                                                                  \
    }                                                                                                                  \
    static const char *warp_narrow_##name(const gpu_call *c, const gpu_traits *t) {                                    \
        return check_warp_narrow(c, t, mode);                                                                          \
    }                                                                                                                  \
    static const char *able_warp_narrow_##name(const gpu_call *c, const gpu_traits *t) {                               \
        return able_warp(c, t, mode, EXPERT_NARROW);                                                                   \
    }                                                                                                                  \
    static const char *warp_wide_##name(const gpu_call *c, const gpu_traits *t) {                                      \
        return able_warp(c, t, mode, EXPERT_WARP_WIDE);                                                                \
    }

/* The checks of an op: kernels of one format, then of two. */
#define CHECKS(name, mode)                                                                                             \
    static const char *few_##name(const gpu_call *c, const gpu_traits *t) {                                            \
        const char *fault = check_few(c, t, mode);                                                                     \
        return fault ? fault : same_format(c, mode);                                                                   \
    }                                                                                                                  \
    static const char *many_##name(const gpu_call *c, const gpu_traits *t) {                                           \
        const char *fault = check_many(c, t, mode);                                                                    \
        return fault ? fault : same_format(c, mode);                                                                   \
    }                                                                                                                  \
    static const char *few_mixed_##name(const gpu_call *c, const gpu_traits *t) {                                      \
        return check_few(c, t, mode);                                                                                  \
    }                                                                                                                  \
    static const char *many_mixed_##name(const gpu_call *c, const gpu_traits *t) {                                     \
        return check_many(c, t, mode);                                                                                 \
    }

#define FEW(op_, name, mode_)                                                                                          \
    {.op = op_, .check = few_##name, .mode = mode_, .format_of = 2, .launch = {{"experts_few", grid_few, 1}}}, {       \
        .op = op_, .check = few_mixed_##name, .mode = mode_, .launch = {{"experts_few_mixed", grid_few, 1}}            \
    }
#define MANY(op_, name, mode_)                                                                                         \
    {.op = op_, .check = many_##name, .mode = mode_, .format_of = 2, .launch = {{"experts_many", grid_many, 1}}}, {    \
        .op = op_, .check = many_mixed_##name, .mode = mode_, .launch = {{"experts_many_mixed", grid_many, 1}}         \
    }
#define TILES(op_, name, mode_)                                                                                        \
    {.op = op_,                                                                                                        \
     .check = narrow_##name,                                                                                           \
     .scratch = scratch_narrow,                                                                                        \
     .mode = mode_,                                                                                                    \
     .format_of = 2,                                                                                                   \
     .launch = {{"expert_list_32", grid_list, 1, 1}, {"expert_tiles_32", grid_narrow, 1}},                             \
     .able = able_narrow_##name},                                                                                      \
        {.op = op_,                                                                                                    \
         .check = wide_##name,                                                                                         \
         .scratch = scratch_wide,                                                                                      \
         .mode = mode_,                                                                                                \
         .format_of = 2,                                                                                               \
         .launch = {{"expert_list_128", grid_list, 1, 1}, {"expert_tiles_128", grid_wide, 1}}},                        \
        {.op = op_,                                                                                                    \
         .check = warp_narrow_##name,                                                                                  \
         .scratch = scratch_narrow,                                                                                    \
         .mode = mode_,                                                                                                \
         .format_of = 2,                                                                                               \
         .launch = {{"expert_list_32", grid_list, 1, 1}, {"expert_warp_32", grid_warp_narrow, 1}},                     \
         .able = able_warp_narrow_##name},                                                                             \
    {                                                                                                                  \
        .op = op_, .check = warp_wide_##name, .scratch = scratch_warp_wide, .mode = mode_, .format_of = 2,             \
        .launch = {{"expert_list_64", grid_list, 1, 1}, {"expert_warp_64", grid_warp_wide, 1}}                         \
    }

SCALED_CHECKS(one, EXPERTS_ONE)
SCALED_CHECKS(gated, EXPERTS_GATED)
TILE_CHECKS(one, EXPERTS_ONE)
TILE_CHECKS(gated, EXPERTS_GATED)
TILE_CHECKS(head, EXPERTS_BY_HEAD)
CHECKS(one, EXPERTS_ONE)
CHECKS(gated, EXPERTS_GATED)
CHECKS(head, EXPERTS_BY_HEAD)

const gpu_kernel cuda_expert_kernels[] = {
    SCALED("expert_linear", one, EXPERTS_ONE),    SCALED("expert_swiglu", gated, EXPERTS_GATED),
    FEW("expert_linear", one, EXPERTS_ONE),       TILES("expert_linear", one, EXPERTS_ONE),
    MANY("expert_linear", one, EXPERTS_ONE),      FEW("expert_swiglu", gated, EXPERTS_GATED),
    TILES("expert_swiglu", gated, EXPERTS_GATED), MANY("expert_swiglu", gated, EXPERTS_GATED),
    FEW("head_linear", head, EXPERTS_BY_HEAD),    TILES("head_linear", head, EXPERTS_BY_HEAD),
    MANY("head_linear", head, EXPERTS_BY_HEAD),   {0},
};

/* Kernels that add the same terms in the same order whatever the pairs. */
const gpu_kernel cuda_deterministic_expert_kernels[] = {
    FEW("expert_linear", one, EXPERTS_ONE),
    MANY("expert_linear", one, EXPERTS_ONE),
    FEW("expert_swiglu", gated, EXPERTS_GATED),
    MANY("expert_swiglu", gated, EXPERTS_GATED),
    FEW("head_linear", head, EXPERTS_BY_HEAD),
    MANY("head_linear", head, EXPERTS_BY_HEAD),
    {0},
};
