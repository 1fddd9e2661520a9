/* check_sample.h: checks, scratch sizes and grids of the portable sampling kernels; part of table.c. */
#ifndef SATCHEL_CHECK_SAMPLE_H
#define SATCHEL_CHECK_SAMPLE_H

#include "check.h"
#include "modes.h"

enum { VOCABULARY_MOST = 1 << 24 };

static inline const char *check_rows(const gpu_call *c, const gpu_traits *t) {
    const gpu_view *logits = c->v + 1;
    return logits->shape[1] < VOCABULARY_MOST && logits->shape[0] <= MOST_TOKENS && t->shared >= SAMPLE_LOCAL
               ? NULL
               : "there may be up to 65535 rows of fewer than 2^24 logits, and a group needs 8 KB of memory";
}

static inline int sample_groups(const gpu_call *c) {
    return c->v[0].shape[0] < SAMPLE_GROUPS ? c->v[0].shape[0] : SAMPLE_GROUPS;
}

/* Scratch: each group's candidate sets, then for each row the largest logit of each stretch and its index. */
static inline uint64_t scratch_sample(const gpu_call *c, const gpu_traits *t) {
    uint64_t n = (uint64_t)c->v[1].shape[1], stretches = parts((int64_t)n, BEST_CHUNK);
    (void)t;
    return (uint64_t)sample_groups(c) * ((n + 1) / 2 * 2) * SAMPLE_BYTES + (uint64_t)c->v[0].shape[0] * stretches * 8;
}

/* Behind that for each row the sums of each REPORT_CHUNK, two of 64 bits. */
static inline uint64_t scratch_logprobs(const gpu_call *c, const gpu_traits *t) {
    return scratch_sample(c, t) + (uint64_t)c->v[0].shape[0] * parts(c->v[1].shape[1], REPORT_CHUNK) * 16;
}

/* A wave for each stretch. */
static inline void grid_best(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    uint32_t stretches = parts(c->v[1].shape[1], BEST_CHUNK), threads = threads_for(t, BEST_THREADS, BEST_THREADS);
    *g = grid_of(parts(stretches, threads / (uint32_t)t->wave), c->v[0].shape[0], 1, threads, 0);
}

static inline void grid_report(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    *g = grid_of(parts(c->v[1].shape[1], REPORT_CHUNK), c->v[0].shape[0], 1, threads_for(t, THREADS, THREADS),
                 SAMPLE_LOCAL);
}

static inline void grid_sample(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    *g = grid_of(sample_groups(c), 1, 1, threads_for(t, c->v[1].shape[1] / 16, SAMPLE_THREADS), SAMPLE_LOCAL);
}

#endif
