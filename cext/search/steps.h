/* steps.h: the steps of the scale searches, for tiles [tiles, size, WIDE] of groups, each group a lane. quant/search/steps.py has
 * the definitions, with the same order of operations in every lane; so the bits do not depend on the width of a vector.
 */
#ifndef SATCHEL_SEARCH_STEPS_H
#define SATCHEL_SEARCH_STEPS_H

#include "internal.h"

/* Tiles of groups. */
typedef struct {
    const float *x;
    int64_t groups; /* a multiple of WIDE */
    int64_t size;   /* numbers of a group */
} tiles;

static inline tiles tiles_of(const search_f32 *x) {
    return (tiles){x->at, x->n[0] * x->n[2], x->n[1]};
}

/* The place of the first number of group `first`; the next ones lie WIDE apart, up to `size` of them. */
SEARCH_INLINE int64_t start_of(tiles t, int64_t first) {
    return first / WIDE * t.size * WIDE + first % WIDE;
}

#define EACH_VECTOR(t, first, start)                                                                                   \
    for (int64_t first = 0, start = 0; first < (t).groups; first += LANES, start = start_of(t, first))
#define EACH_NUMBER(t, start, at) for (int64_t at = start, end = start + (t).size * WIDE; at < end; at += WIDE)

/* x times the weights at this place. */
SEARCH_INLINE vf weigh(const float *w, int64_t at, vf x) {
    if (w)
        x = vf_load(w + at) * x;
    return x;
}

/* total + a * q, for a = w * q: without weights whole numbers, exact however they are summed. */
SEARCH_INLINE vf add_square(const float *w, vf a, vf q, vf total) {
    if (w)
        return total + a * q;
    return vf_fma(a, q, total);
}

SEARCH_INLINE vf scale_error(const float *w, tiles t, int64_t start, vf step, vf low, vf high) {
    vf inverse = inverse_of(step), error = vf_set(0);
    EACH_NUMBER(t, start, at) {
        vf v = vf_load(t.x + at), miss = v - step * code_of(inverse * v, low, high);
        error = error + weigh(w, at, miss) * miss;
    }
    return error;
}

SEARCH_INLINE vf affine_error(const float *w, tiles t, int64_t start, vf step, vf base, vf top) {
    vf inverse = inverse_of(step), error = vf_set(0);
    EACH_NUMBER(t, start, at) {
        vf v = vf_load(t.x + at) + base, miss = v - step * code_of(inverse * v, vf_set(0), top);
        error = error + weigh(w, at, miss) * miss;
    }
    return error;
}

SEARCH_INLINE void scale_groups_of(const float *w, tiles t, float least, float most, const float *tries, int64_t count,
                                   float *scales) {
    vf low = vf_set(least), high = vf_set(most), zero = vf_set(0);
    EACH_VECTOR(t, first, start) {
        vf extreme = zero, found, best = zero, best_square = vf_set(1);
        EACH_NUMBER(t, start, at) {
            vf v = vf_load(t.x + at);
            extreme = choose((vf_mask)(size_of(v) > size_of(extreme)), v, extreme);
        }
        found = extreme / low;
        for (int64_t k = 0; k < count; k++) {
            vf inverse = choose((vf_mask)(extreme != zero), vf_set(tries[k]) / extreme, zero), sxq = zero, sqq = zero;
            vf_mask wins;
            EACH_NUMBER(t, start, at) {
                vf v = vf_load(t.x + at), q = code_of(inverse * v, low, high), a = weigh(w, at, q);
                sxq = sxq + a * v;
                sqq = add_square(w, a, q, sqq);
            }
            wins = (vf_mask)(sqq > zero) & (vf_mask)(sxq * sxq * best_square > best * sqq);
            best = choose(wins, sxq * sxq, best);
            best_square = choose(wins, sqq, best_square);
            found = choose(wins, sxq / sqq, found);
        }
        vf_store(scales + first, found);
    }
}

static void scale_groups(const float *w, tiles t, float least, float most, const float *tries, int64_t count,
                         float *scales) {
    SEARCH_WEIGHED(scale_groups_of, w, t, least, most, tries, count, scales);
}

/* The least number of each group, at most 0 unless free, and the distance to its largest. A NaN forgets the numbers before it. */
SEARCH_INLINE vf affine_range(tiles t, int64_t start, int is_free, vf *span) {
    vf low = vf_load(t.x + start), high = low, zero = vf_set(0);
    for (int64_t i = 1; i < t.size; i++) {
        vf v = vf_load(t.x + start + i * WIDE);
        low = vf_min(low, v);
        high = vf_max(high, v);
    }
    if (is_free)
        low = low + zero;
    else
        low = choose((vf_mask)(low < zero), low, zero);
    *span = high - low + zero;
    return low;
}

SEARCH_INLINE void affine_groups_of(const float *w, tiles t, float top, int is_free, const float *tries, int64_t count,
                                    float *scales, float *bases) {
    vf most = vf_set(top), zero = vf_set(0), two = vf_set(2);
    EACH_VECTOR(t, first, start) {
        vf span, low = affine_range(t, start, is_free, &span), sw = zero, sx = zero, sxx = zero;
        vf best = vf_set(INFINITY), scale = span / most, base = low;
        EACH_NUMBER(t, start, at) {
            vf v = vf_load(t.x + at), p = weigh(w, at, v);
            sw = sw + weigh(w, at, vf_set(1));
            sx = sx + p;
            sxx = sxx + p * v;
        }
        for (int64_t k = 0; k < count; k++) {
            vf inverse = choose((vf_mask)(span != zero), vf_set(tries[k]) / span, zero);
            vf sq = zero, sqq = zero, sxq = zero, determinant, s, b, error;
            vf_mask wins;
            EACH_NUMBER(t, start, at) {
                vf v = vf_load(t.x + at), q = code_of(inverse * (v - low), zero, most), a = weigh(w, at, q);
                sq = sq + a;
                sqq = add_square(w, a, q, sqq);
                sxq = sxq + a * v;
            }
            determinant = sw * sqq - sq * sq;
            s = (sw * sxq - sx * sq) / determinant;
            b = (sqq * sx - sq * sxq) / determinant;
            if (!is_free) {
                s = choose((vf_mask)(b > zero), sxq / sqq, s);
                b = choose((vf_mask)(b > zero), zero, b);
            }
            error = sxx - two * s * sxq - two * b * sx + s * s * sqq + two * s * b * sq + b * b * sw;
            wins = (vf_mask)(determinant > zero) & (vf_mask)(s > zero) & (vf_mask)(error < best);
            best = choose(wins, error, best);
            scale = choose(wins, s, scale);
            base = choose(wins, b, base);
        }
        vf_store(scales + first, scale);
        vf_store(bases + first, base);
    }
}

static void affine_groups(const float *w, tiles t, float top, int is_free, const float *tries, int64_t count,
                          float *scales, float *bases) {
    if (is_free)
        SEARCH_WEIGHED(affine_groups_of, w, t, top, 1, tries, count, scales, bases);
    else
        SEARCH_WEIGHED(affine_groups_of, w, t, top, 0, tries, count, scales, bases);
}

SEARCH_INLINE void scale_refine_of(const float *w, tiles t, const float *d, float *units, float least, float most) {
    static const float moves[] = {0, -1, 1};
    vf low = vf_set(least), high = vf_set(most);
    EACH_VECTOR(t, first, start) {
        vf unit = vf_load(units + first), found = unit, best = vf_set(INFINITY);
        for (int k = 0; k < 3; k++) {
            vf u = unit + vf_set(moves[k]), error = scale_error(w, t, start, vf_load(d + first) * u, low, high);
            vf_mask wins = (vf_mask)(u >= vf_set(-128)) & (vf_mask)(u <= vf_set(127)) & (vf_mask)(error < best);
            best = choose(wins, error, best);
            found = choose(wins, u, found);
        }
        vf_store(units + first, found);
    }
}

static void scale_refine(const float *w, tiles t, const float *d, float *units, float least, float most) {
    SEARCH_WEIGHED(scale_refine_of, w, t, d, units, least, most);
}

/* sums: [3, groups]. */
SEARCH_INLINE void scale_fit_of(const float *w, tiles t, const float *d, const float *units, float least, float most,
                                float *sums) {
    vf low = vf_set(least), high = vf_set(most);
    EACH_VECTOR(t, first, start) {
        vf unit = vf_load(units + first), step = vf_load(d + first) * unit, inverse = inverse_of(step);
        vf error = vf_set(0), sxa = error, saa = error;
        EACH_NUMBER(t, start, at) {
            vf v = vf_load(t.x + at), q = code_of(inverse * v, low, high), miss = v - step * q, a = unit * q;
            error = error + weigh(w, at, miss) * miss;
            sxa = sxa + weigh(w, at, v) * a;
            saa = saa + weigh(w, at, a) * a;
        }
        vf_store(sums + first, error);
        vf_store(sums + t.groups + first, sxa);
        vf_store(sums + 2 * t.groups + first, saa);
    }
}

static void scale_fit(const float *w, tiles t, const float *d, const float *units, float least, float most,
                      float *sums) {
    SEARCH_WEIGHED(scale_fit_of, w, t, d, units, least, most, sums);
}

SEARCH_INLINE void affine_refine_of(const float *w, tiles t, const float *d, const float *dmin, float *units,
                                    float *lows, float top) {
    static const int moves[] = {4, 1, 7, 3, 5, 0, 2, 6, 8};
    vf most = vf_set(top), zero = vf_set(0), last = vf_set(63);
    EACH_VECTOR(t, first, start) {
        vf unit = vf_load(units + first), low = vf_load(lows + first);
        vf unit_found = unit, low_found = low, best = vf_set(INFINITY);
        for (int k = 0; k < 9; k++) {
            vf u = unit + vf_set((float)(moves[k] / 3 - 1)), up = low + vf_set((float)(moves[k] % 3 - 1));
            vf error = affine_error(w, t, start, vf_load(d + first) * u, vf_load(dmin + first) * up, most);
            vf_mask wins = (vf_mask)(u >= zero) & (vf_mask)(u <= last) & (vf_mask)(up >= zero) & (vf_mask)(up <= last) &
                           (vf_mask)(error < best);
            best = choose(wins, error, best);
            unit_found = choose(wins, u, unit_found);
            low_found = choose(wins, up, low_found);
        }
        vf_store(units + first, unit_found);
        vf_store(lows + first, low_found);
    }
}

static void affine_refine(const float *w, tiles t, const float *d, const float *dmin, float *units, float *lows,
                          float top) {
    SEARCH_WEIGHED(affine_refine_of, w, t, d, dmin, units, lows, top);
}

/* sums: [6, groups]. */
SEARCH_INLINE void affine_fit_of(const float *w, tiles t, const float *d, const float *dmin, const float *units,
                                 const float *lows, float top, float *sums) {
    vf most = vf_set(top), zero = vf_set(0);
    EACH_VECTOR(t, first, start) {
        vf u = vf_load(units + first), low = zero - vf_load(lows + first);
        vf step = vf_load(d + first) * u, base = vf_load(dmin + first) * vf_load(lows + first),
           inverse = inverse_of(step);
        vf error = zero, sx = zero, sxq = zero, sq = zero, sqq = zero, sw = zero;
        EACH_NUMBER(t, start, at) {
            vf x = vf_load(t.x + at), v = x + base, q = code_of(inverse * v, zero, most);
            vf miss = v - step * q, p = weigh(w, at, x), r = weigh(w, at, q);
            error = error + weigh(w, at, miss) * miss;
            sw = sw + weigh(w, at, vf_set(1));
            sx = sx + p;
            sxq = sxq + p * q;
            sq = sq + r;
            sqq = add_square(w, r, q, sqq);
        }
        vf_store(sums + first, error);
        vf_store(sums + t.groups + first, u * sxq);
        vf_store(sums + 2 * t.groups + first, low * sx);
        vf_store(sums + 3 * t.groups + first, u * u * sqq);
        vf_store(sums + 4 * t.groups + first, u * low * sq);
        vf_store(sums + 5 * t.groups + first, low * low * sw);
    }
}

static void affine_fit(const float *w, tiles t, const float *d, const float *dmin, const float *units,
                       const float *lows, float top, float *sums) {
    SEARCH_WEIGHED(affine_fit_of, w, t, d, dmin, units, lows, top, sums);
}

SEARCH_INLINE void scale_units_of(const float *w, tiles t, const float *d, float *units) {
    vf low = vf_set(-4), high = vf_set(3);
    EACH_VECTOR(t, first, start) {
        vf found = vf_load(units + first), best = vf_set(INFINITY);
        for (int k = -32; k < 32; k++) {
            vf u = vf_set((float)k), error = scale_error(w, t, start, vf_load(d + first) * u, low, high);
            vf_mask wins = (vf_mask)(error < best);
            best = choose(wins, error, best);
            found = choose(wins, u, found);
        }
        vf_store(units + first, found);
    }
}

static void scale_units(const float *w, tiles t, const float *d, float *units) {
    SEARCH_WEIGHED(scale_units_of, w, t, d, units);
}

SEARCH_INLINE void affine_units_of(const float *w, tiles t, const float *d, const float *dmin, float *units,
                                   float *lows, int64_t reach) {
    vf top = vf_set(3), zero = vf_set(0), last = vf_set(15);
    int64_t count = (2 * reach < 15 ? 2 * reach : 15) + 1;
    EACH_VECTOR(t, first, start) {
        vf unit_found = vf_load(units + first), middle = vf_load(lows + first), low_found = middle,
           best = vf_set(INFINITY);
        for (int64_t k = 0; k < count; k++) {
            vf low = vf_set((float)(reach == 15 ? k : k - reach));
            if (reach < 15)
                low = middle + low;
            for (int n = 0; n < 16; n++) {
                vf u = vf_set((float)n);
                vf error = affine_error(w, t, start, vf_load(d + first) * u, vf_load(dmin + first) * low, top);
                vf_mask wins = (vf_mask)(low >= zero) & (vf_mask)(low <= last) & (vf_mask)(error < best);
                best = choose(wins, error, best);
                unit_found = choose(wins, u, unit_found);
                low_found = choose(wins, low, low_found);
            }
        }
        vf_store(units + first, unit_found);
        vf_store(lows + first, low_found);
    }
}

static void affine_units(const float *w, tiles t, const float *d, const float *dmin, float *units, float *lows,
                         int64_t reach) {
    SEARCH_WEIGHED(affine_units_of, w, t, d, dmin, units, lows, reach);
}

#endif
