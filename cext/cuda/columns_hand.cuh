/* columns_hand.cuh: a kernel's result as the activations of the product behind it, converted to bf16 in the layout of columns_convert.cuh
 * and multiplied with a norm's weights where that product has a norm. The norm's factor of a row is applied to the product's sums instead
 * (columns_factors): each block of 64 elements leaves the sum of its squares, and the product adds these in order.
 */
#ifndef SATCHEL_CUDA_COLUMNS_HAND_CUH
#define SATCHEL_CUDA_COLUMNS_HAND_CUH

#include "columns.h"
#include "hopper.h"

/* The 16 bytes with element k of a token, in its order's piece e of two. */
static __device__ __forceinline__ char *hand_piece(const gpu_call &c, int token, int k, int e) {
    const int tokens = 8 << columns_kind(c.v[0].shape[0]);
    return (char *)c.handed.at + ((int64_t)(k / COLUMNS_K) * tokens + token) * 128 +
           (((k / 16 % 4 * 2 + e) ^ (token & 7)) << 4);
}

/* Elements k to k + 3 of a token; k is a multiple of 4. With a norm all 16 lanes of a block of 64 elements call it together. */
static __device__ __forceinline__ void columns_hand(const gpu_call &c, int token, int k, float4 v) {
    const int word = k % 16 / 4;
    if (c.handed.norm) {
        const float4 w = *(const float4 *)(c.handed.norm + 4 * (int64_t)k);
        float sum = v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
#pragma unroll
        for (int far = 8; far; far /= 2)
            sum += __shfl_xor_sync(0xFFFFu << (threadIdx.x & 16), sum, far);
        if (k % COLUMNS_ROWS == 0) {
            const int sums = columns_square_sums(c.v[0].shape[1]);
            ((float *)(c.handed.at + columns_activations(&c.v[0])))[token * sums + k / COLUMNS_ROWS] = sum;
        }
        v = make_float4(v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w);
    }
    if (c.handed.order == HAND_PLAIN) {
        *(uint2 *)(hand_piece(c, token, k, word / 2) + word % 2 * 8) =
            make_uint2(bfloats_of_floats(v.x, v.y), bfloats_of_floats(v.z, v.w));
    } else {
        v = make_float4(v.x * ACTIVATIONS_BY, v.y * ACTIVATIONS_BY, v.z * ACTIVATIONS_BY, v.w * ACTIVATIONS_BY);
        *(uint32_t *)(hand_piece(c, token, k, 0) + 4 * word) = bfloats_of_floats(v.x, v.z);
        *(uint32_t *)(hand_piece(c, token, k, 1) + 4 * word) = bfloats_of_floats(v.y, v.w);
    }
}

/* Where a product's activations lie. */
static __device__ __forceinline__ const char *activations_of(const gpu_call &c) {
    return (const char *)(c.taken ? c.taken : c.scratch);
}

/* Whether the norm's factors are still to be applied to the sums. */
static __device__ __forceinline__ bool columns_factored(const gpu_call &c) {
    return c.taken && c.mode & PRODUCT_NORM;
}

/* Of each token what its sums are multiplied with: 1 / sqrt(mean square + eps). By `warps` warps, of which this is number `warp`. */
static __device__ __forceinline__ void columns_factors(const gpu_call &c, int now, int warp, int warps, float *to) {
    const int width = c.v[1].shape[1], sums = columns_square_sums(width), lane = threadIdx.x % 32;
    const float *squares = (const float *)(c.taken + columns_scratch(&c));
    for (int token = warp; token < now; token += warps) {
        float sum = 0.0f;
        for (int i = lane; i < sums; i += 32)
            sum += __ldcg(squares + token * sums + i);
#pragma unroll
        for (int far = 16; far; far /= 2)
            sum += __shfl_xor_sync(~0u, sum, far);
        if (lane == 0)
            to[token] = rsqrtf(sum / (float)width + __uint_as_float((uint32_t)c.arg[0]));
    }
}

#endif
