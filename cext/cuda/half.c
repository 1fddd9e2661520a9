/* half.c: kernel table of columns_half.cu, one kernel for 8, 16 and 32 columns of each op. */
#include "columns_half.h"
#include "family.h"
#include "products.h"
#include "tables.h"

enum { LEAST = 5 /* columns; fewer are for gemv.cu */, CONVERT_THREADS = 256 };
enum { Q4_K = 12, Q5_K = 13, Q6_K = 14 /* as GGUF numbers them */ };

static const char *check(const gpu_call *c, const gpu_traits *t, uint32_t mode, int kind) {
    const char *fault = cuda_product_fault(c, mode);
    gpu_call moded = *c; /* the mode is not in the call yet */
    int tokens = c->v[0].shape[0], i;
    moded.mode = mode;
    if (fault)
        return fault;
    for (i = 2; i <= product_last(c, mode); i++) {
        uint32_t format = c->v[i].format & 0xFFFFFFu;
        if (format != Q4_K && format != Q5_K && format != Q6_K)
            return "it is made for Q4_K, Q5_K and Q6_K";
    }
    if (tokens < LEAST || tokens > HALF_MOST || columns_kind(tokens) != kind)
        return "it is made for another number of columns";
    if (t->arch != HOPPER_ARCH || t->shared < COLUMNS_SHARED + 4096)
        return "it is made for sm_90";
    return half_cut_of(&moded, t->units).teams ? 0 : "its rows are too long for shared memory";
}

static uint64_t scratch(const gpu_call *c, const gpu_traits *t) {
    (void)t;
    return half_scratch(c);
}

static void grid_convert(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    (void)t;
    g->groups[0] = c->mode & PRODUCT_NORM ? 1 : (uint32_t)(packed_chunks(&c->v[1]) + 15) / 16;
    g->groups[1] = (uint32_t)c->v[0].shape[0];
    g->threads = CONVERT_THREADS;
}

static void grid_multiply(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    columns_cut cut = half_cut_of(c, t->units);
    int columns = half_columns(c->v[0].shape[0]);
    g->groups[0] = (uint32_t)(cut.groups * cut.parts);
    g->cluster = cut.parts > 1 ? (uint32_t)cut.parts : 0;
    g->threads = (uint32_t)HALF_THREADS_OF(columns, cut.teams);
    g->shared = (uint32_t)half_room_of(columns, half_chunks(c, cut.parts), cut.teams, columns_bytes(c)).bytes;
}

/* A check is told neither mode nor kernel, so each entry has its own. */
#define CHECK(name, mode, kind)                                                                                        \
    static const char *name##_##kind(const gpu_call *c, const gpu_traits *t) {                                         \
        return check(c, t, mode, kind);                                                                                \
    }
#define CHECKS(name, mode) CHECK(name, mode, 0) CHECK(name, mode, 1) CHECK(name, mode, 2)
CHECKS(plain, 0)
CHECKS(add, PRODUCT_ADD)
CHECKS(gated, PRODUCT_GATED)
CHECKS(normed, PRODUCT_NORM)
CHECKS(normed_gated, PRODUCT_NORM | PRODUCT_GATED)
CHECKS(posted, PRODUCT_NORM | PRODUCT_POST)
CHECKS(posted_gated, PRODUCT_NORM | PRODUCT_POST | PRODUCT_GATED)

#define ENTRY(op_, name, mode_, kind, kernel)                                                                          \
    {                                                                                                                  \
        .op = op_, .check = name##_##kind, .scratch = scratch, .mode = mode_,                                          \
        .launch = {{"columns_half_convert", grid_convert, 1}, {kernel, grid_multiply, 1}}                              \
    }
#define ENTRIES(op, name, mode)                                                                                        \
    ENTRY(op, name, mode, 0, "columns_half_8"), ENTRY(op, name, mode, 1, "columns_half_16"),                           \
        ENTRY(op, name, mode, 2, "columns_half_32")

const gpu_kernel cuda_half_kernels[] = {
    ENTRIES("norm_linear", normed, PRODUCT_NORM),
    ENTRIES("norm_linear_swiglu", normed_gated, PRODUCT_NORM | PRODUCT_GATED),
    ENTRIES("norm_linear_geglu", normed_gated, PRODUCT_NORM | PRODUCT_GATED | PRODUCT_GELU),
    ENTRIES("post_norm_linear", posted, PRODUCT_NORM | PRODUCT_POST),
    ENTRIES("post_norm_linear_swiglu", posted_gated, PRODUCT_NORM | PRODUCT_POST | PRODUCT_GATED),
    ENTRIES("post_norm_linear_geglu", posted_gated, PRODUCT_NORM | PRODUCT_POST | PRODUCT_GATED | PRODUCT_GELU),
    ENTRIES("linear", plain, 0),
    ENTRIES("linear_add", add, PRODUCT_ADD),
    ENTRIES("linear_swiglu", gated, PRODUCT_GATED),
    {0},
};
