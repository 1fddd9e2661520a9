/* scan_chunks.h: the chunkwise parallel form of gated_scan and scan_write, for --precision fast; part of recurrent.c, whose
 * plain form processes token by token.
 *
 * In a chunk of CHUNK tokens that starts from the state S, f is the decay between two tokens (or from S to a token). The
 * updates solve  u_t = beta_t (v_t - f S k_t - sum over i < t of f (k_t k_i) u_i),  and the outputs are f S q_t + sum over i
 * <= t of f (q_t k_i) u_i  (Yang et al., arXiv 2412.06464; without the delta rule Dao & Gu, 2405.21060). So S is read twice
 * and written once per chunk instead of once per token. The order of sums differs from the plain form's, and depends on where
 * a prompt is split. A work item is a whole head, whose columns share the products of keys. f is a product of per-token
 * decays, because a difference of large cumulative logarithms would lose precision.
 */
#ifndef SATCHEL_SCAN_CHUNKS_H
#define SATCHEL_SCAN_CHUNKS_H

enum { CHUNK = 16, CHUNK_VECTORS = CHUNK / LANES, LOOKS = 8 /* tokens multiplied with the state in one pass */ };

/* Values that the columns of a head share. k, q: transposed, (N, CHUNK). */
typedef struct {
    int keys;
    float *k, *q;
    float found[CHUNK][CHUNK], seen[CHUNK][CHUNK]; /* [t][i]: f (k_t k_i) and f (q_t k_i) */
    float faded[CHUNK], left[CHUNK];               /* decay of S up to token t; decay from token t to the chunk's end */
} chunk;

static void turn_rows(const cpu_view *x, int64_t a, int first, int keys, float *to) {
    for (int t = 0; t < CHUNK; t++) {
        const float *row = cpu_f32(x, a + t) + first;
        for (int n = 0; n < keys; n++)
            to[n * CHUNK + t] = row[n];
    }
}

/* out[t][i]: dot product of x's token t and k's token i. */
static void products_of(const float *x, const float *k, int keys, float out[CHUNK][CHUNK]) {
    enum { ROWS = 4 };
    for (int t = 0; t < CHUNK; t += ROWS) {
        vf sum[ROWS][CHUNK_VECTORS];
        for (int r = 0; r < ROWS; r++)
            for (int j = 0; j < CHUNK_VECTORS; j++)
                sum[r][j] = vf_set(0);
        for (int n = 0; n < keys; n++)
            for (int j = 0; j < CHUNK_VECTORS; j++)
                for (int r = 0; r < ROWS; r++)
                    sum[r][j] = vf_fma(vf_set(x[n * CHUNK + t + r]), vf_load(k + n * CHUNK + j * LANES), sum[r][j]);
        for (int r = 0; r < ROWS; r++)
            for (int j = 0; j < CHUNK_VECTORS; j++)
                vf_store(out[t + r] + j * LANES, sum[r][j]);
    }
}

/* Computes the chunk's decays and multiplies found and seen by them. */
static void fade_chunk(const cpu_view *g, int64_t a, int head, chunk *x) {
    float by[CHUNK];
    for (int t = 0; t < CHUNK; t++)
        by[t] = cpu_f32(g, a + t)[head];
    for (int j = 0; j < CHUNK; j += LANES)
        vf_store(by + j, vf_exp(vf_load(by + j)));
    for (int t = 0; t < CHUNK; t++) {
        x->faded[t] = (t ? x->faded[t - 1] : 1) * by[t];
        for (int i = 0; i < t; i++)
            x->left[i] *= by[t];
        x->left[t] = 1;
        for (int i = 0; i <= t; i++) {
            x->found[t][i] *= x->left[i];
            x->seen[t][i] *= x->left[i];
        }
    }
}

/* Products of the tokens of x with the state's columns. */
static void look(const float *x, const float *s, int keys, vf out[CHUNK]) {
    for (int t = 0; t < CHUNK; t += LOOKS) {
        vf sum[LOOKS];
        for (int j = 0; j < LOOKS; j++)
            sum[j] = vf_set(0);
        for (int n = 0; n < keys; n++) {
            vf row = vf_load(s + n * LANES);
            for (int j = 0; j < LOOKS; j++)
                sum[j] = vf_fma(vf_set(x[n * CHUNK + t + j]), row, sum[j]);
        }
        for (int j = 0; j < LOOKS; j++)
            out[t + j] = sum[j];
    }
}

/* Updates the state's columns by the whole chunk. */
static void add_chunk(const chunk *x, const vf u[CHUNK], float *s) {
    vf part[CHUNK], fade = vf_set(x->faded[CHUNK - 1]);
    for (int t = 0; t < CHUNK; t++)
        part[t] = vf_set(x->left[t]) * u[t];
    for (int n = 0; n < x->keys; n++) {
        vf row = vf_load(s + n * LANES) * fade;
        for (int t = 0; t < CHUNK; t++)
            row = vf_fma(vf_set(x->k[n * CHUNK + t]), part[t], row);
        vf_store(s + n * LANES, row);
    }
}

static void scan_chunk(const cpu_call *c, const scan_item *i, const chunk *x, float *s, int64_t a) {
    int delta = ((const arg_gated_scan *)c->arg)->delta;
    vf u[CHUNK], old[CHUNK], y[CHUNK];
    look(x->q, s, x->keys, y);
    if (delta)
        look(x->k, s, x->keys, old);
    for (int t = 0; t < CHUNK; t++) {
        float *out = cpu_f32(c->v, a + t) + 2 * i->head * i->width + i->first;
        vf sum = vf_set(x->faded[t]) * y[t];
        u[t] = vf_load_most(cpu_f32(c->v + 3, a + t) + i->head * i->width + i->first, i->n);
        if (delta) {
            u[t] = u[t] - vf_set(x->faded[t]) * old[t];
            for (int j = 0; j < t; j++)
                u[t] = vf_fma(vf_set(-x->found[t][j]), u[j], u[t]);
        }
        u[t] = vf_set(cpu_f32(c->v + 5, a + t)[i->head]) * u[t];
        for (int j = 0; j <= t; j++)
            sum = vf_fma(vf_set(x->seen[t][j]), u[j], sum);
        vf_store_most(out, sum, i->n);
        vf_store_most(out + i->width, u[t], i->n);
    }
    add_chunk(x, u, s);
}

static void write_chunk(const cpu_call *c, const scan_item *i, const chunk *x, float *s, int64_t a) {
    vf u[CHUNK];
    for (int t = 0; t < CHUNK; t++)
        u[t] = vf_load_most(cpu_f32(c->v + 3, a + t) + (2 * i->head + 1) * i->width + i->first, i->n);
    add_chunk(x, u, s);
}

/* Whether a call uses chunks, with heads as work items. Decided by its flags and its maximum number of tokens alone. */
static int by_chunks(const cpu_call *c, int64_t tokens) {
    return (c->flags & (HAL_FAST | HAL_DETERMINISTIC)) == HAL_FAST && tokens >= CHUNK;
}

static cpu_split split_heads(const cpu_view *state, int64_t tokens) {
    return cpu_grains(state->shape[1], tokens * state->shape[2] * state->shape[3]);
}

/* A head's state in the thread's scratch, slice by slice of columns, followed by the chunk's keys and queries. */
typedef struct {
    const cpu_call *c;
    const cpu_view *state, *k, *g, *slots;
    int head, tiled, block, per;
    float *s;
    chunk x;
} head_scan;

static scan_item slice_of(const head_scan *h, int number) {
    return item_of(h->state, h->k, h->tiled, (int64_t)h->head * h->per + number);
}

static float *columns_of(const head_scan *h, int number) {
    return h->s + (int64_t)number * h->x.keys * LANES;
}

static uint64_t head_scratch(const cpu_view *state) {
    return sizeof(float) * (uint64_t)state->shape[2] * ((uint64_t)slices(state) * LANES + 2 * CHUNK);
}

static head_scan head_of(const cpu_call *c, const cpu_view *state, const cpu_view *k, const cpu_view *g,
                         const cpu_view *slots, int thread) {
    int64_t keys = state->shape[2], per = slices(state);
    float *s = (float *)cpu_scratch(c, thread), *transposed = s + per * keys * LANES;
    return (head_scan){.c = c,
                       .state = state,
                       .k = k,
                       .g = g,
                       .slots = slots,
                       .per = (int)per,
                       .s = s,
                       .x = {.keys = (int)keys, .k = transposed, .q = transposed + keys * CHUNK}};
}

static void load_head(const head_scan *h, const float *before) {
    for (int j = 0; j < h->per; j++) {
        scan_item item = slice_of(h, j);
        load_columns(&item, before, columns_of(h, j));
    }
}

static void scan_head(head_scan *h, int64_t a, int64_t b) {
    int first = slice_of(h, 0).group * h->x.keys;
    for (; a < b; a += CHUNK) {
        int whole = b - a >= CHUNK;
        if (whole) {
            turn_rows(h->k, a, first, h->x.keys, h->x.k);
            turn_rows(h->c->v + 1, a, first, h->x.keys, h->x.q);
            products_of(h->x.k, h->x.k, h->x.keys, h->x.found);
            products_of(h->x.q, h->x.k, h->x.keys, h->x.seen);
            fade_chunk(h->g, a, h->head, &h->x);
        }
        for (int j = 0; j < h->per; j++) {
            scan_item item = slice_of(h, j);
            if (whole)
                scan_chunk(h->c, &item, &h->x, columns_of(h, j), a);
            else
                scan_piece(h->c, &item, columns_of(h, j), a, b);
        }
    }
}

/* Whether the tokens from a on are a whole chunk within which no state must be stored. */
static int chunk_ahead(const head_scan *h, int64_t a, int64_t b) {
    int whole = b - a >= CHUNK;
    for (int64_t t = a; whole && t < a + CHUNK - 1; t++)
        whole = !page_after(h->slots, h->state, t, b, h->block);
    return whole;
}

static void write_head(head_scan *h, int64_t a, int64_t b) {
    int first = slice_of(h, 0).group * h->x.keys, whole;
    for (; a < b; a += whole ? CHUNK : 1) {
        float *page;
        if ((whole = chunk_ahead(h, a, b))) {
            turn_rows(h->k, a, first, h->x.keys, h->x.k);
            fade_chunk(h->g, a, h->head, &h->x);
        }
        page = page_after(h->slots, h->state, whole ? a + CHUNK - 1 : a, b, h->block);
        for (int j = 0; j < h->per; j++) {
            scan_item item = slice_of(h, j);
            if (whole)
                write_chunk(h->c, &item, &h->x, columns_of(h, j), a);
            else
                write_token(h->c, &item, columns_of(h, j), a);
            if (page)
                store_columns(&item, columns_of(h, j), page);
        }
    }
}

/* Runs heads from .. to - 1 over all pieces. move: processes a head for tokens a .. b - 1. */
static void run_heads(head_scan *h, void (*move)(head_scan *h, int64_t a, int64_t b), int64_t from, int64_t to) {
    const float *before;
    int64_t tokens = h->k->shape[0];
    for (; from < to; from++) {
        h->head = (int)from;
        for (int64_t a = 0, b; a < tokens; a = b) {
            b = piece_end(h->slots, a, tokens);
            if (!piece_ok(h->c, h->slots, h->state, a, b, h->block, &before))
                continue;
            load_head(h, before);
            move(h, a, b);
        }
    }
}

#endif
