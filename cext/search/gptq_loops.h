/* gptq_loops.h: the loops of GPTQ, whose lanes are rows. quant/calibration/gptq_loops.py has the definitions. */
#ifndef SATCHEL_SEARCH_GPTQ_LOOPS_H
#define SATCHEL_SEARCH_GPTQ_LOOPS_H

#include "internal.h"

enum { TILE = 128 }; /* rows that are worked on together: a run of their columns stays in the first cache */

/* Arrays [columns, rows] of a run of columns. Each of these works on n rows from r on, n being LANES but at the end. */
typedef struct {
    const float *w, *matrix, *step, *base;
    float *sums, *error, *code; /* sums: what feed_run wants, or move_run's slope */
    int64_t columns, rows;
    float least, most;
} run;

SEARCH_INLINE vf get(const float *p, int n) {
    return n == LANES ? vf_load(p) : vf_load_n(p, n);
}

SEARCH_INLINE void put(float *p, vf x, int n) {
    if (n == LANES)
        vf_store(p, x);
    else
        vf_store_n(p, x, n);
}

SEARCH_INLINE void feed_column(const run *t, int64_t i, int64_t r, int n) {
    int64_t at = i * t->rows + r;
    vf step = get(t->step + at, n), base = get(t->base + at, n);
    vf q = code_of((get(t->sums + at, n) + base) * inverse_of(step), vf_set(t->least), vf_set(t->most));
    put(t->code + at, q, n);
    put(t->error + at, get(t->w + at, n) - (q * step - base), n);
}

SEARCH_INLINE void feed_later(const run *t, int64_t i, int64_t j, int64_t r, int n) {
    int64_t at = j * t->rows + r;
    vf error = get(t->error + i * t->rows + r, n);
    put(t->sums + at, get(t->sums + at, n) + vf_set(t->matrix[j * t->columns + i]) * error, n);
}

SEARCH_INLINE void move_column(const run *t, int64_t i, int64_t r, int n) {
    int64_t at = i * t->rows + r;
    vf share = vf_set(1 / t->matrix[i * t->columns + i]), step = get(t->step + at, n), error = get(t->error + at, n),
       moved;
    vf value = get(t->w + at, n) - error + get(t->sums + at, n) * share;
    vf q = code_of((value + get(t->base + at, n)) * inverse_of(step), vf_set(t->least), vf_set(t->most));
    moved = (q - get(t->code + at, n)) * step;
    put(t->code + at, q, n);
    put(t->error + at, error - moved, n);
    put(t->sums + at, moved, n); /* its own slope is done with: this is what the later ones lose */
}

SEARCH_INLINE void move_later(const run *t, int64_t i, int64_t j, int64_t r, int n) {
    int64_t at = j * t->rows + r;
    vf moved = get(t->sums + i * t->rows + r, n);
    put(t->sums + at, get(t->sums + at, n) - vf_set(t->matrix[j * t->columns + i]) * moved, n);
}

#define EACH_ROW(start, stop, call)                                                                                    \
    do {                                                                                                               \
        int64_t r = start;                                                                                             \
        for (; r + LANES <= stop; r += LANES) {                                                                        \
            enum { n = LANES };                                                                                        \
            call;                                                                                                      \
        }                                                                                                              \
        if (r < stop) {                                                                                                \
            int n = (int)(stop - r);                                                                                   \
            call;                                                                                                      \
        }                                                                                                              \
    } while (0)

SEARCH_INLINE int each_tile(const run *t, int moves) {
    for (int64_t start = 0; start < t->rows; start += TILE) {
        int64_t stop = start + TILE < t->rows ? start + TILE : t->rows;
        for (int64_t i = 0; i < t->columns; i++) {
            if (moves && t->matrix[i * t->columns + i] <= 0)
                continue;
            if (moves)
                EACH_ROW(start, stop, move_column(t, i, r, n));
            else
                EACH_ROW(start, stop, feed_column(t, i, r, n));
            for (int64_t j = i + 1; j < t->columns; j++)
                if (moves)
                    EACH_ROW(start, stop, move_later(t, i, j, r, n));
                else
                    EACH_ROW(start, stop, feed_later(t, i, j, r, n));
        }
    }
    return 0;
}

static int feed_run(const search_f32 *wanted, const search_f32 *w, const search_f32 *error, const search_f32 *code,
                    const search_f32 *feed, const search_f32 *step, const search_f32 *base, double least, double most) {
    run t = {w->at,    feed->at, step->at, base->at,     wanted->at, error->at,
             code->at, w->n[0],  w->n[1],  (float)least, (float)most};
    return each_tile(&t, 0);
}

static int move_run(const search_f32 *slope, const search_f32 *w, const search_f32 *error, const search_f32 *code,
                    const search_f32 *matrix, const search_f32 *step, const search_f32 *base, double least,
                    double most) {
    run t = {w->at,    matrix->at, step->at, base->at,     slope->at,  error->at,
             code->at, w->n[0],    w->n[1],  (float)least, (float)most};
    return each_tile(&t, 1);
}

static int dots(const search_f32 *a, const search_f32 *b, const search_f32 *out) {
    int64_t rows = a->n[1];
    for (int64_t start = 0; start < rows; start += TILE) {
        int64_t stop = start + TILE < rows ? start + TILE : rows;
        memset(out->at + start, 0, (size_t)(stop - start) * sizeof(float));
        for (int64_t k = 0; k < a->n[0]; k++)
            EACH_ROW(
                start, stop,
                put(out->at + r, get(out->at + r, n) + get(a->at + k * rows + r, n) * get(b->at + k * rows + r, n), n));
    }
    return 0;
}

#endif
