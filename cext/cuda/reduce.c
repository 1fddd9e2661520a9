/* reduce.c: kernel table of reduce.cu: collectives of groups. */
#include "check.h"
#include "group_call.h"
#include "tables.h"

enum { EARLY_ARCH = 90, NUMBERS = 8 /* whose multiples the words of all formats divide */, GATHER_EACH = 4 };

static int whole(const gpu_view *v) {
    return (v->data | v->stride) % 16 == 0;
}

static const char *check_gather(const gpu_call *c, const gpu_traits *t) {
    (void)c, (void)t;
    return NULL;
}

static const char *check_reduce(const gpu_call *c, const gpu_traits *t) {
    (void)t;
    if (c->v[0].shape[1] % NUMBERS || (int64_t)c->v[0].shape[0] * c->v[0].shape[1] > INT32_MAX)
        return "rows must be whole groups of 8 numbers, and fewer than 2^31 numbers in all";
    /* The residual may be one row, whose stride is that of its numbers. */
    if (c->n_in > 1 && (c->v[2].data % 16 || (c->v[2].shape[1] > 1 && !whole(c->v + 2))))
        return "rows of the residual must begin at whole groups of four numbers";
    return whole(c->v) && whole(c->v + 1) ? NULL : "rows must begin at whole groups of four numbers";
}

static const char *early(const gpu_traits *t) {
    return t->arch < EARLY_ARCH ? "it is launched early, which needs compute capability 9.0" : NULL;
}

static const char *check_reduce_early(const gpu_call *c, const gpu_traits *t) {
    return early(t) ? early(t) : check_reduce(c, t);
}

static const char *check_gather_early(const gpu_call *c, const gpu_traits *t) {
    return early(t) ? early(t) : check_gather(c, t);
}

/* rows: all; own: this member's. */
static const char *check_divided(const gpu_view *rows, const gpu_view *own) {
    return rows->shape[1] % NUMBERS == 0 && whole(rows) && whole(own)
               ? NULL
               : "rows must be whole groups of 8 numbers, and begin at whole groups of four";
}

static const char *check_scatter(const gpu_call *c, const gpu_traits *t) {
    (void)t;
    return c->n_in > 1 && !whole(c->v + 2) ? "rows of the residual must begin at whole groups of four numbers"
                                           : check_divided(c->v + 1, c->v);
}

static const char *check_all_gather(const gpu_call *c, const gpu_traits *t) {
    (void)t;
    return check_divided(c->v, c->v + 1);
}

/* A batch-invariant device takes the norm by itself, whose sum has the order that it has in steps which divide no rows. */
static const char *check_normed(const gpu_call *c, const gpu_traits *t, int most) {
    if (early(t) || t->flags & HAL_DETERMINISTIC)
        return early(t) ? early(t) : "its sum has another order than the norm by itself";
    return c->v[0].shape[1] <= most * NUMBERS * GROUP_THREADS && c->v[2].data % 16 == 0
               ? check_divided(c->v, c->v + 1)
               : "its rows are wider than it takes, or w does not begin at a whole group of four numbers";
}

static const char *check_normed_2(const gpu_call *c, const gpu_traits *t) {
    return check_normed(c, t, 2);
}

static const char *check_normed_4(const gpu_call *c, const gpu_traits *t) {
    return check_normed(c, t, 4);
}

static const char *check_normed_8(const gpu_call *c, const gpu_traits *t) {
    return check_normed(c, t, 8);
}

static const char *check_scatter_early(const gpu_call *c, const gpu_traits *t) {
    return early(t) ? early(t) : check_scatter(c, t);
}

static const char *check_all_gather_early(const gpu_call *c, const gpu_traits *t) {
    return early(t) ? early(t) : check_all_gather(c, t);
}

/* A group for each chunk of the rows of one member, as far as all are on the device at once. */
static void grid_chunks(const gpu_call *c, uint32_t most, gpu_grid *g) {
    const gpu_view *own = c->v[0].shape[0] < c->v[1].shape[0] ? c->v : c->v + 1;
    const int32_t each = own->shape[1] < GROUP_PART ? GROUP_PART / own->shape[1] : 1;
    const uint32_t all = parts(own->shape[0], each);
    *g = grid_of(all < most ? all : most, 1, 1, GROUP_THREADS, 0);
}

static void grid_divided(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    grid_chunks(c, 2 * (uint32_t)t->units, g);
}

/* Of threads with so many registers that a multiprocessor has one group. */
static void grid_wide(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    grid_chunks(c, (uint32_t)t->units, g);
}

static void grid_reduce(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    /* A thread has two numbers of a message that goes by words. */
    uint32_t all = parts((int64_t)c->v[0].shape[0] * c->v[0].shape[1], 2 * GROUP_THREADS),
             most = 2 * (uint32_t)t->units;
    *g = grid_of(all < 1 ? 1 : all < most ? all : most, 1, 1, GROUP_THREADS, 0);
}

static void grid_gather(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    uint32_t all = parts((int64_t)c->v[0].shape[0] * c->v[0].shape[1], GATHER_EACH * GROUP_THREADS),
             most = 2 * (uint32_t)t->units;
    *g = grid_of(all < 1 ? 1 : all < most ? all : most, 1, 1, GROUP_THREADS, 0);
}

const gpu_kernel cuda_group_kernels[] = {
    {.op = "reduce_add", .check = check_reduce_early, .launch = {{"reduce_rows", grid_reduce, 1}}},
    {.op = "reduce_add", .check = check_reduce, .launch = {{"reduce_rows", grid_reduce, 0}}},
    {.op = "gather_columns", .check = check_gather_early, .launch = {{"gather_shards", grid_gather, 1}}},
    {.op = "gather_columns", .check = check_gather, .launch = {{"gather_shards", grid_gather, 0}}},
    {.op = "reduce_scatter", .check = check_scatter_early, .launch = {{"scatter_rows", grid_divided, 1}}},
    {.op = "reduce_scatter", .check = check_scatter, .launch = {{"scatter_rows", grid_divided, 0}}},
    {.op = "all_gather", .check = check_all_gather_early, .launch = {{"gather_own", grid_divided, 1}}},
    {.op = "all_gather", .check = check_all_gather, .launch = {{"gather_own", grid_divided, 0}}},
    {.op = "norm_all_gather", .check = check_normed_2, .launch = {{"gather_normed_2", grid_divided, 1}}},
    {.op = "norm_all_gather", .check = check_normed_4, .launch = {{"gather_normed_4", grid_divided, 1}}},
    {.op = "norm_all_gather", .check = check_normed_8, .launch = {{"gather_normed_8", grid_wide, 1}}},
    {0},
};
