/* walk.h: a stretch of a plan of one token as one kernel: what the kernel (walk_kernel.cuh) and its bench (walk.cu) agree on.
 *
 * A phase is what stood between two launches: a product, a layer's heads with their attention, or gathered rows. Shared memory of a
 * group: a ring of bytes for each wave, the room that phases use in turn, two phases (this one and the next), barriers, and how
 * far each wave has read.
 */
#ifndef SATCHEL_CUDA_WALK_H
#define SATCHEL_CUDA_WALK_H

#include "../../cext/cuda/packed.h"

enum { WALK_PACKED = 1, WALK_DENSE, WALK_ATTENTION, WALK_GATHER_ROWS };
enum { WALK_WAVES = 16, WALK_THREADS = 32 * (WALK_WAVES + 1) /* one more fetches */, WALK_CALLS = 4, WALK_PENDING = 8 };
enum {
    WALK_BATCH = 4 /* tiles whose sums meet at a time */,
    WALK_SEGMENT = 1024 /* columns of a dense piece */,
    WALK_HEADS = 8
};
enum { WALK_FRESH = 512 /* bytes of the token's own key and value */, WALK_COUNTERS = 64 /* KV heads, at most */ };

/* Calls of a phase: a product's own; of attention: rope, rope_kv_write, kv_write, attention; of rows: up to four gather_rows. */
typedef struct {
    int32_t kind, calls, unused[2];
    gpu_call call[WALK_CALLS];
} walk_phase;

/* In gpu_call.arg of the walk. Its views: the phases; the barrier's counter and WALK_COUNTERS behind it, all 0; what counts the
 * tokens; slots, positions and blocks of slots, of all attention alike. */
typedef struct {
    uint32_t phases, room, ring;
    uint16_t most, block; /* splits of a past; positions of a block */
} walk_shape;

BOTH uint32_t walk_room_packed(int chunks) {
    return (uint32_t)(2 * WALK_BATCH * WALK_WAVES * 16 * 4 + chunks * gemv_chunk_bytes(1) + 256);
}
BOTH uint32_t walk_room_dense(int columns) {
    return (uint32_t)((columns + 255) / 256 * 1024 + 128);
}
BOTH uint32_t walk_room_attention(int d, int heads) {
    return (uint32_t)(WALK_HEADS * d * 4 + WALK_FRESH + WALK_WAVES * heads * (d + 2) * 4 + 16);
}

enum { WALK_TAIL = 2 * sizeof(walk_phase) + WALK_WAVES * (WALK_PENDING * 8 + 4) };

/* A wave's ring, in steps of 128 bytes, where a group may have `shared` bytes. */
BOTH int walk_ring(uint32_t room, int shared) {
    int left = shared - (int)room - WALK_TAIL - 128;
    return left < 0 ? 0 : left / WALK_WAVES / 128 * 128;
}

#endif
