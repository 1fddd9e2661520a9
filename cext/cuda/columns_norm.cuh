/* columns_norm.cuh: activations on their way into the kernels that convert them (columns_convert.cuh, columns_int8.cu): loads, and the
 * norm and post-norm of a row by a group of 256 threads.
 */
#ifndef SATCHEL_CUDA_COLUMNS_NORM_CUH
#define SATCHEL_CUDA_COLUMNS_NORM_CUH

#include "columns.h"

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

/* What the norm multiplies a row with, 1 without one; after a post-norm `row` is its result. norm: its weights, or nullptr. */
static __device__ __forceinline__ float columns_normed(const gpu_call &c, int token, int width, const float *norm,
                                                       const float *&row, float *room) {
    if (c.mode & PRODUCT_POST)
        row = columns_post(c, token, width, room);
    return norm ? columns_scale(c, columns_squares(row, width), width, room) : 1.0f;
}

#endif
