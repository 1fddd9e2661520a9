/* check_sample.h: checks, scratch sizes and grids of the portable sampling kernels; part of table.c. */
#ifndef SATCHEL_CHECK_SAMPLE_H
#define SATCHEL_CHECK_SAMPLE_H

#include "check.h"
#include "modes.h"

enum { VOCABULARY_MOST = 1 << 24 };

static inline const char *check_rows(const gpu_call *c, const gpu_traits *t) {
    const gpu_view *logits = c->v + 1;
    if (logits->format != F32 || c->v[0].shape[0] != logits->shape[0] || width(logits) != logits->shape[1])
        return "logits must be f32 (R, V) and the output of as many rows";
    return logits->shape[1] < VOCABULARY_MOST && logits->shape[0] <= MOST_TOKENS && t->shared >= SAMPLE_LOCAL
               ? NULL
               : "there may be up to 65535 rows of fewer than 2^24 logits, and a group needs 8 KB of memory";
}

static inline int is_params(const gpu_view *params, int32_t rows) {
    return params->format == HAL_FORMAT_I8 && params->shape[0] == rows &&
           width(params) == (int64_t)sizeof(hal_sampling);
}

static inline const char *check_sampled(const gpu_call *c, const gpu_traits *t) {
    const gpu_view *ring = c->v + 2;
    int32_t rows = c->v[0].shape[0];
    if (ring->format != I32 || width(ring) != ring->shape[1] || !is_list(c->v + 3, I32, rows) ||
        !is_list(c->v + 4, I32, rows))
        return "the ring must be i32 (S, W), slot and pos i32 (R)";
    return is_params(c->v + 5, rows) ? check_rows(c, t) : "params must be one hal_sampling per row";
}

static inline const char *check_sample(const gpu_call *c, const gpu_traits *t) {
    if (c->n_in != 5 || !is_list(c->v, I32, c->v[0].shape[0]))
        return "it takes logits, ring, slot, pos and params, and gives i32 (R)";
    return check_sampled(c, t);
}

static inline const char *check_masked(const gpu_call *c, const gpu_traits *t) {
    const gpu_view *y = c->v, *bitmask = c->v + 6, *edits = c->v + 7;
    if (c->n_in != 7 || y->format != I32 || width(y) != 2)
        return "it takes logits, ring, slot, pos, params, token bitmask and edits, and gives i32 (R, 2)";
    if (bitmask->format != I32 || bitmask->shape[0] != y->shape[0] || width(bitmask) != bitmask->shape[1] ||
        bitmask->shape[1] < (c->v[1].shape[1] + 31) / 32)
        return "the token bitmask must be i32 (R, V / 32)";
    if (edits->format != I32 || edits->shape[0] != y->shape[0] || edits->shape[2] != 2 || edits->shape[3] != 1)
        return "edits must be i32 (R, E, 2)";
    return check_sampled(c, t);
}

static inline const char *check_logprobs(const gpu_call *c, const gpu_traits *t) {
    const gpu_view *y = c->v;
    int32_t k;
    memcpy(&k, c->arg, sizeof k);
    if ((c->n_in != 2 && c->n_in != 3) || y->format != F32 || !is_list(c->v + 2, I32, y->shape[0]))
        return "it takes logits and ids i32 (R), may take params, and gives f32";
    if (k < 1 || k > 1024 || k > c->v[1].shape[1] || width(y) != 2 + 2 * (int64_t)k)
        return "k must be 1 to 1024, no more than tokens, and the output (R, 2 + 2 k)";
    return c->n_in == 2 || is_params(c->v + 3, y->shape[0]) ? check_rows(c, t)
                                                            : "params must be one hal_sampling per row";
}

static inline int sample_groups(const gpu_call *c) {
    return c->v[0].shape[0] < SAMPLE_GROUPS ? c->v[0].shape[0] : SAMPLE_GROUPS;
}

/* Scratch: each group's candidate sets, then for each row the largest logit of each BEST_CHUNK and its index. */
static inline uint64_t scratch_sample(const gpu_call *c, const gpu_traits *t) {
    uint64_t n = (uint64_t)c->v[1].shape[1], stretches = (n + BEST_CHUNK - 1) / BEST_CHUNK;
    (void)t;
    return (uint64_t)sample_groups(c) * ((n + 1) / 2 * 2) * SAMPLE_BYTES + (uint64_t)c->v[0].shape[0] * stretches * 8;
}

static inline void grid_best(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    uint32_t n = (uint32_t)c->v[1].shape[1], stretch = n < BEST_CHUNK ? n : BEST_CHUNK;
    *g = grid_of(parts(n, BEST_CHUNK), c->v[0].shape[0], 1, threads_for(t, stretch / 8, THREADS), 8 * THREADS / 8);
}

static inline void grid_sample(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    *g = grid_of(sample_groups(c), 1, 1, threads_for(t, c->v[1].shape[1] / 16, SAMPLE_THREADS), SAMPLE_LOCAL);
}

#endif
