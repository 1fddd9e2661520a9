/* grid_loops.h: searches over the codebooks of points. quant/search/grid_loops.py has the definitions: the error of a vector and a
 * point under a step t is, but for a constant, t t b - 2 t a.
 */
#ifndef SATCHEL_SEARCH_GRID_LOOPS_H
#define SATCHEL_SEARCH_GRID_LOOPS_H

#include "internal.h"

/* Points from p on of one vector; n of them, a constant: LANES, or fewer at the end. */
SEARCH_INLINE void signed_terms_at(const float *size, const float *w, int64_t width, const float *grid, int64_t points,
                                   int64_t p, int n, int64_t last, int odd, float *a, float *b) {
    vf sum = vf_set(0), square = vf_set(0), least = vf_set(INFINITY);
    for (int64_t i = 0; i < width; i++) {
        const float *at = grid + i * points + p;
        vf point = n == LANES ? vf_load(at) : vf_load_n(at, n), term = vf_set(w[i] * size[i]) * point;
        sum = sum + term;
        square = square + vf_set(w[i]) * point * point;
        least = vf_min(term, least);
    }
    vf_store_n(a + p, sum, n);
    vf_store_n(b + p, square, n);
    if (odd) {
        vf_store_n(a + last + p, vf_load_n(a + p, n) - vf_set(2) * least, n);
        vf_store_n(b + last + p, square, n);
    }
}

static int signed_terms(const search_f32 *size, const search_f32 *w, const search_f32 *grid, const search_u8 *odd,
                        const search_f32 *a, const search_f32 *b) {
    int64_t width = size->n[1], points = grid->n[1], variants = a->n[1], last = (variants - 1) * points;
    for (int64_t v = 0; v < size->n[0]; v++) {
        const float *x = size->at + v * width, *weights = w->at + v * width;
        float *of_a = a->at + v * variants * points, *of_b = b->at + v * variants * points;
        int64_t p = 0;
        if (variants > 1 && !odd->at[v]) { /* no sign is wrong: the variants between stay zeros */
            memset(of_a + points, 0, (size_t)last * sizeof(float));
            memset(of_b + points, 0, (size_t)last * sizeof(float));
        }
        for (; p + LANES <= points; p += LANES)
            signed_terms_at(x, weights, width, grid->at, points, p, LANES, last, odd->at[v], of_a, of_b);
        if (p < points)
            signed_terms_at(x, weights, width, grid->at, points, p, (int)(points - p), last, odd->at[v], of_a, of_b);
    }
    return 0;
}

SEARCH_INLINE void shifted_terms_at(const float *x, const float *w, int64_t width, const float *grid, int64_t points,
                                    int64_t p, int n, float shift, float *a, float *b) {
    vf sums[2] = {vf_set(0), vf_set(0)}, squares[2] = {vf_set(0), vf_set(0)};
    for (int64_t i = 0; i < width; i++) {
        const float *at = grid + i * points + p;
        vf point = n == LANES ? vf_load(at) : vf_load_n(at, n), product = vf_set(w[i] * x[i]), weight = vf_set(w[i]);
        vf up = point + vf_set(shift), down = point - vf_set(shift);
        sums[0] = sums[0] + product * up;
        squares[0] = squares[0] + weight * up * up;
        sums[1] = sums[1] + product * down;
        squares[1] = squares[1] + weight * down * down;
    }
    for (int k = 0; k < 2; k++) {
        vf_store_n(a + k * points + p, sums[k], n);
        vf_store_n(b + k * points + p, squares[k], n);
    }
}

static int shifted_terms(const search_f32 *x, const search_f32 *w, const search_f32 *grid, double shift,
                         const search_f32 *a, const search_f32 *b) {
    int64_t width = x->n[1], points = grid->n[1];
    for (int64_t v = 0; v < x->n[0]; v++) {
        const float *of_x = x->at + v * width, *of_w = w->at + v * width;
        float *of_a = a->at + v * 2 * points, *of_b = b->at + v * 2 * points;
        int64_t p = 0;
        for (; p + LANES <= points; p += LANES)
            shifted_terms_at(of_x, of_w, width, grid->at, points, p, LANES, (float)shift, of_a, of_b);
        if (p < points)
            shifted_terms_at(of_x, of_w, width, grid->at, points, p, (int)(points - p), (float)shift, of_a, of_b);
    }
    return 0;
}

/* The least error of one vector over its points, for each of LANES steps, and, where asked, the first point that has it. */
SEARCH_INLINE vf least_errors(const float *a, const float *b, int64_t points, vf step, vf *found) {
    vf least = vf_set(INFINITY);
    if (found)
        *found = vf_set(0);
    for (int64_t p = 0; p < points; p++) {
        vf error = (step * vf_set(b[p]) - vf_set(2 * a[p])) * step;
        if (found)
            *found = choose((vf_mask)(error < least), vf_set((float)p), *found);
        least = vf_min(error, least);
    }
    return least;
}

/* points and best: NULL, or what to write. */
SEARCH_INLINE void each_vector(const search_f32 *a, const search_f32 *b, const search_f32 *steps, float *points,
                               float *best) {
    int64_t count = steps->n[1];
    for (int64_t v = 0; v < a->n[0]; v++)
        for (int64_t k = 0; k < count; k += LANES) {
            int n = count - k < LANES ? (int)(count - k) : LANES;
            const float *of_a = a->at + v * a->n[1], *of_b = b->at + v * a->n[1];
            vf found, least = least_errors(of_a, of_b, a->n[1], vf_load_n(steps->at + v * count + k, n),
                                           points ? &found : NULL);
            if (points)
                vf_store_n(points + v * count + k, found, n);
            if (best)
                vf_store_n(best + v * count + k, least, n);
        }
}

static int nearest(const search_f32 *a, const search_f32 *b, const search_f32 *steps, const search_f32 *points) {
    each_vector(a, b, steps, points->at, NULL);
    return 0;
}

static int minima(const search_f32 *a, const search_f32 *b, const search_f32 *steps, const search_f32 *best) {
    each_vector(a, b, steps, NULL, best->at);
    return 0;
}

#endif
