/* prompt.c: kernel table of products with many columns and of attention on sm_90's tensor cores (wide.cu, attention_wide.cu,
 * attention_split.cu). The portable kernels take other calls.
 */
#include "attention_shape.h"
#include "check.h"
#include "check_tokens.h"
#include "columns.h"
#include "family.h"
#include "products.h"
#include "tables.h"
#include "tiles.h"
#include "wide_warp.h"

enum { SPAN_NUMBERS = 1024, FP8_WIDEST = 16 /* columns of a product, times those of x */ };
enum {
    MANY = 64 /* tokens; up to these, packed weights use other kernels */,
    MANY_PLAIN = 4 /* likewise, other weights */
};
enum { TILES_GROUPS = 5 /* groups of wide_tiles per SM */, FP8_GROUPS = 3 /* of wide_tiles_fp8 */, WIDE_THREADS = 384 };

/* --- products */

static int words_aligned(const gpu_view *v, uint64_t bytes) {
    return v->data % bytes == 0 && v->stride % bytes == 0;
}

static const char *check_weight(const gpu_view *w, int64_t k) {
    int block = block_of(w->format);
    if ((w->format & HAL_PACKED) && packed_bytes(w->format))
        return width(w) == k && k % 32 == 0 && w->data % 16 == 0 ? NULL
                                                                 : "a packed weight must have x's K, a multiple of 32";
    if (!block || width(w) != k || k % block || k % 32)
        return "a weight must be (N, K) in the file's order with x's K, a multiple of 32";
    if (!words_aligned(w, block == 1 || w->format == 12 ? 16 : 2))
        return "a weight's rows must begin at whole words";
    return w->shape[0] * ((k + SPAN_NUMBERS - 1) / SPAN_NUMBERS) < INT32_MAX ? NULL : "a weight has too many rows";
}

/* Checks common to all ops; `weights`: number of weights. */
static const char *check_many(const gpu_call *c, const gpu_traits *t, int weights) {
    const gpu_view *y = c->v, *x = c->v + 1;
    if (t->arch < LEAST_ARCH)
        return "it needs compute capability 8.0";
    if (x->format != F32 || y->format != F32 || x->shape[0] != y->shape[0])
        return "x and the output must be f32";
    if (!words_aligned(x, 16) || !words_aligned(y, 8) || width(y) % 2)
        return "rows of x must begin at multiples of 16 bytes, those of the output, of even length, at multiples of 8";
    for (int i = 0; i < weights; i++) {
        const char *why = check_weight(c->v + 2 + i, width(x));
        if (why)
            return why;
    }
    return NULL;
}

/* Cost of tiles of `columns` columns: number of waves of groups; narrow tiles are a tenth less efficient. */
static int64_t rounds(const gpu_call *c, const gpu_traits *t, int64_t columns, int64_t width) {
    int64_t tiles = (int64_t)parts(c->v[1].shape[0], PANEL_ROWS) * parts(columns, width);
    return (tiles + t->units - 1) / t->units * (width == 256 ? 20 : 11);
}

/* F32 weights are mostly routers: rounding them to 16 bits changes experts, so few tokens use exact kernels. */
static const char *check_tokens(const gpu_call *c, int weights) {
    int packed = 1, exact = 0;
    for (int i = 0; i < weights; i++) {
        packed &= (c->v[2 + i].format & HAL_PACKED) != 0;
        exact |= c->v[2 + i].format == F32;
    }
    return c->v[1].shape[0] > (packed || exact ? MANY : MANY_PLAIN) ? NULL : "it is made for more tokens";
}

static const char *check_hopper(const gpu_traits *t) {
    return t->arch == HOPPER_ARCH ? NULL : "it is made for sm_90";
}

static const char *check_wide(const gpu_call *c, const gpu_traits *t, int64_t columns) {
    return rounds(c, t, columns, 256) <= rounds(c, t, columns, 128) ? NULL
                                                                    : "narrower tiles keep more of the device busy";
}

static const char *able_linear(const gpu_call *c, const gpu_traits *t) {
    const char *why = c->n_in < 2 ? "it takes x and weights" : check_many(c, t, (int)c->n_in - 1);
    int64_t n = 0;
    for (uint32_t i = 2; i <= c->n_in; i++)
        n += c->v[i].shape[0];
    return why ? why : n == width(c->v) ? NULL : "the output must hold the products of all weights";
}

static const char *narrow_linear(const gpu_call *c, const gpu_traits *t) {
    const char *why = able_linear(c, t);
    return why ? why : check_tokens(c, (int)c->n_in - 1);
}

static const char *wide_linear(const gpu_call *c, const gpu_traits *t) {
    const char *why = check_hopper(t);
    why = why ? why : narrow_linear(c, t);
    return why ? why : check_wide(c, t, width(c->v));
}

static const char *able_add(const gpu_call *c, const gpu_traits *t) {
    const char *why = c->n_in != 3 ? "it takes x, a weight and a residual" : check_many(c, t, 1);
    if (why)
        return why;
    return c->v[2].shape[0] == width(c->v) && c->v[3].format == F32 && same_shape(c->v, c->v + 3) &&
                   words_aligned(c->v + 3, 8)
               ? NULL
               : "what is added must have the output's shape, and the weight its columns";
}

static const char *narrow_add(const gpu_call *c, const gpu_traits *t) {
    const char *why = able_add(c, t);
    return why ? why : check_tokens(c, 1);
}

static const char *wide_add(const gpu_call *c, const gpu_traits *t) {
    const char *why = check_hopper(t);
    why = why ? why : narrow_add(c, t);
    return why ? why : check_wide(c, t, width(c->v));
}

static const char *able_swiglu(const gpu_call *c, const gpu_traits *t) {
    const char *why = c->n_in != 3 ? "it takes x, a gate and an up" : check_many(c, t, 2);
    if (why)
        return why;
    return c->v[2].shape[0] == width(c->v) && c->v[3].shape[0] == width(c->v)
               ? NULL
               : "gate and up must have the output's columns";
}

static const char *narrow_swiglu(const gpu_call *c, const gpu_traits *t) {
    const char *why = able_swiglu(c, t);
    return why ? why : check_tokens(c, 2);
}

static const char *wide_swiglu(const gpu_call *c, const gpu_traits *t) {
    const char *why = check_hopper(t);
    why = why ? why : narrow_swiglu(c, t);
    return why ? why : check_wide(c, t, 2 * width(c->v));
}

/* Checks that the kernels of this file are the fastest for so many weights, of calls of more tokens than columns.cu's. */
static const char *check_prompt(const gpu_call *c, int weights) {
    for (int i = 0; i < weights && 2 + i < GPU_VIEWS; i++) {
        const uint32_t format = c->v[2 + i].format;
        if (!(format & PACKED_FLAG) && format != FORMAT_F16 && format != FORMAT_BF16)
            return "it takes packed weights, F16 and BF16";
    }
    return c->v[1].shape[0] > COLUMNS_MOST ? NULL : "it is made for more tokens";
}

/* Products in E4M3, which --precision fast allows. A vocabulary's logits, which no layer makes
 * up for and answers do not need of prompts, stay in bf16. */
static const char *check_fp8(const gpu_call *c, const gpu_traits *t, int weights) {
    if (!(t->flags & HAL_FAST))
        return "it rounds weights and activations to FP8, which --precision fast allows";
    if (width(c->v) > FP8_WIDEST * width(c->v + 1))
        return "so many columns are a vocabulary's, which stay exact";
    return check_prompt(c, weights);
}

/* Of each op: the check of wide.cu's kernel with narrow tiles, what its kernels can compute at any speed, the same three of those in
 * FP8, and the check of wide_warp.cu's kernel. weights: how many the call has. */
#define WIDE_CHECKS(kind, weights)                                                                                     \
    static const char *hopper_##kind(const gpu_call *c, const gpu_traits *t) {                                         \
        const char *why = check_hopper(t);                                                                             \
        return why ? why : narrow_##kind(c, t);                                                                        \
    }                                                                                                                  \
    static const char *able_hopper_##kind(const gpu_call *c, const gpu_traits *t) {                                    \
        const char *why = check_hopper(t);                                                                             \
        return why ? why : able_##kind(c, t);                                                                          \
    }                                                                                                                  \
    static const char *fp8_wide_##kind(const gpu_call *c, const gpu_traits *t) {                                       \
        const char *why = wide_##kind(c, t);                                                                           \
        return why ? why : check_fp8(c, t, weights);                                                                   \
    }                                                                                                                  \
    static const char *fp8_##kind(const gpu_call *c, const gpu_traits *t) {                                            \
        const char *why = hopper_##kind(c, t);                                                                         \
        return why ? why : check_fp8(c, t, weights);                                                                   \
    }                                                                                                                  \
    static const char *able_fp8_##kind(const gpu_call *c, const gpu_traits *t) {                                       \
        const char *why = able_hopper_##kind(c, t);                                                                    \
        return why ? why : check_fp8(c, t, weights);                                                                   \
    }                                                                                                                  \
    static const char *warp_##kind(const gpu_call *c, const gpu_traits *t) {                                           \
        if (t->arch == HOPPER_ARCH || t->shared < WIDE_WARP_SHARED)                                                    \
            return "it is made for devices without wgmma, with 96 KB of shared memory for a group";                    \
        return narrow_##kind(c, t);                                                                                    \
    }
WIDE_CHECKS(linear, (int)c->n_in - 1)
WIDE_CHECKS(add, 1)
WIDE_CHECKS(swiglu, 2)

/* The call without the norm of its activations, which is its last input. Of other weights and fewer tokens other kernels take it in, or a
 * step of its own is faster. */
static const char *plain_of(const gpu_call *c, gpu_call *plain) {
    const gpu_view *norm = c->v + c->n_in, *x = c->v + 1;
    if (c->n_in < 3 || norm->format != F32 || norm->shape[0] != width(x) || norm->shape[1] != 1 || norm->data % 16)
        return "a norm's weights must be f32 (K)";
    *plain = *c;
    plain->n_in--;
    return check_prompt(plain, (int)plain->n_in - 1);
}

#define NORMED_CHECK(name)                                                                                             \
    static const char *normed_##name(const gpu_call *c, const gpu_traits *t) {                                         \
        gpu_call plain;                                                                                                \
        const char *why = plain_of(c, &plain);                                                                         \
        return why ? why : name(&plain, t);                                                                            \
    }
#define NORMED_CHECKS(kind)                                                                                            \
    NORMED_CHECK(fp8_wide_##kind)                                                                                      \
    NORMED_CHECK(fp8_##kind)                                                                                           \
    NORMED_CHECK(able_fp8_##kind)                                                                                      \
    NORMED_CHECK(wide_##kind)                                                                                          \
    NORMED_CHECK(hopper_##kind)                                                                                        \
    NORMED_CHECK(able_hopper_##kind)
NORMED_CHECKS(linear)
NORMED_CHECKS(swiglu)

const char *cuda_fixed_fault(const gpu_call *c, const gpu_traits *t, uint32_t mode) {
    int dense = !(c->v[2].format & PACKED_FLAG);
    const char *why = c->n_in < 2 ? "it takes x and weights"
                      : dense     ? cuda_dense_fault(c, mode)
                                  : cuda_product_fault(c, mode);
    if (!why)
        why = check_hopper(t);
    if (!why)
        why = mode & PRODUCT_ADD ? able_add(c, t) : mode & PRODUCT_GATED ? able_swiglu(c, t) : able_linear(c, t);
    return why ? why : t->shared < COLUMNS_SHARED + 4096 ? "the device has too little memory for a group" : NULL;
}

static const char *check_fixed(const gpu_call *c, const gpu_traits *t, uint32_t mode, uint32_t packed) {
    const char *why = cuda_fixed_fault(c, t, mode);
    if (why)
        return why;
    if ((c->v[2].format & PACKED_FLAG) != packed)
        return "it is made for weights in another order";
    return c->v[1].shape[0] > COLUMNS_MOST ? NULL : "it is made for more tokens";
}

#define FIXED_CHECKS(name, mode)                                                                                       \
    static const char *fixed_##name(const gpu_call *c, const gpu_traits *t) {                                          \
        return check_fixed(c, t, mode, PACKED_FLAG);                                                                   \
    }                                                                                                                  \
    static const char *fixed_dense_##name(const gpu_call *c, const gpu_traits *t) {                                    \
        return check_fixed(c, t, mode, 0);                                                                             \
    }
FIXED_CHECKS(linear, WIDE_LINEAR)
FIXED_CHECKS(add, WIDE_ADD)
FIXED_CHECKS(swiglu, WIDE_SWIGLU)

static uint64_t scratch_bf16(const gpu_call *c, const gpu_traits *t) {
    (void)t;
    return tiles_scratch(c);
}

static uint64_t scratch_fp8(const gpu_call *c, const gpu_traits *t) {
    (void)t;
    return tiles_scratch_fp8(c);
}

static void grid_tiles_bf16(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    (void)c;
    *g = grid_of((int64_t)t->units * TILES_GROUPS, 1, 1, 256, 0);
}

static void grid_tiles_fp8(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    (void)c;
    *g = grid_of((int64_t)t->units * FP8_GROUPS, 1, 1, 256, 0);
}

static void grid_products(const gpu_call *c, const gpu_traits *t, gpu_grid *g, int64_t width, uint64_t shared) {
    int64_t tiles = (int64_t)parts(c->v[1].shape[0], PANEL_ROWS) * parts(tiles_columns(c), width);
    *g = grid_of(tiles < t->units ? tiles : t->units, 1, 1, WIDE_THREADS, shared);
}

static void grid_wide(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    grid_products(c, t, g, 256, tiles_shared(256, (int)c->mode));
}

static void grid_narrow(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    grid_products(c, t, g, 128, tiles_shared(128, (int)c->mode));
}

static void grid_warp(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    (void)t;
    *g = grid_of(parts(c->v[1].shape[0], PANEL_ROWS), parts(tiles_columns(c), PANEL_ROWS), 1, WIDE_WARP_THREADS,
                 WIDE_WARP_SHARED);
}

/* --- attention */

/* Kernels of attention: for heads of exactly `exact` numbers, plain scores and sight of what is behind, or, where that is 0, of up to `wide` numbers in
 * attention_wide and up to `split` in attention_split. `group`: query heads of a KV head that attention_split takes at once. `parts`: into
 * which attention_wide cuts the columns; 0: into none that it need not. */
typedef struct {
    int exact, wide, split, group, parts;
} attention_kind;

static int parts_of(const attention_kind *n) {
    return n->parts ? n->parts : column_parts(n->wide);
}

/* many: attention_wide takes part. */
static const char *check_kind(const gpu_call *c, const gpu_traits *t, const attention_kind *n, int many) {
    int hopper = t->arch == HOPPER_ARCH;
    int32_t d = c->v[1].shape[2], group = c->v[1].shape[1] / c->v[2].shape[1];
    arg_attention a;
    memcpy(&a, c->arg, sizeof a);
    if (n->exact && (d != n->exact || a.cap > 0 || a.alibi || !a.causal))
        return "it is made for heads of 64, 128 or 256 numbers without soft caps, ALiBi and sight of what follows";
    if (d > n->wide || d % 8)
        return "it is made for heads of up to 512 numbers, a multiple of 8";
    if (many && hopper && n->parts)
        return "it is made for groups with less shared memory";
    if (n->exact && n->group == 8 && n->exact < 256 && group > 8)
        return "a KV head may have 8 heads at most";
    return split_shared(n->split, n->group, hopper) + SPLIT_STATIC <= t->shared &&
                   (!many || wide_shared(n->wide, parts_of(n), hopper) <= t->shared)
               ? NULL
               : "the device has too little memory for a group";
}

static const char *check_heads(const gpu_call *c, const gpu_traits *t, const attention_kind *n, int many) {
    const char *why = check_attention(c, t);
    const gpu_view *q = c->v + 1, *k = c->v + 2, *v = c->v + 3;
    int32_t block = k->shape[2];
    arg_attention a;
    if (why)
        return why;
    memcpy(&a, c->arg, sizeof a);
    if (a.value)
        return "it takes no values in keys";
    if (t->arch < LEAST_ARCH || k->format == F32 || k->format != v->format || k->shape[3] != v->shape[3])
        return "it needs compute capability 8.0, and keys and values of one format and size";
    if (block < 16 || (block & (block - 1)) || !(a.scale > 0))
        return "a block may have 16, 32, 64 ... positions, and the scale must be positive";
    if (!words_aligned(q, 16) || !words_aligned(c->v, 8) || !words_aligned(k, 16) || !words_aligned(v, 16))
        return "rows must begin at whole words";
    return c->v[6].stride % 4 ? "the table's rows must begin at whole words" : check_kind(c, t, n, many);
}

static uint64_t scratch_attention(const gpu_call *c, const gpu_traits *t) {
    (void)t;
    return attention_scratch(c);
}

static int64_t walkers(const gpu_call *c) {
    return c->v[1].shape[0] <= WALKERS ? c->v[1].shape[0] : WALKERS;
}

/* The query heads of a KV head are cut into parts of n->group. */
static void grid_split(const gpu_call *c, const gpu_traits *t, gpu_grid *g, const attention_kind *n) {
    int32_t kv = c->v[2].shape[1], group = c->v[1].shape[1] / kv;
    *g = grid_of((int64_t)kv * parts(group, n->group), walkers(c), most_splits(c), 32 * WARPS,
                 (uint64_t)split_shared(n->split, group < n->group ? group : n->group, t->arch == HOPPER_ARCH));
}

static void grid_join(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    (void)t;
    *g = grid_of(c->v[1].shape[1], walkers(c), 1, 32 * WARPS, 0);
    if (most_splits(c) == 1)
        *g = grid_of(1, 1, 1, g->threads, 0); /* there is nothing to join */
}

static void grid_attention_wide(const gpu_call *c, const gpu_traits *t, gpu_grid *g, const attention_kind *n) {
    int64_t tiles = (int64_t)tiles_of(c) * parts_of(n);
    *g = grid_of(tiles * c->v[1].shape[1], 1, 1, 256,
                 (uint64_t)wide_shared(n->wide, parts_of(n), t->arch == HOPPER_ARCH));
}

/* Of kernels for up to `most` tokens, whose splits the last group joins. */
static const char *check_joined(const gpu_call *c, const gpu_traits *t, const attention_kind *n, int most) {
    int64_t kv = c->v[2].shape[1];
    if (c->v[1].shape[0] > most || !last_joins(c->v[1].shape[0], kv * parts(c->v[1].shape[1] / kv, n->group)))
        return "it is made for fewer tokens and parts of heads";
    return check_heads(c, t, n, most > FEW);
}

int cuda_hands_plain(const gpu_call *c) {
    (void)c;
    return HANDS_PLAIN;
}

/* A kind of heads, for prompts; HEADS: for few tokens as well. */
#define MANY_HEADS(name, ...)                                                                                          \
    static const attention_kind kind_##name = {__VA_ARGS__};                                                           \
    static const char *many_##name(const gpu_call *c, const gpu_traits *t) {                                           \
        return check_heads(c, t, &kind_##name, 1);                                                                     \
    }                                                                                                                  \
    static const char *some_##name(const gpu_call *c, const gpu_traits *t) {                                           \
        return check_joined(c, t, &kind_##name, WALKERS);                                                              \
    }                                                                                                                  \
    static void grid_split_##name(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {                               \
        grid_split(c, t, g, &kind_##name);                                                                             \
    }                                                                                                                  \
    static void grid_wide_##name(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {                                \
        grid_attention_wide(c, t, g, &kind_##name);                                                                    \
    }
#define HEADS(name, ...)                                                                                               \
    MANY_HEADS(name, __VA_ARGS__)                                                                                      \
    static const char *few_##name(const gpu_call *c, const gpu_traits *t) {                                            \
        return check_joined(c, t, &kind_##name, FEW);                                                                  \
    }
HEADS(64_8, 64, 64, 64, 8)
HEADS(64_16, 64, 64, 64, 16)
HEADS(128_8, 128, 128, 128, 8)
HEADS(128_16, 128, 128, 128, 16)
HEADS(256_8, 256, 256, 256, 8)
HEADS(any_64, 0, 64, 128, 8)
HEADS(any_128, 0, 128, 128, 8)
HEADS(any_256, 0, 256, 256, 8)
HEADS(any_512, 0, 512, 512, 8)
MANY_HEADS(halved_256, 256, 256, 256, 8, 2)
MANY_HEADS(any_halved_256, 0, 256, 256, 8, 2)

/* --- attention under PRODUCT_DETERMINISTIC: no check but FEW's asks for the tokens, and both entries give the same bits */

static const char *check_fixed_heads(const gpu_call *c, const gpu_traits *t, const attention_kind *n) {
    const char *why = check_heads(c, t, n, 1);
    return why || c->v[1].shape[1] / c->v[2].shape[1] <= FIXED_ROWS ? why : "a KV head may have 64 heads at most";
}

static uint64_t scratch_fixed(const gpu_call *c, const gpu_traits *t) {
    (void)t;
    return fixed_scratch(c);
}

static void grid_fixed(const gpu_call *c, gpu_grid *g, int d) {
    *g = grid_of(fixed_groups(c), c->v[2].shape[1], walkers(c), 128, (uint64_t)fixed_shared(d));
}

#define FIXED_HEADS(d)                                                                                                 \
    static const char *few_fixed_##d(const gpu_call *c, const gpu_traits *t) {                                         \
        return c->v[1].shape[0] > FEW ? "it is made for up to 16 tokens" : check_fixed_heads(c, t, &kind_##d##_16);    \
    }                                                                                                                  \
    static const char *many_fixed_##d(const gpu_call *c, const gpu_traits *t) {                                        \
        return check_fixed_heads(c, t, &kind_##d##_16);                                                                \
    }                                                                                                                  \
    static void grid_fixed_##d(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {                                  \
        (void)t;                                                                                                       \
        grid_fixed(c, g, d);                                                                                           \
    }
FIXED_HEADS(64)
FIXED_HEADS(128)

#define FIXED_ATTENTION(d)                                                                                             \
    {.op = "attention",                                                                                                \
     .check = few_fixed_##d,                                                                                           \
     .scratch = scratch_fixed,                                                                                         \
     .format_of = 2,                                                                                                   \
     .launch = {{"attention_fixed_" #d, grid_fixed_##d, 1}},                                                           \
     .counters = 4 * FIXED_COUNTERS},                                                                                  \
    {                                                                                                                  \
        .op = "attention", .check = many_fixed_##d, .scratch = scratch_fixed, .format_of = 2,                          \
        .launch = {{"attention_fixed_wide_" #d, grid_wide_##d##_16, 1}, {"attention_fixed_" #d, grid_fixed_##d, 1}},   \
        .counters = 4 * FIXED_COUNTERS                                                                                 \
    }

const gpu_kernel cuda_fixed_attention_kernels[] = {FIXED_ATTENTION(64), FIXED_ATTENTION(128), {0}};

/* A product of tiles of `elements` (bf16 or fp8): converts its operands, then multiplies. */
#define TILES(op_, mode_, check_, able_, elements, kernel, grid_)                                                      \
    {.op = op_,                                                                                                        \
     .check = check_,                                                                                                  \
     .scratch = scratch_##elements,                                                                                    \
     .mode = mode_,                                                                                                    \
     .launch = {{TILES_##elements, grid_tiles_##elements, 0}, {kernel, grid_, 0}},                                     \
     .able = able_}
#define TILES_bf16 "wide_tiles"
#define TILES_fp8 "wide_tiles_fp8"
/* stem: of the kernels' names; kind: of the checks'. */
#define HOPPER_PRODUCT(op, stem, mode, before, kind)                                                                   \
    TILES(op, mode, before##fp8_wide_##kind, before##able_fp8_##kind, fp8, stem "_wide_fp8", grid_wide),               \
        TILES(op, mode, before##fp8_##kind, before##able_fp8_##kind, fp8, stem "_narrow_fp8", grid_narrow),            \
        TILES(op, mode, before##wide_##kind, before##able_hopper_##kind, bf16, stem "_wide", grid_wide),               \
        TILES(op, mode, before##hopper_##kind, before##able_hopper_##kind, bf16, stem "_narrow", grid_narrow)
#define PRODUCT(op, mode, kind)                                                                                        \
    HOPPER_PRODUCT(op, op, mode, , kind), TILES(op, mode, warp_##kind, 0, bf16, op "_warp", grid_warp)

#define SPLITS {1, 2, 4, 8, 16, 32}
/* name: of the kind; wide, split: of its kernels. MANY_ATTENTION: of a kind for prompts alone. */
#define MANY_ATTENTION(name, wide, split)                                                                              \
    {.op = "attention",                                                                                                \
     .check = some_##name,                                                                                             \
     .scratch = scratch_attention,                                                                                     \
     .format_of = 2,                                                                                                   \
     .launch = {{"attention_wide_" wide, grid_wide_##name, 1}, {"attention_split_" split, grid_split_##name, 1}},      \
     .configs = SPLITS,                                                                                                \
     .counters = 4 * JOIN_COUNTERS},                                                                                   \
    {                                                                                                                  \
        .op = "attention", .check = many_##name, .scratch = scratch_attention, .format_of = 2,                         \
        .launch = {{"attention_wide_" wide, grid_wide_##name, 1},                                                      \
                   {"attention_split_" split, grid_split_##name, 1},                                                   \
                   {"attention_join", grid_join, 1}},                                                                  \
        .configs = SPLITS                                                                                              \
    }
#define ATTENTION(name, wide, split)                                                                                   \
    {.op = "attention",                                                                                                \
     .check = few_##name,                                                                                              \
     .scratch = scratch_attention,                                                                                     \
     .format_of = 2,                                                                                                   \
     .launch = {{"attention_split_" split, grid_split_##name, 1}},                                                     \
     .configs = SPLITS,                                                                                                \
     .counters = 4 * JOIN_COUNTERS,                                                                                    \
     .hands = cuda_hands_plain},                                                                                       \
        MANY_ATTENTION(name, wide, split)

#define FIXED(op_, mode_, kind)                                                                                        \
    {.op = op_,                                                                                                        \
     .check = fixed_##kind,                                                                                            \
     .scratch = scratch_bf16,                                                                                          \
     .mode = (mode_) | PRODUCT_DETERMINISTIC,                                                                          \
     .launch = {{"wide_tiles_fixed", grid_tiles_bf16, 0}, {op_ "_fixed", grid_narrow, 0}}},                            \
    {                                                                                                                  \
        .op = op_, .check = fixed_dense_##kind, .scratch = scratch_bf16, .mode = (mode_) | PRODUCT_DETERMINISTIC,      \
        .launch = {{"wide_tiles", grid_tiles_bf16, 0}, {op_ "_fixed", grid_narrow, 0}}                                 \
    }

const gpu_kernel cuda_fixed_prompt_kernels[] = {
    FIXED("linear", WIDE_LINEAR, linear),
    FIXED("linear_add", WIDE_ADD, add),
    FIXED("linear_swiglu", WIDE_SWIGLU, swiglu),
    {0},
};

const gpu_kernel cuda_prompt_kernels[] = {
    PRODUCT("linear", WIDE_LINEAR, linear),
    PRODUCT("linear_add", WIDE_ADD, add),
    PRODUCT("linear_swiglu", WIDE_SWIGLU, swiglu),
    HOPPER_PRODUCT("norm_linear", "linear", WIDE_LINEAR | PRODUCT_NORM, normed_, linear),
    HOPPER_PRODUCT("norm_linear_swiglu", "linear_swiglu", WIDE_SWIGLU | PRODUCT_NORM, normed_, swiglu),
    ATTENTION(64_8, "64", "64_8"),
    ATTENTION(64_16, "64", "64_16"),
    ATTENTION(128_8, "128", "128_8"),
    ATTENTION(128_16, "128", "128_16"),
    ATTENTION(256_8, "256", "256_8"),
    MANY_ATTENTION(halved_256, "halved_256", "256_8"),
    ATTENTION(any_64, "any_64", "any_128"),
    ATTENTION(any_128, "any_128", "any_128"),
    ATTENTION(any_256, "any_256", "any_256"),
    MANY_ATTENTION(any_halved_256, "any_halved_256", "any_256"),
    ATTENTION(any_512, "any_512", "any_512"),
    {0},
};
