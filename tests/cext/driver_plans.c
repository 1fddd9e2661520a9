/* driver_plans.c: whole plans: a small decoder layer that uses every kind of op, run many times without an allocation;
 * single faults that compile must name; and plans with random damage, which may be refused or run, but never crash.
 */
#include "harness.h"

#define STAGE_NUMBERS_ALONE
#include "../../cext/kernels/sample_stages.k.h"

enum {
    T = 16,
    R = 4,
    D = 256,
    H = 4,
    KV = 2,
    HD = 64,
    BLOCK = 16,
    BLOCKS = 8,
    SLOTS = 2,
    WIDTH = 4,
    VOCAB = 64,
    RING = 64
};
enum { Q6_K = 14, Q4_K = 12 };
/* Where the step block holds what: 32 bytes of counts, then T or R numbers each. */
enum {
    IDS = 32,
    SLOT = IDS + 4 * T,
    POS = SLOT + 4 * T,
    ROW = POS + 4 * T,
    RSLOT = ROW + 4 * R,
    RPOS = RSLOT + 4 * R,
    TABLE = RPOS + 4 * R,
    PARAMS = TABLE + 4 * SLOTS * WIDTH,
    BLOCK_BYTES = PARAMS + R * (int)sizeof(hal_sampling)
};

/* Buffers of the plan, after the step buffer. */
enum { STEP, EMBED, NORM, WQKV, WO, FREQ, CACHE_K, CACHE_V, TOKENS, ARENA, OUT, N_BUFFERS };

typedef struct {
    builder b;
    hal_buffer *buffers[N_BUFFERS];
    uint64_t arena;
} layer;

#define VIEW(buffer, offset, count, f, ...) add_view(&l->b, buffer, offset, count, &OPERAND(f, NULL, __VA_ARGS__))

/* Room for n bytes in the arena. */
static uint64_t room(layer *l, uint64_t n) {
    uint64_t at = l->arena;
    l->arena += (n + 63) / 64 * 64;
    return at;
}

static void attention_part(layer *l, uint64_t qkv, uint64_t q, uint64_t k, uint64_t mixed) {
    arg_rope_table table = {1};
    arg_rope rope = {HAL_ROPE_HALVES};
    arg_attention attention = {.scale = 0.125f, .causal = 1};
    uint64_t wide = 4 * (H + 2 * KV) * HD, v = qkv + 4 * (H + KV) * HD, cos_sin = mixed; /* until attention writes it */
    add_step(&l->b, "rope_table", &table, sizeof table, 2);
    VIEW(ARENA, cos_sin, 0, F32, T, HD);
    VIEW(STEP, POS, 0, I32, T);
    VIEW(FREQ, 0, -1, F32, HD / 2);
    for (int i = 0; i < 2; i++) {
        int heads = i ? KV : H;
        add_step(&l->b, "rope", &rope, sizeof rope, 2);
        VIEW(ARENA, i ? k : q, 0, F32, T, heads, HD);
        VIEW(ARENA, i ? qkv + 4 * H * HD : qkv, 0, F32, T, heads, HD);
        l->b.views[l->b.plan.n_views - 1].stride = wide;
        VIEW(ARENA, cos_sin, 0, F32, T, HD);
    }
    for (int i = 0; i < 2; i++) {
        add_step(&l->b, "kv_write", NULL, 0, 5);
        for (int j = 0; j < 2; j++)
            VIEW(i ? CACHE_V : CACHE_K, 0, -1, F16, BLOCKS, KV, BLOCK, HD);
        VIEW(ARENA, i ? v : k, 0, F32, T, KV, HD);
        if (i)
            l->b.views[l->b.plan.n_views - 1].stride = wide;
        VIEW(STEP, SLOT, 0, I32, T);
        VIEW(STEP, POS, 0, I32, T);
        VIEW(STEP, TABLE, -1, I32, SLOTS, WIDTH);
    }
    add_step(&l->b, "attention", &attention, sizeof attention, 6);
    VIEW(ARENA, mixed, 0, F32, T, H * HD);
    VIEW(ARENA, q, 0, F32, T, H, HD);
    VIEW(CACHE_K, 0, -1, F16, BLOCKS, KV, BLOCK, HD);
    VIEW(CACHE_V, 0, -1, F16, BLOCKS, KV, BLOCK, HD);
    VIEW(STEP, SLOT, 0, I32, T);
    VIEW(STEP, POS, 0, I32, T);
    VIEW(STEP, TABLE, -1, I32, SLOTS, WIDTH);
}

static void input_part(layer *l, uint64_t x, uint64_t act, uint64_t qkv) {
    arg_norm_quantize norm = {1e-6f};
    arg_tokens_put put = {0};
    add_step(&l->b, "tokens_put", &put, sizeof put, 4);
    for (int j = 0; j < 2; j++)
        VIEW(TOKENS, 0, -1, I32, SLOTS, RING);
    VIEW(STEP, IDS, 0, I32, T);
    VIEW(STEP, SLOT, 0, I32, T);
    VIEW(STEP, POS, 0, I32, T);
    add_step(&l->b, "tokens_get", NULL, 0, 3);
    VIEW(ARENA, act, 0, I32, T);
    VIEW(TOKENS, 0, -1, I32, SLOTS, RING);
    VIEW(STEP, SLOT, 0, I32, T);
    VIEW(STEP, POS, 0, I32, T);
    add_step(&l->b, "get_rows", NULL, 0, 2);
    VIEW(ARENA, x, 0, F32, T, D);
    VIEW(EMBED, 0, -1, Q6_K, VOCAB, D);
    VIEW(ARENA, act, 0, I32, T);
    add_step(&l->b, "norm_quantize", &norm, sizeof norm, 2);
    VIEW(ARENA, act, 0, A8_256, T, D);
    VIEW(ARENA, x, 0, F32, T, D);
    VIEW(NORM, 0, -1, F32, D);
    add_step(&l->b, "linear", NULL, 0, 2);
    VIEW(ARENA, qkv, 0, F32, T, (H + 2 * KV) * HD);
    VIEW(ARENA, act, 0, A8_256, T, D);
    VIEW(WQKV, 0, -1, Q4_K, (H + 2 * KV) * HD, D);
}

static void output_part(layer *l, uint64_t x, uint64_t act, uint64_t mixed, uint64_t logits) {
    add_step(&l->b, "quantize", NULL, 0, 1);
    VIEW(ARENA, act, 0, A8_256, T, D);
    VIEW(ARENA, mixed, 0, F32, T, D);
    add_step(&l->b, "linear_add", NULL, 0, 3);
    VIEW(ARENA, mixed, 0, F32, T, D);
    VIEW(ARENA, act, 0, A8_256, T, D);
    VIEW(WO, 0, -1, Q4_K, D, D);
    VIEW(ARENA, x, 0, F32, T, D);
    add_step(&l->b, "gather_rows", NULL, 0, 2);
    VIEW(ARENA, x, 1, F32, R, D);
    VIEW(ARENA, mixed, 0, F32, T, D);
    VIEW(STEP, ROW, 1, I32, R);
    add_step(&l->b, "quantize", NULL, 0, 1);
    VIEW(ARENA, act, 1, A8_256, R, D);
    VIEW(ARENA, x, 1, F32, R, D);
    add_step(&l->b, "linear", NULL, 0, 2);
    VIEW(ARENA, logits, 1, F32, R, VOCAB);
    VIEW(ARENA, act, 1, A8_256, R, D);
    VIEW(EMBED, 0, -1, Q6_K, VOCAB, D);
    add_step(&l->b, "sample", NULL, 0, 5);
    VIEW(OUT, 0, 1, I32, R);
    VIEW(ARENA, logits, 1, F32, R, VOCAB);
    VIEW(TOKENS, 0, -1, I32, SLOTS, RING);
    VIEW(STEP, RSLOT, 1, I32, R);
    VIEW(STEP, RPOS, 1, I32, R);
    VIEW(STEP, PARAMS, 1, I8, R, (int)sizeof(hal_sampling));
}

/* Random bytes under scales that are finite and small: f16 bits 0x1xxx. */
static void fill_weights(uint8_t *p, uint64_t n, uint64_t block, const int *scales, int n_scales) {
    for (uint64_t i = 0; i < n; i++)
        p[i] = (uint8_t)random_bits();
    for (uint64_t i = 0; i < n; i += block)
        for (int j = 0; j < n_scales; j++)
            p[i + (uint64_t)scales[j]] = 0x10;
}

static void fill_buffer(const target *t, layer *l, int which) {
    uint64_t n = l->b.buffers[which].size;
    uint8_t *p = calloc(1, n);
    float freq[HD / 2], ones[D];
    switch (which) {
    case EMBED:
        fill_weights(p, n, 210, (const int[]){209}, 1);
        break;
    case WQKV:
    case WO:
        fill_weights(p, n, 144, (const int[]){1, 3}, 2);
        break;
    case NORM:
        for (int i = 0; i < D; i++)
            ones[i] = 1;
        memcpy(p, ones, sizeof ones);
        break;
    case FREQ:
        for (int i = 0; i < HD / 2; i++)
            freq[i] = 1.0f / (float)(i + 1);
        memcpy(p, freq, sizeof freq);
        break;
    }
    if (l->b.buffers[which].usage <= HAL_STATE)
        CHECK(t->b->write(l->buffers[which], 0, p, n) == 0, "%s: write", t->name);
    free(p);
}

static void make_layer(const target *t, layer *l) {
    uint64_t x, act, qkv, q, k, mixed, logits;
    memset(l, 0, sizeof *l);
    begin_plan(&l->b, BLOCK_BYTES);
    x = room(l, 4 * T * D), act = room(l, format_bytes(A8_256, T * D)), qkv = room(l, 4 * T * (H + 2 * KV) * HD);
    q = room(l, 4 * T * D), k = room(l, 4 * T * KV * HD), mixed = room(l, 4 * T * D), logits = room(l, 4 * R * VOCAB);
    add_buffer(&l->b, HAL_WEIGHT, format_bytes(Q6_K, VOCAB * D));
    add_buffer(&l->b, HAL_WEIGHT, 4 * D);
    add_buffer(&l->b, HAL_WEIGHT, format_bytes(Q4_K, (H + 2 * KV) * HD * D));
    add_buffer(&l->b, HAL_WEIGHT, format_bytes(Q4_K, D * D));
    add_buffer(&l->b, HAL_CONST, 4 * HD / 2);
    add_buffer(&l->b, HAL_STATE, 2 * BLOCKS * KV * BLOCK * HD);
    add_buffer(&l->b, HAL_STATE, 2 * BLOCKS * KV * BLOCK * HD);
    add_buffer(&l->b, HAL_STATE, 4 * SLOTS * RING);
    add_buffer(&l->b, HAL_ARENA, l->arena);
    add_buffer(&l->b, HAL_OUT, 4 * R);
    input_part(l, x, act, qkv);
    attention_part(l, qkv, q, k, mixed);
    output_part(l, x, act, mixed, logits);
    for (int i = 0; i < N_BUFFERS; i++) {
        CHECK(t->b->alloc(t->device, &l->b.buffers[i], &l->buffers[i]) == 0, "%s: alloc", t->name);
        fill_buffer(t, l, i);
    }
}

static void free_layer(const target *t, layer *l) {
    for (int i = 0; i < N_BUFFERS; i++)
        t->b->free(l->buffers[i]);
}

static void put_ints(uint8_t *block, int at, int n, int first, int by) {
    for (int i = 0; i < n; i++) {
        int32_t x = first + by * i;
        memcpy(block + at + 4 * i, &x, 4);
    }
}

/* A step of `tokens` tokens of slot 0 from `pos` on, and `rows` output rows. */
static void fill_block(uint8_t *block, int tokens, int rows, int pos) {
    hal_sampling s = {.seed = 7,
                      .chain = {{STAGE_penalties, {1.1f, 0, 0, 32}},
                                {STAGE_top_k, {20}},
                                {STAGE_top_p, {0.9f}},
                                {STAGE_min_p, {0.01f}},
                                {STAGE_temperature, {0.8f}}}};
    memset(block, 0, BLOCK_BYTES);
    put_ints(block, 0, 1, tokens, 0);
    put_ints(block, 4, 1, rows, 0);
    put_ints(block, IDS, T, pos % 7, 1);
    put_ints(block, POS, T, pos, 1);
    put_ints(block, ROW, R, 0, 0);
    put_ints(block, RPOS, R, pos, 0);
    put_ints(block, TABLE, SLOTS * WIDTH, BLOCKS - 1, -1);
    for (int i = 0; i < R; i++)
        memcpy(block + PARAMS + i * (int)sizeof s, &s, sizeof s);
}

void test_many_runs(const target *t, int runs) {
    static uint8_t block[BLOCK_BYTES];
    static layer l;
    hal_exec *e = NULL;
    int32_t out[R];
    long before;
    int bad = 0;
    make_layer(t, &l);
    if (!CHECK(t->b->compile(t->device, &l.b.plan, l.buffers, &e) == 0, "%s: layer: %s", t->name, t->b->error()))
        return;
    for (uint32_t i = 0; i < l.b.plan.n_steps; i++)
        CHECK(t->b->supports(t->device, &l.b.plan, i) == 1, "%s: step %u is supported", t->name, i);
    before = allocations;
    for (int i = 0; i < runs; i++) {
        int tokens = i % 5 ? 1 : 1 + i % T;
        fill_block(block, tokens, i % 3 ? 1 : i % (R + 1), i % (WIDTH * BLOCK - T));
        bad += t->b->run(e, block, BLOCK_BYTES) != 0 || t->b->wait(e, UINT32_MAX) != 0;
        bad += t->b->read(l.buffers[OUT], 0, out, sizeof out) != 0;
    }
    CHECK(bad == 0, "%s: %d of %d runs failed: %s", t->name, bad, runs, t->b->error());
    CHECK(allocations == before, "%s: %ld allocations in %d runs", t->name, allocations - before, runs);
    if (t->computes) {
        fill_block(block, T + 1, 1, 0);
        CHECK(t->b->run(e, block, BLOCK_BYTES) != 0 || t->b->wait(e, UINT32_MAX) == HAL_E_INVALID,
              "%s: more tokens than the bucket holds are refused", t->name);
        CHECK(t->b->run(e, block, BLOCK_BYTES + 1) == HAL_E_INVALID, "%s: too long a block is refused", t->name);
    }
    t->b->release(e);
    free_layer(t, &l);
}

/* --- single faults: each changes one thing in a fresh layer */

typedef void (*fault_fn)(builder *);
#define FAULT(name, change)                                                                                            \
    static void name(builder *b) {                                                                                     \
        change;                                                                                                        \
    }
FAULT(offset_past_end, b->views[5].offset = 1 << 30)
FAULT(offset_wraps, b->views[5].offset = UINT64_MAX - 3)
FAULT(offset_unaligned, b->views[5].offset = 1)
FAULT(stride_small, b->views[12].stride = 4)
FAULT(stride_wraps, b->views[12].stride = UINT64_MAX / 2)
FAULT(buffer_unknown, b->views[5].buffer = 99)
FAULT(format_unknown, b->views[5].format = 77)
FAULT(format_other, b->views[10].format = F32)
FAULT(rank_zero, b->views[5].ndim = 0)
FAULT(rank_five, b->views[5].ndim = 5)
FAULT(size_zero, b->views[12].shape[1] = 0)
FAULT(size_negative, b->views[12].shape[0] = -1)
FAULT(size_huge, b->views[12].shape[0] = INT32_MAX)
FAULT(sizes_overflow, b->views[12].ndim = 4; for (int i = 0; i < 4; i++) b->views[12].shape[i] = INT32_MAX)
FAULT(size_differs, b->views[12].shape[1] = D / 2)
FAULT(count_unknown, b->views[5].count = 8)
FAULT(op_name, strcpy(b->ops[2].name, "no_such_op"))
FAULT(op_index, b->steps[0].op = 99)
FAULT(arg_size, b->ops[0].arg_size++)
FAULT(arg_place, b->steps[0].arg = 1 << 20)
FAULT(arg_unaligned, b->steps[3].arg += 4)
FAULT(inputs_few, b->steps[0].n_in--)
FAULT(inputs_many, b->steps[0].n_in++)
FAULT(views_outside, b->steps[0].view = b->plan.n_views)
FAULT(views_wrap, b->steps[0].n_in = UINT16_MAX)
FAULT(writes_weights, b->buffers[TOKENS].usage = HAL_WEIGHT)
FAULT(step_buffer, b->plan.step_buffer = 99)
FAULT(buffer_small, b->buffers[EMBED].size++)
#define COS_SIN b->views[b->steps[6].view + 2]
FAULT(rope_odd, COS_SIN.shape[1] = HD - 1)
FAULT(rope_wide, COS_SIN.shape[1] += 2; COS_SIN.stride += 8)
FAULT(rope_style, ((arg_rope *)(void *)(b->args + b->steps[6].arg))->style = 2)
FAULT(window_negative, ((arg_attention *)(void *)(b->args + b->steps[10].arg))->window = -1)
#define NAMED(f) {#f, f}
static const struct {
    const char *name;
    fault_fn make;
} faults[] = {
    NAMED(offset_past_end), NAMED(offset_wraps),    NAMED(offset_unaligned), NAMED(stride_small),   NAMED(stride_wraps),
    NAMED(buffer_unknown),  NAMED(format_unknown),  NAMED(format_other),     NAMED(rank_zero),      NAMED(rank_five),
    NAMED(size_zero),       NAMED(size_negative),   NAMED(size_huge),        NAMED(sizes_overflow), NAMED(size_differs),
    NAMED(count_unknown),   NAMED(op_name),         NAMED(op_index),         NAMED(arg_size),       NAMED(arg_place),
    NAMED(arg_unaligned),   NAMED(inputs_few),      NAMED(inputs_many),      NAMED(views_outside),  NAMED(views_wrap),
    NAMED(writes_weights),  NAMED(step_buffer),     NAMED(buffer_small),     NAMED(rope_odd),       NAMED(rope_wide),
    NAMED(rope_style),      NAMED(window_negative),
};

static void copy_builder(builder *to, const builder *from) {
    memcpy(to, from, sizeof *to);
    to->plan.steps = to->steps;
    to->plan.views = to->views;
    to->plan.buffers = to->buffers;
    to->plan.ops = to->ops;
    to->plan.args = to->args;
}

void test_wrong_plans(const target *t) {
    static layer l;
    static builder b;
    hal_buffer *none[N_BUFFERS];
    make_layer(t, &l);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        hal_exec *e = NULL;
        const char *why;
        int code;
        copy_builder(&b, &l.b);
        faults[i].make(&b);
        code = t->b->compile(t->device, &b.plan, l.buffers, &e);
        why = t->b->error();
        CHECK(code == (faults[i].make == op_name ? HAL_E_UNSUPPORTED : HAL_E_INVALID) && !e, "%s: %s gives %d: %s",
              t->name, faults[i].name, code, why);
        CHECK(strncmp(why, "step ", 5) == 0 || strncmp(why, "plan: ", 6) == 0, "%s: %s: where? %s", t->name,
              faults[i].name, why);
        t->b->release(e);
    }
    memcpy(none, l.buffers, sizeof none);
    none[EMBED] = NULL;
    CHECK(t->b->compile(t->device, &l.b.plan, none, &(hal_exec *){NULL}) == HAL_E_INVALID, "%s: no buffer", t->name);
    free_layer(t, &l);
}

/* --- random damage */

static void damage(void *table, size_t n) {
    uint8_t *p = table;
    size_t at = (size_t)random_below((int)n);
    switch (random_below(3)) {
    case 0:
        p[at] = (uint8_t)random_bits();
        break;
    case 1:
        p[at] ^= (uint8_t)(1 << random_below(8));
        break;
    default:
        p[at] = (uint8_t)(p[at] + random_below(5) - 2);
    }
}

void test_damaged_plans(const target *t, int rounds) {
    static uint8_t block[BLOCK_BYTES];
    static layer l;
    static builder b;
    int ran = 0, refused = 0;
    make_layer(t, &l);
    for (int i = 0; i < rounds; i++) {
        hal_exec *e = NULL;
        copy_builder(&b, &l.b);
        fill_block(block, 1 + random_below(T), random_below(R + 1), random_below(WIDTH * BLOCK - T));
        if (i % 2)
            for (int j = 0; j <= random_below(4); j++)
                damage(block, BLOCK_BYTES);
        else
            switch (random_below(4)) {
            case 0:
                damage(b.steps, sizeof *b.steps * b.plan.n_steps);
                break;
            case 1:
                damage(b.args, b.plan.n_args);
                break;
            default:
                damage(b.views, sizeof *b.views * b.plan.n_views);
            }
        if (t->b->compile(t->device, &b.plan, l.buffers, &e) != 0 || t->b->run(e, block, BLOCK_BYTES) != 0 ||
            t->b->wait(e, UINT32_MAX) != 0)
            refused++;
        else
            ran++;
        t->b->release(e);
    }
    CHECK(ran > 0 && refused > 0, "%s: %d damaged plans ran, %d were refused", t->name, ran, refused);
    free_layer(t, &l);
}
