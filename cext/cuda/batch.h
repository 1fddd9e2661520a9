/* batch.h: partition of batch.cu's products into groups; the host computes grids and scratch by the same functions. */
#ifndef SATCHEL_CUDA_BATCH_H
#define SATCHEL_CUDA_BATCH_H

#include "packed.h"

enum { BATCH_GROUPS = 128 };         /* target number of groups */
enum { BATCH_ACTS = 544 * 16 + 64 }; /* bytes of a chunk's activations of 16 columns */
/* For the kernel of `sets` times 16 columns: waves per tile, threads, bytes of one of its two stages. The kernel of two sets, for
 * PRODUCT_SMALL, has one wave per tile. */
#define BATCH_KINDS(sets) ((sets) == 2 ? 1 : (sets) > 1 ? 2 : 4)
#define BATCH_THREADS(sets) (128 * BATCH_KINDS(sets))
#define BATCH_STAGE(sets) (BATCH_KINDS(sets) * (4 * PACKED_MOST + (sets) * BATCH_ACTS))
#define BATCH_SHARED(sets) (2 * BATCH_STAGE(sets))

typedef struct {
    int tiles, parts, columns, sets,
        kinds; /* totals over all matrices; columns: the maximum, rounded up to 64. Deterministic
                                                * calls use the same kernel for any number of columns. */
} batch_shape;

BOTH batch_shape batch_shape_of(const gpu_call *c) {
    batch_shape s = {0, 1, (c->v[0].shape[0] + 63) / 64 * 64,
                     c->mode & PRODUCT_SMALL                                        ? 2
                     : c->v[0].shape[0] <= 16 && !(c->mode & PRODUCT_DETERMINISTIC) ? 1
                                                                                    : 4,
                     0};
    int last = (int)c->n_in - (c->mode & PRODUCT_ADD ? 1 : 0), chunks = (c->v[1].shape[1] + 255) / 256, groups, i;
    for (i = 2; i <= last; i++)
        s.tiles += packed_tiles(&c->v[i]);
    s.kinds = BATCH_KINDS(s.sets);
    groups = (s.tiles + 3) / 4;
    s.parts = (BATCH_GROUPS + groups / 2) / groups;
    s.parts = s.parts > chunks / 4 ? chunks / 4 : s.parts;
    s.parts = s.parts < 1 ? 1 : s.parts;
    return s;
}

/* Bytes of the activations at the head of scratch, and of the whole scratch. */
BOTH uint64_t batch_acts(const gpu_call *c) {
    return (uint64_t)(batch_shape_of(c).columns / 16) * (uint64_t)packed_chunks(&c->v[1]) * BATCH_ACTS;
}

BOTH uint64_t batch_scratch(const gpu_call *c) {
    batch_shape s = batch_shape_of(c);
    return batch_acts(c) + (uint64_t)s.parts * (uint64_t)s.kinds * (uint64_t)s.columns * (uint64_t)s.tiles * 64;
}

#endif
