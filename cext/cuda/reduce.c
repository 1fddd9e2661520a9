/* reduce.c: kernel table of reduce.cu. */
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
    {0},
};
