/* attention.c: causal attention of q (T, H, D) over paged caches (blocks, KV, block, D).
 *
 * A tile is tokens that follow each other in one slot, for one KV head, with all query heads that share it; so a key or
 * value is loaded once for all of them. The past is cut into chunks of fixed size, whose results (attention_tile.h, attention_amx.h) are
 * merged in pairs, pairs of pairs and so on, by the chunks' numbers: the tree, and so every bit, depends on a token's
 * position alone. A work item is a group of tokens, a KV head, and one of `splits` stretches of chunks, each a subtree;
 * with more than one the results wait in the memory that all threads share, and who finishes a tile last merges them.
 * A thread's scratch holds one tile and one merged result per level of the tree; it hardly grows with the context.
 */
#include "attention_amx.h"

enum { SPLITS = 16, ITEMS = 128 /* more splits than give so many items are not made */ };
enum { LEVELS = 24 };

/* How a call is cut into items. */
typedef struct {
    int64_t groups; /* of tile tokens each */
    int splits;
} cut;

/* The chunks of a tile, and how they are dealt to splits: each takes those of `width` from a multiple of width on. */
typedef struct {
    int first, last, width, splits;
} dealt;

/* Results that wait for their neighbours in the tree, one a level, and the one that is being made. */
typedef struct {
    const setup *s;
    int rows;
    part now, waiting[LEVELS];
    uint32_t full;
} tree;

static setup setup_of(const cpu_call *c) {
    const arg_attention *a = c->arg;
    const cpu_view *q = c->v + 1, *k = c->v + 2, *v = c->v + 3;
    setup s = {.c = c, .q = q, .k = k, .v = v, .table = c->v + 6, .heads = q->shape[1], .kv_heads = k->shape[1]};
    s.group = s.heads / s.kv_heads;
    s.block = k->shape[2];
    s.d = k->shape[3];
    s.dv = a->value ? a->value : v->shape[3];
    s.d_pitch = whole_vectors(s.d);
    s.dv_pitch = whole_vectors(s.dv);
    s.tile = s.group < ROWS ? ROWS / s.group : 1;
    s.scale = a->scale;
    s.window = a->window;
    s.chunk = a->chunk;
    s.causal = a->causal;
    s.joint = a->value > 0;
    s.v_pitch = s.joint ? s.d_pitch : s.dv_pitch;
    s.sinks = c->n_in - a->alibi == 7 ? cpu_f32(c->v + 7, 0) : NULL;
    s.slopes = a->alibi ? cpu_f32(c->v + c->n_in, 0) : NULL;
    s.cap = a->cap;
    return s;
}

static const char *check_cache(const cpu_view *k, const cpu_view *v, const cpu_view *q, const cpu_view *table) {
    if (k->ndim != 4 || v->ndim != 4 || memcmp(k->shape, v->shape, 3 * sizeof(int32_t)) != 0)
        return "k and v must be caches (blocks, KV, block, D)";
    if (!kv_bytes(k->format, KV_BLOCK) || !kv_bytes(v->format, KV_BLOCK))
        return "the caches must be " KV_FORMATS;
    if ((int64_t)table->shape[1] * k->shape[2] > INT32_MAX / 2)
        return "the table holds more positions than can be counted";
    if (k->shape[3] != q->shape[2] || q->shape[1] % k->shape[1])
        return "q must have the keys' D, and a multiple of KV heads";
    return NULL;
}

static const char *check_kind(const cpu_call *c) {
    const cpu_view *q = c->v + 1, *k = c->v + 2, *v = c->v + 3;
    const arg_attention *a = c->arg;
    if (a->window < 0 || a->chunk < 0 || a->value < 0 || !(a->cap >= 0))
        return "window, cap, chunk and value must not be negative";
    if (a->value && (k->format != v->format || !cpu_same_shape(k, v) || a->value > k->shape[3]))
        return "with values in the keys, k and v must be the same, and as wide";
    for (const cpu_view *x = c->v + 7; x <= c->v + c->n_in; x++)
        if (!cpu_is(x, F32, 1) || x->shape[0] != q->shape[1] || x->stride != sizeof(float))
            return "sinks and slopes must be f32 (H)";
    return !a->causal && a->chunk ? "chunks must be causal" : NULL;
}

static const char *check(const cpu_call *c) {
    const cpu_view *y = c->v, *q = c->v + 1, *v = c->v + 3;
    const arg_attention *a = c->arg;
    int32_t value = a->value;
    const char *fault;
    if (a->alibi < 0 || a->alibi > 1 || (c->n_in - a->alibi != 6 && c->n_in - a->alibi != 7))
        return "it takes q, k, v, slot, pos and table, may take sinks, and with alibi 1 slopes";
    if (!cpu_is(q, F32, 3))
        return "q must be f32 (T, H, D)";
    for (int i = 4; i < 6; i++)
        if (!cpu_is(c->v + i, I32, 1) || c->v[i].shape[0] != q->shape[0])
            return "slot and pos must be i32 (T)";
    if (!cpu_is(c->v + 6, I32, 2))
        return "table must be i32 (S, B)";
    if (!cpu_is(y, F32, 2) || y->shape[0] != q->shape[0] || y->shape[1] != (int64_t)q->shape[1] * (value ? value : v->shape[3]))
        return "the output must be f32 (T, H * D)";
    fault = check_cache(c->v + 2, v, q, c->v + 6);
    return fault ? fault : check_kind(c);
}

static int64_t most_chunks(const setup *s) {
    return ((int64_t)s->table->shape[1] * s->block + CHUNK - 1) / CHUNK;
}

static cut cut_of(const setup *s) {
    cut x = {(s->q->shape[0] + s->tile - 1) / s->tile, 1};
    while (x.splits < SPLITS && x.splits < most_chunks(s) && 2 * x.splits * x.groups * s->kv_heads <= ITEMS)
        x.splits *= 2;
    return x;
}

static cpu_split split(const cpu_call *c) {
    setup s = setup_of(c);
    cut x = cut_of(&s);
    return (cpu_split){x.groups * s.kv_heads * x.splits, 1};
}

static int tile_rows_most(const setup *s) {
    return s->tile * s->group;
}

static int levels(const setup *s) {
    int n = 1;
    while (n < LEVELS && (int64_t)1 << (n - 1) < most_chunks(s))
        n++;
    return n;
}

static uint64_t scratch(const cpu_call *c) {
    setup s = setup_of(c);
    uint64_t rows = (uint64_t)tile_rows_most(&s), wide = (uint64_t)(s.d_pitch > s.dv_pitch ? s.d_pitch : s.dv_pitch);
    uint64_t n = rows * (uint64_t)s.d + (uint64_t)SPAN * ((uint64_t)s.d_pitch + wide) + rows * (SPAN + LANES);
    n += 5 * (uint64_t)whole_vectors((int)rows) + (has_tiles(&s) ? rows * (uint64_t)s.d : 0);
    return sizeof(float) * (n + (uint64_t)(levels(&s) + 1) * part_floats(&s, (int)rows));
}

/* Counters, then for each split, KV head and token the state of its rows. Fewer tokens may get more splits: the size is
 * the most that any number of tokens up to this one needs. */
static uint64_t shared(const cpu_call *c) {
    setup s = setup_of(c);
    if (most_chunks(&s) < 2 || s.kv_heads * 2 > ITEMS)
        return 0;
    uint64_t items = ITEMS * (uint64_t)s.tile, own = SPLITS * (uint64_t)s.kv_heads * (uint64_t)s.q->shape[0];
    return CPU_COUNTERS * sizeof(atomic_int) + sizeof(float) * (items < own ? items : own) * part_floats(&s, s.group);
}

static void load_queries(const tile *w) {
    const setup *s = w->s;
    for (int r = 0; r < w->rows; r++) {
        int head = w->kv_head * s->group + r % s->group;
        float *q = w->queries + (int64_t)r * s->d;
        memcpy(q, cpu_f32(s->q, w->token + r / s->group) + (int64_t)head * s->d, sizeof(float) * (size_t)s->d);
        int pos = w->pos + r / s->group;
        w->to[r] = last_seen(w, pos) + 1;
        w->from[r] = first_seen(s, pos);
    }
}

static inline int unseen(const part *p, int row) {
    return p->most[row] == -INFINITY && p->total[row] == 0;
}

/* b = the state of each row after a and b. A row that saw nothing of one is what it is in the other. */
static void merge(const setup *s, const part *a, const part *b, int rows) {
    int pitch = s->dv_pitch;
    for (int r = 0; r < rows; r++) {
        float *x = b->sums + (int64_t)r * pitch, both[LANES] = {a->most[r], b->most[r]};
        const float *y = a->sums + (int64_t)r * pitch;
        float most = both[0] > both[1] ? both[0] : both[1];
        if (unseen(a, r))
            continue;
        if (unseen(b, r))
            both[0] = 0, both[1] = -INFINITY, most = a->most[r];
        else {
            both[0] -= most == -INFINITY ? 0 : most;
            both[1] -= most == -INFINITY ? 0 : most;
        }
        vf_store(both, softmax_power(vf_load(both)));
        b->most[r] = most;
        b->total[r] = a->total[r] * both[0] + b->total[r] * both[1];
        for (int i = 0; i < pitch; i += LANES)
            vf_store(x + i, vf_fma(vf_load(y + i), vf_set(both[0]), vf_load(x + i) * vf_set(both[1])));
    }
}

/* The result of number `number` of its level, which `now` holds, takes its place; results come in order. */
static void push(tree *t, int number) {
    int level = 0;
    for (; number & 1; number >>= 1, level++)
        if (t->full >> level & 1) {
            merge(t->s, t->waiting + level, &t->now, t->rows);
            t->full &= ~(1u << level);
        }
    part free = t->waiting[level];
    t->waiting[level] = t->now;
    t->now = free;
    t->full |= 1u << level;
}

/* What has been pushed, as one result in `now`. */
static void collect(tree *t) {
    int any = 0;
    for (int level = 0; level < LEVELS; level++) {
        if (!(t->full >> level & 1))
            continue;
        if (any)
            merge(t->s, t->waiting + level, &t->now, t->rows);
        else {
            part free = t->waiting[level];
            t->waiting[level] = t->now;
            t->now = free;
        }
        any = 1;
    }
    t->full = 0;
}

static tree tree_at(const setup *s, float *at, int rows) {
    tree t = {.s = s, .rows = rows, .now = part_at(at, rows)};
    for (int i = 0, n = levels(s); i < n; i++)
        t.waiting[i] = part_at(at += part_floats(s, rows), rows);
    return t;
}

/* What a row's sums are multiplied by in the end: one over the sum of weights, of which a head's sink has its share. */
static float inverse_sum(const setup *s, const part *state, int row, int head) {
    float sink = s->sinks ? s->sinks[head] * 1.44269504f : -INFINITY, total = state->total[row];
    float apart[LANES] = {sink > state->most[row] ? state->most[row] - sink : sink - state->most[row]};
    if (!s->sinks)
        return 1 / total;
    vf_store(apart, softmax_power(vf_load(apart)));
    return sink > state->most[row] ? apart[0] / (total * apart[0] + 1) : 1 / (total + apart[0]);
}

/* 0 for rows whose table was bad: the run fails. */
static void write_rows(const tile *w, const part *state, int good) {
    const setup *s = w->s;
    for (int r = 0; r < w->rows; r++) {
        int head = w->kv_head * s->group + r % s->group;
        float *y = cpu_f32(s->c->v, w->token + r / s->group) + (int64_t)head * s->dv, inverse = inverse_sum(s, state, r, head);
        const float *x = state->sums + (int64_t)r * s->dv_pitch;
        for (int i = 0; i < s->dv; i++)
            y[i] = good ? x[i] * inverse : 0;
    }
}

static dealt deal(const tile *w, int splits) {
    dealt x = {first_seen(w->s, w->pos) / CHUNK, (w->end - 1) / CHUNK, 1, 0};
    while ((x.splits = x.last / x.width - x.first / x.width + 1) > splits)
        x.width *= 2;
    return x;
}

/* A split's rows among those of all tokens: (splits, KV, T, group). */
static part shared_part(const tile *w, int split) {
    const setup *s = w->s;
    int64_t unit = ((int64_t)split * s->kv_heads + w->kv_head) * s->q->shape[0] + w->token;
    float *all = (float *)(s->c->shared + CPU_COUNTERS * sizeof(atomic_int));
    return part_at(all + (uint64_t)unit * part_floats(s, s->group), w->rows);
}

static void copy_part(const setup *s, const part *from, const part *to, int rows) {
    memcpy(to->most, from->most, sizeof(float) * part_floats(s, rows));
}

/* Leaves a split's result for the others; the last one of the tile merges them all, in the tree's order. */
static void join(const tile *w, const dealt *x, int split, tree *t, int good) {
    atomic_int *counter = (atomic_int *)w->s->c->shared + w->token * w->s->kv_heads + w->kv_head;
    part mine = shared_part(w, split);
    copy_part(w->s, &t->now, &mine, w->rows);
    if (atomic_fetch_add_explicit(counter, 1, memory_order_acq_rel) + 1 < x->splits)
        return;
    atomic_store_explicit(counter, 0, memory_order_relaxed);
    for (int i = 0; i < x->splits; i++) {
        part one = shared_part(w, i);
        copy_part(w->s, &one, &t->now, w->rows);
        push(t, x->first / x->width + i);
    }
    collect(t);
    write_rows(w, &t->now, good);
}

/* A tile's part in one split of the chunks. */
static void run_tile(tile *w, int split, int splits, float *results) {
    dealt x = deal(w, splits);
    tree t = tree_at(w->s, results, w->rows);
    int good = w->blocks != NULL, first = (x.first / x.width + split) * x.width, last = first + x.width - 1;
    if (split >= x.splits)
        return;
    first = first > x.first ? first : x.first;
    last = last < x.last ? last : x.last;
    w->limit = w->end - last * CHUNK < CHUNK ? w->end : (last + 1) * CHUNK;
    load_queries(w);
    if (has_tiles(w->s))
        tile_queries(w);
    for (int chunk = first; chunk <= last && good; chunk++) {
        good = attend_chunk(w, chunk, &t.now);
        push(&t, chunk);
    }
    collect(&t);
    if (!good)
        cpu_fault(w->s->c);
    if (x.splits > 1)
        join(w, &x, split, &t, good);
    else
        write_rows(w, &t.now, good);
}

static int follows(const setup *s, int64_t t) {
    return cpu_i32(s->c->v + 4, t) == cpu_i32(s->c->v + 4, t - 1) &&
           (int64_t)cpu_i32(s->c->v + 5, t) == (int64_t)cpu_i32(s->c->v + 5, t - 1) + 1;
}

/* The position after the last one that a token of the tile sees; the slot's whole text is looked through where queries see
 * what comes after them. */
static int end_of(const tile *w, int32_t slot) {
    const setup *s = w->s;
    int last = w->pos + w->tokens - 1;
    if (s->causal)
        return last + 1;
    for (int64_t t = 0; t < s->q->shape[0]; t++)
        if (cpu_i32(s->c->v + 4, t) == slot && cpu_i32(s->c->v + 5, t) > last)
            last = cpu_i32(s->c->v + 5, t);
    return last < INT32_MAX ? last + 1 : last;
}

/* The tile that begins at token t: up to `end`, one slot, positions that follow each other. */
static tile tile_at(const setup *s, int64_t t, int64_t end, float *scratch) {
    int32_t slot = cpu_i32(s->c->v + 4, t), pos = cpu_i32(s->c->v + 5, t);
    int64_t rows = tile_rows_most(s), vectors = whole_vectors((int)rows);
    tile w = {.s = s, .token = t, .tokens = 1, .pos = pos};
    while (t + w.tokens < end && follows(s, t + w.tokens))
        w.tokens++;
    w.rows = w.tokens * s->group;
    w.text = w.end = end_of(&w, slot);
    if (!s->causal && s->window > 0 && w.end - w.pos - w.tokens > s->window / 2)
        w.end = w.pos + w.tokens + s->window / 2;
    if (slot >= 0 && slot < s->table->shape[0] && pos >= 0 && (w.end - (int64_t)1) / s->block < s->table->shape[1])
        w.blocks = (const int32_t *)cpu_row(s->table, slot);
    w.queries = scratch;
    w.keys = w.queries + rows * s->d;
    w.values = w.keys + (int64_t)SPAN * s->d_pitch;
    w.scores = w.values + (int64_t)SPAN * (s->d_pitch > s->dv_pitch ? s->d_pitch : s->dv_pitch);
    w.lanes = w.scores + rows * SPAN;
    w.most = w.lanes + rows * LANES;
    w.base = w.most + vectors;
    w.keep = w.base + vectors;
    w.from = (int *)(w.keep + vectors);
    w.to = w.from + vectors;
    w.paired = (float *)(w.to + vectors);
    return w;
}

static void run_item(const setup *s, cut x, int64_t item, float *scratch) {
    int64_t group = item / x.splits / s->kv_heads, t = group * s->tile, end = t + s->tile;
    end = end < s->q->shape[0] ? end : s->q->shape[0];
    while (t < end) {
        ahead memory;
        tile w = tile_at(s, t, end, scratch);
        w.ahead = &memory;
        w.kv_head = (int)(item / x.splits % s->kv_heads);
        if (w.blocks)
            run_tile(&w, (int)(item % x.splits), x.splits, w.paired + (has_tiles(s) ? (int64_t)tile_rows_most(s) * s->d : 0));
        else
            cpu_fault(s->c);
        t += w.tokens;
    }
}

static void run(const cpu_call *c, int64_t from, int64_t to, int thread) {
    setup s = setup_of(c);
    cut x = cut_of(&s);
    tiles_begin(&s);
    for (; from < to; from++)
        run_item(&s, x, from, (float *)cpu_scratch(c, thread));
    tiles_end(&s);
}

CPU_KERNEL(attention) = {check, scratch, split, run, .shared = shared};
