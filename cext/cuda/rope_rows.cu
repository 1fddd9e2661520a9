/* rope_rows.cu: rope_qkv_write of many tokens. A group has a token: its threads read the table's cosines and sines, and the cache's block,
 * once for all heads, and eight adjacent or paired numbers of a head at a time. The numbers are those of the portable kernel, but for the
 * order of the sums of head norms.
 */
#include "kv_place.k.h"
#include "rope_rows.h"

/* Where a thread's two runs of four numbers begin in a head: pairs of RoPE, or beyond n_rot eight in a row. */
struct rope_runs {
    int first, second;
    bool rotated, halves; /* halves: pairs are first[i], second[i]; else adjacent numbers */
    float4 cosine, sine;
};

static __device__ __forceinline__ rope_runs runs_of(const gpu_view *cos_sin, int t, int style, int unit) {
    const int n_rot = cos_sin->shape[1], half = n_rot / 2, turned = n_rot / RUN;
    rope_runs r = {n_rot + RUN * (unit - turned), 0, unit < turned, style == HAL_ROPE_HALVES};
    if (r.rotated) {
        const float *row = ROW(const float, cos_sin, t) + 4 * unit;
        r.first = r.halves ? 4 * unit : RUN * unit;
        r.cosine = *(const float4 *)row;
        r.sine = *(const float4 *)(row + half);
    }
    r.second = r.rotated && r.halves ? r.first + half : r.first + 4;
    return r;
}

static __device__ __forceinline__ void turn(float &a, float &b, float cosine, float sine) {
    const float x = a;
    a = x * cosine - b * sine;
    b = x * sine + b * cosine;
}

static __device__ __forceinline__ void rotate(const rope_runs &r, float4 &a, float4 &b) {
    if (!r.rotated)
        return;
    if (r.halves) {
        turn(a.x, b.x, r.cosine.x, r.sine.x), turn(a.y, b.y, r.cosine.y, r.sine.y);
        turn(a.z, b.z, r.cosine.z, r.sine.z), turn(a.w, b.w, r.cosine.w, r.sine.w);
    } else {
        turn(a.x, a.y, r.cosine.x, r.sine.x), turn(a.z, a.w, r.cosine.y, r.sine.y);
        turn(b.x, b.y, r.cosine.z, r.sine.z), turn(b.z, b.w, r.cosine.w, r.sine.w);
    }
}

static __device__ __forceinline__ float4 plus(float4 x, float4 y) {
    return make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
}

static __device__ __forceinline__ float4 normed(float4 x, float size, float4 w) {
    return make_float4(x.x / size * w.x, x.y / size * w.y, x.z / size * w.z, x.w / size * w.w);
}

static __device__ __forceinline__ float squares(float4 x) {
    return x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
}

/* Stores numbers i to i + 3 of a row of the cache. */
static __device__ __forceinline__ void store_four(uint32_t format, float4 x, char *row, int i) {
    switch (format) {
    case KV_F32:
        *(float4 *)(row + 4 * i) = x;
        break;
    case KV_F16:
        *(uint2 *)(row + 2 * i) = make_uint2(f32_to_f16(x.x) | (uint32_t)f32_to_f16(x.y) << 16,
                                             f32_to_f16(x.z) | (uint32_t)f32_to_f16(x.w) << 16);
        break;
    case KV_BF16:
        *(uint2 *)(row + 2 * i) = make_uint2(f32_to_bf16(x.x) | (uint32_t)f32_to_bf16(x.y) << 16,
                                             f32_to_bf16(x.z) | (uint32_t)f32_to_bf16(x.w) << 16);
        break;
    default:
        *(uint32_t *)(row + i) =
            fp8_of(x.x) | (uint32_t)fp8_of(x.y) << 8 | (uint32_t)fp8_of(x.z) << 16 | (uint32_t)fp8_of(x.w) << 24;
    }
}

/* What all heads of a token share. */
struct rope_token {
    const arg_rope_qkv_write *a;
    int t, heads, kv, units; /* units: threads of a head */
    rope_runs runs;
    int keys, values; /* blocks of the caches; -1: the token has none */
};

/* A head's part and its number in that: of queries, keys or values. */
static __device__ __forceinline__ int part_of(const rope_token &k, int &head) {
    const int part = head < k.heads ? 0 : head < k.heads + k.kv ? 1 : 2;
    head -= part == 0 ? 0 : part == 1 ? k.heads : k.heads + k.kv;
    return part;
}

/* The lanes of this thread's head. */
static __device__ __forceinline__ uint32_t head_lanes(int units) {
    return (units == 32 ? ~0u : (1u << units) - 1) << threadIdx.x % 32 / units * units;
}

/* Finishes a head whose numbers are a and b. All of a head's threads call it together. */
static __device__ __forceinline__ void put_head(const gpu_call *c, const rope_token &k, int head, float4 a, float4 b) {
    const int part = part_of(k, head), d = c->v[1].shape[2];
    if (k.a->biases) {
        const float *bias = ROW(const float, c->v + 10 + part, 0) + (int64_t)head * d;
        a = plus(a, *(const float4 *)(bias + k.runs.first)), b = plus(b, *(const float4 *)(bias + k.runs.second));
    }
    if (k.a->norms && part < 2) {
        const float *w = ROW(const float, c->v + 10 + part, 0);
        float sum = squares(a) + squares(b);
        for (int far = k.units / 2; far; far /= 2)
            sum += __shfl_xor_sync(head_lanes(k.units), sum, far);
        const float size = sqrtf(sum / (float)d + k.a->eps);
        a = normed(a, size, *(const float4 *)(w + k.runs.first));
        b = normed(b, size, *(const float4 *)(w + k.runs.second));
    }
    if (part < 2)
        rotate(k.runs, a, b);
    if (part == 0) {
        float *y = ROW(float, c->v, k.t) + (int64_t)head * d;
        *(float4 *)(y + k.runs.first) = a, *(float4 *)(y + k.runs.second) = b;
        return;
    }
    const gpu_view *cache = c->v + 1 + part;
    char *row = kv_in_block(cache, c->v + 4, k.t, head, part == 1 ? k.keys : k.values);
    if (row)
        store_four(cache->format, a, row, k.runs.first), store_four(cache->format, b, row, k.runs.second);
}

extern "C" __global__ void __launch_bounds__(ROPE_THREADS) rope_qkv_rows(const __grid_constant__ gpu_call c) {
    const int d = c.v[1].shape[2], units = d / RUN, at_once = ROPE_THREADS / units;
    AWAIT_BEFORE();
    rope_token k = {(const arg_rope_qkv_write *)c.arg, (int)blockIdx.x, c.v[1].shape[1], c.v[8].shape[1], units};
    if (k.t >= rows_of(&c, c.v + 1))
        return;
    k.runs = runs_of(c.v + 7, k.t, k.a->style, threadIdx.x % units);
    k.keys = kv_block_of(c.v + 2, c.v + 4, k.t), k.values = kv_block_of(c.v + 3, c.v + 4, k.t);
    if (threadIdx.x == 0 && !(inside(k.keys, c.v[2].shape[0]) && inside(k.values, c.v[3].shape[0])))
        fault(&c);
    const int heads = k.heads + 2 * k.kv;
    for (int first = threadIdx.x / units; first < heads; first += ROPE_AHEAD * at_once) {
        float4 a[ROPE_AHEAD], b[ROPE_AHEAD];
#pragma unroll
        for (int i = 0; i < ROPE_AHEAD; i++) {
            int head = min(first + i * at_once, heads - 1);
            const int part = part_of(k, head);
            const float *x = ROW(const float, c.v + (part ? 7 + part : 1), k.t) + (int64_t)head * d;
            a[i] = *(const float4 *)(x + k.runs.first), b[i] = *(const float4 *)(x + k.runs.second);
        }
#pragma unroll
        for (int i = 0; i < ROPE_AHEAD; i++)
            if (first + i * at_once < heads)
                put_head(&c, k, first + i * at_once, a[i], b[i]);
    }
}
