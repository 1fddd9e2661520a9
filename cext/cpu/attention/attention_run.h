/* attention_run.h: partitions attention (attention.c, attention_latent.c) into work items and merges their results, as
 * Flash-Decoding does.
 *
 * A tile is consecutive tokens of one slot, for one KV head and all query heads that share it, so a key or value is loaded
 * once for all of them. The past is cut into chunks of fixed size. The chunks' results (attention_tile.h, attention_amx.h) are
 * merged in a binary tree over the chunks' numbers, so the tree, and every bit, depends on a token's position alone. A work
 * item is a group of tokens, a KV head and one of `splits` ranges of chunks, each a subtree. With several splits, results go
 * to the scratch that all threads share, and the thread that finishes a tile last merges them. A thread's own scratch holds
 * one tile and one merged result per level of the tree; it hardly grows with the context.
 */
#ifndef SATCHEL_CPU_ATTENTION_RUN_H
#define SATCHEL_CPU_ATTENTION_RUN_H

#include "attention_amx.h"

enum { SPLITS = 16, ITEMS = 128 /* splits are added up to about this many items */ };
enum { LEVELS = 24 };

/* Partition of a call into items. */
typedef struct {
    int64_t groups; /* number of groups of `tile` tokens */
    int splits;
} cut;

/* The chunks of a tile, and their assignment to splits: a split takes `width` chunks, from a multiple of width on. */
typedef struct {
    int first, last, width, splits;
} dealt;

/* The merge tree: at each level at most one result that waits for its sibling, and the result in progress. */
typedef struct {
    const setup *s;
    int rows;
    part now, waiting[LEVELS];
    uint32_t full;
} tree;

/* n_in: number of the op's inputs that attention itself takes; a: its arguments. */
static setup setup_of(const cpu_call *c, const arg_attention *a, int n_in) {
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
    s.sinks = n_in - a->alibi == 7 ? cpu_f32(c->v + 7, 0) : NULL;
    s.slopes = a->alibi ? cpu_f32(c->v + n_in, 0) : NULL;
    s.cap = a->cap;
    return s;
}

static int64_t most_chunks(const setup *s) {
    return ((int64_t)s->table->shape[1] * s->block + CHUNK - 1) / CHUNK;
}

static cut cut_of(const setup *s) {
    cut x = {(s->q->shape[0] + s->tile - 1) / s->tile, 1};
    int counted = s->rank == 0 && s->q->shape[0] * (int64_t)s->kv_heads <= CPU_COUNTERS;
    while (counted && x.splits < SPLITS && x.splits < most_chunks(s) && 2 * x.splits * x.groups * s->kv_heads <= ITEMS)
        x.splits *= 2;
    return x;
}

static cpu_split split_of(setup s) {
    cut x = cut_of(&s);
    return (cpu_split){x.groups * s.kv_heads * x.splits, 1};
}

/* Most rows of a tile, rounded up to whole register tiles; the padding rows see no position. */
static int tile_rows_most(const setup *s) {
    return s->rank ? whole_vectors(s->tile) : s->tile * s->group;
}

static int levels(const setup *s) {
    int n = 1;
    while (n < LEVELS && (int64_t)1 << (n - 1) < most_chunks(s))
        n++;
    return n;
}

static uint64_t scratch_of(setup s) {
    uint64_t rows = (uint64_t)tile_rows_most(&s), wide = (uint64_t)(s.d_pitch > s.dv_pitch ? s.d_pitch : s.dv_pitch);
    uint64_t n = rows * (uint64_t)s.d + (uint64_t)SPAN * ((uint64_t)s.d_pitch + wide) + rows * (SPAN + LANES);
    n += (uint64_t)expand_floats(&s) + 5 * (uint64_t)whole_vectors((int)rows) +
         (has_tiles(&s) ? rows * (uint64_t)s.d : 0);
    return sizeof(float) * (n + (uint64_t)(levels(&s) + 1) * part_floats(&s, (int)rows));
}

/* Bytes of shared scratch: counters, then the state of the rows for each split, KV head and token. Fewer tokens may get more
 * splits, so the size is the maximum over all token counts up to this one. */
static uint64_t shared_of(setup s) {
    if (s.rank || most_chunks(&s) < 2 || s.kv_heads > ITEMS / 2)
        return 0;
    uint64_t items = ITEMS * (uint64_t)s.tile, own = SPLITS * (uint64_t)s.kv_heads * (uint64_t)s.q->shape[0];
    return CPU_COUNTERS * sizeof(atomic_int) + sizeof(float) * (items < own ? items : own) * part_floats(&s, s.group);
}

static void load_queries(const tile *w) {
    const setup *s = w->s;
    int real = w->tokens * s->group;
    memset(w->queries + (int64_t)real * s->d, 0, sizeof(float) * (size_t)(w->rows - real) * (size_t)s->d);
    memset(w->from, 0, sizeof(int) * (size_t)w->rows);
    memset(w->to, 0, sizeof(int) * (size_t)w->rows);
    for (int r = 0; r < real; r++) {
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

/* Merges two softmax states: b = a and b, row by row. A row that saw no position in one keeps the other's state. */
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

/* Adds the result in `now`, number `number` of its level, to the tree and merges completed pairs. Results come in order. */
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

/* Merges everything that was pushed into one result in `now`. */
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

/* 1 / the sum of a row's softmax weights, that of the head's attention sink included. */
static float inverse_sum(const setup *s, const part *state, int row, int head) {
    float sink = s->sinks ? s->sinks[head] * 1.44269504f : -INFINITY, total = state->total[row];
    float shift[LANES] = {sink > state->most[row] ? state->most[row] - sink : sink - state->most[row]};
    if (!s->sinks)
        return 1 / total;
    vf_store(shift, softmax_power(vf_load(shift)));
    return sink > state->most[row] ? shift[0] / (total * shift[0] + 1) : 1 / (total + shift[0]);
}

/* Writes the output of a tile's rows; zeros, and a fault of the run, where good is 0 (an invalid block table). */
static void write_rows(const tile *w, const part *state, int good) {
    const setup *s = w->s;
    for (int r = 0; r < w->tokens * s->group; r++) {
        int head = w->kv_head * s->group + r % s->group;
        float *y = cpu_f32(s->c->v, w->token + r / s->group) + (int64_t)head * s->dv,
              inverse = inverse_sum(s, state, r, head);
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

/* The tile's rows of a split in the shared state (splits, KV, T, group). */
static part shared_part(const tile *w, int split) {
    const setup *s = w->s;
    int64_t unit = ((int64_t)split * s->kv_heads + w->kv_head) * s->q->shape[0] + w->token;
    float *all = (float *)(s->c->shared + CPU_COUNTERS * sizeof(atomic_int));
    return part_at(all + (uint64_t)unit * part_floats(s, s->group), w->rows);
}

static void copy_part(const setup *s, const part *from, const part *to, int rows) {
    memcpy(to->most, from->most, sizeof(float) * part_floats(s, rows));
}

/* Stores a split's result in shared scratch. The thread that finishes the tile's last split merges all, in the tree's order. */
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

/* Computes one split of a tile's chunks. */
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
    if (w->s->rank) {
        load_weights(w);
        pair_weights(w);
    }
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

/* One past the last position that a token of the tile sees. Without causality this scans the slot's tokens of the step. */
static int end_of(const tile *w, int32_t slot) {
    const setup *s = w->s;
    int last = w->pos + (w->tokens - 1);
    for (int64_t t = 0; t < s->q->shape[0] && !s->causal; t++)
        if (cpu_i32(s->c->v + 4, t) == slot && cpu_i32(s->c->v + 5, t) > last)
            last = cpu_i32(s->c->v + 5, t);
    return last < INT32_MAX ? last + 1 : last;
}

/* Sparse attention: the tile's one token attends to its row of `positions`, up to the first -1, instead of its whole past. */
static void restrict_to_positions(tile *w) {
    int n = 0;
    w->list = (const int32_t *)cpu_row(w->s->positions, w->token);
    while (n < w->s->positions->shape[1] && w->list[n] >= 0)
        n++;
    w->pos = n - 1;
    w->text = w->end = n;
    if (!n)
        w->blocks = NULL;
}

/* Whether this op computes the tile's run; see `least`. */
static int is_mine(const tile *w) {
    const setup *s = w->s;
    int64_t first = w->token, last = w->token + w->tokens;
    if (!s->least)
        return 1;
    while (last - first < s->least && first > 0 && follows(s, first))
        first--;
    while (last - first < s->least && last < s->q->shape[0] && follows(s, last))
        last++;
    return (last - first >= s->least) == (s->rank > 0);
}

/* Rows that the other op computes: zeros, or a copy of the last input's rows. */
static void leave_rows(const tile *w) {
    const setup *s = w->s;
    size_t bytes = sizeof(float) * (size_t)s->group * (size_t)s->dv;
    for (int64_t t = w->token; t < w->token + w->tokens; t++) {
        float *y = cpu_f32(s->c->v, t) + (int64_t)w->kv_head * s->group * s->dv;
        if (s->rank)
            memcpy(y, cpu_f32(s->c->v + 9, t) + (int64_t)w->kv_head * s->dv, bytes);
        else
            memset(y, 0, bytes);
    }
}

/* The tile that begins at token t: consecutive positions of one slot, up to token `end`. */
static tile tile_at(const setup *s, int64_t t, int64_t end, float *scratch) {
    int32_t slot = cpu_i32(s->c->v + 4, t), pos = cpu_i32(s->c->v + 5, t);
    int64_t rows = tile_rows_most(s), vectors = whole_vectors((int)rows);
    tile w = {.s = s, .token = t, .tokens = 1, .pos = pos};
    while (t + w.tokens < end && follows(s, t + w.tokens))
        w.tokens++;
    w.rows = s->rank ? whole_vectors(w.tokens) : w.tokens * s->group;
    w.text = w.end = end_of(&w, slot);
    if (!s->causal && s->window > 0 && w.end - w.pos - w.tokens > s->window / 2)
        w.end = w.pos + w.tokens + s->window / 2;
    if (slot >= 0 && slot < s->table->shape[0] && pos >= 0 && (w.end - (int64_t)1) / s->block < s->table->shape[1])
        w.blocks = (const int32_t *)cpu_row(s->table, slot);
    if (s->positions && w.blocks)
        restrict_to_positions(&w);
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
    w.results = expand_at(&w, w.paired + (has_tiles(s) ? rows * s->d : 0));
    return w;
}

static void run_item(const setup *s, cut x, int64_t item, float *scratch) {
    int64_t group = item / x.splits / s->kv_heads, t = group * s->tile, end = t + s->tile;
    end = end < s->q->shape[0] ? end : s->q->shape[0];
    while (t < end) {
        ahead memory;
        tile w = tile_at(s, t, end, scratch);
        w.ahead = &memory;
        int split = (int)(item % x.splits);
        w.kv_head = (int)(item / x.splits % s->kv_heads);
        if (!w.blocks)
            cpu_fault(s->c);
        else if (is_mine(&w))
            run_tile(&w, split, x.splits, w.results);
        else if (split == 0)
            leave_rows(&w);
        t += w.tokens;
    }
}

static void run_items(setup s, int64_t from, int64_t to, int thread) {
    cut x = cut_of(&s);
    tiles_begin(&s);
    for (; from < to; from++)
        run_item(&s, x, from, (float *)cpu_scratch(s.c, thread));
    tiles_end(&s);
}

/* Defines the kernel of an op from setup_<op>() and its check. */
#define ATTENTION_KERNEL(op, check, packed)                                                                            \
    static cpu_split split_##op(const cpu_call *c) {                                                                   \
        return split_of(setup_##op(c));                                                                                \
    }                                                                                                                  \
    static uint64_t scratch_##op(const cpu_call *c) {                                                                  \
        return scratch_of(setup_##op(c));                                                                              \
    }                                                                                                                  \
    static uint64_t shared_##op(const cpu_call *c) {                                                                   \
        return shared_of(setup_##op(c));                                                                               \
    }                                                                                                                  \
    static void run_##op(const cpu_call *c, int64_t from, int64_t to, int thread) {                                    \
        run_items(setup_##op(c), from, to, thread);                                                                    \
    }                                                                                                                  \
    CPU_KERNEL(op) = {check, scratch_##op, split_##op, run_##op, .takes_packed = packed, .shared = shared_##op}

#endif
