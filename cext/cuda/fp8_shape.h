/* fp8_shape.h: partition of FP8 products (fp8.cu, fp8_wide.cu) and layout of their scratch, shared by host and kernels.
 *
 * Weights keep the file's layout: rows of blocks, each a float32 scale and 128 codes. A block is only 4-byte aligned, so
 * kernels load a window of 144 bytes from the multiple of 16 before it. Activations are E4M3 with one scale per token and 128
 * elements, in tiles of N tokens. A tile is a sequence of blocks; each has the first halves of its N tokens (128 bytes per
 * token), the second halves, and N scales.
 */
#ifndef SATCHEL_CUDA_FP8_SHAPE_H
#define SATCHEL_CUDA_FP8_SHAPE_H

#include "packed.h"

enum { FP8_E4M3 = 2001, FP8_E5M2 = 2002 /* our numbers of the formats */ };
enum { FP8_K = 128, FP8_BYTES = 132 /* of a block */, FP8_WINDOW = 144, FP8_PIECES = FP8_WINDOW / 16 };
enum {
    FP8_FEW = 16 /* columns at most that warps multiply on sm_90 */,
    FP8_MOST = 64 /* on others, at a time */,
    FP8_TOKENS = 512
};
enum { FP8_WIDE = 32, FP8_COLUMNS = 8 /* of gpu_call.mode: by fp8_wide.cu; from this bit on the columns of a tile */ };
enum {
    FP8_WAVES = 8,
    FP8_UNIT = 4 /* blocks that a wave fetches at a time */,
    FP8_ROW = 560 /* bytes for them, no bank twice */
};
enum { FP8_TEAMS = 3, FP8_PARTS = 8, FP8_STAGES = 8, FP8_LOADERS = 128, FP8_ROOM = 222 << 10 };

BOTH int fp8_last(const gpu_call *c) {
    return (int)c->n_in - (c->mode & PRODUCT_ADD ? 1 : 0);
}

BOTH int fp8_blocks(const gpu_call *c) {
    return c->v[1].shape[1] / FP8_K;
}

BOTH int fp8_columns(const gpu_call *c) {
    return (int)(c->mode >> FP8_COLUMNS);
}

/* E4M3 numbers per activation: two with one scale, or one under HAL_FAST (1). */
BOTH int fp8_halves(const gpu_call *c) {
    return c->flags & 1 ? 1 : 2;
}

BOTH int fp8_item(int columns, int halves) {
    return columns * (FP8_K * halves + 4);
}

BOTH uint64_t fp8_scratch(const gpu_call *c) {
    int n = fp8_columns(c), tiles = (c->v[0].shape[0] + n - 1) / n;
    return (uint64_t)tiles * (uint64_t)fp8_blocks(c) * (uint64_t)fp8_item(n, fp8_halves(c));
}

/* Slots: rows of all weights; gate and up alternate by 8 rows. */
BOTH int64_t fp8_slots(const gpu_call *c) {
    int64_t n = 0;
    int i;
    if (c->mode & PRODUCT_GATED)
        return 16 * (((int64_t)c->v[2].shape[0] + 7) / 8);
    for (i = 2; i <= fp8_last(c); i++)
        n += c->v[i].shape[0];
    return n;
}

/* Bytes of a stage of fp8_wide.cu: activations and scales, then the windows of 64 rows of each team. */
BOTH int fp8_stage(int columns, int halves, int teams) {
    return (fp8_item(columns, halves) + teams * 64 * FP8_WINDOW + 1023) / 1024 * 1024;
}

BOTH int fp8_stages(int stage) {
    return FP8_ROOM / stage > FP8_STAGES ? FP8_STAGES : FP8_ROOM / stage;
}

/* Partition: a group has `teams` warpgroups of 64 slots each; the `parts` groups of a cluster split K. */
typedef struct {
    int teams, parts;
    int64_t tiles; /* of the output */
} fp8_cut;

/* Cost model of a partition, in clocks. An SM multiplies 64 rows by N columns by 128 of K in 2 N clocks and reads 36 bytes
 * per clock from L2 (measured with wide.cu); all SMs read 2400 bytes per clock from memory; a block costs a warp at least
 * 300 clocks. */
BOTH int64_t fp8_time(const gpu_call *c, fp8_cut cut, int units) {
    int n = fp8_columns(c), halves = fp8_halves(c),
        slots = cut.parts < 3   ? units
                : cut.parts < 5 ? units * 117 / 132
                                : units * 102 / 132;
    int64_t groups = cut.tiles * cut.parts, busy = groups < slots ? groups : slots,
            rounds = (groups + slots - 1) / slots;
    int64_t block = (int64_t)cut.teams * 2 * n * halves, bytes = fp8_item(n, halves) + cut.teams * 64 * FP8_WINDOW;
    int64_t own = bytes / 36, all = (int64_t)cut.teams * 64 * FP8_BYTES * busy / 2400, blocks = fp8_blocks(c);
    block = block < own ? own : block;
    block = block < all ? all : block;
    block = block < 300 ? 300 : block;
    return rounds * ((blocks + cut.parts - 1) / cut.parts * block + 2000) +
           (cut.parts > 1 ? 1500 + 10 * (int64_t)n * cut.teams : 0);
}

BOTH fp8_cut fp8_cut_of(const gpu_call *c, int units) {
    fp8_cut best = {1, 1, 0};
    int64_t least = INT64_MAX, tokens = (c->v[0].shape[0] + fp8_columns(c) - 1) / fp8_columns(c);
    int teams, parts;
    for (teams = 1; teams <= FP8_TEAMS; teams++)
        for (parts = 1; parts <= (tokens > 1 ? 1 : FP8_PARTS) && parts <= fp8_blocks(c); parts++) {
            fp8_cut cut = {teams, parts, (fp8_slots(c) + 64 * teams - 1) / (64 * teams) * tokens};
            int64_t time = fp8_time(c, cut, units);
            if (time < least) {
                least = time;
                best = cut;
            }
        }
    return best;
}

#endif
