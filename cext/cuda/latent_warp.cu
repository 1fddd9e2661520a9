/* latent_warp.cu: attention_latent.cu for devices without wgmma, by mma.sync: attention over caches of one row per position, 512 numbers of
 * a latent, which is the value too, and 64 with RoPE; of all positions or of listed ones.
 *
 * A group of eight warps computes 16 heads of a token over the keys of a split, 32 at a time; the next 32 rows come by cp.async
 * meanwhile. For the scores, two warps share a quarter of a row's 576 numbers, 16 keys each, and keep the queries' operands in registers;
 * the quarters are added through shared memory. Then each warp has all weights and sums 64 columns of the values. Splits and their
 * joining are attention_latent.cu's; a row's bits depend on its own position and on the call's bucket alone.
 */
#include "latent_keys.cuh"
#include "tile.cuh"

enum { WARP_K = LATENT_D / 16 / LATENT_WARP_PARTS /* steps of 16 numbers in a quarter */, WARP_V = LATENT_V / 8 };

struct warp_group {
    caches x;
    char *memory;
    uint32_t base; /* its address */
    int token, head, heads;
};

/* Loads the tile's queries as 16-bit numbers scaled by a power of two to shared memory at `to`, and the scales of their scores. */
template <bool HALF>
static __device__ __forceinline__ void bring_queries(const gpu_call &c, const warp_group &g, uint32_t to) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int r = warp; r < LATENT_WARP_ROWS; r += 8) {
        const bool is = g.head + r < g.heads;
        const float4 *from =
            (const float4 *)(c.v[1].data + (uint64_t)g.token * c.v[1].stride) + (is ? g.head + r : 0) * (LATENT_D / 4);
        const float up = bring_query<HALF>(from, is, to, r, LATENT_WARP_ROWS);
        if (lane == 0)
            ((float *)(g.memory + LATENT_WARP_SCALES))[r] = g.x.scale * LOG2_E * up;
    }
}

/* A thread's row of a step: eight threads share one. Looked up a step before its numbers are asked for. */
struct warp_row {
    const uint8_t *at;
    int seen;
};

template <int FORMAT>
static __device__ __forceinline__ warp_row look_up(const warp_group &g, const latent_keys &keys, int key, int *bad) {
    const int n = key + (int)threadIdx.x / 8;
    int pos = n, is = n >= keys.from && n < keys.to, block = 0;
    if (keys.list && is)
        pos = keys.list[n];
    if (is && (pos < 0 || pos >> g.x.shift >= g.x.width))
        *bad = 1, is = 0;
    if (is)
        block = good_block(g.x, keys.blocks[pos >> g.x.shift], bad);
    else
        pos = 0;
    return {g.x.k + (uint64_t)block * g.x.k_stride + (pos & (g.x.block - 1)) * cache_row<FORMAT>::bytes(LATENT_D), is};
}

template <int FORMAT> static __device__ __forceinline__ void bring_row(const warp_row &row, uint32_t stage) {
    const int r = threadIdx.x / 8, piece = threadIdx.x % 8;
    constexpr int EACH = LATENT_D / 64;
    if constexpr (cache_row<FORMAT>::PLAIN) {
#pragma unroll
        for (int k = 0; k < EACH; k++)
            copy_16(stage + piece_at(r, piece + 8 * k, LATENT_WARP_KEYS), row.at + 16 * (piece + 8 * k), row.seen);
    } else {
        uint4 x[EACH];
#pragma unroll
        for (int k = 0; k < EACH; k++) /* of any row, since branches would wait for each load */
            x[k] = cache_eight<FORMAT>(row.at, piece + 8 * k);
#pragma unroll
        for (int k = 0; k < EACH; k++)
            store_16(stage + piece_at(r, piece + 8 * k, LATENT_WARP_KEYS), row.seen ? x[k] : make_uint4(0, 0, 0, 0));
    }
}

/* A warp's part of a step's scores to shared memory. */
template <bool HALF>
static __device__ __forceinline__ void leave_scores(const warp_group &g, const uint32_t (&q)[WARP_K][4],
                                                    uint32_t stage) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, quarter = warp / 2, half = warp % 2;
    float s[8] = {0, 0, 0, 0, 0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < WARP_K; i++) {
        uint32_t k[4];
        load_matrices(k, stage + piece_at(16 * half + lane / 16 * 8 + lane % 8,
                                          2 * (WARP_K * quarter + i) + lane / 8 % 2, LATENT_WARP_KEYS));
        mma_16<HALF>(s, q[i], k[0], k[1]);
        mma_16<HALF>(s + 4, q[i], k[2], k[3]);
    }
    float *to = (float *)(g.memory + LATENT_WARP_SCORES) + (quarter * LATENT_WARP_ROWS + lane / 4) * LATENT_WARP_PITCH +
                16 * half + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            *(float2 *)(to + 8 * h * LATENT_WARP_PITCH + 8 * n) = make_float2(s[4 * n + 2 * h], s[4 * n + 2 * h + 1]);
}

/* Softmax state of a lane's two rows, and its sums of 64 columns. */
struct warp_sums {
    float o[WARP_V / 2], most[2], total[2];
};

/* Adds the quarters of a step's scores, in order, turns them into weights, and adds the values that they weigh. */
template <bool HALF>
static __device__ __forceinline__ void weigh_step(const warp_group &g, warp_sums &w, const latent_keys &keys, int key,
                                                  uint32_t stage) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, c = lane % 4;
    const float *scales = (const float *)(g.memory + LATENT_WARP_SCALES);
    float s[2][8], keep[2]; /* of row h the keys 8 n + 2 c + e at 2 n + e */
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float *from =
            (const float *)(g.memory + LATENT_WARP_SCORES) + (lane / 4 + 8 * h) * LATENT_WARP_PITCH + 2 * c;
#pragma unroll
        for (int n = 0; n < 4; n++) {
            float2 sum = *(const float2 *)(from + 8 * n);
#pragma unroll
            for (int i = 1; i < LATENT_WARP_PARTS; i++) {
                const float2 x = *(const float2 *)(from + i * LATENT_WARP_ROWS * LATENT_WARP_PITCH + 8 * n);
                sum.x += x.x, sum.y += x.y;
            }
            s[h][2 * n] = sum.x, s[h][2 * n + 1] = sum.y;
        }
        if (key < keys.from || key + LATENT_WARP_KEYS > keys.to)
#pragma unroll
            for (int n = 0; n < 8; n++) {
                const int at = key + n / 2 * 8 + 2 * c + n % 2;
                if (at < keys.from || at >= keys.to)
                    s[h][n] = -INFINITY;
            }
        const float scale = scales[lane / 4 + 8 * h];
        float most = w.most[h], sum = 0;
#pragma unroll
        for (int n = 0; n < 8; n++)
            most = fmaxf(most, s[h][n]);
        most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, 2));
        const float base = most == -INFINITY ? 0 : most * scale;
        keep[h] = exp2f(fmaf(w.most[h], scale, -base));
        w.most[h] = most;
#pragma unroll
        for (int n = 0; n < 8; n++) {
            s[h][n] = exp2f(fmaf(s[h][n], scale, -base));
            sum += s[h][n];
        }
        w.total[h] = w.total[h] * keep[h] + sum;
    }
#pragma unroll
    for (int j = 0; j < WARP_V / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            w.o[4 * j + e] *= keep[e / 2];
#pragma unroll
    for (int t = 0; t < LATENT_WARP_KEYS / 16; t++) {
        const uint32_t p[4] = {
            two_halves<HALF>(s[0][4 * t], s[0][4 * t + 1]), two_halves<HALF>(s[1][4 * t], s[1][4 * t + 1]),
            two_halves<HALF>(s[0][4 * t + 2], s[0][4 * t + 3]), two_halves<HALF>(s[1][4 * t + 2], s[1][4 * t + 3])};
#pragma unroll
        for (int n = 0; n < WARP_V / 16; n++) {
            uint32_t v[4];
            load_transposed(v, stage + piece_at(16 * t + lane % 16, 8 * warp + 2 * n + lane / 16, LATENT_WARP_KEYS));
            mma_16<HALF>(w.o + 8 * n, p, v[0], v[1]);
            mma_16<HALF>(w.o + 8 * n + 4, p, v[2], v[3]);
        }
    }
}

/* Writes this warp's columns of the rows: the output, or what the join kernel merges. */
static __device__ __forceinline__ void leave_sums(const gpu_call &c, const warp_group &g, warp_sums &w, int splits,
                                                  int split, int used) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = lane / 4 + 8 * h, head = g.head + row;
        float total = w.total[h], share = 1;
        total += __shfl_xor_sync(0xFFFFFFFFu, total, 1);
        total += __shfl_xor_sync(0xFFFFFFFFu, total, 2);
        if (head >= g.heads)
            continue;
        float *y = (float *)(c.v[0].data + (uint64_t)g.token * c.v[0].stride) + head * LATENT_V;
        if (used > 1) {
            y = latent_result(c, g.token, head, splits, split);
            if (warp == 0 && lane % 4 == 0) {
                const float scale = ((const float *)(g.memory + LATENT_WARP_SCALES))[row];
                y[LATENT_V] = w.most[h] == -INFINITY ? -INFINITY : w.most[h] * scale, y[LATENT_V + 1] = total;
            }
        } else {
            share = total == 0 ? 0 : 1 / total;
        }
        y += warp * WARP_V + lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < WARP_V / 8; j++)
            *(float2 *)(y + 8 * j) = make_float2(w.o[4 * j + 2 * h] * share, w.o[4 * j + 2 * h + 1] * share);
    }
}

template <int FORMAT, bool LIST> static __device__ __forceinline__ void latent_tile(const gpu_call &c) {
    constexpr bool HALF = cache_row<FORMAT>::HALF;
    extern __shared__ __align__(128) char shared[];
    const int heads = c.v[1].shape[1], tiles = (heads + LATENT_WARP_ROWS - 1) / LATENT_WARP_ROWS;
    const int all = rows_of(&c, &c.v[1]), splits = gridDim.y, split = blockIdx.y, lane = threadIdx.x % 32;
    const warp_group g = {caches_of(c, 0),
                          shared,
                          shared_address(shared),
                          (int)blockIdx.x / tiles,
                          (int)blockIdx.x % tiles * LATENT_WARP_ROWS,
                          heads};
    if (g.token >= all)
        return;
    const int slot = i32_at(&c.v[4], g.token), pos = i32_at(&c.v[5], g.token);
    int bad = 0, used = 1, stage = 0;
    if (!place_good(g.x, slot, pos)) {
        fault(&c);
        return;
    }
    const latent_keys keys = cut_keys(keys_of_token<LIST>(c, g.x, g.token, slot, pos), split, splits, &used);
    if (keys.from >= keys.to && split)
        return;
    const uint32_t first = g.base, second = g.base + LATENT_WARP_STAGE;
    int key = keys.from / LATENT_WARP_KEYS * LATENT_WARP_KEYS;
    bring_row<FORMAT>(look_up<FORMAT>(g, keys, key, &bad), first);
    copies_close();
    warp_row next = look_up<FORMAT>(g, keys, key + LATENT_WARP_KEYS, &bad);
    bring_queries<HALF>(c, g, second);
    __syncthreads();
    uint32_t q[WARP_K][4];
#pragma unroll
    for (int i = 0; i < WARP_K; i++)
        load_matrices(
            q[i], second + piece_at(lane % 16, 2 * (WARP_K * (threadIdx.x / 64) + i) + lane / 16, LATENT_WARP_ROWS));
    warp_sums w;
#pragma unroll
    for (int i = 0; i < WARP_V / 2; i++)
        w.o[i] = 0;
    w.most[0] = w.most[1] = -INFINITY, w.total[0] = w.total[1] = 0;
    for (; key < keys.to; key += LATENT_WARP_KEYS, stage ^= 1) {
        copies_wait<0>();
        __syncthreads(); /* the step has come; all have read the one before, and its scores */
        if (key + LATENT_WARP_KEYS < keys.to) {
            bring_row<FORMAT>(next, stage ? first : second);
            next = look_up<FORMAT>(g, keys, key + 2 * LATENT_WARP_KEYS, &bad);
        }
        copies_close();
        leave_scores<HALF>(g, q, stage ? second : first);
        __syncthreads();
        weigh_step<HALF>(g, w, keys, key, stage ? second : first);
    }
    copies_wait<0>();
    if (bad)
        fault(&c);
    leave_sums(c, g, w, splits, split, used);
}

#define LATENT(name, FORMAT, LIST)                                                                                     \
    extern "C" __global__ void __launch_bounds__(LATENT_WARP_THREADS, 1) name(const __grid_constant__ gpu_call c) {    \
        AWAIT_BEFORE();                                                                                                \
        latent_tile<FORMAT, LIST>(c);                                                                                  \
    }
/* Grid: tiles of tokens by splits. */
#define LATENTS(format, FORMAT)                                                                                        \
    LATENT(attention_latent_warp_##format, FORMAT, false)                                                              \
    LATENT(attention_listed_warp_##format, FORMAT, true)                                                               \
    JOIN(attention_cut_join_##format, false)                                                                           \
    JOIN(attention_listed_join_##format, true)
LATENTS(f16, CACHE_F16)
LATENTS(bf16, CACHE_BF16)
LATENTS(fp8, CACHE_FP8)
LATENTS(q8_0, CACHE_Q8_0)
LATENTS(q4_0, CACHE_Q4_0)
