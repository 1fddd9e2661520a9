/* columns_convert.cuh: the kernel that converts activations, or their norm, to bf16 in scratch, for columns.cu and columns_warp.cu:
 * [step of 64 elements][tokens][128 bytes], in 128-byte swizzle.
 */
#ifndef SATCHEL_CUDA_COLUMNS_CONVERT_CUH
#define SATCHEL_CUDA_COLUMNS_CONVERT_CUH

#include "columns_norm.cuh"
#include "columns_values.cuh"

/* Stores 16 elements of a row, in order for dense weights, else in the order of columns_values.cuh; k is a multiple of 16. */
static __device__ __forceinline__ void columns_store(char *scratch, int tokens, int token, int k, const float (&x)[16],
                                                     bool dense) {
    char *row = scratch + ((int64_t)(k / COLUMNS_K) * tokens + token) * 128;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        uint4 out = columns_piece(x, e);
        if (dense)
            out = make_uint4(two_bf16(x[8 * e], x[8 * e + 1]), two_bf16(x[8 * e + 2], x[8 * e + 3]),
                             two_bf16(x[8 * e + 4], x[8 * e + 5]), two_bf16(x[8 * e + 6], x[8 * e + 7]));
        *(uint4 *)(row + (((k / 16 % 4 * 2 + e) ^ (token & 7)) << 4)) = out;
    }
}

/* A group converts a row, or without a norm part of a row. */
extern "C" __global__ void __launch_bounds__(256) columns_convert(const __grid_constant__ gpu_call c) {
    __shared__ float room[8];
    const int token = blockIdx.y, width = c.v[1].shape[1], all = packed_chunks(&c.v[1]) * CHUNK;
    const int tokens = 8 << columns_kind(c.v[0].shape[0]);
    const float *row = (const float *)(c.v[1].data + token * c.v[1].stride);
    const float *norm = c.mode & PRODUCT_NORM ? (const float *)c.v[product_last(&c, c.mode) + 1].data : nullptr;
    float x[16], w[16];
    launch_next();
    wait_before();
    if (token >= rows_now(c, c.v[0]))
        return;
    const float scale = columns_normed(c, token, width, norm, row, room);
    for (int k = 16 * (blockIdx.x * 256 + threadIdx.x); k < all; k += 16 * 256 * gridDim.x) {
        columns_load(row, k, width, x);
        if (norm) {
            columns_load(norm, k, width, w);
#pragma unroll
            for (int i = 0; i < 16; i++)
                x[i] = x[i] * scale * w[i];
        }
        columns_store((char *)c.scratch, tokens, token, k, x, columns_dense(&c));
    }
}

#endif
