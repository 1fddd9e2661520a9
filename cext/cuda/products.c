/* products.c: kernel table of products of packed weights (gemv.cu, batch.cu, tile_rows.cu), of the packing kernels, and of
 * dense.cu.
 *
 * Up to four columns use gemv (on Hopper two and more have clusters: groups that split K for long rows, else pairs of groups), up to 128
 * columns.cu (its table is columns.c), all other calls batch. Weights side by side may differ in format. Only these kernels read packed
 * weights, so together they take any number of columns and rows.
 */
#include "batch.h"
#include "columns.h"
#include "family.h"
#include "products.h"
#include "tables.h"

enum { DENSE_FIXED = 1024 /* dense.cu's shared memory beside the activations */ };
enum { THREADS = 256, MOST_TOKENS = 65472 /* limit of a grid's second dimension, a multiple of 64 */ };

const char *cuda_activations_fault(const gpu_call *c, uint32_t mode) {
    const gpu_view *y = c->v, *x = c->v + 1, *r = c->v + c->n_in, *norm = c->v + product_last(c, mode) + 1;
    if (y->format || x->format || x->shape[0] != y->shape[0] || x->shape[2] != 1 || y->shape[2] != 1 ||
        x->shape[0] > MOST_TOKENS)
        return "activations must be f32 (T, K) and the output f32 (T, N)";
    if (x->data % 16 || x->stride % 16 || x->shape[1] % 4)
        return "activations must be 16-byte aligned";
    if (mode & PRODUCT_ADD && (r->format || r->shape[0] != y->shape[0] || r->shape[1] != y->shape[1]))
        return "what is added must have the output's shape";
    for (int i = 0; mode & PRODUCT_NORM && i <= (mode & PRODUCT_POST ? 1 : 0); i++)
        if (norm[i].format || norm[i].shape[0] != x->shape[1] || norm[i].shape[1] != 1 || norm[i].data % 16)
            return "a norm's weights must be f32 (K)";
    if (mode & PRODUCT_POST && (r->format || r->shape[0] != x->shape[0] || r->shape[1] != x->shape[1] || r->data % 16 ||
                                r->stride % 16 || y->data % 16 || y->stride % 16 || product_columns(c, mode) % 4))
        return "the residual must have x's shape, and its rows and the output's be whole groups of four numbers";
    return 0;
}

const char *cuda_product_fault(const gpu_call *c, uint32_t mode) {
    const gpu_view *x = c->v + 1;
    int last = product_last(c, mode), i;
    int64_t rows = 0;
    if (last < 2 || last >= GPU_VIEWS || (mode & PRODUCT_GATED && last != 3) || (mode & PRODUCT_ADD && last != 2))
        return "wrong number of weights";
    for (i = 2; i <= last; i++) {
        if (!(c->v[i].format & PACKED_FLAG) || !packed_bytes(c->v[i].format) || c->v[i].shape[1] != x->shape[1] ||
            c->v[i].shape[2] != 1)
            return "weights must be packed, (N, K) with x's K";
        rows += c->v[i].shape[0];
    }
    if (mode & PRODUCT_GATED ? c->v[2].shape[0] != c->v[3].shape[0] || product_columns(c, mode) != c->v[2].shape[0]
                             : product_columns(c, mode) != rows)
        return "the output's columns are not the weights' rows";
    return cuda_activations_fault(c, mode);
}

static int largest(const gpu_call *c, uint32_t mode) {
    int last = product_last(c, mode), i;
    int most = 0;
    for (i = 2; i <= last; i++)
        most = packed_bytes(c->v[i].format) > most ? packed_bytes(c->v[i].format) : most;
    return most;
}

/* Tiles of 16 rows, of a gated product pairs of them. */
static int tiles_at_once(const gpu_call *c, uint32_t mode) {
    int last = product_last(c, mode), i;
    int units = 0;
    for (i = 2; i <= last; i++)
        units += packed_tiles(&c->v[i]);
    return mode & PRODUCT_GATED ? units / 2 : units;
}

static gemv_plan plan_of(const gpu_call *c, const gpu_traits *t, uint32_t mode, int waves) {
    return gemv_plan_of(waves, t->arch == HOPPER_ARCH, largest(c, mode), c->v[0].shape[0], packed_chunks(&c->v[1]));
}

static const char *check_waves(const gpu_call *c, const gpu_traits *t, uint32_t mode, int waves) {
    const char *fault = cuda_product_fault(c, mode);
    if (fault)
        return fault;
    if (t->arch < LEAST_ARCH)
        return "needs compute capability 8.0";
    if (c->v[0].shape[0] > GEMV_COLUMNS || product_last(c, mode) - 1 > GEMV_MATRICES)
        return "more columns or weights than it takes";
    return plan_of(c, t, mode, waves).bytes > t->shared ? "its rows are too long for shared memory" : 0;
}

static const char *check_gemv(const gpu_call *c, const gpu_traits *t, uint32_t mode) {
    return check_waves(c, t, mode, GEMV_WAVES);
}

/* Of two columns and more, by clusters of two groups. */
static const char *check_pair(const gpu_call *c, const gpu_traits *t, uint32_t mode) {
    const char *fault = check_gemv(c, t, mode);
    gemv_plan p;
    if (fault)
        return fault;
    if (t->arch != HOPPER_ARCH || t->units < 2)
        return "it is made for clusters of compute capability 9.0";
    if (c->v[0].shape[0] < 2)
        return "one column is quantized by each group";
    p = plan_of(c, t, mode, GEMV_WAVES);
    return gemv_pair_bytes(&p) > t->shared ? "its rows are too long for shared memory" : 0;
}

/* Clusters of groups that split K, and their shared memory. parts 0: no such kernel for the call. */
typedef struct {
    int parts, clusters, bytes;
} split_cut;

static split_cut split_of(const gpu_call *c, const gpu_traits *t, uint32_t mode, int parts) {
    split_cut s = {parts, tiles_at_once(c, mode), 0};
    int columns = c->v[0].shape[0], tiles = s.clusters, slots = columns_slots(parts, t->units) / parts;
    gemv_plan p = gemv_split_plan(parts, largest(c, mode), columns, packed_chunks(&c->v[1]));
    if (s.clusters > slots)
        s.clusters = slots > 1 ? slots : 1;
    tiles = (tiles + s.clusters - 1) / s.clusters << (mode & PRODUCT_GATED ? 1 : 0);
    s.bytes = gemv_split_bytes(&p, parts, tiles, columns);
    return s;
}

/* Where one group has room for all activations, two split K if that is faster; else as few as have room. */
static split_cut split_cut_of(const gpu_call *c, const gpu_traits *t, uint32_t mode) {
    split_cut none = {0, 0, 0};
    int chunks = packed_chunks(&c->v[1]), parts;
    if (plan_of(c, t, mode, GEMV_WAVES).bytes <= t->shared && chunks * c->v[0].shape[0] < GEMV_SPLIT_LEAST)
        return none;
    for (parts = 2; parts <= GEMV_SPLIT_MOST && parts <= chunks; parts *= 2) {
        split_cut s = split_of(c, t, mode, parts);
        if (s.bytes <= t->shared)
            return s;
    }
    return none;
}

static const char *check_split(const gpu_call *c, const gpu_traits *t, uint32_t mode) {
    const char *fault = cuda_product_fault(c, mode);
    if (fault)
        return fault;
    if (t->arch != HOPPER_ARCH || mode & PRODUCT_POST)
        return "it is made for clusters of compute capability 9.0, and has no post-norm";
    if (c->v[0].shape[0] < 2 || c->v[0].shape[0] > GEMV_COLUMNS || product_last(c, mode) - 1 > GEMV_MATRICES)
        return "more columns or weights than it takes, or a column by itself";
    return split_cut_of(c, t, mode).parts ? 0
                                          : "a group by itself is faster, or its rows are too long for shared memory";
}

/* Of gemv_8.cu. */
static const char *check_gemv_8(const gpu_call *c, const gpu_traits *t, uint32_t mode) {
    return t->arch == HOPPER_ARCH ? "it is made for devices with less shared memory"
                                  : check_waves(c, t, mode, GEMV_FEW_WAVES);
}

static gemv_plan plan_7_of(const gpu_call *c, uint32_t mode) {
    return gemv_plan_staged(GEMV_FEW_WAVES, GEMV_OLD_STAGES, largest(c, mode), c->v[0].shape[0],
                            packed_chunks(&c->v[1]));
}

/* Of gemv_7.cu. */
static const char *check_gemv_7(const gpu_call *c, const gpu_traits *t, uint32_t mode) {
    const char *fault = cuda_product_fault(c, mode);
    if (fault)
        return fault;
    if (t->arch < OLD_ARCH || t->arch >= LEAST_ARCH)
        return "it is made for compute capability 7.5";
    if (c->v[0].shape[0] > GEMV_COLUMNS || product_last(c, mode) - 1 > GEMV_MATRICES)
        return "more columns or weights than it takes";
    return plan_7_of(c, mode).bytes > t->shared ? "its rows are too long for shared memory" : 0;
}

int cuda_gemv_takes(const gpu_call *c, const gpu_traits *t, uint32_t mode) {
    return !check_gemv(c, t, mode) || !check_gemv_8(c, t, mode);
}

static const char *of_one_format(const char *fault, const gpu_call *c, uint32_t mode) {
    int last = product_last(c, mode), i;
    for (i = 3; !fault && i <= last; i++)
        if (c->v[i].format != c->v[2].format)
            fault = "weights of several formats";
    return fault;
}

/* sets: as in batch.h */
static const char *check_batch(const gpu_call *c, const gpu_traits *t, uint32_t mode, int sets) {
    const char *fault = cuda_product_fault(c, mode);
    if (!fault && t->arch < LEAST_ARCH)
        fault = "needs compute capability 8.0";
    if (!fault && t->shared < BATCH_SHARED(sets))
        fault = "too little shared memory";
    return fault;
}

/* Of batch_7.cu. */
static const char *check_batch_7(const gpu_call *c, const gpu_traits *t, uint32_t mode) {
    const char *fault = cuda_product_fault(c, mode);
    if (!fault && (t->arch < OLD_ARCH || t->arch >= LEAST_ARCH))
        fault = "it is made for compute capability 7.5";
    return !fault && t->shared < BATCH_STAGE(2) ? "too little shared memory" : fault;
}

static void grid_waves(const gpu_call *c, const gpu_traits *t, gpu_grid *g, int waves) {
    int units = tiles_at_once(c, c->mode);
    g->groups[0] = (uint32_t)(units < t->units ? units : t->units);
    g->threads = (uint32_t)waves * 32;
    g->shared = (uint32_t)plan_of(c, t, c->mode, waves).bytes;
}

static void grid_gemv(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    grid_waves(c, t, g, GEMV_WAVES);
}

/* A group without a tile quantizes for its neighbour. */
static void grid_pair(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    gemv_plan p = plan_of(c, t, c->mode, GEMV_WAVES);
    grid_waves(c, t, g, GEMV_WAVES);
    g->groups[0] += g->groups[0] % 2;
    if ((int)g->groups[0] > t->units)
        g->groups[0] -= 2;
    g->cluster = 2;
    g->shared = (uint32_t)gemv_pair_bytes(&p);
}

static void grid_split(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    split_cut s = split_cut_of(c, t, c->mode);
    g->groups[0] = (uint32_t)(s.clusters * s.parts);
    g->cluster = (uint32_t)s.parts;
    g->threads = GEMV_WAVES * 32;
    g->shared = (uint32_t)s.bytes;
}

static void grid_gemv_8(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    grid_waves(c, t, g, GEMV_FEW_WAVES);
}

static void grid_gemv_7(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    grid_waves(c, t, g, GEMV_FEW_WAVES);
    g->shared = (uint32_t)plan_7_of(c, c->mode).bytes;
}

const char *cuda_dense_fault(const gpu_call *c, uint32_t mode) {
    int last = product_last(c, mode), i;
    int64_t rows = 0;
    if (last < 2 || last >= GPU_VIEWS || (mode & PRODUCT_GATED && last != 3) || (mode & PRODUCT_ADD && last != 2))
        return "wrong number of weights";
    for (i = 2; i <= last; i++) {
        const gpu_view *w = c->v + i;
        if ((w->format != FORMAT_F16 && w->format != FORMAT_BF16) || w->format != c->v[2].format)
            return "weights must be all F16 or all BF16";
        if (w->shape[1] != c->v[1].shape[1] || w->shape[2] != 1 || w->shape[1] % 8 || w->data % 16 || w->stride % 16)
            return "weights must be (N, K) with x's K, rows at multiples of 16 bytes";
        rows += w->shape[0];
    }
    if (mode & PRODUCT_GATED ? c->v[2].shape[0] != c->v[3].shape[0] || product_columns(c, mode) != c->v[2].shape[0]
                             : product_columns(c, mode) != rows)
        return "the output's columns are not the weights' rows";
    return cuda_activations_fault(c, mode);
}

static const char *check_dense(const gpu_call *c, const gpu_traits *t, uint32_t mode) {
    if (t->arch < LEAST_ARCH || c->v[0].shape[0] > GEMV_COLUMNS ||
        4 * (int64_t)c->v[0].shape[0] * c->v[1].shape[1] + DENSE_FIXED > t->shared)
        return "more columns than it takes, or a device before compute capability 8.0";
    return cuda_dense_fault(c, mode);
}

static void grid_dense(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    int n = product_columns(c, c->mode), pairs = c->mode & PRODUCT_GATED ? n : (n + 1) / 2;
    g->groups[0] = (uint32_t)(pairs < t->units ? pairs : t->units);
    g->threads = DENSE_WAVES * 32;
    g->shared = (uint32_t)(4 * c->v[0].shape[0] * c->v[1].shape[1]);
}

static uint64_t scratch_batch(const gpu_call *c, const gpu_traits *t) {
    (void)t;
    return batch_scratch(c);
}

static void grid_convert(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    (void)t;
    g->groups[0] = (uint32_t)(packed_chunks(&c->v[1]) + 7) / 8;
    g->groups[1] = (uint32_t)batch_shape_of(c).columns;
    g->threads = THREADS;
}

static void grid_batch(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    batch_shape s = batch_shape_of(c);
    g->groups[0] = (uint32_t)(s.tiles + 3) / 4;
    g->groups[1] = (uint32_t)s.parts;
    g->groups[2] = (uint32_t)((c->v[0].shape[0] + 16 * s.sets - 1) / (16 * s.sets));
    g->threads = (uint32_t)BATCH_THREADS(s.sets);
    g->shared = (uint32_t)(t->arch < LEAST_ARCH ? BATCH_STAGE(s.sets) : BATCH_SHARED(s.sets)); /* 7.5: one stage */
}

static void grid_finish(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    (void)t;
    g->groups[0] = (uint32_t)(batch_shape_of(c).tiles + 15) / 16;
    g->groups[1] = (uint32_t)c->v[0].shape[0];
    g->threads = THREADS;
}

/* A check is not told the mode, so each op has its own. */
#define CHECKS_OF_NORMED(name, mode)                                                                                   \
    static const char *same_##name(const gpu_call *c, const gpu_traits *t) {                                           \
        return of_one_format(check_gemv(c, t, mode), c, mode);                                                         \
    }                                                                                                                  \
    static const char *split_##name(const gpu_call *c, const gpu_traits *t) {                                          \
        return of_one_format(check_split(c, t, mode), c, mode);                                                        \
    }                                                                                                                  \
    static const char *mixed_split_##name(const gpu_call *c, const gpu_traits *t) {                                    \
        return check_split(c, t, mode);                                                                                \
    }                                                                                                                  \
    static const char *pair_##name(const gpu_call *c, const gpu_traits *t) {                                           \
        return of_one_format(check_pair(c, t, mode), c, mode);                                                         \
    }                                                                                                                  \
    static const char *mixed_pair_##name(const gpu_call *c, const gpu_traits *t) {                                     \
        return check_pair(c, t, mode);                                                                                 \
    }                                                                                                                  \
    static const char *same_8_##name(const gpu_call *c, const gpu_traits *t) {                                         \
        return of_one_format(check_gemv_8(c, t, mode), c, mode);                                                       \
    }                                                                                                                  \
    static const char *dense_##name(const gpu_call *c, const gpu_traits *t) {                                          \
        return check_dense(c, t, mode);                                                                                \
    }                                                                                                                  \
    static const char *mixed_##name(const gpu_call *c, const gpu_traits *t) {                                          \
        return check_gemv(c, t, mode);                                                                                 \
    }                                                                                                                  \
    static const char *mixed_8_##name(const gpu_call *c, const gpu_traits *t) {                                        \
        return check_gemv_8(c, t, mode);                                                                               \
    }                                                                                                                  \
    static const char *same_7_##name(const gpu_call *c, const gpu_traits *t) {                                         \
        return of_one_format(check_gemv_7(c, t, mode), c, mode);                                                       \
    }                                                                                                                  \
    static const char *mixed_7_##name(const gpu_call *c, const gpu_traits *t) {                                        \
        return check_gemv_7(c, t, mode);                                                                               \
    }
#define CHECKS(name, mode)                                                                                             \
    CHECKS_OF_NORMED(name, mode)                                                                                       \
    static const char *batch_##name(const gpu_call *c, const gpu_traits *t) {                                          \
        return check_batch(c, t, mode, 4);                                                                             \
    }                                                                                                                  \
    static const char *small_##name(const gpu_call *c, const gpu_traits *t) {                                          \
        return check_batch(c, t, mode, 2);                                                                             \
    }                                                                                                                  \
    static const char *old_##name(const gpu_call *c, const gpu_traits *t) {                                            \
        return check_batch_7(c, t, mode);                                                                              \
    }
CHECKS_OF_NORMED(normed, PRODUCT_NORM)
CHECKS_OF_NORMED(posted, PRODUCT_NORM | PRODUCT_POST)
CHECKS_OF_NORMED(posted_gated, PRODUCT_NORM | PRODUCT_POST | PRODUCT_GATED)
CHECKS_OF_NORMED(normed_gated, PRODUCT_NORM | PRODUCT_GATED)
CHECKS(plain, 0)
CHECKS(add, PRODUCT_ADD)
CHECKS(gated, PRODUCT_GATED)

static const char *few_columns(const char *fault, const gpu_call *c) {
    return fault ? fault : c->v[0].shape[0] > 16 ? "more columns than it takes" : 0;
}

static const char *many_columns(const char *fault, const gpu_call *c) {
    return fault ? fault : c->v[0].shape[0] <= 16 ? "it is made for more than 16 columns" : 0;
}

#define FEW(name)                                                                                                      \
    static const char *many_##name(const gpu_call *c, const gpu_traits *t) {                                           \
        return many_columns(batch_##name(c, t), c);                                                                    \
    }                                                                                                                  \
    static const char *few_##name(const gpu_call *c, const gpu_traits *t) {                                            \
        return few_columns(batch_##name(c, t), c);                                                                     \
    }
FEW(plain)
FEW(add)
FEW(gated)

static const char *check_rows(const gpu_call *c, const gpu_traits *t) {
    const gpu_view *y = c->v, *w = c->v + 1, *ids = c->v + 2;
    if (c->n_in != 2 || !(w->format & PACKED_FLAG) || !packed_bytes(w->format) || w->shape[1] != y->shape[1] ||
        w->shape[1] % 8)
        return "it takes a packed weight and ids";
    if (y->format || ids->format != HAL_FORMAT_I32 || ids->shape[0] != y->shape[0])
        return "ids must be i32 (T) and the output f32 (T, D)";
    return t->arch < OLD_ARCH ? "needs compute capability 7.5" : 0;
}

static void grid_rows(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    (void)t;
    g->groups[0] = (uint32_t)c->v[0].shape[0];
    g->threads = THREADS;
}

/* Of two to four columns, of long rows by groups that split K, else in pairs; of up to four; where the rings of 16 waves don't fit, of 8; of
 * 7.5. */
#define NORMED(op_, name, mode_)                                                                                       \
    {.op = op_, .check = split_##name, .mode = mode_, .format_of = 2, .launch = {{"gemv_split", grid_split, 1}}},      \
        {.op = op_, .check = pair_##name, .mode = mode_, .format_of = 2, .launch = {{"gemv_pair", grid_pair, 1}}},     \
        {.op = op_, .check = same_##name, .mode = mode_, .format_of = 2, .launch = {{"gemv", grid_gemv, 1}}},          \
        {.op = op_, .check = dense_##name, .mode = mode_, .format_of = 2, .launch = {{"dense", grid_dense, 1}}},       \
        {.op = op_, .check = mixed_split_##name, .mode = mode_, .launch = {{"gemv_split_mixed", grid_split, 1}}},      \
        {.op = op_, .check = mixed_pair_##name, .mode = mode_, .launch = {{"gemv_pair_mixed", grid_pair, 1}}},         \
        {.op = op_, .check = mixed_##name, .mode = mode_, .launch = {{"gemv_mixed", grid_gemv, 1}}},                   \
        {.op = op_, .check = same_8_##name, .mode = mode_, .format_of = 2, .launch = {{"gemv_8", grid_gemv_8, 1}}},    \
        {.op = op_, .check = mixed_8_##name, .mode = mode_, .launch = {{"gemv_8_mixed", grid_gemv_8, 1}}},             \
        {.op = op_, .check = same_7_##name, .mode = mode_, .format_of = 2, .launch = {{"gemv_7", grid_gemv_7, 1}}}, {  \
        .op = op_, .check = mixed_7_##name, .mode = mode_, .launch = {{"gemv_7_mixed", grid_gemv_7, 1}}                \
    }

/* Of any number of columns, without a norm: of many, wide.cu takes it in where it can, else it is a step of its own. */
#define BATCH(op_, check_, mode_, kernel)                                                                              \
    {                                                                                                                  \
        .op = op_, .check = check_, .scratch = scratch_batch, .mode = mode_,                                           \
        .launch = {{"batch_convert", grid_convert, 0}, {kernel, grid_batch, 0}, {"batch_finish", grid_finish, 0}}      \
    }
#define PRODUCT(op_, name, mode_)                                                                                      \
    NORMED(op_, name, mode_), BATCH(op_, few_##name, mode_, "batch_16"), BATCH(op_, many_##name, mode_, "batch_64"),   \
        BATCH(op_, small_##name, (mode_) | PRODUCT_SMALL, "batch_32"),                                                 \
        BATCH(op_, old_##name, (mode_) | PRODUCT_SMALL, "batch_7_32")

const gpu_kernel cuda_products[] = {
    NORMED("norm_linear", normed, PRODUCT_NORM),
    NORMED("norm_linear_swiglu", normed_gated, PRODUCT_NORM | PRODUCT_GATED),
    NORMED("norm_linear_geglu", normed_gated, PRODUCT_NORM | PRODUCT_GATED | PRODUCT_GELU),
    NORMED("post_norm_linear", posted, PRODUCT_NORM | PRODUCT_POST),
    NORMED("post_norm_linear_swiglu", posted_gated, PRODUCT_NORM | PRODUCT_POST | PRODUCT_GATED),
    NORMED("post_norm_linear_geglu", posted_gated, PRODUCT_NORM | PRODUCT_POST | PRODUCT_GATED | PRODUCT_GELU),
    PRODUCT("linear", plain, 0),
    PRODUCT("linear_add", add, PRODUCT_ADD),
    PRODUCT("linear_swiglu", gated, PRODUCT_GATED),
    {.op = "get_rows", .check = check_rows, .launch = {{"get_rows_packed", grid_rows, 0}}},
    {.op = "get_rows_part", .check = check_rows, .mode = 1, .launch = {{"get_rows_packed", grid_rows, 0}}},
    {0},
};

/* Batch-invariant: one kernel for any number of columns, so the order of a sum depends on the matrices' shapes alone. */
#define DETERMINISTIC(op_, name, mode_)                                                                                \
    BATCH(op_, batch_##name, (mode_) | PRODUCT_DETERMINISTIC, "batch_64"),                                             \
        BATCH(op_, small_##name, (mode_) | PRODUCT_DETERMINISTIC | PRODUCT_SMALL, "batch_32"),                         \
        BATCH(op_, old_##name, (mode_) | PRODUCT_DETERMINISTIC | PRODUCT_SMALL, "batch_7_32")

const gpu_kernel cuda_deterministic_products[] = {
    DETERMINISTIC("linear", plain, 0),
    DETERMINISTIC("linear_add", add, PRODUCT_ADD),
    DETERMINISTIC("linear_swiglu", gated, PRODUCT_GATED),
    {.op = "get_rows", .check = check_rows, .launch = {{"get_rows_packed", grid_rows, 0}}},
    {.op = "get_rows_part", .check = check_rows, .mode = 1, .launch = {{"get_rows_packed", grid_rows, 0}}},
    {0},
};

static uint64_t tiles_bytes(int64_t rows, int64_t columns, const gpu_traits *t, int64_t chunk, int64_t block) {
    if (t->arch < OLD_ARCH || columns % block)
        return 0;
    return (uint64_t)((rows + 15) / 16 * ((columns + 255) / 256) * chunk);
}

static void grid_pack(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    int64_t waves = (int64_t)c->v[0].shape[0] * ((c->v[0].shape[1] + 15) / 16) * ((c->v[0].shape[2] + 255) / 256);
    int64_t most = 8 * (int64_t)t->units, groups = (waves + THREADS / 32 - 1) / (THREADS / 32);
    g->groups[0] = (uint32_t)(groups < most ? groups : most);
    g->threads = THREADS;
}

#define PACKED_SIZE(name, number, bytes, block)                                                                        \
    static uint64_t size_##name(int64_t rows, int64_t columns, const gpu_traits *t) {                                  \
        return tiles_bytes(rows, columns, t, bytes, block);                                                            \
    }
PACKED_FORMATS(PACKED_SIZE)

#define PACKING(name, number, size, block) {number, size_##name, "pack_" #name, grid_pack},
const gpu_packing cuda_packings[] = {PACKED_FORMATS(PACKING){0}};
