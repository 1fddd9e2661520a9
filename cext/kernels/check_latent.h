/* check_latent.h: checks, scratch sizes and grids of the portable kernels of latent attention (latent.k.h, index.k.h); part of
 * table.c.
 */
#ifndef SATCHEL_CHECK_LATENT_H
#define SATCHEL_CHECK_LATENT_H

#include "check_tokens.h"

/* Elements of a latent that are its value. */
static inline int32_t latent_value(const gpu_call *c) {
    return c->v[0].shape[1] / c->v[1].shape[1];
}

/* Of absorbed_attention and sparse_attention. */
static inline const char *check_latents(const gpu_call *c, const gpu_traits *t) {
    return check_softmax(c, t, c->v[1].shape[2], latent_value(c));
}

static inline void grid_latents(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    grid_softmax(c, t, c->v[1].shape[0], attention_local(c->v[1].shape[2], latent_value(c)), g);
}

static inline const char *check_expanded(const gpu_call *c, const gpu_traits *t) {
    if (!block_of(c->v[7].format) || !block_of(c->v[8].format))
        return "weights must be in the file's order, in a format that can be unpacked";
    return check_softmax(c, t, c->v[2].shape[3], c->v[7].shape[1]);
}

static inline int64_t expanded_groups(const gpu_call *c) {
    return c->v[1].shape[0] < EXPANDED_ROWS ? c->v[1].shape[0] : EXPANDED_ROWS;
}

/* What each group finds in the latents. */
static inline uint64_t scratch_expanded(const gpu_call *c, const gpu_traits *t) {
    (void)t;
    return 4 * (uint64_t)expanded_groups(c) * (uint64_t)c->v[1].shape[1] * (uint64_t)c->v[7].shape[1];
}

static inline void grid_expanded(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    grid_softmax(c, t, expanded_groups(c), attention_local(c->v[2].shape[3], c->v[7].shape[1]), g);
}

/* --- index_positions */

static inline int64_t indexed_positions(const gpu_call *c) {
    return (int64_t)c->v[6].shape[1] * c->v[3].shape[2];
}

static inline uint64_t index_local(const gpu_call *c) {
    uint64_t queries = 4 * INDEX_HEADS * (uint64_t)c->v[1].shape[2];
    return queries > INDEX_LOCAL ? queries : INDEX_LOCAL;
}

static inline const char *check_index(const gpu_call *c, const gpu_traits *t) {
    return index_local(c) <= (uint64_t)t->shared ? few_rows(c, t)
                                                 : "queries are too long for the local memory of a group";
}

/* Tokens whose scores scratch holds at once. */
static inline int64_t index_rooms(const gpu_call *c) {
    int64_t rooms = INDEX_ROOMS(indexed_positions(c));
    return c->v[0].shape[0] < rooms ? c->v[0].shape[0] : rooms;
}

static inline const char *check_index_apart(const gpu_call *c, const gpu_traits *t) {
    return index_rooms(c) < c->v[0].shape[0] ? "scratch has no room for the scores of all tokens" : check_index(c, t);
}

static inline uint64_t scratch_index(const gpu_call *c, const gpu_traits *t) {
    (void)t;
    return 4 * (uint64_t)index_rooms(c) * (uint64_t)indexed_positions(c);
}

static inline void grid_index_scores(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    uint32_t threads = threads_for(t, THREADS, THREADS);
    *g = grid_of(parts(indexed_positions(c), threads), c->v[0].shape[0], 1, threads, index_local(c));
}

/* A group selects for one token, or loops over tokens. */
static inline void grid_index(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    *g = grid_of(index_rooms(c), 1, 1, threads_for(t, THREADS, THREADS), index_local(c));
}

#endif
