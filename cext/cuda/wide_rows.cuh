/* wide_rows.cuh: the epilogue of wide.cu through shared memory. A warp leaves its 16 rows of a tile there, a pass of columns at a
 * time, and bulk copies take each row to y while the warp multiplies its next tile: otherwise all multiprocessors write at once,
 * and none multiplies.
 */
#ifndef SATCHEL_CUDA_WIDE_ROWS_CUH
#define SATCHEL_CUDA_WIDE_ROWS_CUH

#include "hopper.h"
#include "wide_store.cuh"

/* Whether rows of y take bulk copies, which want multiples of 16 bytes. */
static __device__ __forceinline__ bool rows_aligned(const gpu_call &c) {
    return (c.v[0].data | c.v[0].stride) % 16 == 0;
}

/* Stores one tile's sums, plain or gated, as wide_store() does; all columns exist. room: this warp's. */
template <int BN, int MODE>
static __device__ __forceinline__ void wide_store_rows(const gpu_call &c, const wide_shape &s, const float (&d)[BN / 2],
                                                       int row, int column, float *room) {
    constexpr int OUT = MODE == WIDE_SWIGLU ? BN / 2 : BN, PASS = tiles_pass(BN), PITCH = PASS + ROOM_PAD;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, first = MODE == WIDE_SWIGLU ? column / 2 : column;
    const bool stores = lane < 16 && row + lane < s.tokens;
#pragma unroll
    for (int from = 0; from < OUT; from += PASS) {
        bulk_stores_read(); /* the copies of the pass before have read the room */
        __syncwarp();
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float *to = room + (g + 8 * half) * PITCH + 2 * t;
            if (MODE == WIDE_SWIGLU) {
#pragma unroll
                for (int j = 0; j < PASS / 4; j += 2) {
                    const int i = 4 * (from / 4 + j) + 2 * half;
                    *(float2 *)(to + 4 * j) = make_float2(gated(d[i], d[i + 4]), gated(d[i + 1], d[i + 5]));
                }
            } else {
#pragma unroll
                for (int j = 0; j < PASS / 8; j++) {
                    const int i = 4 * (from / 8 + j) + 2 * half;
                    *(float2 *)(to + 8 * j) = make_float2(d[i], d[i + 1]);
                }
            }
        }
        shared_to_async();
        __syncwarp();
        if (stores)
            bulk_store((void *)(c.v[0].data + (uint64_t)(row + lane) * c.v[0].stride + 4 * (first + from)),
                       shared_address(room + lane * PITCH), 4 * PASS);
        bulk_stores_close();
    }
}

#endif
