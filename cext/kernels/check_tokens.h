/* check_tokens.h: checks and grids of the portable kernels for positions, the KV cache, attention and the token table; part of
 * table.c.
 */
#ifndef SATCHEL_CHECK_TOKENS_H
#define SATCHEL_CHECK_TOKENS_H

#include "check.h"
#include "modes.h"

/* Elements of a block of a cache format; 0: not a cache format. */
static inline int kv_block(uint32_t format) {
    return format == 0 || format == 1 || format == 30 || format == 1008 ? 1 : format == 8 || format == 2 ? 32 : 0;
}

static inline void grid_rope_table(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    uint32_t threads = threads_for(t, c->v[2].shape[0], THREADS);
    *g = grid_of(parts(c->v[2].shape[0], threads), c->v[0].shape[0], 1, threads, 0);
}

/* Also of rope_kv_write: x is the second input of both. */
static inline const char *check_kv_write(const gpu_call *c, const gpu_traits *t) {
    (void)t;
    return few_tokens(c->v[2].shape[0]);
}

static inline void grid_rope_qkv_write(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    const gpu_view *q = c->v + 1;
    int64_t heads = q->shape[1] + 2 * (int64_t)c->v[8].shape[1];
    *g = grid_of(parts(heads, WAVES), q->shape[0], 1, (uint32_t)(WAVES * t->wave), 0);
}

static inline void grid_kv_write(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    const gpu_view *x = c->v + 2;
    *g = grid_of(x->shape[1], x->shape[0], 1, threads_for(t, x->shape[2] / kv_block(c->v[0].format), THREADS), 0);
}

static inline int32_t value_of(const gpu_call *c) {
    arg_attention arg;
    memcpy(&arg, c->arg, sizeof arg);
    return arg.value ? arg.value : c->v[3].shape[3];
}

/* Bytes of local memory for queries of d numbers and values of dv. */
static inline uint64_t attention_local(int32_t d, int32_t dv) {
    return 4 * (4 + (uint64_t)d + 3 + KV_WAVES * ((uint64_t)dv + 2));
}

static inline const char *check_softmax(const gpu_call *c, const gpu_traits *t, int32_t d, int32_t dv) {
    return dv <= KV_VALUES_MOST && attention_local(d, dv) <= (uint64_t)t->shared
               ? few_tokens(c->v[1].shape[0])
               : "a value head is too wide for a wave, or a query head for the local memory of a group";
}

static inline void grid_softmax(const gpu_call *c, const gpu_traits *t, int64_t groups, uint64_t local, gpu_grid *g) {
    *g = grid_of(c->v[1].shape[1], groups, 1, (uint32_t)(KV_WAVES * t->wave), local);
}

static inline const char *check_attention(const gpu_call *c, const gpu_traits *t) {
    return check_softmax(c, t, c->v[1].shape[2], value_of(c));
}

static inline void grid_attention(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    grid_softmax(c, t, c->v[1].shape[0], attention_local(c->v[1].shape[2], value_of(c)), g);
}

/* Of rope_qkv_attention. */
static inline const char *check_attention_step(const gpu_call *c, const gpu_traits *t) {
    int32_t d = c->v[1].shape[2];
    return c->v[1].shape[0] == 1 ? check_softmax(c, t, d, d) : "it is made for one token";
}

static inline void grid_attention_step(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    grid_softmax(c, t, 1, attention_local(c->v[1].shape[2], c->v[1].shape[2]), g);
}

static inline uint64_t scratch_attention_step(const gpu_call *c, const gpu_traits *t) {
    (void)t;
    return 2 * (uint64_t)STEP_ROW(c->v[1].shape[2]) * (uint64_t)c->v[1].shape[1];
}

/* Of attention_parts: columns of a value. */
static inline int32_t parts_value(const gpu_call *c) {
    return c->v[0].shape[1] / c->v[1].shape[1] - 2;
}

static inline const char *check_parts(const gpu_call *c, const gpu_traits *t) {
    return check_softmax(c, t, c->v[1].shape[2], parts_value(c));
}

static inline void grid_parts(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    grid_softmax(c, t, c->v[1].shape[0], attention_local(c->v[1].shape[2], parts_value(c)), g);
}

static inline void grid_one(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    *g = grid_of(1, 1, 1, threads_for(t, c->v[c->n_in].shape[0], THREADS), 0);
}

#endif
