/* linear.c: products of activations (T, K) with weights (N, K): linear with any number of weights side by side, and
 * linear_add with one weight and a residual.
 *
 * dot.h gives for each weight format a function over rows x columns, exact in its order of sums: that depends on K, the
 * format and the instruction set, never on how many columns (activations) a pass takes. Each thread owns a contiguous
 * range of each weight's rows, cut at 16 rows, which is 64 bytes of output. A block of ROWS rows stays in cache while all
 * columns pass by; results meet the residual on their way out.
 */
#include "cpu.h"
#include "dot.h"

enum { ROWS = 64 };

static const dot_kernel kernels[] = {
#define CPU_WEIGHT(stem, id, block, act) {id, block, TYPE_##act, {DOT_TABLE(stem)}},
#include "types.inc"
#undef CPU_WEIGHT
};

static const dot_kernel *find_kernel(uint32_t format) {
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (kernels[i].id == format)
            return kernels + i;
    return NULL;
}

static const char *check_weights(const cpu_call *c, int n_weights) {
    const cpu_view *y = c->v, *x = c->v + 1;
    int64_t columns = 0;
    if (y->format != F32 || y->ndim != 2 || x->ndim != 2 || x->shape[0] != y->shape[0])
        return "x must be (T, K) and the output f32 (T, N)";
    for (int i = 2; i < 2 + n_weights; i++) {
        const cpu_view *w = c->v + i;
        const dot_kernel *k = find_kernel(w->format);
        if (!k || w->ndim != 2 || w->shape[1] != x->shape[1])
            return "each weight must be (N, K) with x's K, in a format that has a product";
        if (k->act != x->format)
            return "x must have the format that the weight's product asks for";
        columns += w->shape[0];
    }
    return columns == y->shape[1] ? NULL : "the output must be as wide as all weights have rows";
}

static const char *check_linear(const cpu_call *c) {
    return c->n_in < 2 ? "it takes x and one weight or more" : check_weights(c, c->n_in - 1);
}

static const char *check_add(const cpu_call *c) {
    if (c->n_in != 3)
        return "it takes x, a weight and a residual";
    if (c->v[3].format != F32 || !cpu_same_shape(c->v, c->v + 3))
        return "the residual must be f32 with the output's shape";
    return check_weights(c, 1);
}

static cpu_split split(const cpu_call *c) {
    const cpu_view *y = c->v;
    return cpu_grains((y->shape[1] + ROWS - 1) / ROWS, (int64_t)ROWS * c->v[1].shape[1] * y->shape[0] / 8);
}

/* What a thread does with one block of rows: where it is, and where its results go. */
typedef struct {
    const dot_kernel *kernel;
    const cpu_view *x, *w, *y, *add; /* add: NULL or the residual */
    int64_t row, column;             /* first row of the weight; first column of y for it */
    int rows;
} tile;

/* Columns t .. t + n - 1 (n: 1, 2, 4 or 8, number `size` of these) by the rows of the tile. */
static void run_columns(const tile *b, int64_t t, int n, int size) {
    float sums[DOT_COLUMNS][ROWS];
    const void *x[DOT_COLUMNS];
    for (int j = 0; j < n; j++)
        x[j] = cpu_row(b->x, t + j);
    b->kernel->run[size](cpu_row(b->w, b->row), b->w->stride, b->rows, x, b->x->shape[1] / (int)b->kernel->block,
                         sums[0], ROWS);
    for (int j = 0; j < n; j++) {
        float *y = cpu_f32(b->y, t + j) + b->column;
        const float *add = b->add ? cpu_f32(b->add, t + j) + b->column : NULL;
        for (int i = 0; i < b->rows; i++)
            y[i] = add ? sums[j][i] + add[i] : sums[j][i];
    }
}

static void run_tile(const tile *b) {
    int64_t t = 0, n = b->y->shape[0];
    for (int size = DOT_SIZES - 1; size >= 0; size--)
        for (; n - t >= 1 << size; t += 1 << size)
            run_columns(b, t, 1 << size, size);
}

/* Rows from * ROWS .. to * ROWS of all weights, one after the other. */
static void run_rows(const cpu_call *c, int n_weights, const cpu_view *add, int64_t from, int64_t to) {
    int64_t column = 0;
    for (int i = 0; i < n_weights; column += c->v[2 + i++].shape[0]) {
        const cpu_view *w = c->v + 2 + i;
        tile b = {.kernel = find_kernel(w->format), .x = c->v + 1, .w = w, .y = c->v, .add = add};
        int64_t first = from * ROWS - column, last = to * ROWS - column;
        first = first > 0 ? first : 0;
        last = last < w->shape[0] ? last : w->shape[0];
        for (; first < last; first += ROWS) {
            b.row = first;
            b.column = column + first;
            b.rows = (int)(last - first < ROWS ? last - first : ROWS);
            run_tile(&b);
        }
    }
}

static void run_linear(const cpu_call *c, int64_t from, int64_t to, int thread) {
    (void)thread;
    run_rows(c, c->n_in - 1, NULL, from, to);
}

static void run_add(const cpu_call *c, int64_t from, int64_t to, int thread) {
    (void)thread;
    run_rows(c, 1, c->v + 3, from, to);
}

CPU_KERNEL(linear) = {check_linear, NULL, split, run_linear};
CPU_KERNEL(linear_add) = {check_add, NULL, split, run_add};
