/* check_tokens.h: checks and grids of the portable kernels for positions, the KV cache, attention and the token table; part of
 * table.c.
 */
#ifndef SATCHEL_CHECK_TOKENS_H
#define SATCHEL_CHECK_TOKENS_H

#include "check.h"

enum { KV_VALUES_MOST = 512, KV_WAVES = 4 };
#define KV_FORMATS "f32, f16, bf16, fp8, q8_0 or q4_0"

/* Elements of a block of a cache format; 0: not a cache format. */
static inline int kv_block(uint32_t format) {
    return format == 0 || format == 1 || format == 30 || format == 1008 ? 1 : format == 8 || format == 2 ? 32 : 0;
}

static inline int is_cache(const gpu_view *cache) {
    return kv_block(cache->format) && cache->shape[3] % kv_block(cache->format) == 0;
}

static inline const char *check_rope_table(const gpu_call *c, const gpu_traits *t) {
    const gpu_view *y = c->v, *freq = c->v + 2;
    (void)t;
    return c->n_in == 2 && y->format == F32 && is_list(c->v + 1, I32, y->shape[0]) &&
                   is_list(freq, F32, freq->shape[0]) && freq->stride == 4 && width(y) == 2 * (int64_t)freq->shape[0] &&
                   y->shape[0] <= MOST_TOKENS
               ? NULL
               : "it takes pos i32 (T) and freq f32 (N), and gives f32 (T, 2 N)";
}

static inline void grid_rope_table(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    uint32_t threads = threads_for(t, c->v[2].shape[0], THREADS);
    *g = grid_of(parts(c->v[2].shape[0], threads), c->v[0].shape[0], 1, threads, 0);
}

static inline const char *check_cos_sin(const gpu_call *c, const gpu_view *x, const gpu_view *cos_sin) {
    int32_t style, n_rot = cos_sin->shape[1];
    memcpy(&style, c->arg, sizeof style);
    if (x->format != F32 || cos_sin->format != F32 || cos_sin->shape[0] != x->shape[0] || width(cos_sin) != n_rot)
        return "x must be f32 (T, H, D) and cos_sin f32 (T, n_rot)";
    if (n_rot < 2 || n_rot % 2 || n_rot > x->shape[2])
        return "n_rot must be even and no more than D";
    return style == HAL_ROPE_INTERLEAVED || style == HAL_ROPE_HALVES ? NULL : "style must be 0 or 1";
}

static inline const char *check_rope(const gpu_call *c, const gpu_traits *t) {
    (void)t;
    if (c->n_in != 2 || c->v[0].format != F32 || !same_shape(c->v, c->v + 1) || c->v[0].shape[0] > MOST_TOKENS)
        return "it takes x and cos_sin, and gives f32 of x's shape";
    return check_cos_sin(c, c->v + 1, c->v + 2);
}

/* slot: the input slot; pos and table follow it. */
static inline const char *check_kv(const gpu_call *c, const gpu_view *slot) {
    const gpu_view *cache = c->v, *x = c->v + 2, *table = slot + 2;
    if (!is_cache(cache))
        return "the cache must be " KV_FORMATS " (blocks, H, block, D)";
    if (cache->data != c->v[1].data || !same_shape(cache, c->v + 1) || cache->format != c->v[1].format)
        return "the output must be the cache itself";
    if (x->format != F32 || x->shape[1] != cache->shape[1] || x->shape[2] != cache->shape[3] ||
        x->shape[0] > MOST_TOKENS)
        return "x must be f32 (T, H, D) with the cache's H and D";
    return is_list(slot, I32, x->shape[0]) && is_list(slot + 1, I32, x->shape[0]) && table->format == I32 &&
                   width(table) == table->shape[1]
               ? NULL
               : "slot and pos must be i32 (T), and table i32 (S, B)";
}

static inline const char *check_kv_write(const gpu_call *c, const gpu_traits *t) {
    (void)t;
    return c->n_in == 5 ? check_kv(c, c->v + 3) : "it takes cache, x, slot, pos and table";
}

static inline const char *check_rope_kv_write(const gpu_call *c, const gpu_traits *t) {
    const char *fault = c->n_in == 6 ? check_kv(c, c->v + 4) : "it takes cache, x, cos_sin, slot, pos and table";
    (void)t;
    return fault ? fault : check_cos_sin(c, c->v + 2, c->v + 3);
}

/* The inputs that rope_qkv_write and rope_qkv_attention share: queries, both caches, slot, pos, table, cos_sin, keys, values,
 * then biases or norms. */
static inline const char *check_rope_qkv(const gpu_call *c, const arg_rope_qkv_write *a) {
    const gpu_view *q = c->v + 1, *slot = c->v + 4, *table = c->v + 6, *cos_sin = c->v + 7;
    gpu_call styled = {.arg = {(uint32_t)a->style}};
    if ((a->biases | a->norms) & ~1 || a->biases + a->norms > 1 ||
        c->n_in != 9 + 3 * (uint32_t)a->biases + 2 * (uint32_t)a->norms)
        return "it takes q, both caches, slot, pos, table, cos_sin, k, v, and three biases or two norms";
    for (int i = 0; i < 2; i++) {
        const gpu_view *cache = c->v + 2 + i, *x = c->v + 8 + i;
        if (!is_cache(cache) || x->format != F32 || x->shape[0] != q->shape[0] || x->shape[1] != cache->shape[1] ||
            x->shape[2] != cache->shape[3] || x->shape[1] != c->v[8].shape[1])
            return "k and v must be f32 (T, H, D) with their caches' H and D";
    }
    for (int i = 0; i < 3 * a->biases + 2 * a->norms; i++) {
        const gpu_view *x = i ? c->v + 7 + i : q, *w = c->v + 10 + i;
        if (!is_list(w, F32, a->biases ? width(x) : x->shape[2]) || w->stride != 4)
            return "a bias must be f32 (H * D), a norm f32 (D)";
    }
    if (q->shape[0] > MOST_TOKENS || !is_list(slot, I32, q->shape[0]) || !is_list(slot + 1, I32, q->shape[0]) ||
        table->format != I32 || width(table) != table->shape[1])
        return "slot and pos must be i32 (T), and table i32 (S, B)";
    return check_cos_sin(&styled, q, cos_sin) ? check_cos_sin(&styled, q, cos_sin)
                                              : check_cos_sin(&styled, c->v + 8, cos_sin);
}

static inline const char *check_rope_qkv_write(const gpu_call *c, const gpu_traits *t) {
    arg_rope_qkv_write arg;
    (void)t;
    memcpy(&arg, c->arg, sizeof arg);
    return c->v[0].format == F32 && same_shape(c->v, c->v + 1) ? check_rope_qkv(c, &arg)
                                                               : "the output must have the shape of q, in f32";
}

static inline void grid_rope_qkv_write(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    const gpu_view *q = c->v + 1;
    *g = grid_of(q->shape[1] + 2 * (int64_t)c->v[8].shape[1], q->shape[0], 1, threads_for(t, q->shape[2], THREADS / 2),
                 THREADS / 8);
}

static inline void grid_kv_write(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    const gpu_view *x = c->v + 2;
    *g = grid_of(x->shape[1], x->shape[0], 1, threads_for(t, x->shape[2] / kv_block(c->v[0].format), THREADS), 0);
}

static inline const char *check_position_scale(const gpu_call *c, const gpu_traits *t) {
    arg_position_scale arg;
    (void)t;
    memcpy(&arg, c->arg, sizeof arg);
    if (c->n_in != 1 || !is_list(c->v + 1, I32, c->v[0].shape[0]) || !is_list(c->v, F32, c->v[0].shape[0]))
        return "it takes pos i32 (T) and gives f32 (T, 1)";
    return arg.step > 0 ? NULL : "step must be above 0";
}

static inline int32_t value_of(const gpu_call *c) {
    arg_attention arg;
    memcpy(&arg, c->arg, sizeof arg);
    return arg.value ? arg.value : c->v[3].shape[3];
}

static inline uint64_t attention_local(const gpu_call *c) {
    return 4 * (4 + (uint64_t)c->v[1].shape[2] + 3 + KV_WAVES * ((uint64_t)value_of(c) + 2));
}

/* Checks the arguments of the mask (window, chunk, cap, value), and sinks and slopes. */
static inline const char *check_sight(const gpu_call *c) {
    const gpu_view *q = c->v + 1, *k = c->v + 2, *v = c->v + 3;
    arg_attention arg;
    memcpy(&arg, c->arg, sizeof arg);
    if (arg.window < 0 || arg.chunk < 0 || arg.value < 0 || !(arg.cap >= 0))
        return "window, cap, chunk and value must not be negative";
    if (arg.value && (k->format != v->format || !same_shape(k, v) || arg.value > k->shape[3]))
        return "with value > 0, v must be the same cache as k, and at least `value` wide";
    if (arg.alibi < 0 || arg.alibi > 1 || ((int)c->n_in - arg.alibi != 6 && (int)c->n_in - arg.alibi != 7))
        return "it takes q, k, v, slot, pos and table, may take sinks, and with alibi 1 slopes";
    for (const gpu_view *x = c->v + 7; x <= c->v + c->n_in; x++)
        if (!is_list(x, F32, q->shape[1]) || x->stride != 4)
            return "sinks and slopes must be f32 (H)";
    return !arg.causal && arg.chunk ? "chunks must be causal" : NULL;
}

static inline const char *check_attention(const gpu_call *c, const gpu_traits *t) {
    const gpu_view *y = c->v, *q = c->v + 1, *k = c->v + 2, *v = c->v + 3, *table = c->v + 6;
    const char *fault = check_sight(c);
    if (c->n_in < 6 || q->format != F32 || !is_list(c->v + 4, I32, q->shape[0]) || !is_list(c->v + 5, I32, q->shape[0]))
        return "it takes q f32 (T, H, D), k, v, slot and pos i32 (T), and table";
    if (table->format != I32 || width(table) != table->shape[1] ||
        (int64_t)table->shape[1] * k->shape[2] > INT32_MAX / 2)
        return "table must be i32 (S, B), with positions that 32 bits can count";
    if (!is_cache(k) || !is_cache(v) || memcmp(k->shape, v->shape, 3 * sizeof(int32_t)) != 0)
        return "k and v must be caches " KV_FORMATS " (blocks, KV, block, D)";
    if (k->shape[3] != q->shape[2] || q->shape[1] % k->shape[1])
        return "q must have the keys' D, and a multiple of KV heads";
    if (y->format != F32 || y->shape[0] != q->shape[0] || width(y) != (int64_t)q->shape[1] * value_of(c))
        return "the output must be f32 (T, H * D)";
    if (fault || q->shape[0] > MOST_TOKENS)
        return fault ? fault : "tokens must be no more than 65535";
    return value_of(c) <= KV_VALUES_MOST && attention_local(c) <= (uint64_t)t->shared
               ? NULL
               : "a value head is too wide for a wave, or a query head for the local memory of a group";
}

static inline void grid_attention(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    *g = grid_of(c->v[1].shape[1], c->v[1].shape[0], 1, (uint32_t)(KV_WAVES * t->wave), attention_local(c));
}

static inline const char *check_ring(const gpu_view *table, const gpu_view *slot, const gpu_view *pos) {
    return table->format == I32 && width(table) == table->shape[1] && is_list(slot, I32, slot->shape[0]) &&
                   is_list(pos, I32, slot->shape[0])
               ? NULL
               : "the table must be i32 (S, W), slot and pos i32 of one length";
}

static inline const char *check_tokens_put(const gpu_call *c, const gpu_traits *t) {
    (void)t;
    if (c->n_in != 4 || !is_list(c->v + 2, I32, c->v[4].shape[0]))
        return "it takes the table, ids, slot and pos, and ids are i32 and as many as pos";
    if (c->v[0].data != c->v[1].data || !same_shape(c->v, c->v + 1) || c->v[0].format != I32)
        return "the output must be the table itself";
    return check_ring(c->v + 1, c->v + 3, c->v + 4);
}

static inline const char *check_tokens_get(const gpu_call *c, const gpu_traits *t) {
    (void)t;
    if (c->n_in != 3 || !is_list(c->v, I32, c->v[3].shape[0]))
        return "it takes the table, slot and pos, and gives i32, as many as pos";
    return check_ring(c->v + 1, c->v + 2, c->v + 3);
}

static inline void grid_one(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    *g = grid_of(1, 1, 1, threads_for(t, c->v[c->n_in].shape[0], THREADS), 0);
}

#endif
