/* columns.c: kernel tables of columns.cu, one kernel for 8, 16, 32, 64 and 128 columns of each op, and of columns_warp.cu,
 * columns_chunk.cu, columns_shared.cu, columns_int8.cu and columns_dense.cu.
 */
#include "columns_chunk.h"
#include "columns_dense.h"
#include "columns_int8.h"
#include "columns_shared.h"
#include "family.h"
#include "products.h"
#include "rates.h"
#include "tables.h"

enum { LEAST = 5 /* columns; fewer are for gemv.cu */, MADE_FOR = 90, CONVERT_THREADS = 256 };

static const char *check(const gpu_call *c, const gpu_traits *t, uint32_t mode, int kind, int dense) {
    const char *fault = dense ? cuda_dense_fault(c, mode) : cuda_product_fault(c, mode);
    int tokens = c->v[0].shape[0];
    if (fault)
        return fault;
    if (tokens < LEAST || tokens > COLUMNS_MOST || columns_kind(tokens) != kind)
        return "it is made for another number of columns";
    return t->arch == MADE_FOR && t->shared >= COLUMNS_SHARED + 4096 ? 0 : "it is made for sm_90";
}

/* Under PRODUCT_DETERMINISTIC: all of a matrix's products have one check that does not ask for their columns, so kernels of the same
 * order compute them. */
static const char *check_fixed(const gpu_call *c, const gpu_traits *t, uint32_t mode, int kind, int dense) {
    const char *fault = cuda_fixed_fault(c, t, mode);
    int tokens = c->v[0].shape[0];
    if (fault)
        return fault;
    if (dense != !(c->v[2].format & PACKED_FLAG))
        return "it is made for weights in another order";
    return tokens > COLUMNS_MOST || columns_kind(tokens) != kind ? "it is made for another number of columns" : 0;
}

/* Of up to 8 tokens whose activations fit shared memory. The mode is not in the call yet. */
static const char *check_whole(const gpu_call *c, const gpu_traits *t, uint32_t mode, int dense) {
    const char *fault = check_fixed(c, t, mode, 0, dense);
    gpu_call moded = *c;
    columns_cut cut;
    moded.mode = mode | PRODUCT_DETERMINISTIC;
    if (fault)
        return fault;
    cut = columns_cut_of(&moded, t->units);
    return columns_whole_room(columns_steps(c, cut.parts), cut.teams, cut.parts, columns_bytes(&moded)).bytes <=
                   t->shared
               ? 0
               : "its rows are too long for shared memory";
}

static uint64_t scratch(const gpu_call *c, const gpu_traits *t) {
    (void)t;
    return columns_scratch(c);
}

static void grid_convert(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    (void)t;
    g->groups[0] = c->mode & PRODUCT_NORM ? 1 : (uint32_t)(packed_chunks(&c->v[1]) + 15) / 16;
    g->groups[1] = (uint32_t)c->v[0].shape[0];
    g->threads = CONVERT_THREADS;
}

/* A block of 64 rows is written by one team, so weights side by side must begin at whole blocks. */
static int hands(const gpu_call *c) {
    for (int i = 2; i < (c->mode & PRODUCT_GATED ? 2 : product_last(c, c->mode)); i++)
        if (c->v[i].shape[0] % COLUMNS_ROWS)
            return 0;
    return HANDS_NORMED;
}

/* Of rows of whole chunks that begin at whole words, which the kernel before can write four elements at a time. */
static uint64_t takes(const gpu_call *c, const gpu_traits *t, gpu_hand *h) {
    const gpu_view *x = &c->v[1], *norm = &c->v[product_last(c, c->mode) + 1];
    const int packed = (c->v[2].format & PACKED_FLAG) != 0;
    if (x->shape[0] > (t->arch == HOPPER_ARCH && packed ? COLUMNS_HANDED : COLUMNS_BY_WARP))
        return 0;
    if (c->mode & PRODUCT_POST || x->shape[1] % CHUNK || (x->data | x->stride) % 16)
        return 0;
    h->order = packed ? HAND_PACKED : HAND_PLAIN;
    if (!(c->mode & PRODUCT_NORM))
        return columns_activations(x);
    if (norm->data % 16)
        return 0;
    h->norm = norm->data;
    return columns_activations(x) + 4 * (uint64_t)x->shape[0] * (uint64_t)columns_square_sums(x->shape[1]);
}

static void grid_multiply(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    columns_cut cut = columns_cut_of(c, t->units);
    g->groups[0] = (uint32_t)(cut.groups * cut.parts);
    g->cluster = cut.parts > 1 ? (uint32_t)cut.parts : 0;
    g->threads = (uint32_t)(128 * cut.teams + COLUMNS_FETCHERS);
    g->shared =
        (uint32_t)columns_room_of(8 << columns_kind(c->v[0].shape[0]), cut.teams, cut.parts, columns_bytes(c)).bytes;
}

static void grid_whole(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    columns_cut cut = columns_cut_of(c, t->units);
    grid_multiply(c, t, g);
    g->shared = (uint32_t)columns_whole_room(columns_steps(c, cut.parts), cut.teams, cut.parts, columns_bytes(c)).bytes;
}

/* A check is told neither mode nor kernel, so each entry has its own. */
#define CHECK(name, mode, kind)                                                                                        \
    static const char *name##_##kind(const gpu_call *c, const gpu_traits *t) {                                         \
        return check(c, t, mode, kind, 0);                                                                             \
    }                                                                                                                  \
    static const char *name##_dense_##kind(const gpu_call *c, const gpu_traits *t) {                                   \
        return check(c, t, mode, kind, 1);                                                                             \
    }
#define FIXED_CHECK(name, mode, kind)                                                                                  \
    static const char *name##_fixed_##kind(const gpu_call *c, const gpu_traits *t) {                                   \
        return check_fixed(c, t, mode, kind, 0);                                                                       \
    }                                                                                                                  \
    static const char *name##_dense_fixed_##kind(const gpu_call *c, const gpu_traits *t) {                             \
        return check_fixed(c, t, mode, kind, 1);                                                                       \
    }
#define WHOLE_CHECKS(name, mode)                                                                                       \
    static const char *name##_whole(const gpu_call *c, const gpu_traits *t) {                                          \
        return check_whole(c, t, mode, 0);                                                                             \
    }                                                                                                                  \
    static const char *name##_dense_whole(const gpu_call *c, const gpu_traits *t) {                                    \
        return check_whole(c, t, mode, 1);                                                                             \
    }
WHOLE_CHECKS(plain, 0)
WHOLE_CHECKS(add, PRODUCT_ADD)
WHOLE_CHECKS(gated, PRODUCT_GATED)
#define FIXED_CHECKS(name, mode)                                                                                       \
    FIXED_CHECK(name, mode, 0)                                                                                         \
    FIXED_CHECK(name, mode, 1)                                                                                         \
    FIXED_CHECK(name, mode, 2) FIXED_CHECK(name, mode, 3) FIXED_CHECK(name, mode, 4)
FIXED_CHECKS(plain, 0)
FIXED_CHECKS(add, PRODUCT_ADD)
FIXED_CHECKS(gated, PRODUCT_GATED)

#define CHECKS(name, mode)                                                                                             \
    CHECK(name, mode, 0) CHECK(name, mode, 1) CHECK(name, mode, 2) CHECK(name, mode, 3) CHECK(name, mode, 4)
CHECKS(plain, 0)
CHECKS(add, PRODUCT_ADD)
CHECKS(gated, PRODUCT_GATED)
CHECKS(normed, PRODUCT_NORM)
CHECKS(posted, PRODUCT_NORM | PRODUCT_POST)
CHECKS(posted_gated, PRODUCT_NORM | PRODUCT_POST | PRODUCT_GATED)
CHECKS(normed_gated, PRODUCT_NORM | PRODUCT_GATED)

#define ENTRY(op_, name, mode_, kind, kernel)                                                                          \
    {.op = op_,                                                                                                        \
     .check = name##_##kind,                                                                                           \
     .scratch = scratch,                                                                                               \
     .mode = mode_,                                                                                                    \
     .launch = {{"columns_convert", grid_convert, COLUMNS_COPIED(8 << (kind))}, {kernel, grid_multiply, 1}},           \
     .hands = 8 << (kind) <= COLUMNS_HANDED ? hands : 0,                                                               \
     .takes = takes},
#define ENTRIES(op, name, mode)                                                                                        \
    ENTRY(op, name##_dense, mode, 0, "columns_dense_8")                                                                \
    ENTRY(op, name##_dense, mode, 1, "columns_dense_16")                                                               \
    ENTRY(op, name##_dense, mode, 2, "columns_dense_32")                                                               \
    ENTRY(op, name##_dense, mode, 3, "columns_dense_64")                                                               \
    ENTRY(op, name##_dense, mode, 4, "columns_dense_128")                                                              \
    ENTRY(op, name, mode, 0, "columns_8")                                                                              \
    ENTRY(op, name, mode, 1, "columns_16")                                                                             \
    ENTRY(op, name, mode, 2, "columns_32")                                                                             \
    ENTRY(op, name, mode, 3, "columns_64")                                                                             \
    ENTRY(op, name, mode, 4, "columns_128")

const gpu_kernel cuda_column_kernels[] = {
    ENTRIES("norm_linear", normed, PRODUCT_NORM)
        ENTRIES("norm_linear_swiglu", normed_gated, PRODUCT_NORM | PRODUCT_GATED)
            ENTRIES("norm_linear_geglu", normed_gated, PRODUCT_NORM | PRODUCT_GATED | PRODUCT_GELU)
                ENTRIES("post_norm_linear", posted, PRODUCT_NORM | PRODUCT_POST)
                    ENTRIES("post_norm_linear_swiglu", posted_gated, PRODUCT_NORM | PRODUCT_POST | PRODUCT_GATED)
                        ENTRIES("post_norm_linear_geglu", posted_gated,
                                PRODUCT_NORM | PRODUCT_POST | PRODUCT_GATED | PRODUCT_GELU) ENTRIES("linear", plain, 0)
                            ENTRIES("linear_add", add, PRODUCT_ADD) ENTRIES("linear_swiglu", gated, PRODUCT_GATED){0},
};

#define WHOLE_ENTRY(op_, name, mode_, kernel)                                                                          \
    {.op = op_, .check = name, .mode = (mode_) | PRODUCT_DETERMINISTIC, .launch = {{kernel, grid_whole, 1}}},
#define FIXED_ENTRIES(op, name, mode)                                                                                  \
    WHOLE_ENTRY(op, name##_whole, mode, "columns_whole_8")                                                             \
    WHOLE_ENTRY(op, name##_dense_whole, mode, "columns_dense_whole_8")                                                 \
    ENTRY(op, name##_dense_fixed, (mode) | PRODUCT_DETERMINISTIC, 0, "columns_dense_8")                                \
    ENTRY(op, name##_dense_fixed, (mode) | PRODUCT_DETERMINISTIC, 1, "columns_dense_16")                               \
    ENTRY(op, name##_dense_fixed, (mode) | PRODUCT_DETERMINISTIC, 2, "columns_dense_32")                               \
    ENTRY(op, name##_dense_fixed, (mode) | PRODUCT_DETERMINISTIC, 3, "columns_dense_64")                               \
    ENTRY(op, name##_dense_fixed, (mode) | PRODUCT_DETERMINISTIC, 4, "columns_dense_128")                              \
    ENTRY(op, name##_fixed, (mode) | PRODUCT_DETERMINISTIC, 0, "columns_8")                                            \
    ENTRY(op, name##_fixed, (mode) | PRODUCT_DETERMINISTIC, 1, "columns_16")                                           \
    ENTRY(op, name##_fixed, (mode) | PRODUCT_DETERMINISTIC, 2, "columns_32")                                           \
    ENTRY(op, name##_fixed, (mode) | PRODUCT_DETERMINISTIC, 3, "columns_64")                                           \
    ENTRY(op, name##_fixed, (mode) | PRODUCT_DETERMINISTIC, 4, "columns_128")

const gpu_kernel cuda_fixed_column_kernels[] = {
    FIXED_ENTRIES("linear", plain, 0) FIXED_ENTRIES("linear_add", add, PRODUCT_ADD)
        FIXED_ENTRIES("linear_swiglu", gated, PRODUCT_GATED){0},
};

/* --- columns_warp.cu, columns_shared.cu and columns_int8.cu, for devices without wgmma */

enum { WARP_STATIC = 256 /* bytes of their static shared memory, at most */ };

/* A kernel of columns_warp.cu, for more than WARP_COLUMNS of columns_shared.cu, with no tiles of columns_chunk.cu: its columns at a
 * time, and tiles of 16 rows that a warp unpacks. int8: columns_int8.cu. */
typedef struct {
    int columns, tiles, int8;
} warp_kind;

static const warp_kind int8_kind = {INT8_COLUMNS, INT8_TILES, 1};

/* Two groups of so many bytes fit a multiprocessor, which has little more shared memory than a group may have. */
static int warp_twice(const gpu_traits *t, int bytes) {
    return 2 * bytes + 1024 <= t->shared;
}

/* Of columns_chunk.cu: with a third stage of weights unless a second group needs its room. */
static int chunk_bytes(const gpu_call *c, const gpu_traits *t, int columns) {
    int three = chunk_room_of(CHUNK_STAGES, columns, columns_bytes(c)).bytes + WARP_STATIC,
        two = chunk_room_of(CHUNK_STAGES - 1, columns, columns_bytes(c)).bytes + WARP_STATIC;
    if (warp_twice(t, three) || (!warp_twice(t, two) && three <= t->shared))
        return three;
    return two;
}

static int warp_bytes(const gpu_call *c, const gpu_traits *t, warp_kind k) {
    if (!k.tiles)
        return chunk_bytes(c, t, k.columns);
    if (k.int8)
        return int8_room_of(columns_bytes(c)).bytes + WARP_STATIC;
    return (k.columns > WARP_COLUMNS ? shared_room_of(k.columns, columns_bytes(c)).bytes
                                     : warp_room_of(k.columns, k.tiles, columns_bytes(c)).bytes) +
           WARP_STATIC;
}

static int warp_fits(const gpu_call *c, const gpu_traits *t, warp_kind k) {
    return warp_bytes(c, t, k) <= t->shared;
}

/* Of more than WARP_COLUMNS tokens a chunk takes no less than the card's tensor cores do; of fewer, its weights' way to the group counts. */
static warp_clocks warp_clocks_on(const gpu_call *c, const gpu_traits *t, warp_kind k) {
    warp_clocks clocks = warp_clocks_of(k.columns, k.tiles);
    card_rates rates = card_rates_of(t->arch);
    int64_t products = (int64_t)k.columns * k.tiles * WARP_WARPS * TILE_ROWS * CHUNK;
    if (k.int8)
        return int8_clocks_of(c, tensor_clocks(2 * products, rates.int8), tensor_clocks(products / 16, rates.bf16));
    if (c->v[0].shape[0] > WARP_COLUMNS && tensor_clocks(products, rates.bf16) > clocks.chunk)
        clocks.chunk = (int)tensor_clocks(products, rates.bf16);
    return clocks;
}

static warp_cut warp_cut_on(const gpu_call *c, const gpu_traits *t, warp_kind k) {
    int two = k.columns < WARP_COLUMNS && warp_twice(t, warp_bytes(c, t, k));
    return warp_cut_of(c, k.columns, k.tiles ? k.tiles : 1, t->units * (two ? 2 : 1), warp_clocks_on(c, t, k));
}

/* The kernel for a call with its mode; columns 0: there is none. */
static warp_kind warp_kind_of(const gpu_call *c, const gpu_traits *t) {
    static const warp_kind more[] = {{WARP_COLUMNS, 2, 0}, {128, 1, 0}, {256, 1, 0}};
    warp_kind best = {warp_columns(c->v[0].shape[0]), 1, 0}, whole = {best.columns, 0, 0};
    int64_t time;
    size_t i;
    if (c->v[0].shape[0] <= whole.columns && warp_fits(c, t, whole))
        return whole;
    while (best.columns >= 8 && !warp_fits(c, t, best))
        best.columns /= 2;
    if (best.columns < 8)
        best.columns = 0;
    if (c->v[0].shape[0] <= WARP_COLUMNS)
        return best;
    time = best.columns ? warp_cut_on(c, t, best).time : INT64_MAX;
    for (i = 0; i < sizeof more / sizeof *more; i++)
        if (warp_fits(c, t, more[i]) && warp_cut_on(c, t, more[i]).time < time)
            best = more[i], time = warp_cut_on(c, t, best).time;
    if (int8_is_faster(card_rates_of(t->arch)) && warp_fits(c, t, int8_kind) &&
        warp_cut_on(c, t, int8_kind).time < time)
        best = int8_kind;
    return best;
}

/* Whether a kernel computes the call at any speed. */
static const char *able_warp(const gpu_call *c, const gpu_traits *t, uint32_t mode, warp_kind kind) {
    const char *fault = cuda_product_fault(c, mode);
    gpu_call moded = *c;
    moded.mode = mode;
    if (fault)
        return fault;
    if (t->arch < LEAST_ARCH || t->arch == HOPPER_ARCH)
        return "it is made for devices without wgmma, from compute capability 8.0 on";
    if (c->v[0].shape[0] < 2 || c->v[0].shape[0] > WARP_TOKENS)
        return "it is made for 2 to 8,192 columns";
    if (!kind.tiles && (c->v[0].shape[0] > kind.columns || warp_columns(c->v[0].shape[0]) != kind.columns))
        return "it is made for another number of columns";
    return warp_fits(&moded, t, kind) ? 0 : "the device has too little memory for a group";
}

static const char *check_warp(const gpu_call *c, const gpu_traits *t, uint32_t mode, warp_kind kind) {
    const char *fault = able_warp(c, t, mode, kind);
    gpu_call moded = *c;
    warp_kind best;
    moded.mode = mode;
    if (fault)
        return fault;
    if (c->v[0].shape[0] < LEAST && cuda_gemv_takes(c, t, mode))
        return "gemv is faster";
    best = warp_kind_of(&moded, t);
    return best.columns == kind.columns && best.tiles == kind.tiles && best.int8 == kind.int8
               ? 0
               : "another of these kernels is faster, or fits";
}

static void grid_warp(const gpu_call *c, const gpu_traits *t, gpu_grid *g, warp_kind k) {
    warp_cut cut = warp_cut_on(c, t, k);
    g->groups[0] = (uint32_t)(cut.rows * cut.columns);
    g->groups[1] = (uint32_t)cut.parts;
    g->threads = WARP_THREADS;
    g->shared = (uint32_t)(warp_bytes(c, t, k) - WARP_STATIC);
}

/* Scratch and grid of each kernel. */
#define WARP_KIND(columns_, tiles_)                                                                                    \
    static uint64_t scratch_warp_##columns_##_##tiles_(const gpu_call *c, const gpu_traits *t) {                       \
        warp_kind k = {columns_, tiles_, 0};                                                                           \
        return columns_scratch(c) + warp_sums(columns_, tiles_ ? tiles_ : 1, warp_cut_on(c, t, k));                    \
    }                                                                                                                  \
    static void grid_warp_##columns_##_##tiles_(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {                 \
        grid_warp(c, t, g, (warp_kind){columns_, tiles_, 0});                                                          \
    }
WARP_KIND(8, 0)
WARP_KIND(16, 0)
WARP_KIND(32, 0)
WARP_KIND(64, 0)
WARP_KIND(8, 1)
WARP_KIND(16, 1)
WARP_KIND(32, 1)
WARP_KIND(64, 1)
WARP_KIND(64, 2)
WARP_KIND(128, 1)
WARP_KIND(256, 1)

static uint64_t scratch_int8(const gpu_call *c, const gpu_traits *t) {
    return int8_scratch(c) + warp_sums(INT8_COLUMNS, INT8_TILES, warp_cut_on(c, t, int8_kind));
}

static void grid_int8(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    grid_warp(c, t, g, int8_kind);
}

/* Without a norm a group has a chunk for each of its warps. */
static void grid_int8_convert(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    grid_convert(c, t, g);
    g->groups[0] = c->mode & PRODUCT_NORM ? 1 : (uint32_t)(packed_chunks(&c->v[1]) + 7) / 8;
}

/* Of columns_dense.cu. A sum's parts are those of columns_warp.cu: a chunk of 16-bit weights takes as long to read as a packed one to
 * dequantize. */
static const char *check_dense_warp(const gpu_call *c, const gpu_traits *t, uint32_t mode, int columns) {
    const char *fault = cuda_dense_fault(c, mode);
    if (fault)
        return fault;
    if (t->arch < LEAST_ARCH || t->arch == HOPPER_ARCH || t->shared < columns_dense_bytes(columns) + WARP_STATIC)
        return "it is made for devices without wgmma, from compute capability 8.0 on";
    return c->v[0].shape[0] >= LEAST && c->v[0].shape[0] <= WARP_COLUMNS && warp_columns(c->v[0].shape[0]) == columns
               ? 0
               : "it is made for another number of columns";
}

static warp_cut dense_cut(const gpu_call *c, const gpu_traits *t) {
    int columns = warp_columns(c->v[0].shape[0]);
    return warp_cut_of(c, columns, 1, t->units, warp_clocks_of(columns, 1));
}

static uint64_t scratch_dense_warp(const gpu_call *c, const gpu_traits *t) {
    return columns_scratch(c) + warp_sums(warp_columns(c->v[0].shape[0]), 1, dense_cut(c, t));
}

static void grid_dense_warp(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    warp_cut cut = dense_cut(c, t);
    g->groups[0] = (uint32_t)cut.rows;
    g->groups[1] = (uint32_t)cut.parts;
    g->threads = WARP_THREADS;
    g->shared = (uint32_t)columns_dense_bytes(warp_columns(c->v[0].shape[0]));
}

#define WARP_DENSE_CHECK(name, mode, columns)                                                                          \
    static const char *name##_dense_warp_##columns(const gpu_call *c, const gpu_traits *t) {                           \
        return check_dense_warp(c, t, mode, columns);                                                                  \
    }
#define WARP_CHECK(name, mode, columns, tiles)                                                                         \
    static const char *name##_warp_##columns##_##tiles(const gpu_call *c, const gpu_traits *t) {                       \
        return check_warp(c, t, mode, (warp_kind){columns, tiles, 0});                                                 \
    }                                                                                                                  \
    static const char *name##_able_##columns##_##tiles(const gpu_call *c, const gpu_traits *t) {                       \
        return able_warp(c, t, mode, (warp_kind){columns, tiles, 0});                                                  \
    }
#define WARP_CHECKS(name, mode)                                                                                        \
    WARP_CHECK(name, mode, 8, 0)                                                                                       \
    WARP_CHECK(name, mode, 16, 0)                                                                                      \
    WARP_CHECK(name, mode, 32, 0)                                                                                      \
    WARP_CHECK(name, mode, 64, 0)                                                                                      \
    WARP_CHECK(name, mode, 8, 1)                                                                                       \
    WARP_CHECK(name, mode, 16, 1)                                                                                      \
    WARP_CHECK(name, mode, 32, 1)                                                                                      \
    WARP_CHECK(name, mode, 64, 1)                                                                                      \
    WARP_CHECK(name, mode, 64, 2)                                                                                      \
    WARP_CHECK(name, mode, 128, 1)                                                                                     \
    WARP_CHECK(name, mode, 256, 1)                                                                                     \
    static const char *name##_warp_int8(const gpu_call *c, const gpu_traits *t) {                                      \
        return check_warp(c, t, mode, int8_kind);                                                                      \
    }                                                                                                                  \
    static const char *name##_able_int8(const gpu_call *c, const gpu_traits *t) {                                      \
        return able_warp(c, t, mode, int8_kind);                                                                       \
    }                                                                                                                  \
    WARP_DENSE_CHECK(name, mode, 8)                                                                                    \
    WARP_DENSE_CHECK(name, mode, 16) WARP_DENSE_CHECK(name, mode, 32) WARP_DENSE_CHECK(name, mode, 64)
WARP_CHECKS(plain, 0)
WARP_CHECKS(add, PRODUCT_ADD)
WARP_CHECKS(gated, PRODUCT_GATED)
WARP_CHECKS(normed, PRODUCT_NORM)
WARP_CHECKS(posted, PRODUCT_NORM | PRODUCT_POST)
WARP_CHECKS(posted_gated, PRODUCT_NORM | PRODUCT_POST | PRODUCT_GATED)
WARP_CHECKS(normed_gated, PRODUCT_NORM | PRODUCT_GATED)

#define WARP_ENTRY(op_, name, mode_, kind, kernel, hands_)                                                             \
    {.op = op_,                                                                                                        \
     .check = name##_warp_##kind,                                                                                      \
     .scratch = scratch_warp_##kind,                                                                                   \
     .mode = mode_,                                                                                                    \
     .launch = {{"columns_convert", grid_convert, 1}, {kernel, grid_warp_##kind, 1}},                                  \
     .able = name##_able_##kind,                                                                                       \
     .counters = 4 * WARP_COUNTERS,                                                                                    \
     .hands = (hands_) ? hands : 0,                                                                                    \
     .takes = (hands_) ? takes : 0}
#define INT8_ENTRY(op_, name, mode_)                                                                                   \
    {.op = op_,                                                                                                        \
     .check = name##_warp_int8,                                                                                        \
     .scratch = scratch_int8,                                                                                          \
     .mode = mode_,                                                                                                    \
     .launch = {{"columns_int8_convert", grid_int8_convert, 1}, {"columns_int8", grid_int8, 1}},                       \
     .able = name##_able_int8,                                                                                         \
     .counters = 4 * WARP_COUNTERS}
#define WARP_DENSE_ENTRY(op_, name, mode_, columns)                                                                    \
    {.op = op_,                                                                                                        \
     .check = name##_dense_warp_##columns,                                                                             \
     .scratch = scratch_dense_warp,                                                                                    \
     .mode = mode_,                                                                                                    \
     .launch = {{"columns_convert", grid_convert, 1}, {"columns_dense_warp_" #columns, grid_dense_warp, 1}},           \
     .counters = 4 * WARP_COUNTERS}
#define WARP_ENTRIES(op, name, mode)                                                                                   \
    WARP_ENTRY(op, name, mode, 8_0, "columns_chunk_8", 1), WARP_ENTRY(op, name, mode, 16_0, "columns_chunk_16", 1),    \
        WARP_ENTRY(op, name, mode, 32_0, "columns_chunk_32", 0),                                                       \
        WARP_ENTRY(op, name, mode, 64_0, "columns_chunk_64", 0),                                                       \
        WARP_ENTRY(op, name, mode, 8_1, "columns_warp_8_1", 0),                                                        \
        WARP_ENTRY(op, name, mode, 16_1, "columns_warp_16_1", 0),                                                      \
        WARP_ENTRY(op, name, mode, 32_1, "columns_warp_32_1", 0),                                                      \
        WARP_ENTRY(op, name, mode, 64_1, "columns_warp_64_1", 0),                                                      \
        WARP_ENTRY(op, name, mode, 64_2, "columns_warp_64_2", 0),                                                      \
        WARP_ENTRY(op, name, mode, 128_1, "columns_shared_128", 0),                                                    \
        WARP_ENTRY(op, name, mode, 256_1, "columns_shared_256", 0), INT8_ENTRY(op, name, mode),                        \
        WARP_DENSE_ENTRY(op, name, mode, 8), WARP_DENSE_ENTRY(op, name, mode, 16),                                     \
        WARP_DENSE_ENTRY(op, name, mode, 32), WARP_DENSE_ENTRY(op, name, mode, 64)

const gpu_kernel cuda_warp_kernels[] = {
    WARP_ENTRIES("norm_linear", normed, PRODUCT_NORM),
    WARP_ENTRIES("norm_linear_swiglu", normed_gated, PRODUCT_NORM | PRODUCT_GATED),
    WARP_ENTRIES("norm_linear_geglu", normed_gated, PRODUCT_NORM | PRODUCT_GATED | PRODUCT_GELU),
    WARP_ENTRIES("post_norm_linear", posted, PRODUCT_NORM | PRODUCT_POST),
    WARP_ENTRIES("post_norm_linear_swiglu", posted_gated, PRODUCT_NORM | PRODUCT_POST | PRODUCT_GATED),
    WARP_ENTRIES("post_norm_linear_geglu", posted_gated, PRODUCT_NORM | PRODUCT_POST | PRODUCT_GATED | PRODUCT_GELU),
    WARP_ENTRIES("linear", plain, 0),
    WARP_ENTRIES("linear_add", add, PRODUCT_ADD),
    WARP_ENTRIES("linear_swiglu", gated, PRODUCT_GATED),
    {0},
};
