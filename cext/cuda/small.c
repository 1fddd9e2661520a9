/* small.c: kernel tables of small.cu, rope_rows.cu, attention_heads.cu and attention_bulk.cu. */
#include <string.h>

#include "check.h"
#include "family.h"
#include "heads.h"
#include "rope_rows.h"
#include "small.h"
#include "tables.h"

enum { FP8 = 1008, Q8_0 = 8, Q4_0 = 2, F16 = 1, BF16 = 30 /* formats of a cache */ };
enum { NORM_MOST = 4 * NORM_PARTS * NORM_THREADS, NORM_LINEAR_TOKENS = 16, NORM_LINEAR_BYTES = 48 << 10 };

static int whole(const gpu_view *v) {
    return v->data % 16 == 0 && v->stride % 16 == 0;
}

/* Of rms_norm, and of rms_norm_add with its residual. */
static const char *check_norm_rows(const gpu_call *c, const gpu_traits *t) {
    int32_t d = c->v[2].shape[0];
    if (t->arch < LEAST_ARCH)
        return "it needs compute capability 8.0";
    if (c->v[0].shape[0] > MOST_TOKENS || d % 4 || d > NORM_MOST)
        return "more tokens or wider rows than it takes, or rows that are not whole groups of four numbers";
    return whole(c->v) && whole(c->v + 1) && c->v[2].data % 16 == 0 && (c->n_in == 2 || whole(c->v + 3))
               ? NULL
               : "rows must begin at whole groups of four numbers";
}

static void grid_norm_rows(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    int64_t d = c->v[2].shape[0];
    *g = grid_of(width(c->v) / d, c->v[0].shape[0], 1, threads_for(t, d / 4, NORM_THREADS), 0);
}

static const char *check_linear_rows(const gpu_call *c, const gpu_traits *t) {
    const gpu_view *y = c->v, *x = c->v + 1;
    if (t->arch < LEAST_ARCH)
        return "it needs compute capability 8.0";
    for (uint32_t i = 2; i <= c->n_in; i++)
        if (c->v[i].format != F32 || !whole(c->v + i))
            return "weights must be f32, rows whole groups of four numbers";
    return x->format == F32 && y->shape[0] <= MOST_TOKENS && width(x) % 4 == 0 && whole(x)
               ? NULL
               : "x must be f32, of fewer tokens, rows whole groups of four numbers";
}

static void grid_linear_rows(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    int64_t tokens = c->v[0].shape[0];
    (void)t;
    *g = grid_of(parts(c->v[0].shape[1], LINEAR_WAVES), tokens < LINEAR_BESIDE ? tokens : LINEAR_BESIDE, 1,
                 32 * LINEAR_WAVES, 0);
}

/* More tokens take the norm once, in a kernel of its own. */
static const char *check_norm_linear_rows(const gpu_call *c, const gpu_traits *t) {
    const gpu_view *y = c->v, *x = c->v + 1, *w = c->v + 2, *norm = c->v + 3;
    if (t->arch < LEAST_ARCH)
        return "it needs compute capability 8.0";
    if (c->n_in != 3 || w->format != F32 || norm->format != F32 || !whole(w) || norm->data % 16)
        return "it takes one weight, f32, whose rows are whole groups of four numbers";
    return x->format == F32 && y->shape[0] <= NORM_LINEAR_TOKENS && width(x) % 4 == 0 && whole(x) &&
                   4 * width(x) <= NORM_LINEAR_BYTES
               ? NULL
               : "x must be f32, of 16 tokens at most, rows whole groups of four numbers, 48 KB at most";
}

static void grid_norm_linear_rows(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    (void)t;
    *g = grid_of(parts(c->v[0].shape[1], LINEAR_WAVES), c->v[0].shape[0], 1, 32 * LINEAR_WAVES,
                 4 * (uint64_t)width(c->v + 1));
}

const gpu_kernel cuda_small_kernels[] = {
    {.op = "linear", .check = check_linear_rows, .launch = {{"linear_f32_rows", grid_linear_rows, 1}}},
    {.op = "norm_linear",
     .check = check_norm_linear_rows,
     .launch = {{"norm_linear_f32_rows", grid_norm_linear_rows, 1}}},
    {.op = "rms_norm", .check = check_norm_rows, .launch = {{"rms_norm_rows", grid_norm_rows, 1}}},
    {.op = "rms_norm_add", .check = check_norm_rows, .launch = {{"rms_norm_rows", grid_norm_rows, 1}}},
    {0},
};

/* --- RoPE and cache writes of many tokens, see rope_rows.cu */

static int in_elements(uint32_t format) {
    return format == F32 || format == F16 || format == BF16 || format == FP8;
}

static const char *check_rope_rows(const gpu_call *c, const gpu_traits *t) {
    const int32_t d = c->v[1].shape[2];
    (void)t;
    if (c->v[1].shape[0] < ROPE_LEAST)
        return "it is made for more tokens";
    if (d < RUN || d > ROPE_HEAD || (d & (d - 1)) || c->v[7].shape[1] % RUN || c->v[2].shape[3] != d ||
        c->v[3].shape[3] != d)
        return "heads must have 8, 16, 32 ... 256 numbers, of which a multiple of 8 is rotated";
    if (!in_elements(c->v[2].format) || !in_elements(c->v[3].format))
        return "the cache must be in F32, F16, BF16 or FP8";
    for (uint32_t i = 0; i <= c->n_in; i++) /* not of slots, positions and the table; biases and norms have one row */
        if (i < 4 || (i > 6 && i < 10) ? !whole(c->v + i) : i >= 10 && c->v[i].data % 16)
            return "rows must begin at whole groups of four numbers";
    return 0;
}

static void grid_rope_rows(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    (void)t;
    *g = grid_of(c->v[1].shape[0], 1, 1, ROPE_THREADS, 0);
}

const gpu_kernel cuda_rope_kernels[] = {
    {.op = "rope_qkv_write", .check = check_rope_rows, .launch = {{"rope_qkv_rows", grid_rope_rows, 1}}},
    {0},
};

/* --- attention of a layer for up to 128 tokens, see attention_heads.cu */

enum { LEAST_BLOCK = 16, COUNTERS = FEW * 128 /* tokens and KV heads */, HEADS_BYTES = 4 * COUNTERS };

static int cached(uint32_t format) {
    return format == F16 || format == BF16 || format == FP8 || format == Q8_0 || format == Q4_0;
}

static const char *check_heads(const gpu_call *c, const gpu_traits *t, int32_t d, int kind) {
    const gpu_view *q = c->v + 1, *k = c->v + 2, *v = c->v + 3;
    int32_t block = k->shape[2];
    arg_rope_qkv_attention a;
    memcpy(&a, c->arg, sizeof a);
    if (t->arch < LEAST_ARCH || q->shape[0] > WALKERS || heads_kind(q->shape[0]) != kind)
        return "it is made for another number of tokens, or needs compute capability 8.0";
    if (k->shape[3] != d || v->shape[3] != d || q->shape[2] != d || k->format != v->format || !cached(k->format) ||
        v->shape[2] != block || block < LEAST_BLOCK || (block & (block - 1)))
        return "keys and values must be of one format, in blocks of 16, 32, 64 ... positions";
    if (!(a.scale > 0))
        return "scale must be above 0";
    if (q->shape[0] * k->shape[1] > COUNTERS || q->shape[1] / k->shape[1] > HEADS_MOST)
        return "a KV head may have 8 heads at most";
    if (!whole(q) || !whole(c->v + 7) || !whole(c->v + 8) || !whole(c->v + 9) || !whole(k) || !whole(v) ||
        c->v[7].shape[1] % 8)
        return "rows must begin at whole groups of four numbers, of which eight, sixteen ... are rotated";
    for (int i = 0; i < 3 * a.biases + 2 * a.norms; i++)
        if (c->v[10 + i].data % 16)
            return "biases and norms must begin at whole groups of four numbers";
    return heads_shared(d, q->shape[1] / k->shape[1], kind, t->arch == HOPPER_ARCH) + SPLIT_STATIC <= t->shared
               ? NULL
               : "too little shared memory";
}

static void grid_heads(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    const gpu_view *q = c->v + 1, *k = c->v + 2;
    const int kind = heads_kind(q->shape[0]);
    const uint64_t shared =
        (uint64_t)heads_shared(k->shape[3], q->shape[1] / k->shape[1], kind, t->arch == HOPPER_ARCH);
    *g = kind != HEADS_ONE ? grid_of(k->shape[1], q->shape[0], most_splits(c), 32 * WARPS, shared)
                           : grid_of(most_splits(c), k->shape[1], 1, 32 * WARPS, shared);
}

static uint64_t scratch_heads(const gpu_call *c, const gpu_traits *t) {
    (void)t;
    return attention_scratch(c);
}

/* --- attention of a layer for one token on Hopper, see attention_bulk.cu */

/* Bytes of a row of the cache, whose elements each have a whole number of them; 0: another. */
static int bulk_row(const gpu_view *k) {
    return k->format == F16 || k->format == BF16 ? 2 * k->shape[3] : k->format == FP8 ? k->shape[3] : 0;
}

static const char *check_bulk(const gpu_call *c, const gpu_traits *t, int32_t d) {
    const gpu_view *q = c->v + 1, *k = c->v + 2;
    const char *fault = t->arch == HOPPER_ARCH ? check_heads(c, t, d, HEADS_ONE) : "it is made for sm_90";
    if (fault)
        return fault;
    if (q->shape[1] > COUNTERS)
        return "more heads than it has counters";
    if (!bulk_row(k))
        return "keys and values must be in F16, BF16 or FP8";
    return bulk_shared(d, bulk_row(k), q->shape[1] / k->shape[1]) + SPLIT_STATIC <= t->shared
               ? NULL
               : "too little shared memory";
}

static void grid_bulk(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    const gpu_view *q = c->v + 1, *k = c->v + 2;
    *g = grid_of(bulk_splits(c, t->units), k->shape[1], 1, BULK_THREADS,
                 (uint64_t)bulk_shared(k->shape[3], bulk_row(k), q->shape[1] / k->shape[1]));
    g->cluster = (uint32_t)bulk_cluster(c, t->units);
}

static uint64_t scratch_bulk(const gpu_call *c, const gpu_traits *t) {
    const gpu_view *q = c->v + 1;
    return 4 * (uint64_t)q->shape[1] * (uint64_t)bulk_splits(c, t->units) * (uint64_t)(q->shape[2] + RESULT_HEAD);
}

static const char *check_bulk_64(const gpu_call *c, const gpu_traits *t) {
    return check_bulk(c, t, 64);
}

static const char *check_bulk_128(const gpu_call *c, const gpu_traits *t) {
    return check_bulk(c, t, 128);
}

#define BULK(d)                                                                                                        \
    {.op = "rope_qkv_attention",                                                                                       \
     .check = check_bulk_##d,                                                                                          \
     .scratch = scratch_bulk,                                                                                          \
     .format_of = 2,                                                                                                   \
     .launch = {{"attention_bulk_" #d, grid_bulk, 1}},                                                                 \
     .configs = {1, 2, 4, 8, 16, 32},                                                                                  \
     .counters = HEADS_BYTES}

#define HEADS_CHECK(name, d, kind)                                                                                     \
    static const char *check_##name##_##d(const gpu_call *c, const gpu_traits *t) {                                    \
        return check_heads(c, t, d, kind);                                                                             \
    }
HEADS_CHECK(heads, 64, HEADS_ONE)
HEADS_CHECK(heads, 128, HEADS_ONE)
HEADS_CHECK(heads_few, 64, HEADS_FEW)
HEADS_CHECK(heads_few, 128, HEADS_FEW)
HEADS_CHECK(heads_many, 64, HEADS_MANY)
HEADS_CHECK(heads_many, 128, HEADS_MANY)

#define HEADS(name, d, ...)                                                                                            \
    {.op = "rope_qkv_attention",                                                                                       \
     .check = check_##name##_##d,                                                                                      \
     .scratch = scratch_heads,                                                                                         \
     .format_of = 2,                                                                                                   \
     .launch = {{"attention_" #name "_" #d, grid_heads, 1}},                                                           \
     .configs = {1, 2, 4, 8, 16, 32},                                                                                  \
     .counters = HEADS_BYTES,                                                                                          \
     __VA_ARGS__}

const gpu_kernel cuda_heads_kernels[] = {BULK(64),
                                         BULK(128),
                                         HEADS(heads, 64, ),
                                         HEADS(heads, 128, ),
                                         HEADS(heads_few, 64, .hands = cuda_hands_plain),
                                         HEADS(heads_few, 128, .hands = cuda_hands_plain),
                                         HEADS(heads_many, 64, .hands = cuda_hands_plain),
                                         HEADS(heads_many, 128, .hands = cuda_hands_plain),
                                         {0}};
