/* columns_convert.cuh: the kernel that converts activations, or their norm, to bf16 in scratch, for columns.cu and columns_warp.cu:
 * [step of 64 elements][tokens][128 bytes], in 128-byte swizzle.
 */
#ifndef SATCHEL_CUDA_COLUMNS_CONVERT_CUH
#define SATCHEL_CUDA_COLUMNS_CONVERT_CUH

#include "columns.h"
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

static __device__ __forceinline__ void columns_load(const float *row, int k, int width, float (&x)[16]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float4 v = k + 4 * i < width ? *(const float4 *)(row + k + 4 * i) : make_float4(0, 0, 0, 0);
        x[4 * i] = v.x, x[4 * i + 1] = v.y, x[4 * i + 2] = v.z, x[4 * i + 3] = v.w;
    }
}

/* 1 / sqrt(mean square + eps) of a row of `width`, of the threads' sums of squares. */
static __device__ __forceinline__ float columns_scale(const gpu_call &c, float sum, int width, float *room) {
    for (int far = 16; far; far /= 2)
        sum += __shfl_xor_sync(~0u, sum, far);
    __syncthreads(); /* the sums of a post-norm have been read */
    if (threadIdx.x % 32 == 0)
        room[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0.0f;
    for (int i = 0; i < 8; i++)
        sum += room[i];
    return rsqrtf(sum / (float)width + __uint_as_float((uint32_t)c.arg[0]));
}

static __device__ __forceinline__ float columns_squares(const float *row, int width) {
    float sum = 0.0f, x[16];
    for (int k = 16 * threadIdx.x; k < width; k += 16 * 256) {
        columns_load(row, k, width, x);
#pragma unroll
        for (int i = 0; i < 16; i++)
            sum += x[i] * x[i];
    }
    return sum;
}

/* Writes h = residual + rms_norm(x, post) after the products' columns of the output; gives it. */
static __device__ __forceinline__ const float *columns_post(const gpu_call &c, int token, int width, float *room) {
    const gpu_view *r = c.v + c.n_in;
    const float *x = (const float *)(c.v[1].data + token * c.v[1].stride), *post = (const float *)r[-1].data;
    const float *residual = (const float *)(r->data + token * r->stride);
    float *h = (float *)(c.v[0].data + token * c.v[0].stride) + product_columns(&c, PRODUCT_POST);
    const float scale = columns_scale(c, columns_squares(x, width), width, room);
    for (int k = 4 * threadIdx.x; k < width; k += 4 * 256) {
        const float4 v = *(const float4 *)(x + k), w = *(const float4 *)(post + k),
                     add = *(const float4 *)(residual + k);
        *(float4 *)(h + k) = make_float4(add.x + v.x * scale * w.x, add.y + v.y * scale * w.y,
                                         add.z + v.z * scale * w.z, add.w + v.w * scale * w.w);
    }
    __syncthreads(); /* other threads read h */
    return h;
}

/* A group converts a row, or without a norm part of a row. */
extern "C" __global__ void __launch_bounds__(256) columns_convert(const __grid_constant__ gpu_call c) {
    __shared__ float room[8];
    const int token = blockIdx.y, width = c.v[1].shape[1], all = packed_chunks(&c.v[1]) * CHUNK;
    const int tokens = 8 << columns_kind(c.v[0].shape[0]);
    const float *row = (const float *)(c.v[1].data + token * c.v[1].stride);
    const float *norm = c.mode & PRODUCT_NORM ? (const float *)c.v[product_last(&c, c.mode) + 1].data : nullptr;
    float scale = 1.0f, x[16], w[16];
    launch_next();
    wait_before();
    if (token >= rows_now(c, c.v[0]))
        return;
    if (c.mode & PRODUCT_POST)
        row = columns_post(c, token, width, room);
    if (norm)
        scale = columns_scale(c, columns_squares(row, width), width, room);
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
