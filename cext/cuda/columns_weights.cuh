/* columns_weights.cuh: the packed weights of a warp that has 16 of a group's 128 rows, on their way to the warp's own ring of chunks in
 * shared memory: for columns_chunk.cu and columns_shared.cu. No other warp reads them, so a warp waits for its own copies alone.
 */
#ifndef SATCHEL_CUDA_COLUMNS_WEIGHTS_CUH
#define SATCHEL_CUDA_COLUMNS_WEIGHTS_CUH

#include "columns_rows.cuh"
#include "columns_warp.h"
#include "hopper.h"

struct warp_weights {
    int format, bytes /* of a chunk */, stage /* bytes of the group's chunks in a stage */, count /* of chunks */;
    const char *data; /* nullptr: there are no such rows */
    char *own;
    uint32_t *table; /* of the chunk's scales */

    /* Where chunk k lies in a ring of so many stages. */
    __device__ __forceinline__ char *at(int k, int stages) const {
        return own + k % stages * stage;
    }

    /* Starts to copy chunk k there. */
    __device__ __forceinline__ void fetch(int k, int stages) const {
        if (data && k < count)
            for (int i = 16 * (threadIdx.x % 32); i < bytes; i += 512)
                copy_16(shared_address(at(k, stages) + i), data + (int64_t)k * bytes + i, 1);
    }
};

/* Those of this warp's rows of a team, `count` chunks from chunk `from` on. room: how the group's shared memory is divided. */
template <class ROOM>
static __device__ __forceinline__ warp_weights weights_of_warp(const gpu_call &c, const team_rows &team, char *shared,
                                                               const ROOM &room, int from, int count) {
    const int warp = threadIdx.x / 32, chunks = packed_chunks(&c.v[1]);
    const int format = (int)(c.v[team.which].format & 0xFFFFFFu), bytes = packed_bytes(format);
    const char *const data =
        warp % 4 * TILE_ROWS < team.left
            ? (const char *)c.v[team.which].data + ((int64_t)(team.row / TILE_ROWS + warp % 4) * chunks + from) * bytes
            : nullptr;
    return {format,
            bytes,
            room.weight,
            count,
            data,
            shared + room.weights + warp * (room.weight / WARP_WARPS),
            (uint32_t *)(shared + room.tables) + warp * (COLUMNS_TABLE / 4)};
}

#endif
