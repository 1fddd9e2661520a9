/* packed_table.c: kernel tables of packed weights. Only these kernels and those of matrix units read them, so together they take any
 * number of columns and rows.
 */
#include "packed_table.h"

#include "check.h"
#include "packed_layout.h"

enum { PACK_STACK_MOST = 65535 /* limit of a grid's second dimension */ };

/* Index of the last weight. Behind it stand a residual; a norm's weights; or these, the post-norm's and a residual. */
static int last_weight(const gpu_call *c, uint32_t mode) {
    return (int)c->n_in - (mode & PACKED_POST ? 3 : mode & (PACKED_ADD | PACKED_NORM) ? 1 : 0);
}

static int is_norm(const gpu_view *v, const gpu_view *x) {
    return is_list(v, F32, x->shape[1]);
}

static const char *activations_fault(const gpu_call *c, uint32_t mode) {
    const gpu_view *y = c->v, *x = c->v + 1, *rest = c->v + last_weight(c, mode) + 1, *r = c->v + c->n_in;
    if (y->format != F32 || x->format != F32 || x->shape[0] != y->shape[0] || width(x) != x->shape[1] ||
        width(y) != y->shape[1])
        return "activations must be f32 (T, K) and the output f32 (T, N)";
    if (mode & PACKED_ADD && (r->format != F32 || !same_shape(r, y)))
        return "what is added must have the output's shape";
    if (mode & PACKED_NORM && (!is_norm(rest, x) || (mode & PACKED_POST && !is_norm(rest + 1, x))))
        return "a norm's weights must be f32 (K)";
    if (mode & PACKED_POST && (r->format != F32 || !same_shape(r, x)))
        return "the residual must have x's shape";
    return few_tokens(parts(y->shape[0], PACKED_COLUMNS));
}

static const char *product_fault(const gpu_call *c, uint32_t mode) {
    const gpu_view *x = c->v + 1;
    const int last = last_weight(c, mode), columns = c->v[0].shape[1] - (mode & PACKED_POST ? x->shape[1] : 0);
    int64_t rows = 0;
    if (last < 2 || (mode & PACKED_GATED && last != 3) || (mode & PACKED_ADD && last != 2))
        return "wrong number of weights";
    for (int i = 2; i <= last; i++) {
        const gpu_view *w = c->v + i;
        if (!(w->format & HAL_PACKED) || !packed_bytes(w->format) || width(w) != w->shape[1] ||
            w->shape[1] != x->shape[1])
            return "weights must be packed, (N, K) with x's K";
        rows += w->shape[0];
    }
    if (mode & PACKED_GATED ? c->v[2].shape[0] != c->v[3].shape[0] || columns != c->v[2].shape[0] : columns != rows)
        return "the output's columns are not the weights' rows";
    return activations_fault(c, mode);
}

static uint32_t local_bytes(const gpu_call *c, uint32_t mode) {
    int32_t k = c->v[1].shape[1];
    uint32_t acts = (uint32_t)packed_ways(k, mode) * PACKED_COLUMNS * PACKED_NUMBERS,
             sums = (uint32_t)packed_teams(k, mode) * PACKED_COLUMNS * PACKED_ROWS;
    return 4 * (PACKED_HEAD + (acts > sums ? acts : sums));
}

static const char *check(const gpu_call *c, const gpu_traits *t, uint32_t mode) {
    const char *fault = product_fault(c, mode);
    if (!fault && mode & PACKED_NORM && c->v[0].shape[0] > PACKED_COLUMNS)
        fault = "it is made for four tokens at most";
    return fault || local_bytes(c, mode) <= (uint32_t)t->shared ? fault : "too little local memory";
}

static void grid(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    const int last = c->mode & PACKED_GATED ? 2 : last_weight(c, c->mode);
    int64_t tiles = 0;
    (void)t;
    for (int i = 2; i <= last; i++)
        tiles += packed_tiles(c->v[i].shape[0]);
    *g = grid_of(tiles, parts(c->v[0].shape[0], PACKED_COLUMNS), 1,
                 (uint32_t)(PACKED_ROWS * packed_teams(c->v[1].shape[1], c->mode)), local_bytes(c, c->mode));
}

static const char *check_rows(const gpu_call *c, const gpu_traits *t) {
    const gpu_view *y = c->v, *w = c->v + 1;
    (void)t;
    if (!(w->format & HAL_PACKED) || !packed_bytes(w->format) || width(w) != w->shape[1])
        return "the weight must be packed, (V, D)";
    return y->format == F32 && width(y) == w->shape[1] ? NULL : "the output must be f32 (T, D)";
}

static void grid_rows(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    *g = grid_of(c->v[0].shape[0], 1, 1, threads_for(t, 8 * packed_chunks(c->v[1].shape[1]), THREADS), 0);
}

/* A check is not told the mode, so each op has its own. */
#define CHECK(name, mode)                                                                                              \
    static const char *check_##name(const gpu_call *c, const gpu_traits *t) {                                          \
        return check(c, t, mode);                                                                                      \
    }
#define PRODUCT(name, mode_)                                                                                           \
    {                                                                                                                  \
        .op = #name, .check = check_##name, .mode = mode_, .launch = {{"packed_linear", grid, 0}}                      \
    }
#define STEPS(f)                                                                                                       \
    f(norm_linear, PACKED_NORM) f(norm_linear_swiglu, PACKED_NORM | PACKED_GATED)                                      \
        f(norm_linear_geglu, PACKED_NORM | PACKED_GATED | PACKED_GELU) f(post_norm_linear, PACKED_NORM | PACKED_POST)  \
            f(post_norm_linear_swiglu, PACKED_NORM | PACKED_POST | PACKED_GATED)                                       \
                f(post_norm_linear_geglu, PACKED_NORM | PACKED_POST | PACKED_GATED | PACKED_GELU)
STEPS(CHECK)
CHECK(linear, 0)
CHECK(linear_add, PACKED_ADD)
CHECK(linear_swiglu, PACKED_GATED)

#define STEP(name, mode) PRODUCT(name, mode),
const gpu_kernel gpu_packed_steps[] = {STEPS(STEP){0}};

const gpu_kernel gpu_packed_kernels[] = {
    PRODUCT(linear, 0),
    PRODUCT(linear_add, PACKED_ADD),
    PRODUCT(linear_swiglu, PACKED_GATED),
    {.op = "get_rows", .check = check_rows, .launch = {{"packed_rows", grid_rows, 0}}},
    {.op = "get_rows_part", .check = check_rows, .mode = 1, .launch = {{"packed_rows", grid_rows, 0}}},
    {0},
};

static void grid_pack(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    (void)t;
    *g = grid_of((int64_t)packed_tiles(c->v[0].shape[1]) * packed_chunks(c->v[0].shape[2]), c->v[0].shape[0], 1,
                 THREADS, 0);
}

#define PACKED_SIZE(name, number, words, more, block)                                                                  \
    static uint64_t size_##name(int64_t rows, int64_t columns, const gpu_traits *t) {                                  \
        (void)t;                                                                                                       \
        return columns % (block) ? 0                                                                                   \
                                 : (uint64_t)packed_tiles((int32_t)rows) * (uint64_t)packed_chunks((int32_t)columns) * \
                                       packed_bytes(number);                                                           \
    }
PACKED_FORMATS(PACKED_SIZE)

#define PACKING(name, number, words, more, block) {number, size_##name, "pack_" #name, grid_pack},
const gpu_packing gpu_packings[] = {PACKED_FORMATS(PACKING){0}};
