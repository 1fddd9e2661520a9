/* searches.h: the scale searches as a whole, from numbers to codes, some tiles at a time. quant/search/searches.py has the
 * definitions.
 */
#ifndef SATCHEL_SEARCH_SEARCHES_H
#define SATCHEL_SEARCH_SEARCHES_H

#include "blocks.h"
#include "steps.h"

/* How a search for scales and bases differs by format. */
typedef struct {
    int64_t size; /* numbers of a group */
    float top;    /* largest code */
    double last;  /* largest unit and low */
    int every;    /* tries every unit and low, in place of the neighbours */
} affine_kind;

/* How a search for scales alone differs by format: codes from -zero, units from `least` to -least - 1. */
typedef struct {
    float zero;
    double least;
    int every; /* tries every unit, in place of the neighbours */
} scale_kind;

/* Rows of room.flat and room.of_block. */
enum { UNITS, LOWS, OF_D, OF_DMIN, SUMS, SCALES = SUMS, BASES, BEST = 10, BEST_LOW };
enum { ERROR, D, DMIN, BEST_D, BEST_DMIN };

static float *flat(room *r, int row) {
    return r->flat + row * GROUPS;
}

static double *of_block(room *r, int row) {
    return r->of_block + row * GROUPS;
}

static int symmetric(const search_f32 *x, const search_f32 *share, int64_t zero, const search_f32 *tries,
                     const search_f64 *d, const search_u8 *q) {
    blocks s = blocks_of(x, share, x->n[1]);
    float least = (float)-zero, most = (float)(zero - 1);
    room r;
    if (make_room(s, &r))
        return -1;
    memset(flat(&r, OF_DMIN), 0, GROUPS * sizeof(float));
    for (int64_t first = 0; first < s.count; first += GROUPS) {
        int64_t groups = pass_groups(s, first);
        load(s, first, groups, &r);
        scale_groups(r.w, (tiles){r.near, groups, s.size}, least, most, tries->at, tries->n[0], flat(&r, SCALES));
        for (int64_t b = 0; b < groups; b++)
            of_block(&r, D)[b] = half(flat(&r, SCALES)[b] * r.power[b]);
        spread(of_block(&r, D), r.power, groups, 1, flat(&r, OF_D));
        store(s, first, groups, flat(&r, OF_D), flat(&r, OF_DMIN), r.power, least, most, q->at);
        for (int64_t b = 0; b < groups && first + b < s.count; b++)
            d->at[first + b] = of_block(&r, D)[b];
    }
    free_room(&r);
    return 0;
}

static int affine(const search_f32 *x, const search_f32 *share, int64_t top, const search_f32 *tries,
                  const search_f64 *d, const search_f64 *m, const search_u8 *q) {
    blocks s = blocks_of(x, share, x->n[1]);
    room r;
    if (make_room(s, &r))
        return -1;
    for (int64_t first = 0; first < s.count; first += GROUPS) {
        int64_t groups = pass_groups(s, first);
        load(s, first, groups, &r);
        affine_groups(r.w, (tiles){r.near, groups, s.size}, (float)top, 1, tries->at, tries->n[0], flat(&r, SCALES),
                      flat(&r, BASES));
        for (int64_t b = 0; b < groups; b++) {
            of_block(&r, D)[b] = half(flat(&r, SCALES)[b] * r.power[b]);
            of_block(&r, DMIN)[b] = -half(flat(&r, BASES)[b] * r.power[b]);
        }
        spread(of_block(&r, D), r.power, groups, 1, flat(&r, OF_D));
        spread(of_block(&r, DMIN), r.power, groups, 1, flat(&r, OF_DMIN));
        store(s, first, groups, flat(&r, OF_D), flat(&r, OF_DMIN), r.power, 0, (float)top, q->at);
        for (int64_t b = 0; b < groups && first + b < s.count; b++) {
            d->at[first + b] = of_block(&r, D)[b];
            m->at[first + b] = -of_block(&r, DMIN)[b];
        }
    }
    free_room(&r);
    return 0;
}

/* d and dmin of each block, and the groups' own scales and bases in these units. */
static void affine_start(affine_kind kind, int64_t groups, int64_t per, room *r) {
    const float *scales = flat(r, SCALES), *bases = flat(r, BASES);
    for (int64_t b = 0; b < groups / per; b++) {
        double most = 0, lowest = kind.every ? -0.0 : 0.0, power = r->power[b], d, dmin;
        for (int64_t g = b * per; g < (b + 1) * per; g++) {
            double scale = scales[g] * power, base = -bases[g] * power;
            most = scale > most ? scale : most;
            lowest = base > lowest ? base : lowest;
        }
        d = of_block(r, D)[b] = unit_of(most / kind.last);
        dmin = of_block(r, DMIN)[b] = unit_of(lowest / kind.last);
        for (int64_t g = b * per; g < (b + 1) * per; g++) {
            flat(r, UNITS)[g] = (float)whole_of(scales[g] * power, d, 0, kind.last);
            flat(r, LOWS)[g] = (float)whole_of(-bases[g] * power, dmin, 0, kind.last);
        }
    }
}

/* d and dmin of least squares for the codes that gave a block these sums; as they were where there is none. */
static void affine_solve(double *d, double *dmin, const double *sums, double power) {
    double sxa = sums[1], sxb = sums[2], saa = sums[3], sab = sums[4], sbb = sums[5];
    double determinant = saa * sbb - sab * sab;
    if (determinant > 0 && determinant > 1e-6 * saa * sbb) {
        double fit = (sbb * sxa - sab * sxb) / determinant, fit_min = (saa * sxb - sab * sxa) / determinant;
        if (fit > 0 && fit_min >= 0) {
            *d = half(fit * power);
            *dmin = half(fit_min * power);
            return;
        }
    }
    *d = half(saa > 0 && sbb == 0 ? sxa / saa * power : *d);
    *dmin = half(*dmin);
}

/* Sums of a step's rows over the groups of a block, in order. */
static void add_up(const float *rows, int count, int64_t groups, int64_t first, int64_t per, double *sums) {
    for (int k = 0; k < count; k++) {
        sums[k] = 0;
        for (int64_t g = first; g < first + per; g++)
            sums[k] += rows[k * groups + g];
    }
}

/* Keeps what errs least of each block, and solves for the next turn. */
static void affine_turn(int turn, int64_t groups, int64_t per, room *r) {
    for (int64_t b = 0; b < groups / per; b++) {
        double sums[6], *error = of_block(r, ERROR) + b, *d = of_block(r, D) + b, *dmin = of_block(r, DMIN) + b;
        add_up(flat(r, SUMS), 6, groups, b * per, per, sums);
        if (turn == 0 || !(*error <= sums[0])) {
            *error = sums[0];
            of_block(r, BEST_D)[b] = *d;
            of_block(r, BEST_DMIN)[b] = *dmin;
            memcpy(flat(r, BEST) + b * per, flat(r, UNITS) + b * per, (size_t)per * sizeof(float));
            memcpy(flat(r, BEST_LOW) + b * per, flat(r, LOWS) + b * per, (size_t)per * sizeof(float));
        }
        affine_solve(d, dmin, sums, r->power[b]);
    }
}

static int affine_search(affine_kind kind, const search_f32 *x, const search_f32 *share, const search_f32 *tries,
                         int64_t rounds, const search_f64 *d, const search_f64 *dmin, const search_u8 *scale,
                         const search_u8 *low, const search_u8 *q) {
    blocks s = blocks_of(x, share, kind.size);
    int64_t per = groups_of(s);
    room r;
    if (make_room(s, &r))
        return -1;
    for (int64_t first = 0; first < s.count; first += GROUPS / per) {
        int64_t groups = pass_groups(s, first);
        tiles t = {r.near, groups, s.size};
        load(s, first, groups, &r);
        affine_groups(r.w, t, kind.top, 0, tries->at, tries->n[0], flat(&r, SCALES), flat(&r, BASES));
        affine_start(kind, groups, per, &r);
        for (int turn = 0; turn <= rounds; turn++) {
            spread(of_block(&r, D), r.power, groups, per, flat(&r, OF_D));
            spread(of_block(&r, DMIN), r.power, groups, per, flat(&r, OF_DMIN));
            if (turn < rounds && kind.every)
                affine_units(r.w, t, flat(&r, OF_D), flat(&r, OF_DMIN), flat(&r, UNITS), flat(&r, LOWS), turn ? 2 : 15);
            else if (turn < rounds)
                affine_refine(r.w, t, flat(&r, OF_D), flat(&r, OF_DMIN), flat(&r, UNITS), flat(&r, LOWS), kind.top);
            affine_fit(r.w, t, flat(&r, OF_D), flat(&r, OF_DMIN), flat(&r, UNITS), flat(&r, LOWS), kind.top,
                       flat(&r, SUMS));
            affine_turn(turn, groups, per, &r);
        }
        spread(of_block(&r, BEST_D), r.power, groups, per, flat(&r, OF_D));
        spread(of_block(&r, BEST_DMIN), r.power, groups, per, flat(&r, OF_DMIN));
        for (int64_t g = 0; g < groups; g++) {
            flat(&r, OF_D)[g] *= flat(&r, BEST)[g];
            flat(&r, OF_DMIN)[g] *= flat(&r, BEST_LOW)[g];
        }
        store(s, first, groups, flat(&r, OF_D), flat(&r, OF_DMIN), r.power, 0, kind.top, q->at);
        for (int64_t g = 0; g < groups && first + g / per < s.count; g++) {
            d->at[first + g / per] = of_block(&r, BEST_D)[g / per];
            dmin->at[first + g / per] = of_block(&r, BEST_DMIN)[g / per];
            scale->at[first * per + g] = byte_of(flat(&r, BEST)[g]);
            low->at[first * per + g] = byte_of(flat(&r, BEST_LOW)[g]);
        }
    }
    free_room(&r);
    return 0;
}

static int affine_super(const search_f32 *x, const search_f32 *share, int64_t top, const search_f32 *tries,
                        int64_t rounds, const search_f64 *d, const search_f64 *dmin, const search_u8 *scale,
                        const search_u8 *low, const search_u8 *q) {
    affine_kind kind = {.size = 32, .top = (float)top, .last = 63};
    return affine_search(kind, x, share, tries, rounds, d, dmin, scale, low, q);
}

static int affine_low(const search_f32 *x, const search_f32 *share, const search_f32 *tries, int64_t rounds,
                      const search_f64 *d, const search_f64 *dmin, const search_u8 *scale, const search_u8 *low,
                      const search_u8 *q) {
    affine_kind kind = {.size = 16, .top = 3, .last = 15, .every = 1};
    return affine_search(kind, x, share, tries, rounds, d, dmin, scale, low, q);
}

/* d of each block, of the sign of its extreme, and the groups' own scales in these units. */
static void scale_start(scale_kind kind, int64_t groups, int64_t per, room *r) {
    const float *scales = flat(r, SCALES);
    for (int64_t b = 0; b < groups / per; b++) {
        double extreme = scales[b * per], d;
        for (int64_t g = b * per; g < (b + 1) * per; g++)
            extreme = fabs(scales[g]) > fabs(extreme) ? scales[g] : extreme;
        d = of_block(r, D)[b] = unit_of(extreme * r->power[b] / kind.least);
        for (int64_t g = b * per; g < (b + 1) * per; g++)
            flat(r, UNITS)[g] =
                kind.every ? 0 : (float)whole_of(scales[g] * r->power[b], d, kind.least, -kind.least - 1);
    }
}

/* Keeps what errs least of each block, and solves for the next turn. */
static void scale_turn(int turn, int64_t groups, int64_t per, room *r) {
    for (int64_t b = 0; b < groups / per; b++) {
        double sums[3], *error = of_block(r, ERROR) + b, *d = of_block(r, D) + b;
        add_up(flat(r, SUMS), 3, groups, b * per, per, sums);
        if (turn == 0 || !(*error <= sums[0])) {
            *error = sums[0];
            of_block(r, BEST_D)[b] = *d;
            memcpy(flat(r, BEST) + b * per, flat(r, UNITS) + b * per, (size_t)per * sizeof(float));
        }
        *d = half(sums[2] > 0 ? sums[1] / sums[2] * r->power[b] : *d);
    }
}

static int scale_search(scale_kind kind, const search_f32 *x, const search_f32 *share, const search_f32 *tries,
                        int64_t rounds, const search_f64 *d, const search_i8 *scale, const search_u8 *q) {
    blocks s = blocks_of(x, share, 16);
    int64_t per = groups_of(s);
    float least = -kind.zero, most = kind.zero - 1;
    room r;
    if (make_room(s, &r))
        return -1;
    memset(flat(&r, OF_DMIN), 0, GROUPS * sizeof(float));
    for (int64_t first = 0; first < s.count; first += GROUPS / per) {
        int64_t groups = pass_groups(s, first);
        tiles t = {r.near, groups, s.size};
        load(s, first, groups, &r);
        scale_groups(r.w, t, least, most, tries->at, tries->n[0], flat(&r, SCALES));
        scale_start(kind, groups, per, &r);
        for (int turn = 0; turn <= rounds; turn++) {
            spread(of_block(&r, D), r.power, groups, per, flat(&r, OF_D));
            if (turn < rounds && kind.every)
                scale_units(r.w, t, flat(&r, OF_D), flat(&r, UNITS));
            else if (turn < rounds)
                scale_refine(r.w, t, flat(&r, OF_D), flat(&r, UNITS), least, most);
            scale_fit(r.w, t, flat(&r, OF_D), flat(&r, UNITS), least, most, flat(&r, SUMS));
            scale_turn(turn, groups, per, &r);
        }
        spread(of_block(&r, BEST_D), r.power, groups, per, flat(&r, OF_D));
        for (int64_t g = 0; g < groups; g++)
            flat(&r, OF_D)[g] *= flat(&r, BEST)[g];
        store(s, first, groups, flat(&r, OF_D), flat(&r, OF_DMIN), r.power, least, most, q->at);
        for (int64_t g = 0; g < groups && first + g / per < s.count; g++) {
            float unit = flat(&r, BEST)[g];
            d->at[first + g / per] = of_block(&r, BEST_D)[g / per];
            scale->at[first * per + g] = unit == unit ? (int8_t)unit : 0;
        }
    }
    free_room(&r);
    return 0;
}

static int symmetric_super(const search_f32 *x, const search_f32 *share, int64_t zero, const search_f32 *tries,
                           int64_t rounds, const search_f64 *d, const search_i8 *scale, const search_u8 *q) {
    return scale_search((scale_kind){.zero = (float)zero, .least = -128}, x, share, tries, rounds, d, scale, q);
}

static int symmetric_low(const search_f32 *x, const search_f32 *share, const search_f32 *tries, int64_t rounds,
                         const search_f64 *d, const search_i8 *scale, const search_u8 *q) {
    return scale_search((scale_kind){.zero = 4, .least = -32, .every = 1}, x, share, tries, rounds, d, scale, q);
}

#endif
