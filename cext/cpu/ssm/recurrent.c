/* recurrent.c: recurrent layers (SSM, gated delta rule): sigmoid and softplus of their gates, short_conv and conv_write,
 * gated_scan and scan_write, as runtime/ops/recurrent.py defines them; all float32.
 *
 * States are (pages, ...), found by the block table as keys are: the page of position p is table[slot][p / block]. A piece is a
 * slot's consecutive tokens in a step; it starts from the page of the position before its first token.
 * A work item of a convolution is CHANNELS channels of all tokens; one of a scan is LANES columns of a head's state, which stay
 * in the thread's scratch during a piece. No sum crosses items, and each token is computed by the same operations in the same
 * order whatever the step holds, so any split of a prompt gives the same bits. Values of the step block are checked where they
 * are used; a piece with one out of range is skipped and faults the run.
 */
#include "cpu.h"
#include "ops/elementwise.h"
#include "ops/functions.h"

enum { CHANNELS = 64, MOST_TAPS = 64, MOST_KEY = 4096 };

/* --- gates */

static void run_sigmoid(const cpu_call *c, int64_t from, int64_t to, int thread) {
    int n = (int)c->v[0].width;
    (void)thread;
    for (; from < to; from++)
        for (int i = 0; i < n; i += LANES) {
            vf x = vf_load_most(cpu_f32(c->v + 1, from) + i, n - i);
            vf_store_most(cpu_f32(c->v, from) + i, vf_set(1) / (vf_set(1) + vf_exp(vf_set(0) - x)), n - i);
        }
}

static void run_softplus(const cpu_call *c, int64_t from, int64_t to, int thread) {
    int n = (int)c->v[0].width;
    (void)thread;
    for (; from < to; from++) {
        const float *x = cpu_f32(c->v + 1, from);
        float *y = cpu_f32(c->v, from);
        for (int i = 0; i < n; i++)
            y[i] = own_softplus(x[i]);
    }
}

/* --- pieces and pages */

static int64_t piece_end(const cpu_view *slots, int64_t a, int64_t tokens) {
    int64_t b = a + 1;
    while (b < tokens && cpu_i32(slots, b) == cpu_i32(slots, a) &&
           cpu_i32(slots + 1, b) == cpu_i32(slots + 1, b - 1) + 1)
        b++;
    return b;
}

enum { GONE = -1, OUTSIDE = -2 };

/* Index of the page of a slot's position. */
static int32_t page_at(const cpu_view *slots, const cpu_view *state, int32_t slot, int32_t pos, int block) {
    const cpu_view *table = slots + 2;
    int32_t page;
    if (slot < 0 || slot >= table->shape[0] || pos < 0 || pos / block >= table->shape[1])
        return OUTSIDE;
    page = ((const int32_t *)cpu_row(table, slot))[pos / block];
    return page < GONE || page >= state->shape[0] ? OUTSIDE : page;
}

/* Whether a piece's pages are valid. The page that it starts from and the page of its last token must exist; others may be
 * freed. *before: the page that it starts from, NULL at position 0. */
static int piece_ok(const cpu_call *c, const cpu_view *slots, const cpu_view *state, int64_t a, int64_t b, int block,
                    const float **before) {
    int32_t slot = cpu_i32(slots, a), first = cpu_i32(slots + 1, a), last = cpu_i32(slots + 1, b - 1), page = 0;
    int ok = first >= 0 && page_at(slots, state, slot, last, block) >= 0;
    *before = NULL;
    if (ok && first > 0) {
        page = page_at(slots, state, slot, first - 1, block);
        ok = page >= 0;
        *before = ok ? (const float *)cpu_row(state, page) : NULL;
    }
    for (int32_t p = first / block * block; ok && p < last; p += block)
        ok = page_at(slots, state, slot, p, block) != OUTSIDE;
    if (!ok)
        cpu_fault(c);
    return ok;
}

/* Where to store the state after token t of a piece that ends before b; NULL: it is not stored. */
static float *page_after(const cpu_view *slots, const cpu_view *state, int64_t t, int64_t b, int block) {
    int32_t pos = cpu_i32(slots + 1, t), page;
    if (t + 1 < b && (pos + 1) % block)
        return NULL;
    page = page_at(slots, state, cpu_i32(slots, t), pos, block);
    return page < 0 ? NULL : (float *)cpu_row(state, page);
}

/* --- short_conv: inputs x, state, w, slot, pos, table and an optional bias; conv_write: state, x, slot, pos, table */

static cpu_split split_channels(const cpu_view *x) {
    return cpu_grains((x->shape[1] + CHANNELS - 1) / CHANNELS, (int64_t)x->shape[0] * CHANNELS);
}

static cpu_split split_conv(const cpu_call *c) {
    return split_channels(c->v + 1);
}

static cpu_split split_conv_write(const cpu_call *c) {
    return split_channels(c->v + 2);
}

static uint64_t scratch_conv(const cpu_call *c) {
    (void)c;
    return sizeof(float) * CHANNELS * MOST_TAPS * 2;
}

/* Loads channels first .. first + n - 1 of the K - 1 inputs before a piece, as rows of CHANNELS; zeros at position 0. */
static void load_kept(const float *before, int kept, int width, int first, int n, float *to) {
    memset(to, 0, sizeof(float) * CHANNELS * (size_t)kept);
    for (int j = 0; before && j < kept; j++)
        memcpy(to + j * CHANNELS, before + (int64_t)j * width + first, sizeof(float) * (size_t)n);
}

/* Input i of a piece that begins at token a; input 0 is the first of the K - 1 inputs before it. */
static const float *input_at(const cpu_view *x, const float *kept, int taps, int64_t a, int64_t i, int first) {
    return i < taps - 1 ? kept + i * CHANNELS : cpu_f32(x, a + i - (taps - 1)) + first;
}

static void conv_piece(const cpu_call *c, const float *kept, const float *w, int64_t a, int64_t b, int first, int n) {
    const float *bias = c->n_in == 7 ? cpu_f32(c->v + 7, 0) : NULL;
    int taps = c->v[3].shape[1];
    for (int64_t t = a; t < b; t++)
        for (int i = 0; i < n; i += LANES) {
            vf y = vf_set(0);
            for (int j = 0; j < taps; j++)
                y = vf_fma(vf_load(w + j * CHANNELS + i),
                           vf_load_most(input_at(c->v + 1, kept, taps, a, t - a + j, first) + i, n - i), y);
            if (bias)
                y = y + vf_load_most(bias + first + i, n - i);
            vf_store_most(cpu_f32(c->v, t) + first + i, y / (vf_set(1) + vf_exp(vf_set(0) - y)), n - i);
        }
}

static void run_conv(const cpu_call *c, int64_t from, int64_t to, int thread) {
    const cpu_view *x = c->v + 1, *w = c->v + 3, *slots = c->v + 4;
    float *weights = (float *)cpu_scratch(c, thread), *kept = weights + CHANNELS * MOST_TAPS;
    int taps = w->shape[1], width = x->shape[1], block = ((const arg_short_conv *)c->arg)->block;
    const float *before;
    for (; from < to; from++) {
        int first = (int)from * CHANNELS, n = width - first < CHANNELS ? width - first : CHANNELS;
        memset(weights, 0, sizeof(float) * CHANNELS * (size_t)taps);
        for (int i = 0; i < n; i++)
            for (int j = 0; j < taps; j++)
                weights[j * CHANNELS + i] = cpu_f32(w, first + i)[j];
        for (int64_t a = 0, b; a < x->shape[0]; a = b) {
            b = piece_end(slots, a, x->shape[0]);
            if (!piece_ok(c, slots, c->v + 2, a, b, block, &before))
                continue;
            load_kept(before, taps - 1, width, first, n, kept);
            conv_piece(c, kept, weights, a, b, first, n);
        }
    }
}

static void run_conv_write(const cpu_call *c, int64_t from, int64_t to, int thread) {
    const cpu_view *state = c->v, *x = c->v + 2, *slots = c->v + 3;
    float *kept = (float *)cpu_scratch(c, thread), *page;
    int rows = state->shape[1], width = x->shape[1], block = ((const arg_conv_write *)c->arg)->block;
    const float *before;
    for (; from < to; from++) {
        int first = (int)from * CHANNELS, n = width - first < CHANNELS ? width - first : CHANNELS;
        for (int64_t a = 0, b; a < x->shape[0]; a = b) {
            b = piece_end(slots, a, x->shape[0]);
            if (!piece_ok(c, slots, state, a, b, block, &before))
                continue;
            load_kept(before, rows, width, first, n, kept);
            for (int64_t t = a; t < b; t++)
                if ((page = page_after(slots, state, t, b, block)))
                    for (int j = 0; j < rows; j++)
                        memcpy(page + (int64_t)j * width + first, input_at(x, kept, rows + 1, a, t - a + 1 + j, first),
                               sizeof(float) * (size_t)n);
        }
    }
}

/* --- gated_scan: inputs q, k, v, g, beta, state, slot, pos, table; scan_write: state, k, made, g, slot, pos, table */

static int slices(const cpu_view *state) {
    return (state->shape[3] + LANES - 1) / LANES;
}

/* A work item: columns first .. first + n - 1 of the state of `head`, which uses the keys of `group`. */
typedef struct {
    int head, group, first, n, keys, width;
} scan_item;

static scan_item item_of(const cpu_view *state, const cpu_view *k, int tiled, int64_t number) {
    int per = slices(state), head = (int)(number / per), groups = k->shape[1], first = (int)(number % per) * LANES;
    int left = state->shape[3] - first, group = tiled ? head % groups : head / (state->shape[1] / groups);
    return (scan_item){head, group, first, left < LANES ? left : LANES, state->shape[2], state->shape[3]};
}

static void load_columns(const scan_item *i, const float *page, float *s) {
    if (!page)
        memset(s, 0, sizeof(float) * LANES * (size_t)i->keys);
    for (int n = 0; page && n < i->keys; n++)
        vf_store(s + n * LANES, vf_load_most(page + ((int64_t)i->head * i->keys + n) * i->width + i->first, i->n));
}

static void store_columns(const scan_item *i, const float *s, float *page) {
    for (int n = 0; n < i->keys; n++)
        vf_store_most(page + ((int64_t)i->head * i->keys + n) * i->width + i->first, vf_load(s + n * LANES), i->n);
}

/* Dot product of a key with each column; four partial sums, added in a fixed order. */
static inline vf find(const float *s, const float *k, int keys) {
    vf sum[4] = {vf_set(0), vf_set(0), vf_set(0), vf_set(0)};
    int n = 0;
    for (; n + 4 <= keys; n += 4)
        for (int j = 0; j < 4; j++)
            sum[j] = vf_fma(vf_set(k[n + j]), vf_load(s + (n + j) * LANES), sum[j]);
    for (; n < keys; n++)
        sum[0] = vf_fma(vf_set(k[n]), vf_load(s + n * LANES), sum[0]);
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* State update of one row of the columns: s = fade * s + k * u. Both kernels use it, for equal bits. */
static inline vf fade_add(float *s, float k, vf fade, vf u) {
    vf row = vf_fma(vf_set(k), u, vf_load(s) * fade);
    vf_store(s, row);
    return row;
}

static inline vf add_and_find(float *s, const float *k, const float *q, int keys, vf fade, vf u) {
    vf sum[4] = {vf_set(0), vf_set(0), vf_set(0), vf_set(0)};
    int n = 0;
    for (; n + 4 <= keys; n += 4)
        for (int j = 0; j < 4; j++)
            sum[j] = vf_fma(vf_set(q[n + j]), fade_add(s + (n + j) * LANES, k[n + j], fade, u), sum[j]);
    for (; n < keys; n++)
        sum[0] = vf_fma(vf_set(q[n]), fade_add(s + n * LANES, k[n], fade, u), sum[0]);
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

static void scan_piece(const cpu_call *c, const scan_item *i, float *s, int64_t a, int64_t b) {
    int delta = ((const arg_gated_scan *)c->arg)->delta;
    for (; a < b; a++) {
        const float *q = cpu_f32(c->v + 1, a) + i->group * i->keys, *k = cpu_f32(c->v + 2, a) + i->group * i->keys;
        float *y = cpu_f32(c->v, a) + 2 * i->head * i->width + i->first;
        vf v = vf_load_most(cpu_f32(c->v + 3, a) + i->head * i->width + i->first, i->n);
        vf fade = vf_exp(vf_set(cpu_f32(c->v + 4, a)[i->head])), beta = vf_set(cpu_f32(c->v + 5, a)[i->head]);
        vf u = v;
        if (delta)
            u = v - fade * find(s, k, i->keys);
        u = beta * u;
        vf_store_most(y, add_and_find(s, k, q, i->keys, fade, u), i->n);
        vf_store_most(y + i->width, u, i->n);
    }
}

static void write_token(const cpu_call *c, const scan_item *i, float *s, int64_t t) {
    const float *k = cpu_f32(c->v + 2, t) + i->group * i->keys;
    vf u = vf_load_most(cpu_f32(c->v + 3, t) + (2 * i->head + 1) * i->width + i->first, i->n);
    vf fade = vf_exp(vf_set(cpu_f32(c->v + 4, t)[i->head]));
    for (int n = 0; n < i->keys; n++)
        fade_add(s + n * LANES, k[n], fade, u);
}

#include "scan_chunks.h"

static cpu_split split_state(const cpu_call *c, const cpu_view *state, int tokens) {
    if (by_chunks(c, tokens))
        return split_heads(state, tokens);
    return cpu_grains((int64_t)state->shape[1] * slices(state), (int64_t)tokens * state->shape[2] * LANES);
}

static cpu_split split_scan(const cpu_call *c) {
    return split_state(c, c->v + 6, c->v[3].shape[0]);
}

static cpu_split split_scan_write(const cpu_call *c) {
    return split_state(c, c->v, c->v[2].shape[0]);
}

static uint64_t scratch_state(const cpu_call *c, const cpu_view *state, int tokens) {
    return by_chunks(c, tokens) ? head_scratch(state) : sizeof(float) * LANES * (uint64_t)state->shape[2];
}

static uint64_t scratch_scan(const cpu_call *c) {
    return scratch_state(c, c->v + 6, c->v[3].shape[0]);
}

static uint64_t scratch_scan_write(const cpu_call *c) {
    return scratch_state(c, c->v, c->v[2].shape[0]);
}

static void run_scan(const cpu_call *c, int64_t from, int64_t to, int thread) {
    const arg_gated_scan *arg = c->arg;
    const cpu_view *state = c->v + 6, *slots = c->v + 7;
    float *s = (float *)cpu_scratch(c, thread);
    const float *before;
    int64_t tokens = c->v[3].shape[0];
    if (by_chunks(c, tokens)) {
        head_scan h = head_of(c, state, c->v + 2, c->v + 4, slots, thread);
        h.tiled = arg->tiled, h.block = arg->block;
        run_heads(&h, scan_head, from, to);
        return;
    }
    for (; from < to; from++) {
        scan_item item = item_of(state, c->v + 2, arg->tiled, from);
        for (int64_t a = 0, b; a < tokens; a = b) {
            b = piece_end(slots, a, tokens);
            if (!piece_ok(c, slots, state, a, b, arg->block, &before))
                continue;
            load_columns(&item, before, s);
            scan_piece(c, &item, s, a, b);
        }
    }
}

static void write_piece(const cpu_call *c, const scan_item *i, float *s, int64_t a, int64_t b, int block) {
    float *page;
    for (; a < b; a++) {
        write_token(c, i, s, a);
        if ((page = page_after(c->v + 5, c->v, a, b, block)))
            store_columns(i, s, page);
    }
}

static void run_scan_write(const cpu_call *c, int64_t from, int64_t to, int thread) {
    const arg_scan_write *arg = c->arg;
    float *s = (float *)cpu_scratch(c, thread);
    const float *before;
    int64_t tokens = c->v[2].shape[0];
    if (by_chunks(c, tokens)) {
        head_scan h = head_of(c, c->v, c->v + 2, c->v + 4, c->v + 5, thread);
        h.tiled = arg->tiled, h.block = arg->block;
        run_heads(&h, write_head, from, to);
        return;
    }
    for (; from < to; from++) {
        scan_item item = item_of(c->v, c->v + 2, arg->tiled, from);
        for (int64_t a = 0, b; a < tokens; a = b) {
            b = piece_end(c->v + 5, a, tokens);
            if (!piece_ok(c, c->v + 5, c->v, a, b, arg->block, &before))
                continue;
            load_columns(&item, before, s);
            write_piece(c, &item, s, a, b, arg->block);
        }
    }
}

/* Of gated_scan and scan_write, whose second input is k. */
static const char *check_scan(const cpu_call *c) {
    const cpu_view *k = c->v + 2;
    return k->shape[2] > MOST_KEY ? "keys have at most 4096 numbers" : NULL;
}

CPU_KERNEL(sigmoid) = {NULL, NULL, cpu_by_row, run_sigmoid};
CPU_KERNEL(softplus) = {NULL, NULL, cpu_by_row, run_softplus};
CPU_KERNEL(short_conv) = {NULL, scratch_conv, split_conv, run_conv};
CPU_KERNEL(conv_write) = {NULL, scratch_conv, split_conv_write, run_conv_write};
CPU_KERNEL(gated_scan) = {check_scan, scratch_scan, split_scan, run_scan};
CPU_KERNEL(scan_write) = {check_scan, scratch_scan_write, split_scan_write, run_scan_write};
