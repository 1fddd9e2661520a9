/* small.c: kernel table and fusion patterns of small.cu and attention_heads.cu. */
#include <string.h>

#include "check.h"
#include "heads.h"
#include "small.h"
#include "tables.h"

enum { EARLY_ARCH = 90, NORM_MOST = 4 * NORM_PARTS * NORM_THREADS };

static int whole(const gpu_view *v) {
    return v->data % 16 == 0 && v->stride % 16 == 0;
}

static const char *check_norm_rows(const gpu_call *c, const gpu_traits *t) {
    int32_t d = c->v[2].shape[0];
    if (t->arch < EARLY_ARCH)
        return "it is launched early, which needs compute capability 9.0";
    if (c->n_in != 2 || c->v[0].format != F32 || c->v[1].format != F32 || c->v[2].format != F32 ||
        !same_shape(c->v, c->v + 1) || c->v[0].shape[0] > MOST_TOKENS)
        return "x, its weights and the output must be f32";
    if (d % 4 || d > NORM_MOST || width(c->v) % d || !whole(c->v) || !whole(c->v + 1) || c->v[2].data % 16)
        return "rows must be whole groups of four numbers";
    return NULL;
}

static void grid_norm_rows(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    int64_t d = c->v[2].shape[0];
    *g = grid_of(width(c->v) / d, c->v[0].shape[0], 1, threads_for(t, d / 4, NORM_THREADS), 0);
}

static const char *check_linear_rows(const gpu_call *c, const gpu_traits *t) {
    const gpu_view *y = c->v, *x = c->v + 1;
    int64_t rows = 0;
    if (t->arch < EARLY_ARCH)
        return "it is launched early, which needs compute capability 9.0";
    if (c->n_in < 2 || y->format != F32 || x->format != F32 || width(y) != y->shape[1])
        return "x, weights and output must be f32";
    for (uint32_t i = 2; i <= c->n_in; i++) {
        const gpu_view *w = c->v + i;
        if (w->format != F32 || width(w) != w->shape[1] || w->shape[1] != width(x) || !whole(w))
            return "weights must be f32 (N, K) with x's K, rows whole groups of four numbers";
        rows += w->shape[0];
    }
    return y->shape[0] == x->shape[0] && width(y) == rows && y->shape[0] <= MOST_TOKENS && width(x) % 4 == 0 && whole(x)
               ? NULL
               : "x must be (T, K) and the output as wide as the weights have rows, rows whole groups of four numbers";
}

static void grid_linear_rows(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    (void)t;
    *g = grid_of(parts(c->v[0].shape[1], LINEAR_WAVES), c->v[0].shape[0], 1, 32 * LINEAR_WAVES, 0);
}

const gpu_kernel cuda_small_kernels[] = {
    {.op = "linear", .check = check_linear_rows, .launch = {{"linear_f32_rows", grid_linear_rows, 1}}},
    {.op = "rms_norm", .check = check_norm_rows, .launch = {{"rms_norm_rows", grid_norm_rows, 1}}},
    {0},
};

static const char *check_heads_fused(const gpu_call *calls, const gpu_traits *t) {
    if (t->arch < EARLY_ARCH)
        return "it is launched early, which needs compute capability 9.0";
    return calls[0].v[0].shape[0] == calls[1].v[2].shape[0] && calls[0].v[0].shape[0] == calls[2].v[2].shape[0]
               ? NULL
               : "queries, keys and values must be of the same tokens";
}

static void grid_heads_fused(const gpu_call *calls, const gpu_traits *t, gpu_grid *g) {
    const gpu_view *q = calls[0].v + 1;
    int64_t pairs = (int64_t)q->shape[1] * (q->shape[2] - calls[0].v[2].shape[1] / 2);
    int64_t heads = calls[1].v[0].shape[1] > calls[2].v[0].shape[1] ? calls[1].v[0].shape[1] : calls[2].v[0].shape[1];
    int64_t groups = parts(pairs, HEADS_THREADS);
    (void)t;
    *g = grid_of(groups > heads ? groups : heads, q->shape[0], HEADS_CALLS, HEADS_THREADS, 0);
}

/* --- fused attention steps of a layer for one token, see attention_heads.cu */

enum {
    FP8 = 1008,
    Q8_0 = 8,
    Q4_0 = 2,
    F16 = 1,
    BF16 = 30,
    LEAST_BLOCK = 16,
    COUNTERS = 256,
    HEADS_BYTES = 4 * COUNTERS
};

static int cached(uint32_t format) {
    return format == F16 || format == BF16 || format == FP8 || format == Q8_0 || format == Q4_0;
}

static int same_place(const gpu_view *a, const gpu_view *b) {
    return a[0].data == b[0].data && a[1].data == b[1].data && a[2].data == b[2].data;
}

/* Whether two rows of one token do not overlap. */
static int disjoint(const gpu_view *a, const gpu_view *b) {
    return a->data + 4 * (uint64_t)width(a) <= b->data || b->data + 4 * (uint64_t)width(b) <= a->data;
}

/* Whether the four calls form the chain of a layer's attention, and no group can overwrite what another still reads: the
 * plan may have placed attention's output over keys and values, which in the fused kernel are still live. */
static int chained(const gpu_call *c) {
    const gpu_call *k = c + 1, *v = c + 2, *a = c + 3;
    arg_rope style[2];
    memcpy(style, c->arg, sizeof *style);
    memcpy(style + 1, k->arg, sizeof *style);
    int in_place =
        a->v[0].data == c->v[1].data && width(a->v) == width(c->v + 1); /* groups read and write heads of their own */
    if ((!in_place && !disjoint(a->v, c->v + 1)) || !disjoint(a->v, k->v + 2) || !disjoint(a->v, v->v + 2) ||
        !disjoint(a->v, c->v + 2))
        return 0;
    return c->v[0].data == a->v[1].data && k->v[0].data == a->v[2].data && v->v[0].data == a->v[3].data &&
           k->v[3].data == c->v[2].data && style[0].style == style[1].style && same_place(k->v + 4, a->v + 4) &&
           same_place(v->v + 3, a->v + 4);
}

static const char *check_heads(const gpu_call *c, const gpu_traits *t, int32_t d) {
    const gpu_view *q = c[3].v + 1, *k = c[3].v + 2, *v = c[3].v + 3;
    int32_t block = k->shape[2];
    arg_attention a;
    memcpy(&a, c[3].arg, sizeof a);
    if (t->arch != EARLY_ARCH || q->shape[0] != 1 || c[1].v[2].shape[0] != 1 || c[2].v[2].shape[0] != 1)
        return "it is made for sm_90 and one token";
    if (k->shape[3] != d || v->shape[3] != d || k->format != v->format || !cached(k->format) || v->shape[2] != block ||
        block < LEAST_BLOCK || (block & (block - 1)))
        return "keys and values must be of one format, in blocks of 16, 32, 64 ... positions";
    if (a.cap != 0 || a.value || a.chunk || !a.causal || !(a.scale > 0) || c[3].n_in != 6)
        return "attention must be causal and plain";
    if (k->shape[1] > COUNTERS || q->shape[1] / k->shape[1] > HEADS_MOST || c->v[2].shape[1] > d ||
        c->v[2].shape[1] % 2)
        return "a KV head may have 8 heads at most";
    if (!whole(c->v + 1) || !whole(c[1].v + 2) || !whole(c[2].v + 2) || !whole(k) || !whole(v))
        return "rows must begin at whole words";
    return chained(c) && heads_shared(d, q->shape[1] / k->shape[1]) <= t->shared
               ? NULL
               : "the calls do not follow from each other";
}

static const char *check_heads_64(const gpu_call *c, const gpu_traits *t) {
    return check_heads(c, t, 64);
}

static const char *check_heads_128(const gpu_call *c, const gpu_traits *t) {
    return check_heads(c, t, 128);
}

static void grid_heads(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    const gpu_view *q = c[3].v + 1, *k = c[3].v + 2;
    (void)t;
    *g = grid_of(most_splits(c + 3), k->shape[1], 1, 32 * WARPS,
                 (uint64_t)heads_shared(k->shape[3], q->shape[1] / k->shape[1]));
}

const gpu_fusion cuda_fusions[] = {
    {{"rope", "rope_kv_write", "kv_write", "attention"},
     check_heads_64,
     "attention_heads_64",
     grid_heads,
     1,
     2,
     HEADS_BYTES},
    {{"rope", "rope_kv_write", "kv_write", "attention"},
     check_heads_128,
     "attention_heads_128",
     grid_heads,
     1,
     2,
     HEADS_BYTES},
    {{"rope", "rope_kv_write", "kv_write"}, check_heads_fused, "heads_fused", grid_heads_fused, 1, 0, 0},
    {.kernel = NULL},
};
