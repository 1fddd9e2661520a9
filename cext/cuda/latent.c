/* latent.c: kernel tables of attention_latent.cu, attention over the latents of MLA, of all positions, of listed ones or of those
 * whose blocks this rank of a group has, and of
 * latent_step.cu, what stands before it.
 */
#include "check.h"
#include "check_tokens.h"
#include "family.h"
#include "latent_shape.h"
#include "latent_step.h"
#include "packed.h"
#include "tables.h"

enum { Q4_0 = 2, Q5_0 = 6, Q8_0 = 8, IQ4_NL = 20, MXFP4 = 39 }; /* as GGUF numbers them */

static int aligned(const gpu_view *v, uint64_t bytes) {
    return v->data % bytes == 0 && v->stride % bytes == 0;
}

/* Checks common to the ops; value: elements of a row that are its value; columns: numbers of the result for each head. */
static const char *check_latent(const gpu_call *c, const gpu_traits *t, int32_t value, int columns, float scale,
                                int hopper) {
    const gpu_view *q = c->v + 1, *k = c->v + 2;
    const int32_t block = k->shape[2];
    if (t->arch < LEAST_ARCH || (t->arch == HOPPER_ARCH) != hopper ||
        (hopper ? LATENT_SHARED : LATENT_WARP_SHARED) > t->shared)
        return hopper ? "it is made for sm_90" : "it is made for devices without wgmma, from compute capability 8.0 on";
    if (k->shape[1] != 1 || k->shape[3] != LATENT_D || q->shape[2] != LATENT_D || value != LATENT_V ||
        width(c->v) != (int64_t)q->shape[1] * columns)
        return "it is made for rows of 576 numbers, of which the first 512 are the value";
    if (k->format == F32 || !kv_block(k->format) || block < 16 || (block & (block - 1)) || !(scale > 0))
        return "a cache must have F16, BF16, FP8, Q8_0 or Q4_0 rows, blocks of 16, 32, 64 ... positions, and the scale "
               "must be positive";
    if (q->format != F32 || c->v->format != F32 || !aligned(q, 16) || !aligned(c->v, 16) || !aligned(k, 16) ||
        c->v[6].stride % 4)
        return "queries and results must be f32, and rows must begin at whole words";
    return q->shape[0] <= 65535 ? NULL : "it takes 65,535 tokens";
}

static const char *check_all(const gpu_call *c, const gpu_traits *t, int hopper) {
    const char *why = check_attention(c, t);
    arg_attention a;
    if (why)
        return why;
    memcpy(&a, c->arg, sizeof a);
    if (c->n_in != 6 || a.cap != 0 || a.chunk || a.window || !a.causal || a.alibi)
        return "it has no sinks, soft caps, chunks, windows or sight of what follows";
    return check_latent(c, t, a.value, LATENT_V, a.scale, hopper);
}

static const char *check_dense(const gpu_call *c, const gpu_traits *t) {
    return check_all(c, t, 1);
}

static const char *check_dense_warp(const gpu_call *c, const gpu_traits *t) {
    return check_all(c, t, 0);
}

static const char *check_whole(const gpu_call *c, const gpu_traits *t) {
    return c->v[1].shape[0] > LATENT_FEW ? check_dense(c, t) : "it is made for more tokens";
}

static const char *check_some(const gpu_call *c, const gpu_traits *t, int hopper) {
    arg_sparse_attention a;
    const gpu_view *list = c->v + 7;
    memcpy(&a, c->arg, sizeof a);
    if (c->n_in != 7 || list->format != I32 || list->stride % 4 || list->shape[1] < 1)
        return "positions must be i32 (T, k)";
    return check_latent(c, t, a.value, LATENT_V, a.scale, hopper);
}

static const char *check_listed(const gpu_call *c, const gpu_traits *t) {
    return check_some(c, t, 1);
}

static const char *check_listed_warp(const gpu_call *c, const gpu_traits *t) {
    return check_some(c, t, 0);
}

static const char *check_dealt(const gpu_call *c, const gpu_traits *t) {
    arg_attention_parts a;
    memcpy(&a, c->arg, sizeof a);
    if (a.cap != 0 || a.alibi)
        return "it has no soft caps and no ALiBi";
    return check_latent(c, t, a.value, LATENT_V + 2, a.scale, 1);
}

static uint64_t scratch_dealt(const gpu_call *c, const gpu_traits *t) {
    (void)t;
    return dealt_bytes(c) + latent_scratch(c, 0);
}

static void grid_deal(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    (void)t;
    *g = grid_of((int64_t)c->v[1].shape[0] + c->v[6].shape[0], 1, 1, DEAL_THREADS, 0);
}

static uint64_t scratch_cut(const gpu_call *c, const gpu_traits *t) {
    (void)t;
    return latent_scratch(c, 0);
}

static void grid_tiles(const gpu_call *c, gpu_grid *g, int whole) {
    const int tokens = c->v[1].shape[0], heads = c->v[1].shape[1], each = latent_tokens(heads, whole);
    *g = grid_of((int64_t)((tokens + each - 1) / each) * latent_tiles(heads),
                 whole ? 1 : latent_splits(tokens, heads, c->config), 1, LATENT_THREADS, LATENT_SHARED);
}

static void grid_warp(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    const int tokens = c->v[1].shape[0], heads = c->v[1].shape[1];
    (void)t;
    *g = grid_of((int64_t)tokens * parts(heads, LATENT_WARP_ROWS), latent_splits(tokens, heads, c->config), 1,
                 LATENT_WARP_THREADS, LATENT_WARP_SHARED);
}

static void grid_whole(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    (void)t;
    grid_tiles(c, g, 1);
}

static void grid_cut(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    (void)t;
    grid_tiles(c, g, 0);
}

static void grid_join(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    (void)t;
    *g = grid_of(4 * (int64_t)c->v[1].shape[1], c->v[1].shape[0], 1, LATENT_JOINERS, 0);
    if (latent_splits(c->v[1].shape[0], c->v[1].shape[1], c->config) == 1)
        *g = grid_of(1, 1, 1, LATENT_JOINERS, 0); /* there is nothing to join */
}

static const char *check_step(const gpu_call *c, const gpu_traits *t) {
    const gpu_view *q = c->v + 1, *cache = c->v + 3, *w = c->v + 9;
    if (t->arch < LEAST_ARCH)
        return "needs compute capability 8.0";
    if (!(w->format & PACKED_FLAG) || !packed_bytes(w->format) || w->shape[2] > CHUNK || w->shape[2] % 4 ||
        w->shape[2] % 32)
        return "k_b must be packed (H, N, K), with K a multiple of 32, of 256 at most";
    if ((w->format & 0xFFFFFF) != Q8_0 && (w->format & 0xFFFFFF) != Q4_0 && (w->format & 0xFFFFFF) != Q5_0 &&
        (w->format & 0xFFFFFF) != IQ4_NL && (w->format & 0xFFFFFF) != MXFP4)
        return "k_b must be in a format of blocks of 32";
    if (cache->shape[1] != 1 || cache->shape[3] > LATENT_STEP_MOST || !kv_block(cache->format))
        return "a cache must have one row of 1,024 numbers at most";
    return q->shape[0] <= LATENT_STEP_TOKENS && aligned(q, 16) && q->shape[2] % 4 == 0
               ? NULL
               : "it takes 128 tokens, and queries whose heads begin at whole groups of four numbers";
}

static void grid_step(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    const gpu_view *w = c->v + 9;
    int tiles = (w->shape[1] + TILE_ROWS - 1) / TILE_ROWS, per = (tiles + LATENT_STEP_WAVES - 1) / LATENT_STEP_WAVES;
    (void)t;
    *g = grid_of((int64_t)w->shape[0] * per + GEMV_COLUMNS, parts(c->v[0].shape[0], GEMV_COLUMNS), 1,
                 32 * LATENT_STEP_WAVES, 0);
}

static int head_chunks(const gpu_call *c) {
    return (int)parts(c->v[2].shape[2], CHUNK);
}

static uint64_t head_shared(const gpu_call *c) {
    return (uint64_t)(head_chunks(c) * (LATENT_STEP_WAVES * packed_bytes(c->v[2].format) + LATENT_STEP_ACTS));
}

static const char *check_head(const gpu_call *c, const gpu_traits *t) {
    const gpu_view *y = c->v, *x = c->v + 1, *w = c->v + 2;
    if (t->arch < LEAST_ARCH)
        return "needs compute capability 8.0";
    if (!(w->format & PACKED_FLAG) || !packed_bytes(w->format) || w->shape[2] % 4 || head_chunks(c) > HEAD_STEP_CHUNKS)
        return "weights must be packed (H, N, K), with K of 1,024 at most";
    if (x->format != F32 || y->format != F32 || y->shape[0] > LATENT_STEP_TOKENS || !aligned(x, 16))
        return "x must be f32, of 128 tokens at most, rows at multiples of 16 bytes";
    return head_shared(c) <= (uint64_t)t->shared ? NULL : "its rows are too long for shared memory";
}

static void grid_head(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    const gpu_view *w = c->v + 2;
    (void)t;
    *g = grid_of((int64_t)w->shape[0] * parts(parts(w->shape[1], TILE_ROWS), LATENT_STEP_WAVES),
                 parts(c->v[0].shape[0], GEMV_COLUMNS), 1, 32 * LATENT_STEP_WAVES, head_shared(c));
}

const gpu_kernel cuda_latent_kernels[] = {
    {.op = "head_linear", .check = check_head, .format_of = 2, .launch = {{"head_linear_step", grid_head, 1}}},
    {.op = "rope_latent_write", .check = check_step, .format_of = 9, .launch = {{"rope_latent_write", grid_step, 1}}},
    {.op = "attention", .check = check_whole, .format_of = 2, .launch = {{"attention_latent", grid_whole, 1}}},
    {.op = "attention",
     .check = check_dense,
     .scratch = scratch_cut,
     .format_of = 2,
     .launch = {{"attention_cut", grid_cut, 1}, {"attention_cut_join", grid_join, 1}},
     .configs = {1, 2, 4, 8, 16, 32, 64}},
    {.op = "attention_parts",
     .check = check_dealt,
     .scratch = scratch_dealt,
     .format_of = 2,
     .launch = {{"deal_blocks", grid_deal, 1, 1},
                {"attention_dealt", grid_cut, 1},
                {"attention_dealt_join", grid_join, 1, 1}},
     .configs = {1, 2, 4, 8, 16, 32, 64}},
    {.op = "attention",
     .check = check_dense_warp,
     .scratch = scratch_cut,
     .format_of = 2,
     .launch = {{"attention_latent_warp", grid_warp, 1}, {"attention_cut_join", grid_join, 1}},
     .configs = {1, 2, 4, 8, 16, 32, 64}},
    {.op = "sparse_attention",
     .check = check_listed_warp,
     .scratch = scratch_cut,
     .format_of = 2,
     .launch = {{"attention_listed_warp", grid_warp, 1}, {"attention_listed_join", grid_join, 1}},
     .configs = {1, 2, 4, 8, 16, 32, 64}},
    {.op = "sparse_attention",
     .check = check_listed,
     .scratch = scratch_cut,
     .format_of = 2,
     .launch = {{"attention_listed", grid_cut, 1}, {"attention_listed_join", grid_join, 1}},
     .configs = {1, 2, 4, 8, 16, 32, 64}},
    {0},
};
