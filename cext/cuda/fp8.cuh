/* fp8.cuh: common code of the FP8 kernels: addresses of weight rows, and the epilogue that writes sums to the output. */
#ifndef SATCHEL_CUDA_FP8_CUH
#define SATCHEL_CUDA_FP8_CUH

#include "fp8_shape.h"
#include "tile.cuh"

/* Address of a slot's row; 0: the slot has no row. */
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

/* Copies the first `bytes` of 16, the rest become zeros. The source is 16-byte aligned, so reading 16 bytes stays in the
 * buffer. */
static __device__ __forceinline__ void copy_part(uint32_t to, uint64_t from, int bytes) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

/* The residual of a slot and a token; 0 without one. */
static __device__ __forceinline__ float fp8_more(const gpu_call &c, int slot, int token, int now) {
    if (!(c.mode & PRODUCT_ADD) || token >= now || slot >= c.v[0].shape[1])
        return 0.0f;
    return ((const float *)(c.v[3].data + (uint64_t)token * c.v[3].stride))[slot];
}

/* Writes the sums of slots slot + g and slot + g + 8 (g = lane / 4) of two tokens: d[0] and d[1], d[2] and d[3]. ADD: adds the
 * residual. */
template <bool ADD>
static __device__ __forceinline__ void fp8_finish(const gpu_call &c, int slot, int token, int now,
                                                  const float (&d)[4]) {
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
