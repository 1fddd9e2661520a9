/* table_loops.h: searches over tables of values, in float64. quant/search/table_loops.py has the definitions, and says what
 * `nearest` is. Vectors are candidates, or the numbers of a group where there is one candidate; sums run in the order of the
 * numbers.
 */
#ifndef SATCHEL_SEARCH_TABLE_LOOPS_H
#define SATCHEL_SEARCH_TABLE_LOOPS_H

#include "internal.h"

enum { SIDE = LANES / 2 }; /* doubles of a vector */
typedef double vd __attribute__((vector_size(8 * SIDE)));
typedef int64_t vl __attribute__((vector_size(8 * SIDE)));

#if LANES == 16
#define EACH_LANE(x) {x(0), x(1), x(2), x(3), x(4), x(5), x(6), x(7)}
#elif LANES == 8
#define EACH_LANE(x) {x(0), x(1), x(2), x(3)}
#else
#define EACH_LANE(x) {x(0), x(1)}
#endif

SEARCH_INLINE vd vd_set(double x) {
#define SAME(k) x
    return (vd)EACH_LANE(SAME);
}

SEARCH_INLINE vd vd_load(const double *p) {
    vd x;
    memcpy(&x, p, sizeof x);
    return x;
}

SEARCH_INLINE vd vd_pick(vl which, vd yes, vd no) {
    return (vd)((which & (vl)yes) | (~which & (vl)no));
}

/* floor(x) from `least` to `most`, which are whole numbers; `least` for a NaN. */
#if LANES == 16
SEARCH_INLINE vd vd_floor(vd x, vd least, vd most) {
    return (vd)_mm512_roundscale_pd(_mm512_min_pd(_mm512_max_pd((__m512d)x, (__m512d)least), (__m512d)most), 9);
}
#elif LANES == 8
SEARCH_INLINE vd vd_floor(vd x, vd least, vd most) {
    return (vd)_mm256_round_pd(_mm256_min_pd(_mm256_max_pd((__m256d)x, (__m256d)least), (__m256d)most), 9);
}
#else
SEARCH_INLINE vd vd_floor(vd x, vd least, vd most) {
    vd big = vd_set(0x1.8p52), rounded; /* what is added to it is rounded */
    x = vd_pick((vl)(x > least), x, least);
    x = vd_pick((vl)(x < most), x, most);
    rounded = (x + big) - big;
    return rounded - (vd)((vl)(rounded > x) & (vl)vd_set(1));
}
#endif

/* The values nearest to x / step, with inverse = 2 / step: entry floor(x * inverse) + 256, within the table. A NaN takes the first
 * entry. */
SEARCH_INLINE vd values_at(const double *nearest, vd x, vd inverse) {
    vd place = vd_floor(x * inverse, vd_set(-256), vd_set(255));
    vl index = (vl)(place + vd_set(0x1.8p52 + 256)) & 511; /* a whole number, as the last bits of the sum */
    int64_t at[SIDE];
    memcpy(at, &index, sizeof at);
    __asm__("" : "+m"(at)); /* lanes are read from memory: to extract them takes longer */
#define ENTRY(k) nearest[at[k]]
    return (vd)EACH_LANE(ENTRY);
}

/* 2 / step, but 0 for 0. */
SEARCH_INLINE vd twice_inverse(vd step) {
    return vd_pick((vl)(step != vd_set(0)), vd_set(2) / step, vd_set(0));
}

/* SIDE candidates from `from` on; zeros beyond the last one. */
SEARCH_INLINE vd some_of(const double *candidates, int64_t count, int64_t from) {
    double some[SIDE] = {0};
    for (int64_t c = 0; c < SIDE && from + c < count; c++)
        some[c] = candidates[from + c];
    return vd_load(some);
}

static int table_scales(const search_f64 *x, const search_f64 *w, const search_f64 *targets, const search_f64 *nearest,
                        const search_f64 *scales) {
    int64_t size = x->n[1], count = targets->n[0];
    for (int64_t n = 0; n < x->n[0]; n++) {
        const double *values = x->at + n * size, *weights = w->at + n * size;
        double extreme = 0, best = 0;
        for (int64_t i = 0; i < size; i++)
            extreme = fabs(values[i]) > fabs(extreme) ? values[i] : extreme;
        if (extreme == 0 || !(fabs(1 / extreme) < INFINITY))
            continue;
        for (int64_t from = 0; from < count; from += SIDE) {
            vd inverse = vd_set(2) * some_of(targets->at, count, from) / extreme, sxv = vd_set(0), svv = sxv;
            for (int64_t i = 0; i < size; i++) {
                vd value = values_at(nearest->at, vd_set(values[i]), inverse);
                sxv = sxv + vd_set(weights[i] * values[i]) * value;
                svv = svv + vd_set(weights[i]) * value * value;
            }
            for (int64_t c = 0; c < SIDE && from + c < count; c++)
                if (svv[c] > 0 && sxv[c] * sxv[c] > best * svv[c]) {
                    best = sxv[c] * sxv[c] / svv[c];
                    scales->at[n] = sxv[c] / svv[c];
                }
        }
    }
    return 0;
}

/* The weighted error of a group under one step. Its size is a multiple of SIDE. */
static double error_of(const double *x, const double *w, int64_t size, double step, const double *nearest) {
    vd steps = vd_set(step), inverse = twice_inverse(steps);
    double sum = 0;
    for (int64_t i = 0; i < size; i += SIDE) {
        vd v = vd_load(x + i), miss = v - steps * values_at(nearest, v, inverse), term = vd_load(w + i) * miss * miss;
        for (int k = 0; k < SIDE; k++)
            sum += term[k];
    }
    return sum;
}

/* The same under SIDE steps. */
SEARCH_INLINE void errors_of(const double *x, const double *w, int64_t size, vd steps, const double *nearest,
                             double *errors) {
    vd inverse = twice_inverse(steps), sums = vd_set(0);
    for (int64_t i = 0; i < size; i++) {
        vd v = vd_set(x[i]), miss = v - steps * values_at(nearest, v, inverse);
        sums = sums + vd_set(w[i]) * miss * miss;
    }
    memcpy(errors, &sums, sizeof sums);
}

static int table_choices(const search_f64 *x, const search_f64 *w, const search_f64 *scales, const search_f64 *nearest,
                         const search_f64 *choices, const search_f64 *totals) {
    int64_t groups = x->n[1], size = x->n[2], count = scales->n[1];
    for (int64_t n = 0; n < x->n[0]; n++) {
        const double *steps = scales->at + n * count;
        totals->at[n] = 0;
        for (int64_t g = 0; g < groups; g++) {
            const double *values = x->at + (n * groups + g) * size, *weights = w->at + (n * groups + g) * size;
            double least = 0;
            int64_t found = -1;
            for (int64_t from = 0; from < count; from += SIDE) {
                double errors[SIDE];
                if (count == 1)
                    errors[0] = error_of(values, weights, size, steps[0], nearest->at);
                else
                    errors_of(values, weights, size, some_of(steps, count, from), nearest->at, errors);
                for (int64_t c = 0; c < SIDE && from + c < count; c++) /* the first NaN wins, as in numpy's argmin */
                    if (found < 0 || errors[c] < least || (errors[c] != errors[c] && least == least)) {
                        least = errors[c];
                        found = from + c;
                    }
            }
            choices->at[n * groups + g] = (double)found;
            totals->at[n] += least;
        }
    }
    return 0;
}

static int table_fit(const search_f64 *x, const search_f64 *w, const search_f64 *d, const search_f64 *units,
                     const search_f64 *nearest, const search_f64 *better) {
    int64_t groups = x->n[1], size = x->n[2];
    for (int64_t n = 0; n < x->n[0]; n++) {
        double sxa = 0, saa = 0;
        for (int64_t g = 0; g < groups; g++) {
            const double *values = x->at + (n * groups + g) * size, *weights = w->at + (n * groups + g) * size;
            vd unit = vd_set(units->at[n * groups + g]), inverse = twice_inverse(vd_set(d->at[n]) * unit);
            for (int64_t i = 0; i < size; i += SIDE) {
                vd v = vd_load(values + i), a = unit * values_at(nearest->at, v, inverse),
                   weight = vd_load(weights + i);
                vd xa = weight * v * a, aa = weight * a * a;
                for (int k = 0; k < SIDE; k++) {
                    sxa += xa[k];
                    saa += aa[k];
                }
            }
        }
        better->at[n] = saa > 0 ? sxa / saa : d->at[n];
    }
    return 0;
}

#endif
