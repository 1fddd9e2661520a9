/* heads.h: constants shared by attention_heads.cu, attention_bulk.cu and their table entries (small.c). */
#ifndef SATCHEL_CUDA_HEADS_H
#define SATCHEL_CUDA_HEADS_H

#include "attention_shape.h"
#include "columns.h"

enum { HEADS_CHUNK = 256 /* least positions of a split */, HEADS_MOST = 8 /* most query heads per KV head */ };

/* Kinds of kernels: of one token; of up to FEW, of which a group takes a run; of up to WALKERS, each of which has groups of its own. */
enum { HEADS_ONE, HEADS_FEW, HEADS_MANY };

SHAPE_FN int heads_kind(int tokens) {
    return tokens == 1 ? HEADS_ONE : tokens <= FEW ? HEADS_FEW : HEADS_MANY;
}

/* Stages of a warp's ring; of several tokens less of it, for two groups of a multiprocessor (of heads of 64, or alone, three). */
SHAPE_FN int heads_stages(int d, int kind, int hopper) {
    return ring_stages(d, hopper) - (kind != HEADS_ONE && (hopper || d == 64));
}

/* Query heads that a group may take. */
SHAPE_FN int heads_columns(int heads, int kind) {
    return kind == HEADS_FEW ? 16 : heads;
}

/* The step's own keys, and values, that a group holds beside its ring. */
SHAPE_FN int heads_fresh(int kind) {
    return kind == HEADS_FEW ? FEW : 1;
}

/* Bytes of shared memory: the warps' rings, or their results in the same place; the queries; a head on its way for each warp; the step's own keys
 * and values. */
SHAPE_FN int heads_shared(int d, int heads, int kind, int hopper) {
    int columns = heads_columns(heads, kind), ring = WARPS * heads_stages(d, kind, hopper) * d * 64;
    int results = WARPS * columns * (d + RESULT_HEAD) * 4, fresh = heads_fresh(kind) * 4 * d;
    return (ring > results ? ring : results) + (columns + WARPS) * d * 4 + fresh;
}

/* --- attention_bulk.cu */

enum {
    BULK_TEAMS = 2,
    BULK_TEAM = 4 /* warps of a team, which share a tile */,
    BULK_WARPS = BULK_TEAMS * BULK_TEAM /* of a group, that multiply */,
    BULK_THREADS = 32 * (BULK_WARPS + 1),
    BULK_RUNS = 4 /* copies of keys, and of values, of a tile */,
    BULK_TILE = BULK_RUNS * SPAN,
    BULK_PAD = 32 /* bytes behind each run, for its banks */,
    BULK_SPLITS = 32 /* at most: the merge has a lane for each */,
    BULK_CLUSTER = 8 /* groups of a cluster, at most: of a portable size */,
    BULK_BUSY = 45 /* of 100 multiprocessors, which clusters must have at least */
};

/* Stages of the ring, for rows of so many bytes: an even number, so that a stage is always the same team's. 200 KB in all. */
SHAPE_FN int bulk_stages(int row) {
    return 1536 / row;
}

/* Bytes of shared memory: the ring, or the warps' results in the same place; the queries; a head on its way for each warp; the step's own key
 * and value. */
SHAPE_FN int bulk_shared(int d, int row, int heads) {
    return bulk_stages(row) * 2 * BULK_RUNS * (SPAN * row + BULK_PAD) + (heads + BULK_WARPS) * d * 4 + 4 * d;
}

/* Groups of a cluster, which has all splits of a KV head and merges them in shared memory; 0: splits are merged in memory. */
SHAPE_FN int bulk_cluster(const gpu_call *c, int units) {
    int heads = c->v[2].shape[1], n = c->config ? (int)c->config : BULK_CLUSTER;
    if (n < 2 || n > BULK_CLUSTER || n * heads > columns_slots(n, units))
        return 0;
    return c->config || 100 * n * heads >= BULK_BUSY * units ? n : 0;
}

/* Splits of a past, at most: a cluster's, or as many as give each multiprocessor one group. */
SHAPE_FN int bulk_splits(const gpu_call *c, int units) {
    int n = units / c->v[2].shape[1], together = bulk_cluster(c, units);
    if (c->config || together)
        return c->config ? (int)c->config : together;
    return n > BULK_SPLITS ? BULK_SPLITS : n > 1 ? n : 1;
}

#endif
