/* attention.c: causal attention of q (T, H, D) over paged caches (blocks, KV, block, D).
 *
 * A work item is one KV head and a tile of tokens that follow each other in one slot; its rows are the tile's tokens
 * times the query heads that share the KV head, so each key and value is loaded once for all of them. The cache is walked
 * twice, one block at a time, in order: for all scores of a row, then, when its softmax is known, for the values. A row's
 * sums are cut at fixed positions: results do not depend on tiles or threads. Each thread's scratch holds the tile's
 * queries, sums and scores over the whole context, and a block's keys or values as float32 where the cache is narrower.
 */
#include <math.h>

#include "cpu.h"
#include "simd.h"

enum { TILE_ROWS = 32, GROUP = 4, MAX_SCORES = 1 << 20 /* floats of a thread's scratch, unless one token needs more */ };

/* What does not change within one call. */
typedef struct {
    const cpu_call *c;
    const cpu_view *q, *k, *v, *table;
    int heads, kv_heads, group, block, d, dv;
    int tile;               /* tokens per tile, at most */
    int pitch;              /* floats from one row of scores to the next: every position of a slot, and a vector */
    float scale;
    int window;
} setup;

/* One work item, and where its parts of the scratch are. */
typedef struct {
    const setup *s;
    int64_t token;          /* the first of `tokens` */
    int tokens, rows, kv_head, pos;
    const int32_t *blocks;  /* the slot's row of the table */
    float *queries, *sums, *scores, *wide;
} item;

static setup setup_of(const cpu_call *c) {
    const arg_attention *a = c->arg;
    const cpu_view *q = c->v + 1, *k = c->v + 2, *v = c->v + 3;
    setup s = {.c = c, .q = q, .k = k, .v = v, .table = c->v + 6, .heads = q->shape[1], .kv_heads = k->shape[1]};
    s.group = s.heads / s.kv_heads;
    s.block = k->shape[2];
    s.d = k->shape[3];
    s.dv = v->shape[3];
    s.tile = s.group < TILE_ROWS ? TILE_ROWS / s.group : 1;
    s.pitch = c->v[6].shape[1] * s.block + LANES;
    while (s.tile > 1 && (int64_t)s.tile * s.group * s.pitch > MAX_SCORES)
        s.tile--;
    s.scale = a->scale;
    s.window = a->window;
    return s;
}

static const char *check_cache(const cpu_view *k, const cpu_view *v, const cpu_view *q, const cpu_view *table) {
    if (k->ndim != 4 || v->ndim != 4 || memcmp(k->shape, v->shape, 3 * sizeof(int32_t)) != 0 || k->format != v->format)
        return "k and v must be caches (blocks, KV, block, D) of one format";
    if (k->format != F32 && k->format != F16 && k->format != BF16)
        return "the caches must be f32, f16 or bf16";
    if ((int64_t)table->shape[1] * k->shape[2] > INT32_MAX / 2)
        return "the table holds more positions than can be counted";
    if (k->shape[3] != q->shape[2] || q->shape[1] % k->shape[1])
        return "q must have the keys' D, and a multiple of KV heads";
    return NULL;
}

static const char *check(const cpu_call *c) {
    const cpu_view *y = c->v, *q = c->v + 1, *v = c->v + 3;
    if (c->n_in != 6)
        return "it takes q, k, v, slot, pos and table";
    if (!cpu_is(q, F32, 3))
        return "q must be f32 (T, H, D)";
    for (int i = 4; i < 6; i++)
        if (!cpu_is(c->v + i, I32, 1) || c->v[i].shape[0] != q->shape[0])
            return "slot and pos must be i32 (T)";
    if (!cpu_is(c->v + 6, I32, 2))
        return "table must be i32 (S, B)";
    if (!cpu_is(y, F32, 2) || y->shape[0] != q->shape[0] || y->shape[1] != q->shape[1] * v->shape[3])
        return "the output must be f32 (T, H * D)";
    if (((const arg_attention *)c->arg)->window < 0)
        return "window must not be negative";
    return check_cache(c->v + 2, v, q, c->v + 6);
}

static int tile_rows(const setup *s) {
    return s->tile * s->group;
}

static uint64_t scratch(const cpu_call *c) {
    setup s = setup_of(c);
    uint64_t rows = (uint64_t)tile_rows(&s);
    uint64_t wide = s.k->format == F32 ? 0 : (uint64_t)s.block * (uint64_t)(s.d > s.dv ? s.d : s.dv);
    return sizeof(float) * (rows * ((uint64_t)s.d + (uint64_t)s.dv + (uint64_t)s.pitch) + wide + LANES);
}

static cpu_split split(const cpu_call *c) {
    setup s = setup_of(c);
    return (cpu_split){s.kv_heads, 1};
}

static void widen(uint32_t format, const void *from, float *to, int n) {
    const uint16_t *half = from;
    int i = 0;
    for (; i + LANES <= n; i += LANES)
        vf_store(to + i, format == F16 ? vf_load_f16(half + i) : vf_load_bf16(half + i));
    for (; i < n; i++)
        to[i] = format == F16 ? f16_to_f32(half[i]) : bf16_to_f32(half[i]);
}

/* `n` rows of this block's keys or values as float32: in place, or in `to`. */
static const float *rows_of(const cpu_view *cache, int32_t block, int kv_head, int first, int n, float *to) {
    int size = cache->shape[2], d = cache->shape[3];
    uint64_t place = ((uint64_t)kv_head * (uint64_t)size + (uint64_t)first) * (uint64_t)d;
    const uint8_t *data = cpu_row(cache, block) + place * (cache->format == F32 ? 4 : 2);
    if (cache->format == F32)
        return (const float *)data;
    widen(cache->format, data, to, n * d);
    return to;
}

/* Products of `m` queries (1 to GROUP) with one key. */
static inline __attribute__((always_inline)) void dot_key(const float *const *q, const float *key, int d, int m,
                                                          float *out) {
    vf sum[GROUP];
    int i = 0;
    for (int r = 0; r < m; r++)
        sum[r] = vf_set(0);
    for (; i + LANES <= d; i += LANES)
        for (int r = 0; r < m; r++)
            sum[r] = vf_fma(vf_load(q[r] + i), vf_load(key + i), sum[r]);
    if (i < d)
        for (int r = 0; r < m; r++)
            sum[r] = vf_fma(vf_load_n(q[r] + i, d - i), vf_load_n(key + i, d - i), sum[r]);
    for (int r = 0; r < m; r++)
        out[r] = vf_sum(sum[r]);
}

static void load_queries(const item *w) {
    const setup *s = w->s;
    for (int r = 0; r < w->rows; r++) {
        int head = w->kv_head * s->group + r % s->group;
        float *q = w->queries + (int64_t)r * s->d;
        memcpy(q, cpu_f32(s->q, w->token + r / s->group) + (int64_t)head * s->d, sizeof(float) * (size_t)s->d);
    }
}

/* Scores of all rows at positions from..to-1; `keys` is the key of position `from`. */
static void score_block(const item *w, const float *keys, int from, int to) {
    const setup *s = w->s;
    for (int r = 0; r < w->rows; r += GROUP) {
        int m = w->rows - r < GROUP ? w->rows - r : GROUP;
        const float *q[GROUP];
        for (int i = 0; i < m; i++)
            q[i] = w->queries + (int64_t)(r + i) * s->d;
        for (int j = from; j < to; j++) {
            const float *key = keys + (int64_t)(j - from) * s->d;
            float out[GROUP];
            if (m == GROUP)
                dot_key(q, key, s->d, GROUP, out);
            else
                dot_key(q, key, s->d, m, out);
            for (int i = 0; i < m; i++)
                w->scores[(int64_t)(r + i) * s->pitch + j] = out[i] * s->scale;
        }
    }
}

static void fill(float *x, float value, int from, int to) {
    for (; from < to; from++)
        x[from] = value;
}

/* Turns the scores of a row that sees positions a..b-1 into weights; the tile's other positions from..to-1 get 0. Vectors
 * lie at multiples of LANES in every row, so the sum does not depend on the tile. */
static void weigh_row(const item *w, int row, int a, int b, int from, int to) {
    const setup *s = w->s;
    float *p = w->scores + (int64_t)row * s->pitch, most = -INFINITY;
    int first = a / LANES * LANES, last = (b + LANES - 1) / LANES * LANES;
    vf sum = vf_set(0), total;
    for (int j = a; j < b; j++)
        most = p[j] > most || p[j] != p[j] ? p[j] : most;
    fill(p, -INFINITY, first, a);
    fill(p, -INFINITY, b, last);
    for (int j = first; j < last; j += LANES) {
        vf e = vf_exp(vf_load(p + j) - vf_set(most));
        vf_store(p + j, e);
        sum = sum + e;
    }
    total = vf_set(vf_sum(sum));
    for (int j = first; j < last; j += LANES)
        vf_store(p + j, vf_load(p + j) / total);
    fill(p, 0, from, a);
    fill(p, 0, b, to);
}

/* Adds weights x values to the sums of `m` rows (1 to GROUP), LANES numbers (or n of them) from `at` on. */
static inline __attribute__((always_inline)) void add_values(const item *w, const float *values, int row, int m, int at,
                                                             int n, int from, int to) {
    const setup *s = w->s;
    vf sum[GROUP];
    for (int r = 0; r < m; r++) {
        const float *x = w->sums + (int64_t)(row + r) * s->dv + at;
        sum[r] = n < LANES ? vf_load_n(x, n) : vf_load(x);
    }
    for (int j = from; j < to; j++) {
        const float *x = values + (int64_t)(j - from) * s->dv + at;
        vf value = n < LANES ? vf_load_n(x, n) : vf_load(x);
        for (int r = 0; r < m; r++)
            sum[r] = vf_fma(vf_set(w->scores[(int64_t)(row + r) * s->pitch + j]), value, sum[r]);
    }
    for (int r = 0; r < m; r++) {
        float *x = w->sums + (int64_t)(row + r) * s->dv + at;
        if (n < LANES)
            vf_store_n(x, sum[r], n);
        else
            vf_store(x, sum[r]);
    }
}

static void value_block(const item *w, const float *values, int from, int to) {
    int dv = w->s->dv;
    for (int r = 0; r < w->rows; r += GROUP) {
        int m = w->rows - r < GROUP ? w->rows - r : GROUP;
        for (int at = 0; at < dv; at += LANES) {
            int n = dv - at < LANES ? dv - at : LANES;
            if (m == GROUP)
                add_values(w, values, r, GROUP, at, n, from, to);
            else
                add_values(w, values, r, m, at, n, from, to);
        }
    }
}

/* The first position that the query at `pos` sees. */
static int first_seen(const setup *s, int pos) {
    return s->window > 0 && pos + 1 > s->window ? pos + 1 - s->window : 0;
}

/* Walks the cache blocks that hold positions from..to-1 of the slot, scoring keys or adding values; 0 for a bad table. */
static int walk(const item *w, const cpu_view *cache, int from, int to,
                void (*each)(const item *, const float *, int, int)) {
    int block = w->s->block;
    for (int start = from / block * block; start < to; start += block) {
        int number = w->blocks[start / block], a = from > start ? from : start;
        int b = to < start + block ? to : start + block;
        if (number < 0 || number >= cache->shape[0])
            return 0;
        each(w, rows_of(cache, number, w->kv_head, a - start, b - a, w->wide), a, b);
    }
    return 1;
}

static int attend(const item *w) {
    const setup *s = w->s;
    int from = first_seen(s, w->pos), to = w->pos + w->tokens;
    if (w->blocks == NULL || (to - 1) / s->block >= s->table->shape[1])
        return 0;
    load_queries(w);
    if (!walk(w, s->k, from, to, score_block))
        return 0;
    for (int r = 0; r < w->rows; r++) {
        int pos = w->pos + r / s->group;
        weigh_row(w, r, first_seen(s, pos), pos + 1, from, to);
    }
    return walk(w, s->v, from, to, value_block);
}

static void run_item(const item *w) {
    const setup *s = w->s;
    int good;
    memset(w->sums, 0, sizeof(float) * (size_t)w->rows * (size_t)s->dv);
    good = attend(w);
    if (!good)
        cpu_fault(s->c);
    for (int r = 0; r < w->rows; r++) {
        int head = w->kv_head * s->group + r % s->group;
        float *y = cpu_f32(s->c->v, w->token + r / s->group) + (int64_t)head * s->dv;
        if (good)
            memcpy(y, w->sums + (int64_t)r * s->dv, sizeof(float) * (size_t)s->dv);
        else
            memset(y, 0, sizeof(float) * (size_t)s->dv);
    }
}

/* How many tokens from t on form a tile: one slot, positions that follow each other. A bad one is a tile of its own. */
static int tile_at(const setup *s, int64_t t) {
    int32_t slot = cpu_i32(s->c->v + 4, t), pos = cpu_i32(s->c->v + 5, t);
    int n = 1;
    if (slot < 0 || slot >= s->table->shape[0] || pos < 0 || pos > INT32_MAX - s->tile)
        return 1;
    while (n < s->tile && t + n < s->q->shape[0] && cpu_i32(s->c->v + 4, t + n) == slot &&
           cpu_i32(s->c->v + 5, t + n) == pos + n)
        n++;
    return n;
}

static item item_at(const setup *s, int64_t t, int tokens, float *scratch) {
    int32_t slot = cpu_i32(s->c->v + 4, t), pos = cpu_i32(s->c->v + 5, t);
    int64_t rows = tile_rows(s);
    item w = {.s = s, .token = t, .tokens = tokens, .rows = tokens * s->group, .pos = pos};
    if (slot >= 0 && slot < s->table->shape[0] && pos >= 0 && pos <= INT32_MAX - s->tile)
        w.blocks = (const int32_t *)cpu_row(s->table, slot);
    w.queries = scratch;
    w.sums = w.queries + rows * s->d;
    w.scores = w.sums + rows * s->dv;
    w.wide = w.scores + rows * s->pitch;
    return w;
}

/* An item is a KV head. */
static void run(const cpu_call *c, int64_t from, int64_t to, int thread) {
    setup s = setup_of(c);
    for (int64_t t = 0; t < s.q->shape[0];) {
        int tokens = tile_at(&s, t);
        item w = item_at(&s, t, tokens, (float *)cpu_scratch(c, thread));
        for (w.kv_head = (int)from; w.kv_head < to; w.kv_head++)
            run_item(&w);
        t += tokens;
    }
}

CPU_KERNEL(attention) = {check, scratch, split, run};
