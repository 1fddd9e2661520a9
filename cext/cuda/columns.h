/* columns.h: partition of columns.cu's products, and layout of their scratch and shared memory, shared by host and kernels.
 *
 * A group has `teams` warpgroups, each with a block of 64 rows. The `parts` groups of a cluster share the same blocks and split
 * the chunks of K. With gate and up, a group's first half of teams has rows of the gate, the other half rows of the up.
 */
#ifndef SATCHEL_CUDA_COLUMNS_H
#define SATCHEL_CUDA_COLUMNS_H

#include "packed.h"

enum { COLUMNS_MOST = 128, COLUMNS_TEAMS = 4, COLUMNS_PARTS = 8, COLUMNS_FETCHERS = 64 /* threads that fetch */ };
enum { COLUMNS_ROWS = 64, COLUMNS_K = 64 /* of a step's activations */, COLUMNS_TABLE = 1024 /* a wave's scales */ };
enum { COLUMNS_SHARED = 222 << 10 };
#ifndef COLUMNS_BY_WARP
#define COLUMNS_BY_WARP 16 /* up to so many columns, warps multiply separately (mma.sync, not wgmma) */
#endif

/* Products of up to so many tokens copy what columns_convert wrote by threads, others in bulk (columns_fetch.cuh). Only before copies by threads
 * may columns_convert be launched early. */
#define COLUMNS_COPIED(tokens) ((tokens) <= COLUMNS_BY_WARP)

/* Products of up to so many tokens take what the kernel before hands over, by ordinary copies too, though from 32 on these are slower than
 * those in bulk: what the launch of a conversion costs is more, but not of 128 (measured). Without wgmma it is COLUMNS_BY_WARP. */
enum { COLUMNS_HANDED = 64 };

/* With up to so many columns a cluster's groups send their sums to the group that writes a token; with more, whose sums have no room beside the
 * stages, that group fetches them once all have met (columns_sums.cuh). */
enum { COLUMNS_SENT = 32 };

/* The kind of kernel for so many tokens; kind multiplies 8 << kind columns. */
BOTH int columns_kind(int tokens) {
    int kind = 0;
    while (8 << kind < tokens)
        kind++;
    return kind;
}

BOTH int columns_blocks(const gpu_view *w) {
    return (w->shape[0] + COLUMNS_ROWS - 1) / COLUMNS_ROWS;
}

/* F16 and BF16 weights are in the file's layout and are loaded in steps of 64 columns, not in chunks. */
BOTH int columns_dense(const gpu_call *c) {
    return !(c->v[2].format & PACKED_FLAG);
}

/* Bytes of 16 rows of a stage (a chunk or a step), for the weight with the largest. */
BOTH int columns_bytes(const gpu_call *c) {
    int most = columns_dense(c) ? TILE_ROWS * COLUMNS_K * 2 : 0, i;
    for (i = 2; i <= product_last(c, c->mode); i++)
        most = packed_bytes(c->v[i].format) > most ? packed_bytes(c->v[i].format) : most;
    return most;
}

/* Numbers between a token's sums and the next one's in shared memory, so that lanes meet no conflict of banks. */
enum { COLUMNS_PAD = 4 };

/* From a token's sums to the next one's. */
BOTH int columns_stride(int teams) {
    return teams * COLUMNS_ROWS + COLUMNS_PAD;
}

/* Tokens that a group of a cluster writes: every parts-th one. */
BOTH int columns_own(int tokens, int parts) {
    return (tokens + parts - 1) / parts;
}

/* Bytes of the sums that a group is sent, [parts][its tokens][stride]. */
BOTH int columns_sent_bytes(int tokens, int teams, int parts) {
    return parts > 1 && tokens <= COLUMNS_SENT ? parts * columns_own(tokens, parts) * columns_stride(teams) * 4 : 0;
}

/* Offsets in shared memory from a 1024-byte aligned address: activations first, which need the alignment. factors: by columns_factors; sent:
 * sums, behind a barrier at `arrived` that counts their bytes. */
typedef struct {
    int weight_stages, column_stages, weight, weights, tables, bars, teams, factors, arrived, sent,
        bytes; /* weight: of one stage */
} columns_room;

/* What follows the stages' barriers: `sums` bytes that reuse the stages' memory in the end may reach beyond these. */
BOTH void columns_room_end(columns_room *r, int sums, int sent) {
    r->teams = r->bars + 256 > sums ? r->bars + 256 : sums;
    r->factors = r->teams + COLUMNS_TEAMS * 16;
    r->arrived = r->factors + COLUMNS_HANDED * 4;
    r->sent = r->arrived + 16;
    r->bytes = r->sent + sent + 1024;
}

BOTH columns_room columns_room_of(int tokens, int teams, int parts, int chunk_bytes) {
    columns_room r;
    int column = tokens * COLUMNS_K * 2, sent = columns_sent_bytes(tokens, teams, parts),
        fixed = teams * 4 * COLUMNS_TABLE + 256 + sent, left;
    r.weight = teams * 4 * chunk_bytes;
    r.weight_stages = chunk_bytes == TILE_ROWS * COLUMNS_K * 2 ? 9 : 5;
    do
        left = (COLUMNS_SHARED - fixed - --r.weight_stages * r.weight) / column;
    while (r.weight_stages > 1 && left < 4);
    r.column_stages = left >= 8 ? 8 : 4; /* whole chunks of four steps */
    r.weights = r.column_stages * column;
    r.tables = r.weights + r.weight_stages * r.weight;
    r.bars = r.tables + teams * 4 * COLUMNS_TABLE;
    columns_room_end(&r, tokens * columns_stride(teams) * 4, sent);
    return r;
}

/* Of a group that converts its part's activations itself, `steps` of 8 tokens, and has all of them in shared memory: as many stages of
 * weights as leave room for a second group, two at least. */
BOTH columns_room columns_whole_room(int steps, int teams, int parts, int chunk_bytes) {
    columns_room r = columns_room_of(8, teams, parts, chunk_bytes);
    int column = 8 * COLUMNS_K * 2;
    r.column_stages = steps;
    r.weight_stages = chunk_bytes == TILE_ROWS * COLUMNS_K * 2 ? 8 : 4;
    while (r.weight_stages > 2 && 2 * (steps * column + r.weight_stages * r.weight) > COLUMNS_SHARED - 16384)
        r.weight_stages--;
    r.weights = (steps * column + 1023) / 1024 * 1024;
    r.tables = r.weights + r.weight_stages * r.weight;
    r.bars = r.tables + teams * 4 * COLUMNS_TABLE;
    columns_room_end(&r, 8 * columns_stride(teams) * 4, columns_sent_bytes(8, teams, parts));
    return r;
}

/* Steps of the longest of so many parts of K. */
BOTH int columns_steps(const gpu_call *c, int parts) {
    return (packed_chunks(&c->v[1]) + parts - 1) / parts * (CHUNK / COLUMNS_K);
}

/* Most teams of a group: a warpgroup's accumulators of 128 columns take half of its registers. */
#define COLUMNS_TEAMS_OF(tokens) ((tokens) > 64 ? COLUMNS_TEAMS / 2 : COLUMNS_TEAMS)

typedef struct {
    int teams, parts, groups; /* groups: clusters of `parts` groups */
} columns_cut;

/* Groups that are resident at a time in clusters of `parts`; a cluster does not span GPCs. Table for 132 SMs. */
BOTH int columns_slots(int parts, int units) {
    switch (parts) {
    case 1:
    case 2:
        return units;
    case 3:
    case 4:
    case 8:
        return units * 117 / 132;
    default:
        return units * 102 / 132;
    }
}

/* The first chunk of part i of K. */
BOTH int columns_part(int chunks, int i, int parts) {
    return (int)((int64_t)chunks * i / parts);
}

BOTH int columns_all_blocks(const gpu_call *c) {
    int blocks = 0, i;
    for (i = 2; i <= (c->mode & PRODUCT_GATED ? 2 : product_last(c, c->mode)); i++)
        blocks += columns_blocks(&c->v[i]);
    return blocks;
}

/* Parts of K under PRODUCT_DETERMINISTIC, where a sum has the same ones for any number of columns and on any device: as many as
 * keep an H200 busy with two teams a group, two groups a multiprocessor (of weights in the file's layout one). */
BOTH int columns_fixed_parts(const gpu_call *c) {
    int blocks = columns_all_blocks(c), groups = c->mode & PRODUCT_GATED ? blocks : (blocks + 1) / 2;
    int chunks = packed_chunks(&c->v[1]), both = columns_dense(c) ? 1 : 2;
    int parts = COLUMNS_PARTS < chunks ? COLUMNS_PARTS : chunks;
    while (parts > 1 && groups * parts > both * columns_slots(parts, 132))
        parts--;
    return parts;
}

/* Cost model of a partition, in nanoseconds, fitted on an H200: a chunk's time grows with the teams per SM and is bounded below
 * by its bytes. */
BOTH int64_t columns_time(const gpu_call *c, columns_cut cut, int units) {
    int kind = columns_kind(c->v[0].shape[0]), tokens = 8 << kind,
        chunks = (packed_chunks(&c->v[1]) + cut.parts - 1) / cut.parts;
    int all = cut.groups * cut.parts, slots = columns_slots(cut.parts, units), both = 1, rounds, busy;
    int base = kind < 2 ? 360 + 60 * kind : kind == 2 ? 600 : 900, team = kind < 4 ? 260 + 25 * kind : 350;
    int64_t bytes = (int64_t)cut.teams * 4 * columns_bytes(c) * (columns_dense(c) ? 4 : 1), chunk, least;
    if (all > slots && 2 * columns_room_of(tokens, cut.teams, cut.parts, columns_bytes(c)).bytes < COLUMNS_SHARED &&
        2 * cut.teams <= COLUMNS_TEAMS)
        both = 2;
    rounds = (all + both * slots - 1) / (both * slots);
    busy = all < both * slots ? all : both * slots;
    chunk = base + (int64_t)team * cut.teams * both;
    least = (bytes + tokens * 128) * busy / 4000;
    return rounds * ((chunk > least ? chunk : least) * chunks + 500) +
           (cut.parts > 1 ? 500 + (int64_t)tokens * cut.teams * 4 : 0);
}

BOTH columns_cut columns_cut_of(const gpu_call *c, int units) {
    columns_cut best = {0, 0, 0};
    int64_t least = INT64_MAX;
    int gated = c->mode & PRODUCT_GATED ? 1 : 0, blocks = columns_all_blocks(c), teams, parts;
    int fixed = c->mode & PRODUCT_DETERMINISTIC ? columns_fixed_parts(c) : 0;
    for (teams = 1 + gated; teams <= COLUMNS_TEAMS_OF(8 << columns_kind(c->v[0].shape[0])); teams *= 2)
        for (parts = fixed ? fixed : 1; parts <= (fixed ? fixed : COLUMNS_PARTS) && parts <= packed_chunks(&c->v[1]);
             parts++) {
            columns_cut cut = {teams, parts, (blocks + (teams >> gated) - 1) / (teams >> gated)};
            int64_t time = columns_time(c, cut, units);
            if (time < least) {
                least = time;
                best = cut;
            }
        }
    return best;
}

/* Bytes of the activations in scratch: [chunk][four steps of 64][tokens][128 bytes], as wgmma reads them. x: their view. */
BOTH uint64_t columns_activations(const gpu_view *x) {
    return (uint64_t)packed_chunks(x) * 512 * (uint64_t)(8 << columns_kind(x->shape[0]));
}

BOTH uint64_t columns_scratch(const gpu_call *c) {
    return columns_activations(&c->v[1]);
}

/* Weights that columns_values.cuh makes of packed ones have a factor, activations that meet them its inverse: powers of two, so no bit of a
 * product changes. Scales of weights may be up to 2^22 for it, and activations below 2^100. */
#define WEIGHTS_BY 0x1p-28f
#define ACTIVATIONS_BY 0x1p28f

/* gpu_hand.order: for packed weights (columns_values.cuh), and for weights in the file's layout. */
enum { HAND_PACKED, HAND_PLAIN };

/* Of a row that a kernel hands over for a product with a norm: the sums of its squares, one for each block of 64 elements, which follow the
 * activations as [tokens][blocks]. */
BOTH int columns_square_sums(int width) {
    return width / COLUMNS_ROWS;
}

#endif
