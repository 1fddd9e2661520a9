/* attention_latent.c: multi-head latent attention (MLA), where a token's form depends on its run (attention_run.h). A run is
 * consecutive tokens of one slot.
 *
 * absorbed_attention computes tokens in runs shorter than `least` over the latents themselves and writes zeros to the other rows.
 * expanded_attention computes those other rows, head by head, from keys and values made of the latents (attention_expand.h), in
 * tiles of LONG_TILE tokens. sparse_attention attends to a given list of positions per token; a list of all positions gives the
 * bits of dense attention.
 */
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

/* Weights must be in formats that this kernel set unpacks. */
static const char *check_expanded_attention(const cpu_call *c) {
    for (const cpu_view *w = c->v + 7; w < c->v + 9; w++)
        if (!panel_format_find(w->format) || !cpu_unpack_of(c->set, w->format) ||
            w->shape[2] % panel_format_find(w->format)->block)
            return "k_b and v_b must be in formats that can be unpacked";
    return NULL;
}

ATTENTION_KERNEL(absorbed_attention, NULL, 0);
ATTENTION_KERNEL(sparse_attention, NULL, 0);
ATTENTION_KERNEL(expanded_attention, check_expanded_attention, 1);
