/* check_recurrent.h: checks and grids of the portable kernels of recurrent layers (short_conv, gated_scan); part of table.c. */
#ifndef SATCHEL_CHECK_RECURRENT_H
#define SATCHEL_CHECK_RECURRENT_H

#include "check.h"
#include "modes.h"

enum { TAPS_MOST = 64 };

/* slots: the input slot; pos and table follow it. */
static inline const char *check_places(const gpu_view *slots, const gpu_view *state, int32_t tokens, int32_t block) {
    const gpu_view *table = slots + 2;
    if (!is_list(slots, I32, tokens) || !is_list(slots + 1, I32, tokens) || table->format != I32 ||
        width(table) != table->shape[1])
        return "slot and pos must be i32 (T), and table i32 (S, B)";
    if (tokens > MOST_TOKENS)
        return "tokens must be no more than 65535";
    return block < 1 || state->format != F32 ? "state must be f32, block above 0" : NULL;
}

static inline int is_own_state(const gpu_call *c) {
    return c->v[0].data == c->v[1].data && same_shape(c->v, c->v + 1) && c->v[1].format == F32;
}

static inline int is_conv_state(const gpu_view *state, const gpu_view *x) {
    return x->format == F32 && width(x) == x->shape[1] && state->shape[1] >= 1 && state->shape[1] < TAPS_MOST &&
           state->shape[2] == x->shape[1] && state->shape[3] == 1;
}

static inline const char *check_conv(const gpu_call *c, const gpu_traits *t) {
    const gpu_view *x = c->v + 1, *state = c->v + 2, *w = c->v + 3;
    arg_short_conv arg;
    (void)t;
    memcpy(&arg, c->arg, sizeof arg);
    if (c->n_in != 6 && c->n_in != 7)
        return "it takes x, state, w, slot, pos, table and maybe a bias";
    if (c->v[0].format != F32 || !same_shape(c->v, x) || !is_conv_state(state, x))
        return "x and the output must be f32 (T, C), and state (pages, K - 1, C) with 2 to 64 taps";
    if (w->format != F32 || width(w) != w->shape[1] || w->shape[0] != x->shape[1] || w->shape[1] != state->shape[1] + 1)
        return "w must be f32 (C, K)";
    if (c->n_in == 7 && !is_list(c->v + 7, F32, x->shape[1]))
        return "the bias must be f32 (C)";
    return check_places(c->v + 4, state, x->shape[0], arg.block);
}

static inline const char *check_conv_write(const gpu_call *c, const gpu_traits *t) {
    const gpu_view *x = c->v + 2;
    arg_conv_write arg;
    (void)t;
    memcpy(&arg, c->arg, sizeof arg);
    if (c->n_in != 5 || !is_own_state(c))
        return "it takes state, x, slot, pos and table, and the output must be the state itself";
    return is_conv_state(c->v, x) ? check_places(c->v + 3, c->v, x->shape[0], arg.block)
                                  : "x must be f32 (T, C), and state (pages, K - 1, C) with 2 to 64 taps";
}

/* A thread computes a channel of a token. x: the input (T, C). */
static inline void grid_conv(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    const gpu_view *x = c->n_in == 5 ? c->v + 2 : c->v + 1;
    uint32_t threads = threads_for(t, x->shape[1], THREADS);
    *g = grid_of(parts(x->shape[1], threads), x->shape[0], 1, threads, 0);
}

/* Bytes of local memory for the columns of a group; see scan_pitch. */
static inline uint64_t scan_local(const gpu_view *state) {
    return 4 * SCAN_COLUMNS * (((uint64_t)state->shape[2] + 31) / 32 * 32 + SCAN_LANES);
}

static inline const char *check_keys(const gpu_view *k, const gpu_view *g, const gpu_view *state, int32_t tokens,
                                     int shared) {
    if (k->format != F32 || k->shape[3] != 1 || g->format != F32 || width(g) != g->shape[1] || k->shape[0] != tokens ||
        g->shape[0] != tokens)
        return "keys must be f32 (T, G, N), g f32 (T, H), state (pages, H, N, P)";
    if (g->shape[1] != state->shape[1] || state->shape[1] % k->shape[1] || k->shape[2] != state->shape[2])
        return "keys, g and state must agree in G, H and N";
    return scan_local(state) <= (uint64_t)shared ? NULL : "keys are too long for the local memory of a group";
}

static inline const char *check_scan(const gpu_call *c, const gpu_traits *t) {
    const gpu_view *y = c->v, *q = c->v + 1, *k = c->v + 2, *v = c->v + 3, *g = c->v + 4, *state = c->v + 6;
    const char *fault;
    arg_gated_scan arg;
    memcpy(&arg, c->arg, sizeof arg);
    if (c->n_in != 9)
        return "it takes q, k, v, g, beta, state, slot, pos and table";
    if ((fault = check_keys(k, g, state, v->shape[0], t->shared)))
        return fault;
    if (q->format != F32 || !same_shape(q, k) || c->v[5].format != F32 || !same_shape(c->v + 5, g))
        return "q must have k's type and shape, and beta g's";
    if (v->format != F32 || v->shape[1] != state->shape[1] || v->shape[2] != state->shape[3] || v->shape[3] != 1)
        return "v must be f32 (T, H, P)";
    if (y->format != F32 || y->shape[0] != v->shape[0] || y->shape[1] != v->shape[1] || y->shape[2] != 2 * v->shape[2])
        return "the output must be f32 (T, H, 2 P)";
    return check_places(c->v + 7, state, v->shape[0], arg.block);
}

static inline const char *check_scan_write(const gpu_call *c, const gpu_traits *t) {
    const gpu_view *state = c->v, *k = c->v + 2, *made = c->v + 3;
    const char *fault;
    arg_scan_write arg;
    memcpy(&arg, c->arg, sizeof arg);
    if (c->n_in != 7 || !is_own_state(c))
        return "it takes state, k, made, g, slot, pos and table, and the output must be the state itself";
    if ((fault = check_keys(k, c->v + 4, state, k->shape[0], t->shared)))
        return fault;
    if (made->format != F32 || made->shape[0] != k->shape[0] || made->shape[1] != state->shape[1] ||
        made->shape[2] != 2 * state->shape[3] || made->shape[3] != 1)
        return "made must be f32 (T, H, 2 P)";
    return check_places(c->v + 5, state, k->shape[0], arg.block);
}

static inline void grid_pieces(const gpu_view *state, const gpu_view *k, gpu_grid *g) {
    *g = grid_of((int64_t)state->shape[1] * parts(state->shape[3], SCAN_COLUMNS), k->shape[0], 1,
                 SCAN_LANES * SCAN_COLUMNS, scan_local(state));
}

static inline void grid_scan(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    (void)t;
    grid_pieces(c->v + 6, c->v + 2, g);
}

static inline void grid_scan_write(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    (void)t;
    grid_pieces(c->v, c->v + 2, g);
}

#endif
