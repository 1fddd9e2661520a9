/* wide_store.cuh: the loop's shape and the epilogue of wide.cu and wide_warp.cu: writes sums, with residual or gated. */
#ifndef SATCHEL_CUDA_WIDE_STORE_CUH
#define SATCHEL_CUDA_WIDE_STORE_CUH

#include "tiles.h"

/* Shape of the loop over the tiles of y. */
struct wide_shape {
    const uint8_t *x, *w;
    int tokens, columns, across, tiles_m, tiles;
    int parts, chunks;                /* of K, in deterministic kernels */
    const float *x_scales, *w_scales; /* of FP8 tiles */
};

static __device__ __forceinline__ float gated(float gate, float up) {
    return __fdividef(gate, 1.0f + __expf(-gate)) * up;
}

/* Epilogue: stores one tile's sums, this lane's columns 8 j + 2 (lane % 4) and the next, of two rows. */
template <int BN, int MODE>
static __device__ __forceinline__ void wide_store(const gpu_call &c, const wide_shape &s, const float (&d)[BN / 2],
                                                  int row, int column) {
    constexpr int GROUP = BN < 128 ? BN / 8 : 16; /* residuals that are asked for at a time */
    const int lane = threadIdx.x % 32, n = c.v[0].shape[1];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int r = row + lane / 4 + 8 * half;
        if (r >= s.tokens)
            continue;
        float *y = (float *)(c.v[0].data + (uint64_t)r * c.v[0].stride);
        const float *add = MODE == WIDE_ADD ? (const float *)(c.v[3].data + (uint64_t)r * c.v[3].stride) : NULL;
        if (MODE == WIDE_SWIGLU) {
#pragma unroll
            for (int j = 0; j < BN / 8; j += 2) {
                const int at = column / 2 + 4 * j + 2 * (lane % 4), i = 4 * j + 2 * half;
                if (at < n)
                    *(float2 *)(y + at) = make_float2(gated(d[i], d[i + 4]), gated(d[i + 1], d[i + 5]));
            }
        } else {
#pragma unroll
            for (int first = 0; first < BN / 8; first += GROUP) {
                float2 more[GROUP];
#pragma unroll
                for (int j = 0; j < GROUP; j++) {
                    const int at = column + 8 * (first + j) + 2 * (lane % 4);
                    more[j] = MODE == WIDE_ADD && at < n ? *(const float2 *)(add + at) : make_float2(0, 0);
                }
#pragma unroll
                for (int j = 0; j < GROUP; j++) {
                    const int at = column + 8 * (first + j) + 2 * (lane % 4), i = 4 * (first + j) + 2 * half;
                    if (at < n)
                        *(float2 *)(y + at) = make_float2(d[i] + more[j].x, d[i + 1] + more[j].y);
                }
            }
        }
    }
}

#endif
