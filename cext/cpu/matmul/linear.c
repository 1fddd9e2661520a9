/* linear.c: matrix products of activations (T, K) with weights (N, K): linear, with several weights whose results are
 * concatenated, and linear_add, with one weight and a residual.
 *
 * An item is a panel of 16 rows of a weight; the panels of all weights are numbered consecutively. product.h gives each format
 * a function over panels and columns. A weight that is not packed is packed panel by panel into the thread's scratch: the sums
 * are the same, and slower by that copy. The residual is added while the results are in the cache.
 */
#include <string.h>

#include "weight.h"

static cpu_split split(const cpu_call *c, int n_weights) {
    int64_t panels = 0;
    for (int i = 0; i < n_weights; i++)
        panels += panels_of(c->v + 2 + i);
    return (cpu_split){panels, panels_a_grain(c->v + 2, 1, c->v[0].shape[0], panels)};
}

static cpu_split split_linear(const cpu_call *c) {
    return split(c, c->n_in - 1);
}

static cpu_split split_add(const cpu_call *c) {
    return split(c, 1);
}

/* A thread's scratch: that of the product, a panel's results, and panels of an unpacked weight. */
static uint64_t scratch_results(const cpu_call *c) {
    return sizeof(float) * PANEL_ROWS * (uint64_t)c->v[0].shape[0];
}

static uint64_t scratch(const cpu_call *c) {
    return scratch_product(c->v + 1) + scratch_results(c) + scratch_panels(c->v + 2, c->n_in - 1, PRODUCT_PANELS);
}

static void add_rows(float *y, const float *add, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        y[i] += add[i];
}

/* Computes panels first .. first + n - 1 of one weight; results go to y from `column` on. All panels have 16 rows, or n is
 * 1 and it has `rows`. */
static void run_panels(const cpu_call *c, const cpu_view *w, const cpu_view *add, int64_t first, int n, int64_t column,
                       int thread) {
    const cpu_view *y = c->v;
    uint8_t *base = cpu_scratch(c, thread), *packed = base + scratch_product(c->v + 1) + scratch_results(c);
    float *partial = (float *)(base + scratch_product(c->v + 1));
    int64_t rows = w->shape[0] - first * PANEL_ROWS, tokens = y->shape[0];
    int whole = rows >= (int64_t)n * PANEL_ROWS;
    float *out = whole ? cpu_f32(y, 0) + column : partial;
    multiply_panels(c, w, first, n, out, whole ? (int64_t)(y->stride / sizeof(float)) : PANEL_ROWS, base, packed);
    rows = whole ? (int64_t)n * PANEL_ROWS : rows;
    for (int64_t t = 0; t < tokens; t++) {
        if (!whole)
            memcpy(cpu_f32(y, t) + column, partial + PANEL_ROWS * t, sizeof(float) * (size_t)rows);
        if (add)
            add_rows(cpu_f32(y, t) + column, cpu_f32(add, t) + column, rows);
    }
}

/* Computes items from .. to - 1, which may span several weights; a panel of fewer than 16 rows is computed alone. */
static void run_items(const cpu_call *c, int n_weights, const cpu_view *add, int64_t from, int64_t to, int thread) {
    int64_t before = 0, column = 0;
    if (c->v[0].shape[0] == 0) /* a step without output rows */
        return;
    for (int i = 0; i < n_weights && before < to; i++) {
        const cpu_view *w = c->v + 2 + i;
        int64_t panels = panels_of(w), whole = w->shape[0] / PANEL_ROWS, first = from > before ? from - before : 0;
        int64_t last = to - before < panels ? to - before : panels;
        for (int64_t n; first < last; first += n) {
            n = first < whole ? (last < whole ? last : whole) - first : 1;
            n = n < PRODUCT_PANELS ? n : PRODUCT_PANELS;
            run_panels(c, w, add, first, (int)n, column + first * PANEL_ROWS, thread);
        }
        before += panels;
        column += w->shape[0];
    }
}

static void run_linear(const cpu_call *c, int64_t from, int64_t to, int thread) {
    run_items(c, c->n_in - 1, NULL, from, to, thread);
}

static void run_add(const cpu_call *c, int64_t from, int64_t to, int thread) {
    run_items(c, 1, c->v + 3, from, to, thread);
}

static const char *check(const cpu_call *c) {
    return check_weights(c, c->n_in - 1);
}

static const char *check_add(const cpu_call *c) {
    return check_weights(c, 1);
}

CPU_KERNEL(linear) = {check, scratch, split_linear, run_linear, .takes_packed = 1};
CPU_KERNEL(linear_add) = {check_add, scratch, split_add, run_add, .takes_packed = 1};
