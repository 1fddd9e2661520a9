/* latent_keys.cuh: what attention_latent.cu and latent_warp.cu share: a token's keys, their splits, and the kernels that join these.
 */
#ifndef SATCHEL_CUDA_LATENT_KEYS_CUH
#define SATCHEL_CUDA_LATENT_KEYS_CUH

#include "attention.h"
#include "latent_shape.h"
#include "port.h"

/* The keys of a tile's rows: those of positions [from, to), or those that `list` has at [from, to). */
struct latent_keys {
    const int32_t *blocks; /* the slot's row of the block table */
    const int32_t *list;   /* nullptr: each position is its own number */
    int from, to;
};

/* How many positions a token's list has: those before the first negative one. The list of a token at `pos` has pos + 1 where
 * all of them are chosen. */
static __device__ __forceinline__ int list_length(const int32_t *list, int most, int pos) {
    int n = pos + 1 < most ? pos + 1 : most;
    if (list[n - 1] >= 0 && (n == most || list[n] < 0))
        return n;
    for (n = 0; n < most && list[n] >= 0;)
        n++;
    return n;
}

/* All keys of a token. */
template <bool LIST>
static __device__ __forceinline__ latent_keys keys_of_token(const gpu_call &c, const caches &x, int token, int slot,
                                                            int pos) {
    latent_keys keys = {x.table + slot * x.table_stride, nullptr, 0, pos + 1};
    if (LIST) {
        keys.list = (const int32_t *)(c.v[7].data + (uint64_t)token * c.v[7].stride);
        keys.to = list_length(keys.list, c.v[7].shape[1], pos);
    }
    return keys;
}

/* Stores a query as 16-bit numbers scaled by a power of two as row r of a tile of `rows` at `to`, by a warp; zeros where it is none.
 * Gives the factor of its scores. */
template <bool HALF>
static __device__ __forceinline__ float bring_query(const float4 *from, bool is, uint32_t to, int r, int rows) {
    const int lane = threadIdx.x % 32;
    float n[3][8], most = 0, down, up;
#pragma unroll
    for (int k = 0; k < 3; k++) {
        const int i = lane + 32 * k;
        float4 a = make_float4(0, 0, 0, 0), b = a;
        if (is && i < LATENT_D / 8)
            a = from[2 * i], b = from[2 * i + 1];
        n[k][0] = a.x, n[k][1] = a.y, n[k][2] = a.z, n[k][3] = a.w;
        n[k][4] = b.x, n[k][5] = b.y, n[k][6] = b.z, n[k][7] = b.w;
#pragma unroll
        for (int j = 0; j < 8; j++)
            most = fmaxf(most, fabsf(n[k][j]));
    }
#pragma unroll
    for (int j = 16; j; j /= 2)
        most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, j));
    query_power(most, &down, &up);
#pragma unroll
    for (int k = 0; k < 3; k++) {
        const int i = lane + 32 * k;
        if (i < LATENT_D / 8)
            store_16(to + piece_at(r, i, rows), make_uint4(two_halves<HALF>(n[k][0] * down, n[k][1] * down),
                                                           two_halves<HALF>(n[k][2] * down, n[k][3] * down),
                                                           two_halves<HALF>(n[k][4] * down, n[k][5] * down),
                                                           two_halves<HALF>(n[k][6] * down, n[k][7] * down)));
    }
    return up;
}

/* Keys of split `split` of at most `splits`; *used: how many splits there are. Both depend on the number of keys alone. */
static __device__ __forceinline__ latent_keys cut_keys(latent_keys keys, int split, int splits, int *used) {
    const int steps = (keys.to + LATENT_KEYS - 1) / LATENT_KEYS, each = (steps + splits - 1) / splits;
    *used = each ? (steps + each - 1) / each : 0;
    keys.from = split * each * LATENT_KEYS;
    keys.to = keys.to < keys.from + each * LATENT_KEYS ? keys.to : keys.from + each * LATENT_KEYS;
    return keys;
}

/* before: bytes of scratch before the splits' results. */
static __device__ __forceinline__ float *latent_result(const gpu_call &c, int token, int head, int splits, int split,
                                                       uint64_t before = 0) {
    const int64_t heads = c.v[1].shape[1];
    return (float *)(c.scratch + before) + ((token * heads + head) * splits + split) * LATENT_RESULT;
}

/* Four columns of a head's splits, merged: the sum relative to the largest score, which is in powers of two. */
struct latent_joined {
    float4 sum;
    float most, total;
};

/* Merges `used` results of a head of a token, a quarter of its columns: each of four warps adds a quarter of the splits in order,
 * then the warps' sums are added in order. True for the threads of the first warp, which have the result. */
static __device__ __forceinline__ bool join_splits(const float *parts, int used, int column, latent_joined *out) {
    __shared__ float4 sums[4][32];
    __shared__ float totals[4];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float most = -INFINITY, total = 0;
    for (int i = lane; i < used; i += 32)
        most = fmaxf(most, parts[(int64_t)i * LATENT_RESULT + LATENT_V]);
#pragma unroll
    for (int j = 16; j; j /= 2)
        most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, j));
    const float base = most == -INFINITY ? 0 : most;
    float4 sum = make_float4(0, 0, 0, 0);
    const int each = (used + 3) / 4, end = (warp + 1) * each < used ? (warp + 1) * each : used;
#pragma unroll 4
    for (int i = warp * each; i < end; i++) {
        const float *part = parts + (int64_t)i * LATENT_RESULT;
        const float share = exp2f(part[LATENT_V] - base);
        const float4 y = *(const float4 *)(part + column);
        total += part[LATENT_V + 1] * share;
        sum.x += y.x * share, sum.y += y.y * share, sum.z += y.z * share, sum.w += y.w * share;
    }
    sums[warp][lane] = sum;
    if (lane == 0)
        totals[warp] = total;
    __syncthreads();
    if (warp)
        return false;
    for (int i = 1; i < 4; i++) {
        const float4 y = sums[i][lane];
        sum.x += y.x, sum.y += y.y, sum.z += y.z, sum.w += y.w;
        total += totals[i];
    }
    *out = {sum, most, total};
    return true;
}

/* Joins the splits of a head of a token. */
template <bool LIST> static __device__ __forceinline__ void latent_join(const gpu_call &c) {
    const int head = blockIdx.x / 4, token = blockIdx.y, column = blockIdx.x % 4 * 128 + threadIdx.x % 32 * 4;
    const int splits = latent_splits(c.v[1].shape[0], c.v[1].shape[1], c.config);
    const caches x = caches_of(c, 0);
    if (token >= rows_of(&c, &c.v[1]))
        return;
    const int slot = i32_at(&c.v[4], token), pos = i32_at(&c.v[5], token);
    if (!place_good(x, slot, pos))
        return;
    int used;
    cut_keys(keys_of_token<LIST>(c, x, token, slot, pos), 0, splits, &used);
    if (used < 2)
        return;
    latent_joined all;
    if (!join_splits(latent_result(c, token, head, splits, 0), used, column, &all))
        return;
    const float share = all.total == 0 ? 0 : 1 / all.total;
    *(float4 *)((float *)(c.v[0].data + (uint64_t)token * c.v[0].stride) + head * LATENT_V + column) =
        make_float4(all.sum.x * share, all.sum.y * share, all.sum.z * share, all.sum.w * share);
}

/* Grid: four times the heads by tokens. */
#define JOIN(name, LIST)                                                                                               \
    extern "C" __global__ void __launch_bounds__(LATENT_JOINERS) name(const __grid_constant__ gpu_call c) {            \
        AWAIT_BEFORE();                                                                                                \
        latent_join<LIST>(c);                                                                                          \
    }

#endif
