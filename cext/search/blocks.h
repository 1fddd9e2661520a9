/* blocks.h: blocks of numbers as tiles of groups and back, and the rounding of scales to their fields. quant/search/lanes.py and
 * scales.py have the definitions.
 */
#ifndef SATCHEL_SEARCH_BLOCKS_H
#define SATCHEL_SEARCH_BLOCKS_H

#include "internal.h"

enum { TILES = 8, GROUPS = TILES * WIDE }; /* searched at a time: what they hold stays in a core's caches */

/* Blocks of a search: numbers x [count, block] in groups of `size`, and the weights of their columns, share [rows, block], which
 * repeat; NULL: all weigh the same. */
typedef struct {
    const float *x, *share;
    int64_t count, block, size, rows;
} blocks;

static inline blocks blocks_of(const search_f32 *x, const search_f32 *share, int64_t size) {
    return (blocks){x->at, weights_of(share), x->n[0], x->n[1], size, share ? share->n[0] : 1};
}

static inline int64_t groups_of(blocks s) {
    return s.block / s.size;
}

/* The memory of a search, for the groups of one pass. */
typedef struct {
    float *near, *w;          /* [TILES, size, WIDE]; w is NULL without weights */
    float *flat;              /* [12, GROUPS] */
    double *power, *of_block; /* [GROUPS] and [5, GROUPS]; power: the power of two by which each block was divided */
} room;

static int make_room(blocks s, room *r) {
    size_t numbers = (size_t)(GROUPS * s.size), w = s.share ? numbers : 0;
    char *memory = malloc((numbers + w + 12 * GROUPS) * sizeof(float) + 6 * GROUPS * sizeof(double));
    if (!memory)
        return -1;
    r->power = (double *)memory;
    r->of_block = r->power + GROUPS;
    r->flat = (float *)(r->of_block + 5 * GROUPS);
    r->near = r->flat + 12 * GROUPS;
    r->w = s.share ? r->near + numbers : NULL;
    return 0;
}

static void free_room(room *r) {
    free(r->power);
}

/* Groups of a pass that begins with block `first`, as whole tiles. */
static int64_t pass_groups(blocks s, int64_t first) {
    int64_t left = (s.count - first) * groups_of(s), whole = (left + WIDE - 1) / WIDE * WIDE;
    return whole < GROUPS ? whole : GROUPS;
}

/* The power of two by which a block is divided: just above its largest number, so that squares neither overflow nor vanish. A NaN
 * counts as nothing, and an infinity as 1. */
static double power_of(const float *x, int64_t block) {
    vf top = vf_set(0);
    float peak;
    int exponent = 0;
    for (int64_t i = 0; i < block; i += LANES)
        top = vf_max(size_of(vf_load(x + i)), top);
    peak = vf_most(top);
    if (f32_is_finite(peak))
        frexp(peak, &exponent);
    return ldexp(1.0, exponent > -126 ? exponent : -126); /* the least one by whose inverse float32 can be multiplied */
}

typedef float four __attribute__((vector_size(16)));
#if defined(__clang__)
#define SHUFFLED(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLED(a, b, ...) __builtin_shuffle(a, b, (__attribute__((vector_size(16))) int32_t){__VA_ARGS__})
#endif

/* Four numbers of four groups, each times its factor, with the groups side by side; groups lie `size` apart. */
SEARCH_INLINE void turn(float *to, const float *x, int64_t size, const float *factors) {
    four row[4], low, high, low_2, high_2, out[4];
    for (int k = 0; k < 4; k++) {
        memcpy(&row[k], x + k * size, sizeof row[k]);
        row[k] = row[k] * factors[k];
    }
    low = SHUFFLED(row[0], row[1], 0, 4, 1, 5);
    high = SHUFFLED(row[0], row[1], 2, 6, 3, 7);
    low_2 = SHUFFLED(row[2], row[3], 0, 4, 1, 5);
    high_2 = SHUFFLED(row[2], row[3], 2, 6, 3, 7);
    out[0] = SHUFFLED(low, low_2, 0, 1, 4, 5);
    out[1] = SHUFFLED(low, low_2, 2, 3, 6, 7);
    out[2] = SHUFFLED(high, high_2, 0, 1, 4, 5);
    out[3] = SHUFFLED(high, high_2, 2, 3, 6, 7);
    for (int k = 0; k < 4; k++)
        memcpy(to + k * WIDE, &out[k], sizeof out[k]);
}

/* The first number of a group in tiles. */
SEARCH_INLINE float *lane_at(float *tile, int64_t group, int64_t size) {
    return tile + group / WIDE * size * WIDE + group % WIDE;
}

/* The blocks from `first` on as tiles of numbers near 1; zeros beyond the last block. */
static void load(blocks s, int64_t first, int64_t groups, room *r) {
    int64_t of_block = groups_of(s), there = (s.count - first) * of_block;
    const float *x = s.x + first * s.block;
    float *factors = r->flat; /* of each group */
    for (int64_t b = 0; b < groups / of_block; b++) {
        r->power[b] = first + b < s.count ? power_of(x + b * s.block, s.block) : 1.0;
        for (int64_t g = b * of_block; g < (b + 1) * of_block; g++)
            factors[g] = (float)(1.0 / r->power[b]);
    }
    for (int64_t g = 0; g < groups; g += 4)
        if (there - g >= 4)
            for (int64_t i = 0; i < s.size; i += 4)
                turn(lane_at(r->near, g, s.size) + i * WIDE, x + g * s.size + i, s.size, factors + g);
        else
            for (int64_t n = g; n < g + 4; n++)
                for (int64_t i = 0; i < s.size; i++)
                    lane_at(r->near, n, s.size)[i * WIDE] = n < there ? x[n * s.size + i] * factors[n] : 0.0f;
    for (int64_t lane = 0; s.share && lane < groups; lane++) {
        const float *share = s.share + (first + lane / of_block) % s.rows * s.block + lane % of_block * s.size;
        float *to = lane_at(r->w, lane, s.size);
        for (int64_t i = 0; i < s.size; i++)
            to[i * WIDE] = share[i];
    }
}

typedef uint8_t vb __attribute__((vector_size(LANES)));

/* A NaN's code is 0. */
static inline uint8_t byte_of(float x) {
    return x == x ? (uint8_t)(int32_t)x : 0;
}

/* The nearest codes least .. most of the blocks from `first` on, under each group's step and base, counted from `least`. */
static void store(blocks s, int64_t first, int64_t groups, const float *step, const float *base, const double *power,
                  float least, float most, uint8_t *q) {
    vf low = vf_set(least), high = vf_set(most);
    int64_t left = (s.count - first) * groups_of(s);
    for (int64_t g = 0; g < (groups < left ? groups : left); g++) {
        vf factor = vf_set((float)(1.0 / power[g / groups_of(s)]));
        vf inverse = inverse_of(vf_set(step[g])), of_base = vf_set(base[g]);
        int64_t at = first * s.block + g * s.size;
        for (int64_t i = at; i < at + s.size; i += LANES) {
            vf code = code_of(inverse * (vf_load(s.x + i) * factor + of_base), low, high) - low;
            vb bytes = __builtin_convertvector(
                __builtin_convertvector(choose((vf_mask)(code == code), code, vf_set(0)), vf_mask), vb);
            memcpy(q + i, &bytes, sizeof bytes);
        }
    }
}

/* A number of each block, in units of its power of two, for each of its groups. */
static void spread(const double *of_block, const double *power, int64_t groups, int64_t per, float *out) {
    for (int64_t g = 0; g < groups; g++)
        out[g] = (float)(of_block[g / per] / power[g / per]);
}

/* x rounded to what an f16 field can store. */
static double half(double x) {
    return f16_to_f32(f32_to_f16((float)x));
}

/* What the scales of groups are counted in: x rounded to f16, upwards in magnitude where f16 is coarse. */
static double unit_of(double x) {
    return fabs(x) < 0x1p-14 ? copysign(ceil(fabs(x) * 0x1p24) * 0x1p-24, x) : half(x);
}

/* x in units of `by`, whole; 0 where that is 0 or infinite. */
static double whole_of(double x, double by, double least, double most) {
    double q;
    if (by == 0 || !(fabs(by) < INFINITY))
        return 0;
    q = rint(x / by);
    q = least > q ? least : q;
    return most < q ? most : q;
}

#endif
