/* attention.h: common code of the attention kernels: layout of a call's caches, the positions a token sees, queries in f16.
 *
 * Keys and values of f16 and fp8 caches are multiplied as f16, those of bf16, q8_0 and q4_0 caches as bf16, because their
 * values may exceed f16's range. A query is scaled by a power of two until its largest magnitude is in [1, 2), which is exact
 * and fits f16; the inverse is multiplied into the scale of its scores.
 */
#ifndef SATCHEL_CUDA_ATTENTION_H
#define SATCHEL_CUDA_ATTENTION_H

#include "attention_shape.h"
#include "hopper.h"

enum { CACHE_F16 = 1, CACHE_Q4_0 = 2, CACHE_Q8_0 = 8, CACHE_BF16 = 30, CACHE_FP8 = 1008 };

/* A row of a cache: conversion of eight elements to the operand type (16 bytes). */
template <int FORMAT> struct cache_row {
    static constexpr bool HALF = FORMAT == CACHE_F16 || FORMAT == CACHE_FP8,
                          PLAIN = FORMAT == CACHE_F16 || FORMAT == CACHE_BF16;
    static __host__ __device__ constexpr int bytes(int d) {
        return PLAIN ? 2 * d : FORMAT == CACHE_FP8 ? d : FORMAT == CACHE_Q8_0 ? d / 32 * 34 : d / 32 * 18;
    }
};

template <bool HALF> static __device__ __forceinline__ uint32_t two_halves(float a, float b) {
    uint32_t out;
    if (HALF) {
        __half2 x = __floats2half2_rn(a, b);
        memcpy(&out, &x, 4);
    } else {
        __nv_bfloat162 x = __floats2bfloat162_rn(a, b);
        memcpy(&out, &x, 4);
    }
    return out;
}

static __device__ __forceinline__ uint4 halves_of_fp8(uint2 raw) {
    const uint32_t words[2] = {raw.x, raw.y};
    uint32_t out[4];
#pragma unroll
    for (int j = 0; j < 4; j++)
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(out[j]) : "h"((uint16_t)(words[j / 2] >> (16 * (j % 2)))));
    return make_uint4(out[0], out[1], out[2], out[3]);
}

/* Elements 8 i to 8 i + 7 of a row. */
template <int FORMAT> static __device__ __forceinline__ uint4 cache_eight(const uint8_t *row, int i) {
    typedef cache_row<FORMAT> R;
    uint32_t out[4];
    if (R::PLAIN)
        return *(const uint4 *)(row + 16 * i);
    if (FORMAT == CACHE_FP8) {
        return halves_of_fp8(*(const uint2 *)(row + 8 * i));
    } else {
        const uint8_t *block = row + (i / 4) * (FORMAT == CACHE_Q8_0 ? 34 : 18);
        const uint16_t *words = (const uint16_t *)block + 1 + (FORMAT == CACHE_Q8_0 ? i % 4 * 4 : i % 2 * 4);
        const float d = __half2float(*(const __half *)block);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int a = words[j] & 255, b = words[j] >> 8;
            if (FORMAT == CACHE_Q8_0)
                a = (int8_t)a, b = (int8_t)b;
            else if (i % 4 < 2)
                a = (a & 15) - 8, b = (b & 15) - 8;
            else
                a = (a >> 4) - 8, b = (b >> 4) - 8;
            out[j] = two_halves<false>(d * (float)a, d * (float)b);
        }
    }
    return make_uint4(out[0], out[1], out[2], out[3]);
}

/* One call, for one KV head. */
struct caches {
    const uint8_t *k, *v;
    uint64_t k_stride, v_stride;
    const int32_t *table;
    int64_t table_stride;
    int block, shift;         /* positions of a block: a power of two, two to the shift */
    int blocks, slots, width; /* blocks that exist, slots, blocks of a slot */
    int head, window;
    float scale;
};

static __device__ __forceinline__ caches caches_of(const gpu_call &c, int head) {
    const arg_attention *a = (const arg_attention *)c.arg;
    return {(const uint8_t *)c.v[2].data,
            (const uint8_t *)c.v[3].data,
            c.v[2].stride,
            c.v[3].stride,
            (const int32_t *)c.v[6].data,
            (int64_t)c.v[6].stride / 4,
            c.v[2].shape[2],
            __ffs(c.v[2].shape[2]) - 1,
            c.v[2].shape[0],
            c.v[6].shape[0],
            c.v[6].shape[1],
            head,
            a->window,
            a->scale};
}

static __device__ __forceinline__ int first_seen(const caches &x, int pos) {
    return x.window > 0 && pos + 1 > x.window ? pos + 1 - x.window : 0;
}

/* 1: the slot exists and has room for the position. */
static __device__ __forceinline__ int place_good(const caches &x, int slot, int pos) {
    return slot >= 0 && slot < x.slots && pos >= 0 && pos >> x.shift < x.width;
}

/* Validates a block index of the table; an invalid one becomes 0 and sets *bad. */
static __device__ __forceinline__ int good_block(const caches &x, int32_t n, int *bad) {
    if ((uint32_t)n < (uint32_t)x.blocks)
        return n;
    *bad = 1;
    return 0;
}

/* *down: the power of two that scales a query's largest magnitude to [1, 2); *up: its inverse. */
static __device__ __forceinline__ void query_power(float most, float *down, float *up) {
    int e = (int)(__float_as_uint(most) >> 23 & 255);
    e = e == 0 || e > 253 ? 127 : e;
    *down = __uint_as_float((uint32_t)(254 - e) << 23);
    *up = __uint_as_float((uint32_t)e << 23);
}

#endif
