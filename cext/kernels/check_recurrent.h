/* check_recurrent.h: checks and grids of the portable kernels of recurrent layers (short_conv, gated_scan); part of table.c. */
#ifndef SATCHEL_CHECK_RECURRENT_H
#define SATCHEL_CHECK_RECURRENT_H

#include "check.h"
#include "modes.h"

/* x: the input (T, C). */
static inline const gpu_view *conv_input(const gpu_call *c) {
    return c->n_in == 5 ? c->v + 2 : c->v + 1;
}

static inline const char *check_conv(const gpu_call *c, const gpu_traits *t) {
    (void)t;
    return few_tokens(conv_input(c)->shape[0]);
}

/* A thread computes a channel of a token. */
static inline void grid_conv(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    const gpu_view *x = conv_input(c);
    uint32_t threads = threads_for(t, x->shape[1], THREADS);
    *g = grid_of(parts(x->shape[1], threads), x->shape[0], 1, threads, 0);
}

/* Bytes of local memory for the columns of a group; see scan_pitch. */
static inline uint64_t scan_local(const gpu_view *state) {
    return 4 * SCAN_COLUMNS * (((uint64_t)state->shape[2] + 31) / 32 * 32 + SCAN_LANES);
}

static inline const char *check_pieces(const gpu_view *state, const gpu_view *k, const gpu_traits *t) {
    return scan_local(state) <= (uint64_t)t->shared ? few_tokens(k->shape[0])
                                                    : "keys are too long for the local memory of a group";
}

static inline const char *check_scan(const gpu_call *c, const gpu_traits *t) {
    return check_pieces(c->v + 6, c->v + 2, t);
}

static inline const char *check_scan_write(const gpu_call *c, const gpu_traits *t) {
    return check_pieces(c->v, c->v + 2, t);
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
