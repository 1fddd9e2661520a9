/* experts_step.h: sizes shared by experts_step.cu and experts_step.c: layout of a group's shared memory, and its tiles. */
#ifndef SATCHEL_CUDA_EXPERTS_STEP_H
#define SATCHEL_CUDA_EXPERTS_STEP_H

#include "experts.h"

enum {
    STEP_THREADS = 32 * EXPERT_WAVES,
    STEP_EXPERTS = STEP_THREADS, /* a thread scores one */
    STEP_CHOSEN = 32,            /* experts per token: a lane weighs one */
    STEP_STAGES = 4,             /* of a wave's ring, at most */
    STEP_TOKENS = 16,            /* in a step */
    STEP_TASKS = 192,            /* chunks that a group multiplies, at most: their sums lie in shared memory */
    STEP_ROOM = 110 << 10        /* bytes of shared memory: two groups to a multiprocessor, of one kernel or of two */
};

/* Offsets in shared memory: rings of `stages` chunks for each wave lie at 0. acts: the columns' activations. part: a chunk's sums
 * of 16 rows. keys: router scores and logits. */
typedef struct {
    int stages, acts, part, bars, keys, chosen, bytes;
} step_room;

/* A sum of 16 rows for each chunk; of down products, rows lie an odd number of words apart. */
BOTH int step_part_bytes(int tasks) {
    return (tasks + tasks / 2 + 2) * TILE_ROWS * 4;
}

/* tasks: chunks that the group multiplies; columns: chunks of activations; experts: of the router. */
BOTH step_room step_room_of(int chunk_bytes, int tasks, int columns, int experts) {
    step_room r;
    int each = EXPERT_WAVES * chunk_bytes, wanted = (tasks + EXPERT_WAVES - 1) / EXPERT_WAVES;
    int fixed = (columns * gemv_chunk_bytes(1) + 15) / 16 * 16 + step_part_bytes(tasks) +
                EXPERT_WAVES * STEP_STAGES * 8 + (experts + 3) / 4 * 4 * 8 + STEP_CHOSEN * 8 + EXPERT_WAVES * 4;
    r.stages = wanted < STEP_STAGES ? wanted : STEP_STAGES;
    while (r.stages > 2 && r.stages * each + fixed > STEP_ROOM)
        r.stages--;
    r.acts = r.stages * each;
    r.part = r.acts + (columns * gemv_chunk_bytes(1) + 15) / 16 * 16;
    r.bars = r.part + step_part_bytes(tasks);
    r.keys = r.bars + EXPERT_WAVES * STEP_STAGES * 8;
    r.chosen = r.keys + (experts + 3) / 4 * 4 * 8;
    r.bytes = r.chosen + STEP_CHOSEN * 8 + EXPERT_WAVES * 4;
    return r;
}

/* The same of a group that has all tokens of an expert. squares: of each of four columns' chunks, for the norm. */
typedef struct {
    int stages, acts, squares, bars, bytes;
} step_group_room;

BOTH step_group_room step_group_room_of(int chunk_bytes, int chunks) {
    step_group_room r;
    int each = EXPERT_WAVES * chunk_bytes, acts = (chunks * gemv_chunk_bytes(GEMV_COLUMNS) + 15) / 16 * 16;
    int fixed = acts + GEMV_COLUMNS * chunks * 4 + EXPERT_WAVES * STEP_STAGES * 8;
    r.stages = STEP_STAGES;
    while (r.stages > 2 && r.stages * each + fixed > STEP_ROOM - 4096 /* lists */)
        r.stages--;
    r.acts = r.stages * each;
    r.bars = r.acts + acts;
    r.squares = r.bars + EXPERT_WAVES * STEP_STAGES * 8;
    r.bytes = r.squares + GEMV_COLUMNS * chunks * 4;
    return r;
}

#endif
