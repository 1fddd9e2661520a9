/* packed_linear.k.h: products of activations (T, K) with packed weights (N, K), made for one to four columns, with the norm of the
 * activations, a gate or a residual in the same launch. More columns are more groups of four.
 *
 * A group makes a tile's 32 results (of a gated product from a gate's tile and an up's) for up to four columns. A thread has one row
 * of the tile: its team of 32 reads 512 adjacent bytes at a time. The teams take the chunks in turn, so no sum crosses the lanes of a
 * wave, and its order follows from the number of columns K alone, on waves of any width and in any batch.
 *
 * Activations have 16 bits: x = d v, with one d per 32 columns and whole v of at most 32639 = 127 * 257, which is 256 q + r with
 * signed bytes q and r. So a stretch's products are two sums of bytes, exact in integers, and a product's error is that of 16 bits:
 * an NMSE of some 1e-9. The group makes them once for each chunk, four lanes a stretch, and lays them into local memory, from which
 * all lanes of a team read the same words.
 */
#ifndef SATCHEL_PACKED_LINEAR_K_H
#define SATCHEL_PACKED_LINEAR_K_H

#include "gated.k.h"
#include "packed.k.h"

/* --- activations */

/* The columns of a group, and the local memory that their norms lie in: norms[0] of the post-norm, norms[1] of the norm. */
typedef struct {
    int first, n;
    LOCAL float *norms, *room;
} packed_columns;

/* x of column t; of a post-norm h. */
FN float packed_input(CONSTANT gpu_call *c, packed_columns of, int t, int k) {
    float x = ROW(const float, c->v + 1, of.first + t)[k];
    if (!(c->mode & PACKED_POST))
        return x;
    return x / of.norms[t] * ROW(const float, c->v + c->n_in - 1, 0)[k] +
           ROW(const float, c->v + c->n_in, of.first + t)[k];
}

/* Leaves sqrt(mean(x^2) + eps) of each column in norms[which]; 1: of what packed_input() gives. */
FN void packed_measure(CONSTANT gpu_call *c, self m, packed_columns of, int which) {
    int k = c->v[1].shape[1];
    float eps = ((CONSTANT arg_norm_linear *)c->arg)->eps;
    for (int t = 0; t < of.n; t++) {
        float sum = 0;
        for (int i = m.thread; i < k; i += m.threads) {
            float x = which ? packed_input(c, of, t, i) : ROW(const float, c->v + 1, of.first + t)[i];
            sum += x * x;
        }
        sum = sqrtf(group_sum(m, sum, of.room) / (float)k + eps);
        if (m.thread == 0)
            of.norms[which * PACKED_COLUMNS + t] = sum;
    }
    BARRIER(m);
}

/* x after its norm, 0 past the row's end. The first group writes h. */
FN float packed_activation(CONSTANT gpu_call *c, self m, packed_columns of, int t, int k) {
    CONSTANT gpu_view *y = c->v, *x = c->v + 1;
    CONSTANT gpu_view *norm = c->v + c->n_in - (c->mode & PACKED_POST ? 2 : 0);
    float v;
    if (k >= x->shape[1])
        return 0;
    v = packed_input(c, of, t, k);
    if (c->mode & PACKED_POST && m.group[0] == 0)
        ROW(float, y, of.first + t)[y->shape[1] - x->shape[1] + k] = v;
    return c->mode & PACKED_NORM ? v / of.norms[PACKED_COLUMNS + t] * ROW(const float, norm, 0)[k] : v;
}

/* A float of at most 2^22 as the nearest integer: added to 1.5 * 2^23 it stands in the mantissa. */
FN int32_t nearest(float x) {
    return (int32_t)(f32_bits(x + 12582912.0f) - 0x4B400000u);
}

/* Makes a stretch's activations, a lane eight of them: lane `quarter` of four. where: NULL, or the stretch's place. */
FN void packed_quantize(self m, THREAD const float *x, int quarter, LOCAL uint32_t *where) {
    uint32_t most = 0, other, q[2] = {0, 0}, r[2] = {0, 0};
    float largest, inverse = 0, d = 0;
    int32_t sum = 0;
    UNROLLED
    for (int e = 0; e < 8; e++) {
        uint32_t bits = f32_bits(x[e]) & 0x7FFFFFFFu; /* a NaN's are above all */
        most = bits > most ? bits : most;
    }
    UNROLLED
    for (int o = 1; o < 4; o *= 2) {
        other = TAKE(m, most, m.lane ^ o);
        most = other > most ? other : most;
    }
    largest = f32_from_bits(most);
    if (most >= 0x7F800000u)
        d = f32_nan();
    else if (largest > 1e-33f) {
        d = largest * (1.0f / 32639.0f);
        inverse = 32639.0f / largest;
    }
    UNROLLED
    for (int e = 0; e < 8; e++) {
        int32_t v = inverse > 0 ? nearest(x[e] * inverse) : 0, upper = (v + 128) >> 8;
        sum += v;
        q[e / 4] |= ((uint32_t)upper & 255) << 8 * (e % 4);
        r[e / 4] |= ((uint32_t)(v - 256 * upper) & 255) << 8 * (e % 4);
    }
    UNROLLED
    for (int o = 1; o < 4; o *= 2)
        sum += (int32_t)TAKE(m, (uint32_t)sum, m.lane ^ o);
    if (!where)
        return;
    UNROLLED
    for (int i = 0; i < 2; i++) {
        where[2 * quarter + i] = q[i];
        where[8 + 2 * quarter + i] = r[i];
    }
    if (quarter == 0) {
        where[16] = f32_bits(d);
        where[17] = (uint32_t)sum;
    }
}

/* The activations of `ways` chunks from `from` on: to acts, chunk by chunk, of each the columns. A team makes a column of a chunk. */
FN void packed_stage(CONSTANT gpu_call *c, self m, packed_columns of, int from, int ways, LOCAL uint32_t *acts) {
    int teams = m.threads / PACKED_ROWS, lane = m.thread % PACKED_ROWS;
    for (int u = m.thread / PACKED_ROWS; u - m.thread / PACKED_ROWS < ways * of.n; u += teams) {
        int t = u / ways, way = u % ways, k = PACKED_CHUNK * (from + way) + 8 * lane;
        float x[8];
        for (int e = 0; e < 8; e++)
            x[e] = t < of.n ? packed_activation(c, m, of, t, k + e) : 0.0f;
        packed_quantize(m, x, lane % 4,
                        t < of.n ? acts + (PACKED_COLUMNS * way + t) * PACKED_NUMBERS + PACKED_STRETCH * (lane / 4)
                                 : NULL);
    }
}

/* --- products */

/* 256 times the upper bytes' sum and the lower ones'. */
FN int32_t packed_dot(THREAD const uint32_t *c, LOCAL const uint32_t *a, int parts) {
    int32_t upper = 0, lower = 0;
    UNROLLED
    for (int i = 0; i < parts; i++) {
        upper = DOT4(c[i], a[i], upper);
        lower = DOT4(c[i], a[8 + i], lower);
    }
    return 256 * upper + lower;
}

/* A stretch's product with one column, from the format's number. */
FN float packed_stretch(uint32_t format, THREAD const uint32_t *codes, packed_scale s, LOCAL const uint32_t *a) {
    float part;
    if (format == 14) /* a scale for 16 columns */
        part = fmaf(s.step[0], (float)packed_dot(codes, a, 4), s.step[1] * (float)packed_dot(codes + 4, a + 4, 4));
    else
        part = s.step[0] * (float)packed_dot(codes, a, 8);
    if (format == 12 || format == 13) /* minimums */
        part = fmaf(-s.low, (float)(int32_t)a[17], part);
    return f32_from_bits(a[16]) * part;
}

/* sums[t] += the row's part of a chunk times column t. All words are asked for first: loads would not pass the branches. */
#define PACKED_MULTIPLY(stem, number, words, more, block)                                                              \
    FN void packed_multiply_##stem(packed_place p, LOCAL const uint32_t *acts, int n, THREAD float *sums) {            \
        word_16 held[words];                                                                                           \
        UNROLLED                                                                                                       \
        for (int i = 0; i < (words); i++)                                                                              \
            held[i] = packed_word(p, i);                                                                               \
        p.held = held;                                                                                                 \
        UNROLLED                                                                                                       \
        for (int j = 0; j < 8; j++) {                                                                                  \
            uint32_t codes[8];                                                                                         \
            packed_scale s = packed_scale_##stem(p, j);                                                                \
            packed_codes_##stem(p, j, codes);                                                                          \
            UNROLLED                                                                                                   \
            for (int t = 0; t < PACKED_COLUMNS; t++)                                                                   \
                if (t < n)                                                                                             \
                    sums[t] += packed_stretch(number, codes, s, acts + t * PACKED_NUMBERS + PACKED_STRETCH * j);       \
        }                                                                                                              \
    }
PACKED_FORMATS(PACKED_MULTIPLY)

FN void packed_multiply(uint32_t format, packed_place p, LOCAL const uint32_t *acts, int n, THREAD float *sums) {
    switch (format & ~(uint32_t)PACKED_BIT) {
#define PACKED_CASE(stem, number, words, more, block)                                                                  \
    case number:                                                                                                       \
        packed_multiply_##stem(p, acts, n, sums);                                                                      \
        break;
        PACKED_FORMATS(PACKED_CASE)
#undef PACKED_CASE
    }
}

/* --- a group's tile */

typedef struct {
    DEVICE const char *data; /* its chunks */
    uint32_t format, bytes;  /* of a chunk */
    int column, left;        /* the output's column of its first row; rows that there are */
} packed_tile;

/* The tile of the group that half `second` of its teams multiplies. */
FN packed_tile packed_own_tile(CONSTANT gpu_call *c, self m, int second) {
    CONSTANT gpu_view *w = c->v + 2 + second;
    int tile = m.group[0], column = 0;
    packed_tile p;
    while (!(c->mode & PACKED_GATED) && tile >= packed_tiles(w->shape[0])) {
        tile -= packed_tiles(w->shape[0]);
        column += w->shape[0];
        w++;
    }
    p.bytes = packed_bytes(w->format);
    p.data = packed_tile_of(w, (int64_t)tile * PACKED_ROWS);
    p.format = w->format;
    p.column = column + tile * PACKED_ROWS;
    p.left = w->shape[0] - tile * PACKED_ROWS;
    return p;
}

/* Adds the teams' sums in their order, and does the rest of the op. */
FN void packed_finish(CONSTANT gpu_call *c, self m, packed_columns of, packed_tile p, int ways,
                      LOCAL const float *parts) {
    for (int i = m.thread; i < PACKED_ROWS * of.n; i += m.threads) {
        int t = i / PACKED_ROWS, row = i % PACKED_ROWS;
        LOCAL const float *own = parts + t * PACKED_ROWS + row;
        float sums[2] = {0, 0};
        for (int way = 0; way < ways; way++) {
            sums[0] += own[way * PACKED_COLUMNS * PACKED_ROWS];
            if (c->mode & PACKED_GATED)
                sums[1] += own[(ways + way) * PACKED_COLUMNS * PACKED_ROWS];
        }
        if (row >= p.left)
            continue;
        if (c->mode & PACKED_GELU)
            sums[0] = gelu_of(sums[0], ((CONSTANT arg_norm_linear_geglu *)c->arg)->style) * sums[1];
        else if (c->mode & PACKED_GATED)
            sums[0] = gated(sums[0], sums[1]);
        if (c->mode & PACKED_ADD)
            sums[0] += ROW(const float, c->v + c->n_in, of.first + t)[p.column + row];
        ROW(float, c->v, of.first + t)[p.column + row] = sums[0];
    }
}

#define PACKED_PRODUCT(name) KERNEL(name, GROUP)

PACKED_PRODUCT(packed_linear) {
    int k = c->v[1].shape[1], chunks = packed_chunks(k), ways = packed_ways(k, c->mode);
    int team = m.thread / PACKED_ROWS, row = m.thread % PACKED_ROWS, way = team % ways;
    LOCAL float *local = (LOCAL float *)m.local, *parts = local + PACKED_HEAD;
    LOCAL uint32_t *acts = (LOCAL uint32_t *)parts;
    packed_columns of = {m.group[1] * PACKED_COLUMNS, 0, local, local + 2 * PACKED_COLUMNS};
    packed_tile p = packed_own_tile(c, m, team / ways);
    float sums[PACKED_COLUMNS];
    UNROLLED
    for (int t = 0; t < PACKED_COLUMNS; t++)
        sums[t] = 0;
    of.n = rows_of(c, c->v) - of.first;
    of.n = of.n < PACKED_COLUMNS ? of.n : PACKED_COLUMNS;
    if (of.n <= 0)
        return;
    if (c->mode & PACKED_POST)
        packed_measure(c, m, of, 0);
    if (c->mode & PACKED_NORM)
        packed_measure(c, m, of, 1);
    for (int from = 0; from < chunks; from += ways) {
        packed_stage(c, m, of, from, ways, acts);
        BARRIER(m);
        if (from + way < chunks)
            packed_multiply(p.format, packed_place_of(p.data + (int64_t)(from + way) * p.bytes, p.bytes, row),
                            acts + PACKED_COLUMNS * PACKED_NUMBERS * way, of.n, sums);
        BARRIER(m);
    }
    UNROLLED
    for (int t = 0; t < PACKED_COLUMNS; t++)
        parts[(team * PACKED_COLUMNS + t) * PACKED_ROWS + row] = sums[t];
    BARRIER(m);
    packed_finish(c, m, of, p, ways, parts);
}

#endif
