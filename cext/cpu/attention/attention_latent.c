/* attention_latent.c: multi-head latent attention (MLA), where a token's form depends on its run (attention_run.h). A run is
 * consecutive tokens of one slot.
 *
 * absorbed_attention computes tokens in runs shorter than `least` over the latents themselves and writes zeros to the other rows.
 * expanded_attention computes those other rows, head by head, from keys and values made of the latents (attention_expand.h), in
 * tiles of LONG_TILE tokens. sparse_attention attends to a given list of positions per token; a list of all positions gives the
 * bits of dense attention.
 */
#include "shapes.h"
#include "attention_run.h"

enum { LONG_TILE = 512 };

static setup setup_absorbed_attention(const cpu_call *c) {
    const arg_absorbed_attention *a = c->arg;
    arg_attention plain = {.scale = a->scale, .value = a->value, .causal = 1};
    setup s = setup_of(c, &plain, 6);
    s.least = a->least;
    return s;
}

static setup setup_sparse_attention(const cpu_call *c) {
    const arg_sparse_attention *a = c->arg;
    arg_attention plain = {.scale = a->scale, .value = a->value, .causal = 1};
    setup s = setup_of(c, &plain, 6);
    s.positions = c->v + 7;
    s.tile = 1;
    return s;
}

static setup setup_expanded_attention(const cpu_call *c) {
    const arg_expanded_attention *a = c->arg;
    const cpu_view *q = c->v + 1, *k = c->v + 2, *k_b = c->v + 7, *v_b = c->v + 8;
    setup s = {.c = c,
               .q = q,
               .k = k,
               .v = k,
               .table = c->v + 6,
               .heads = q->shape[1],
               .kv_heads = q->shape[1],
               .group = 1,
               .causal = 1,
               .scale = a->scale,
               .least = a->least,
               .k_b = k_b,
               .v_b = v_b,
               .tile = LONG_TILE};
    s.block = k->shape[2];
    s.rank = k_b->shape[1];
    s.nope = k_b->shape[2];
    s.d = q->shape[2];
    s.dv = v_b->shape[1];
    s.d_pitch = whole_vectors(s.d);
    s.v_pitch = s.dv_pitch = whole_vectors(s.dv);
    s.latent_pitch = whole_vectors(k->shape[3]);
    s.made_pitch = whole_vectors(s.nope + s.dv);
    return s;
}

/* Checks q, the cache (given as k and as v), slot, pos, table and the output (T, H * value). NULL, or what is wrong. */
static const char *check_inputs(const cpu_call *c) {
    const cpu_view *q = c->v + 1, *k = c->v + 2, *v = c->v + 3, *table = c->v + 6;
    if (!cpu_is(q, F32, 3))
        return "q must be f32 (T, H, D)";
    for (int i = 4; i < 6; i++)
        if (!cpu_is(c->v + i, I32, 1) || c->v[i].shape[0] != q->shape[0])
            return "slot and pos must be i32 (T)";
    if (!cpu_is(table, I32, 2) || (int64_t)table->shape[1] * k->shape[2] > INT32_MAX / 2)
        return "table must be i32 (S, B), with positions that 32 bits can count";
    if (k->ndim != 4 || k->shape[1] != 1 || !cpu_same_shape(k, v) || k->format != v->format ||
        !kv_bytes(k->format, KV_BLOCK))
        return "k and v must be one cache (blocks, 1, block, D) in " KV_FORMATS;
    return NULL;
}

static const char *check_absorbed(const cpu_call *c, int value) {
    const cpu_view *y = c->v, *q = c->v + 1, *k = c->v + 2;
    if (value < 1 || value > k->shape[3] || q->shape[2] != k->shape[3])
        return "q must have the keys' D, and value be 1 to D";
    return cpu_is(y, F32, 2) && y->shape[0] == q->shape[0] && y->shape[1] == (int64_t)q->shape[1] * value
               ? NULL
               : "the output must be f32 (T, H * value)";
}

static const char *check_absorbed_attention(const cpu_call *c) {
    const arg_absorbed_attention *a = c->arg;
    const char *fault = c->n_in != 6 ? "it takes q, k, v, slot, pos and table" : check_inputs(c);
    if (!fault && a->least < 1)
        return "least must be 1 or more";
    return fault ? fault : check_absorbed(c, a->value);
}

static const char *check_sparse_attention(const cpu_call *c) {
    const arg_sparse_attention *a = c->arg;
    const cpu_view *positions = c->v + 7;
    const char *fault = c->n_in != 7 ? "it takes q, k, v, slot, pos, table and positions" : check_inputs(c);
    if (!fault && (!cpu_is(positions, I32, 2) || positions->shape[0] != c->v[1].shape[0]))
        return "positions must be i32 (T, k)";
    return fault ? fault : check_absorbed(c, a->value);
}

static const char *check_expanded_attention(const cpu_call *c) {
    const arg_expanded_attention *a = c->arg;
    const cpu_view *y = c->v, *q = c->v + 1, *k = c->v + 2, *left = c->v + 9;
    const char *fault =
        c->n_in != 9 ? "it takes q, k, v, slot, pos, table, k_b, v_b and the absorbed rows" : check_inputs(c);
    if (fault)
        return fault;
    for (const cpu_view *w = c->v + 7; w < c->v + 9; w++)
        if (w->ndim != 3 || w->shape[0] != q->shape[1] || !panel_format_find(w->format) ||
            !cpu_unpack_of(c->set, w->format) || w->shape[2] % panel_format_find(w->format)->block)
            return "k_b must be (H, rank, nope) and v_b (H, value, rank), in formats that can be unpacked";
    if (c->v[8].shape[2] != c->v[7].shape[1] || q->shape[2] - c->v[7].shape[2] != k->shape[3] - c->v[7].shape[1] ||
        k->shape[3] < c->v[7].shape[1])
        return "q, the cache and the weights disagree about the sizes of latents and keys";
    if (!cpu_is(y, F32, 3) || !cpu_same_shape(y, left) || !cpu_is(left, F32, 3) || y->shape[0] != q->shape[0] ||
        y->shape[1] != q->shape[1] || y->shape[2] != c->v[8].shape[1])
        return "the absorbed rows and the output must be f32 (T, H, value)";
    return a->least < 1 ? "least must be 1 or more" : NULL;
}

ATTENTION_KERNEL(absorbed_attention, check_absorbed_attention, 0);
ATTENTION_KERNEL(sparse_attention, check_sparse_attention, 0);
ATTENTION_KERNEL(expanded_attention, check_expanded_attention, 1);
