/* fp8.cuh: what both kernels for FP8 weights share: where a row of the weights lies, and how sums go to the output. */
#ifndef SATCHEL_CUDA_FP8_CUH
#define SATCHEL_CUDA_FP8_CUH

#include "fp8_shape.h"
#include "tile.cuh"

/* Where a slot's row begins; 0: there is none. */
static __device__ __forceinline__ uint64_t fp8_row_at(const gpu_call &c, int slot) {
    int which = 2, row = slot;
    if (c.mode & PRODUCT_GATED) {
        which = 2 + (slot / 8 & 1);
        row = slot / 16 * 8 + slot % 8;
    } else {
        for (int last = fp8_last(&c); which < last && row >= c.v[which].shape[0]; which++)
            row -= c.v[which].shape[0];
    }
    return row < c.v[which].shape[0] ? c.v[which].data + (uint64_t)row * c.v[which].stride : 0;
}

/* The first `bytes` of 16, the rest zeros. Both ends are multiples of 16, so reading all 16 stays in the buffer. */
static __device__ __forceinline__ void copy_part(uint32_t to, uint64_t from, int bytes) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

/* What is added to the sum of a slot and a token: 0 where nothing is. */
static __device__ __forceinline__ float fp8_more(const gpu_call &c, int slot, int token, int now) {
    if (!(c.mode & PRODUCT_ADD) || token >= now || slot >= c.v[0].shape[1])
        return 0.0f;
    return ((const float *)(c.v[3].data + (uint64_t)token * c.v[3].stride))[slot];
}

/* Sums of slots slot + g and slot + g + 8, g being a lane's fourth, of two tokens: d[0] and d[1], d[2] and d[3]; ADD: what is to be
 * added is not in them yet. */
template <bool ADD>
static __device__ __forceinline__ void fp8_finish(const gpu_call &c, int slot, int token, int now, const float (&d)[4]) {
    const int g = threadIdx.x % 32 / 4, n = c.v[0].shape[1];
#pragma unroll
    for (int e = 0; e < 2; e++) {
        if (token + e >= now)
            break;
        float *y = (float *)(c.v[0].data + (uint64_t)(token + e) * c.v[0].stride);
        if (c.mode & PRODUCT_GATED) {
            const int at = slot / 2 + g;
            if (at < n)
                y[at] = __fdividef(d[e], 1.0f + __expf(-d[e])) * d[2 + e];
            continue;
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int at = slot + g + 8 * h;
            if (at < n)
                y[at] = d[2 * h + e] + (ADD ? fp8_more(c, at, token + e, now) : 0.0f);
        }
    }
}

#endif
