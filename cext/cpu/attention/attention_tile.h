/* attention_tile.h: FlashAttention of one tile of query rows over one chunk of a slot's positions, by online softmax.
 *
 * A chunk is CHUNK positions from a multiple of CHUNK on, processed in spans of SPAN. The state of a row is its largest score
 * so far, the sum of weights and the weighted sum of values, both relative to that score (Milakov & Gimelshein, arXiv
 * 1805.02867; Dao et al., arXiv 2205.14135). Spans and chunks lie at fixed positions, and a row uses only the positions that
 * it sees, so its result depends on its own position alone, never on the tile. The thread's scratch holds everything: queries,
 * a span's keys by columns, its values by rows, scores and the state.
 */
#ifndef SATCHEL_CPU_ATTENTION_TILE_H
#define SATCHEL_CPU_ATTENTION_TILE_H

#include <math.h>

#include "cpu.h"
#include "kv_rows.h"
#include "softmax.h"
#include "tile_mul.h"

enum {
    ROWS = 192 /* most rows of a tile, unless one token has more */,
    SPAN = 64,
    CHUNK = 512,
    STRETCH = 8 /* rows */
};

/* Constants of one call. */
typedef struct {
    const cpu_call *c;
    const cpu_view *q, *k, *v, *table;
    int heads, kv_heads, group, block, d, dv;
    int d_pitch, dv_pitch; /* d and dv, rounded up to whole vectors */
    int tile;              /* most tokens of a tile */
    float scale, cap;      /* cap 0: none */
    int window, chunk, causal;
    int joint;           /* MLA: values are the first elements of keys and share their unpacked rows */
    int v_pitch;         /* floats from value to value of a span: dv_pitch, or d_pitch where joint */
    const float *sinks;  /* attention sinks: one logit per head, or NULL */
    const float *slopes; /* ALiBi slopes per head, or NULL */
    int least;           /* > 0: absorbed attention computes runs below `least` tokens, expanded attention the others */
    const cpu_view *positions; /* sparse attention: (T, k) positions that each token attends to; NULL: its whole past */
    const cpu_view *k_b, *v_b; /* expanded MLA: weights from latents to keys and values (attention_expand.h), or NULL */
    int rank, nope;            /* MLA: elements of a latent; elements of a key that are computed from it */
    int latent_pitch, made_pitch;
} setup;

/* Softmax state of a tile's rows: largest scores, sums of weights, then sums of values (rows, dv_pitch). */
typedef struct {
    float *most, *total, *sums;
} part;

/* Prefetch state: the next span's keys, then its values. */
typedef struct {
    const cpu_view *cache;
    int from, pos, to;
    const uint8_t *next, *end; /* the rest of the contiguous piece before `pos` */
} ahead;

/* One tile for one KV head. It has a row for each token and each query head of the KV head. */
typedef struct {
    const setup *s;
    int64_t token; /* index of the first of `tokens` */
    int tokens, rows, kv_head, pos;
    const int32_t *blocks; /* the slot's row of the block table */
    float *queries, *keys, *values, *scores, *lanes;
    float *paired;                           /* attention_amx.h: the queries as tile operands; else unused */
    float *latents, *made, *weights, *pairs; /* of attention_expand.h */
    float *results;                          /* the rest of the scratch */
    const int32_t *list; /* sparse attention: position i of the tile's one token is list[i]; NULL: position i is i */
    float *most, *base, *keep; /* per row, for one span: largest score, its base, factor of the old state */
    int *from, *to;            /* per row: it sees positions from .. to - 1 */
    int text, end;             /* one past the slot's last position in the step; one past the last that a row sees */
    int limit;                 /* one past the last position of this split */
    ahead *ahead;
} tile;

static inline int whole_vectors(int n) {
    return (n + LANES - 1) / LANES * LANES;
}

/* The first position that the query at `pos` sees. */
static inline int first_seen(const setup *s, int pos) {
    int first, back = s->causal ? s->window - 1 : s->window / 2;
    first = s->window > 0 && pos > back ? pos - back : 0;
    return s->chunk > 0 && first < pos / s->chunk * s->chunk ? pos / s->chunk * s->chunk : first;
}

/* The last position that the query at `pos` sees. */
static inline int last_seen(const tile *w, int pos) {
    int ahead = w->s->window / 2;
    if (w->s->causal)
        return pos;
    return w->s->window > 0 && pos < w->text - 1 - ahead ? pos + ahead : w->text - 1;
}

/* The positions *a to *b - 1 of the span from `start` on that a row sees, relative to start; none where *a >= *b. */
static inline void row_range(const tile *w, int row, int start, int *a, int *b) {
    *a = w->from[row] > start ? w->from[row] - start : 0;
    *b = w->to[row] - start < SPAN ? w->to[row] - start : SPAN;
}

static inline part part_at(float *at, int rows) {
    return (part){at, at + rows, at + 2 * (int64_t)rows};
}

static inline uint64_t part_floats(const setup *s, int rows) {
    return (uint64_t)rows * (uint64_t)(s->dv_pitch + 2);
}

static inline const uint8_t *cache_at(const tile *w, const cpu_view *cache, int32_t number, int pos) {
    int size = cache->shape[2], d = cache->shape[3];
    int64_t place = (int64_t)(w->s->rank ? 0 : w->kv_head) * size + pos % size; /* latents have one head */
    return cpu_row(cache, number) + (uint64_t)place * kv_bytes(cache->format, d);
}

/* The cached position of the tile's position number `pos` (they differ for sparse attention); -1: invalid. */
static inline int place_of(const tile *w, int pos) {
    int place = w->list ? w->list[pos] : pos;
    return place >= 0 && place / w->s->block < w->s->table->shape[1] ? place : -1;
}

/* The block of a cached position; -1: invalid. */
static inline int32_t block_at(const tile *w, const cpu_view *cache, int place) {
    int32_t number = place < 0 ? -1 : w->blocks[place / w->s->block];
    return number < cache->shape[0] ? number : -1;
}

/* The number of positions that are contiguous in the cache from `place` on. */
static inline int contiguous(const tile *w, int place) {
    return w->list ? 1 : w->s->block - place % w->s->block;
}

/* Prefetch: moves on to the next contiguous piece of the next span; 0 if there is none. */
static int next_piece(const tile *w) {
    ahead *x = w->ahead;
    int32_t number;
    int end, place;
    if (x->pos >= x->to && x->cache == w->s->k && !w->s->joint) {
        x->cache = w->s->v;
        x->pos = x->from;
    }
    if (x->pos >= x->to)
        return 0;
    place = place_of(w, x->pos);
    number = block_at(w, x->cache, place);
    if (number < 0) {
        x->to = 0;
        return 0;
    }
    end = x->pos + contiguous(w, place);
    end = end < x->to ? end : x->to;
    x->next = cache_at(w, x->cache, number, place);
    x->end = x->next + kv_bytes(x->cache->format, x->cache->shape[3]) * (uint64_t)(end - x->pos);
    x->pos = end;
    return 1;
}

/* Prefetches a few cache lines of the next span: a core has only about 16 outstanding loads. */
static inline void fetch(const tile *w, int lines) {
    ahead *x = w->ahead;
    for (; lines > 0 && (x->next < x->end || next_piece(w)); lines--, x->next += 64)
        __builtin_prefetch(x->next, 0, 2);
}

static void look_ahead(const tile *w, int from, int to) {
    *w->ahead = (ahead){w->s->k, from, from, to < w->limit ? to : w->limit, NULL, NULL};
}

/* Converts rows of positions from..to-1 to float32, with position `start` at `out`; 0 for an invalid block table. */
static int load_rows(const tile *w, const cpu_view *cache, int start, int from, int to, float *out, int pitch) {
    int d = cache->shape[3], n;
    uint64_t row = kv_bytes(cache->format, d);
    for (int pos = from; pos < to; pos += n) {
        int place = place_of(w, pos), left = contiguous(w, place);
        int32_t number = block_at(w, cache, place);
        const uint8_t *p;
        float *x = out + (int64_t)(pos - start) * pitch;
        n = left < to - pos ? left : to - pos;
        n = n < STRETCH ? n : STRETCH;
        if (number < 0)
            return 0;
        p = cache_at(w, cache, number, place);
        if (d == pitch)
            kv_load(cache->format, p, x, n * d);
        else
            for (int i = 0; i < n; i++)
                kv_load(cache->format, p + row * (uint64_t)i, x + (int64_t)i * pitch, d);
        fetch(w, 12);
    }
    return 1;
}

#include "attention_expand.h"

/* Unscaled scores of all rows at positions from..to-1, rounded out to whole vectors. Meanwhile the memory of values holds the
 * keys by rows. */
static int score_span(const tile *w, int start, int from, int to) {
    const setup *s = w->s;
    int a = (from - start) / LANES * LANES, b = whole_vectors(to - start);
    tile_product p = {w->queries, w->keys + a, w->scores + a, s->d, SPAN, SPAN, s->d, NULL};
    if (!(s->rank ? expand_keys(w, start, from, to) : load_rows(w, s->k, start, from, to, w->values, s->d_pitch)))
        return 0;
    for (int i = a; i < b; i += LANES) {
        tile_transpose(w->values + (int64_t)i * s->d_pitch, s->d_pitch, w->keys + i, SPAN, s->d_pitch);
        fetch(w, 8);
    }
    tile_multiply(&p, w->rows, (b - a) / LANES);
    return 1;
}

static inline void fill(float *x, float value, int from, int to) {
    for (; from < to; from++)
        x[from] = value;
}

/* Scales n vectors of scores to units of ln 2; gives the maximum per lane. */
TILE_INLINE vf scale_scores(float *p, int n, vf scale) {
    vf high = vf_set(-INFINITY);
    for (int j = 0; j < n; j++) {
        vf x = vf_load(p + j * LANES) * scale;
        vf_store(p + j * LANES, x);
        high = vf_max(high, x);
    }
    return high;
}

/* Scales n vectors of scores and applies the soft cap. */
TILE_INLINE void cap_scores(float *p, int n, float scale, float cap) {
    for (int j = 0; j < n; j++)
        vf_store(p + j * LANES, vf_tanh(vf_load(p + j * LANES) * vf_set(scale / cap)) * vf_set(cap));
}

/* ALiBi: scales n vectors of scores and subtracts slope * |position|, positions counted from the query; `at`: the first one. */
TILE_INLINE void lean_scores(float *p, int n, float scale, float slope, int at) {
    float steps[LANES];
    for (int i = 0; i < LANES; i++)
        steps[i] = (float)i;
    for (int j = 0; j < n; j++) {
        vf far = vf_load(steps) + vf_set((float)(at + j * LANES));
        far = vf_max(far, vf_set(0) - far);
        vf_store(p + j * LANES, vf_load(p + j * LANES) * vf_set(scale) - far * vf_set(slope));
    }
}

/* Turns n vectors of scores into softmax weights; gives their sum per lane. */
TILE_INLINE vf weigh_scores(float *p, int n, float base) {
    vf sum = vf_set(0);
    for (int j = 0; j < n; j++) {
        vf x = softmax_power(vf_load(p + j * LANES) - vf_set(base));
        vf_store(p + j * LANES, x);
        sum = sum + x;
    }
    return sum;
}

/* The largest score of a row, which sees a..b-1 of the span from `start` on. Scales the scores to units of ln 2 and masks
 * unseen ones with -inf. Vectors begin at multiples of LANES, so the result does not depend on the tile. */
static inline float most_of_row(const tile *w, int row, int start, int a, int b) {
    float *p = w->scores + (int64_t)row * SPAN;
    int first = a / LANES * LANES, last = whole_vectors(b);
    float factor = w->s->cap > 0 ? 1 : w->s->scale;
    vf scale, high;
    if (w->s->cap > 0)
        cap_scores(p + first, (last - first) / LANES, w->s->scale, w->s->cap);
    if (w->s->slopes) {
        float slope = w->s->slopes[w->kv_head * w->s->group + row % w->s->group];
        lean_scores(p + first, (last - first) / LANES, factor, slope, start + first - w->pos - row / w->s->group);
        factor = 1;
    }
    scale = vf_set(factor * 1.44269504f);
    if (a == 0 && b == SPAN)
        return softmax_most(scale_scores(p, SPAN / LANES, scale));
    high = scale_scores(p + first, (last - first) / LANES, scale);
    fill(p, -INFINITY, first, a);
    fill(p, -INFINITY, b, last);
    high = scale_scores(p + first, (last - first) / LANES, vf_set(1));
    return softmax_most(high);
}

static inline void weigh_row(const tile *w, int row, int a, int b) {
    float *p = w->scores + (int64_t)row * SPAN, *lanes = w->lanes + (int64_t)row * LANES;
    int first = a / LANES * LANES, last = whole_vectors(b);
    vf sum;
    if (first == 0 && last == SPAN)
        sum = weigh_scores(p, SPAN / LANES, w->base[row]);
    else
        sum = weigh_scores(p + first, (last - first) / LANES, w->base[row]);
    vf_store(lanes, vf_fma(vf_load(lanes), vf_set(w->keep[row]), sum));
}

/* Turns scores into weights relative to each row's largest score so far. `keep` is the factor that rescales earlier sums where
 * that score grows. A row without a score gets a finite base, because -inf - -inf is NaN. */
static void weigh_span(const tile *w, const part *state, int start) {
    int a, b;
    for (int r = 0; r < w->rows; r++) {
        row_range(w, r, start, &a, &b);
        w->most[r] = a < b ? most_of_row(w, r, start, a, b) : -INFINITY;
    }
    for (int r = 0; r < w->rows; r += LANES) {
        vf before = vf_load(state->most + r), most = vf_max(vf_load(w->most + r), before);
        vf base = vf_max(most, vf_set(-3.402823466e38f));
        vf_store(w->most + r, most);
        vf_store(w->base + r, base);
        vf_store(w->keep + r, softmax_power(before - base));
    }
    memcpy(state->most, w->most, sizeof(float) * (size_t)w->rows);
    for (int r = 0; r < w->rows; r++) {
        row_range(w, r, start, &a, &b);
        if (a < b)
            weigh_row(w, r, a, b);
    }
}

/* Multiplies `m` rows (1 to TILE_M) by `keep`, then adds weights times values of positions a..b-1 of the span. */
static void add_values(const tile *w, const part *state, const float *keep, int row, int m, int a, int b) {
    int pitch = w->s->dv_pitch, v_pitch = w->s->v_pitch;
    tile_product p = {w->scores + a, w->values + (int64_t)a * v_pitch, state->sums, SPAN, v_pitch, pitch, b - a, keep};
    if (a < b)
        tile_rows(&p, row, m, pitch / LANES);
}

/* Rows whose seen range begins at the same position are multiplied together over their common range. Unseen values are skipped,
 * not multiplied by 0, because they may be NaN. */
static void value_span(const tile *w, const part *state, int start) {
    static const float one = 1;
    for (int r = 0, m; r < w->rows; r += m) {
        int first, high, a, b, joint = 1;
        m = tile_step(w->rows - r);
        row_range(w, r, start, &first, &high);
        for (int i = r + 1; i < r + m; i++) {
            row_range(w, i, start, &a, &b);
            joint &= a == first;
            high = b < high ? b : high;
        }
        joint &= first < high;
        if (joint)
            add_values(w, state, w->keep + r, r, m, first, high);
        for (int i = r; i < r + m; i++) {
            row_range(w, i, start, &a, &b);
            add_values(w, state, joint ? &one : w->keep + i, i, 1, joint ? high : a, b);
        }
    }
}

static void start_chunk(const tile *w, const part *state) {
    fill(state->most, -INFINITY, 0, w->rows);
    memset(w->lanes, 0, sizeof(float) * (size_t)w->rows * LANES);
    memset(state->sums, 0, sizeof(float) * (size_t)w->rows * (size_t)w->s->dv_pitch);
}

/* Processes the span from `start` on, of which rows see positions from..to-1; 0 for an invalid block table. */
static int attend_span(const tile *w, const part *state, int start, int from, int to) {
    if (!score_span(w, start, from, to))
        return 0;
    fetch(w, 16);
    if (w->s->rank)
        expand_values(w, start, from, to);
    else if (!w->s->joint && !load_rows(w, w->s->v, start, from, to, w->values, w->s->dv_pitch))
        return 0;
    fetch(w, 16);
    weigh_span(w, state, start);
    fetch(w, 32);
    value_span(w, state, start);
    return 1;
}

#endif
