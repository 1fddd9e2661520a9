/* attention.h: common code of the attention kernels: layout of a call's caches, the positions a token sees, what is done to
 * scores, queries in f16.
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
    return HALF ? halves_of_floats(a, b) : bfloats_of_floats(a, b);
}

/* Two e4m3 numbers as f16. */
static __device__ __forceinline__ uint32_t two_of_fp8(uint32_t two) {
    uint32_t out;
#if __CUDA_ARCH__ >= 890
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(out) : "h"((uint16_t)two));
#else
    /* The bits at f16's places are the number times 2^-8, exactly. (NaN becomes 480.) */
    const uint32_t high = __byte_perm(two, 0, 0x1404);
    asm("mul.rn.f16x2 %0, %1, %2;"
        : "=r"(out)
        : "r"((high & 0x80008000u) | ((high >> 1) & 0x3F803F80u)), "r"(0x5C005C00u));
#endif
    return out;
}

static __device__ __forceinline__ uint4 halves_of_fp8(uint2 raw) {
    const uint32_t words[2] = {raw.x, raw.y};
    uint32_t out[4];
#pragma unroll
    for (int j = 0; j < 4; j++)
        out[j] = two_of_fp8(words[j / 2] >> (16 * (j % 2)) & 0xFFFF);
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
        const float d = float_of_half(*(const uint16_t *)block);
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
    int head, window, chunk, causal;
    float scale;
};

/* ARG: the op's arguments; `chunk`, `causal`: as in arg_attention. */
template <class ARG>
static __device__ __forceinline__ caches caches_by(const gpu_call &c, int head, const ARG *a, int chunk, int causal) {
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
            chunk,
            causal,
            a->scale};
}

static __device__ __forceinline__ caches caches_of(const gpu_call &c, int head) {
    const arg_attention *a = (const arg_attention *)c.arg;
    return caches_by(c, head, a, a->chunk, a->causal);
}

/* Positions [from, to) that a token sees. */
struct sight {
    int from, to;
};

/* last: the last position of the token's slot in this step, for sight both ways. */
static __device__ __forceinline__ sight sight_of(const caches &x, int pos, int last) {
    sight s = {0, pos + 1};
    if (x.causal) {
        if (x.window > 0 && s.to > x.window)
            s.from = s.to - x.window;
        if (x.chunk > 0)
            s.from = max(s.from, pos / x.chunk * x.chunk);
        return s;
    }
    s.to = last + 1;
    if (x.window > 0) {
        const int half = x.window / 2;
        s.from = max(pos - half, 0);
        s.to = last - pos > half ? pos + half + 1 : s.to;
    }
    return s;
}

/* The last position of this slot among the step's tokens. All threads of the group share the search. */
static __device__ __forceinline__ int last_fed(const gpu_call &c, int slot) {
    __shared__ int found;
    const int rows = rows_of(&c, &c.v[1]);
    int last = -1;
    __syncthreads();
    if (threadIdx.x == 0)
        found = -1;
    __syncthreads();
#pragma unroll 4
    for (int t = threadIdx.x; t < rows; t += blockDim.x) {
        const int own = i32_at(&c.v[4], t), pos = i32_at(&c.v[5], t);
        last = own == slot ? max(last, pos) : last;
    }
    if (last >= 0)
        atomicMax_block(&found, last);
    __syncthreads();
    return found;
}

/* The sight of a token whose place is good. The group's threads call it together. */
static __device__ __forceinline__ sight token_sight(const gpu_call &c, const caches &x, int slot, int pos) {
    return sight_of(x, pos, x.causal ? pos : last_fed(c, slot));
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

/* 2^x by one instruction; results below 2^-126 are 0. */
static __device__ __forceinline__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ float inverse_of(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* What is done to scores before the softmax: a soft cap, then ALiBi. Scores, cap and slopes are times log2(e) here. */
struct shaping {
    float cap, inner; /* 2 / cap without log2(e); 0: no cap */
    bool on, slopes;
};

static __device__ __forceinline__ shaping shaping_by(float cap, bool slopes) {
    return {cap * LOG2_E, cap > 0 ? 2 / cap : 0, cap > 0 || slopes, slopes};
}

static __device__ __forceinline__ shaping shaping_of(const gpu_call &c) {
    const arg_attention *a = (const arg_attention *)c.arg;
    return shaping_by(a->cap, a->alibi);
}

/* The score times its scale, capped. tanh(x) = 1 - 2 / (1 + e^2x) has an error of 1e-7; that of tanh.approx is 5e-4, which a cap of
 * 50 makes 2 % of a weight. */
static __device__ __forceinline__ float capped(const shaping &f, float score, float scale) {
    return f.inner > 0 ? fmaf(-2 * f.cap, inverse_of(1 + power_of_two(score * (scale * f.inner))), f.cap)
                       : score * scale;
}

/* A head's sink, times log2(e). */
static __device__ __forceinline__ float sink_of(const gpu_call &c, int head) {
    const arg_attention *a = (const arg_attention *)c.arg;
    return (int)c.n_in - a->alibi == 7 ? ((const float *)c.v[7].data)[head] * LOG2_E : -INFINITY;
}

static __device__ __forceinline__ float slope_of(const gpu_call &c, int head) {
    return ((const arg_attention *)c.arg)->alibi ? ((const float *)c.v[c.n_in].data)[head] * LOG2_E : 0;
}

/* The factor of a head's sums of values, of which `most` is the largest score and `total` the sum of weights, 1 at least beside the
 * sink. */
static __device__ __forceinline__ float share_of(float most, float total, float sink) {
    const float top = fmaxf(most, sink), keep = top == -INFINITY ? 0 : power_of_two(most - top);
    total = total * keep + (sink == -INFINITY ? 0 : power_of_two(sink - top));
    return total == 0 ? 0 : __fdividef(keep, total);
}

/* Calls token() for this group's tokens: every walkers-th from `walker` on, of all tokens or of tiles with short runs. */
template <class F>
static __device__ __forceinline__ void each_token(const gpu_call &c, int walker, int walkers, F token) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
    const int rows = rows_of(&c, &c.v[1]), all = c.v[1].shape[0] <= FEW, lane = threadIdx.x % 32;
    if (all) {
        if (walker < rows)
            token(walker);
        return;
    }
    for (int first = 0; first * TOKENS < rows; first += 32) {
        const int tile = first + lane, mine = tile * TOKENS < rows && ((const int32_t *)c.scratch)[tile];
        for (uint32_t left = __ballot_sync(0xFFFFFFFFu, mine); left; left &= left - 1) {
            const int begin = (first + __ffs(left) - 1) * TOKENS, end = begin + TOKENS < rows ? begin + TOKENS : rows;
            for (int t = begin + walker; t < end; t += walkers) {
                token(t);
                __syncthreads();
            }
        }
    }
}

/* *down: the power of two that scales a query's largest magnitude to [1, 2); *up: its inverse. */
static __device__ __forceinline__ void query_power(float most, float *down, float *up) {
    int e = (int)(__float_as_uint(most) >> 23 & 255);
    e = e == 0 || e > 253 ? 127 : e;
    *down = __uint_as_float((uint32_t)(254 - e) << 23);
    *up = __uint_as_float((uint32_t)e << 23);
}

#endif
