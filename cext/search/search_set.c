/* search_set.c: the loops for one instruction set, CPU_ISA. Compiled once for each set; owns nothing but its table. */
#include "gptq_loops.h"
#include "grid_loops.h"
#include "searches.h"
#include "table_loops.h"

#define JOIN2(a, b) a##_##b
#define JOIN(a, b) JOIN2(a, b)
#define TEXT2(x) #x
#define TEXT(x) TEXT2(x)

static int call_scale_groups(const search_f32 *x, const search_f32 *w, double least, double most,
                             const search_f32 *tries, const search_f32 *scales) {
    scale_groups(weights_of(w), tiles_of(x), (float)least, (float)most, tries->at, tries->n[0], scales->at);
    return 0;
}

static int call_affine_groups(const search_f32 *x, const search_f32 *w, double top, int is_free,
                              const search_f32 *tries, const search_f32 *scales, const search_f32 *bases) {
    affine_groups(weights_of(w), tiles_of(x), (float)top, is_free, tries->at, tries->n[0], scales->at, bases->at);
    return 0;
}

static int call_scale_refine(const search_f32 *x, const search_f32 *w, const search_f32 *d, const search_f32 *units,
                             double least, double most) {
    scale_refine(weights_of(w), tiles_of(x), d->at, units->at, (float)least, (float)most);
    return 0;
}

static int call_scale_fit(const search_f32 *x, const search_f32 *w, const search_f32 *d, const search_f32 *units,
                          double least, double most, const search_f32 *sums) {
    scale_fit(weights_of(w), tiles_of(x), d->at, units->at, (float)least, (float)most, sums->at);
    return 0;
}

static int call_affine_refine(const search_f32 *x, const search_f32 *w, const search_f32 *d, const search_f32 *dmin,
                              const search_f32 *units, const search_f32 *lows, double top) {
    affine_refine(weights_of(w), tiles_of(x), d->at, dmin->at, units->at, lows->at, (float)top);
    return 0;
}

static int call_affine_fit(const search_f32 *x, const search_f32 *w, const search_f32 *d, const search_f32 *dmin,
                           const search_f32 *units, const search_f32 *lows, double top, const search_f32 *sums) {
    affine_fit(weights_of(w), tiles_of(x), d->at, dmin->at, units->at, lows->at, (float)top, sums->at);
    return 0;
}

static int call_scale_units(const search_f32 *x, const search_f32 *w, const search_f32 *d, const search_f32 *units) {
    scale_units(weights_of(w), tiles_of(x), d->at, units->at);
    return 0;
}

static int call_affine_units(const search_f32 *x, const search_f32 *w, const search_f32 *d, const search_f32 *dmin,
                             const search_f32 *units, const search_f32 *lows, int64_t reach) {
    affine_units(weights_of(w), tiles_of(x), d->at, dmin->at, units->at, lows->at, reach);
    return 0;
}

const search_loops JOIN(search_loops, CPU_ISA) = {
    .set = TEXT(CPU_ISA),
    .scale_groups = call_scale_groups,
    .affine_groups = call_affine_groups,
    .scale_refine = call_scale_refine,
    .scale_fit = call_scale_fit,
    .affine_refine = call_affine_refine,
    .affine_fit = call_affine_fit,
    .scale_units = call_scale_units,
    .affine_units = call_affine_units,
    .symmetric = symmetric,
    .affine = affine,
    .affine_super = affine_super,
    .symmetric_super = symmetric_super,
    .affine_low = affine_low,
    .symmetric_low = symmetric_low,
    .table_scales = table_scales,
    .table_choices = table_choices,
    .table_fit = table_fit,
    .signed_terms = signed_terms,
    .shifted_terms = shifted_terms,
    .nearest = nearest,
    .minima = minima,
    .feed_run = feed_run,
    .move_run = move_run,
    .dots = dots,
};
