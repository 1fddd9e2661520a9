/* attention_heads.cu: one launch for all attention steps of a layer for one token: biases or norms of heads, RoPE, quantization of
 * the token's key and value and their write to the cache, attention over the past, and the merge of splits by the last group.
 *
 * The past does not depend on this step, so its first keys and values are loaded before the previous kernel ends; the token's
 * own key and value are read from shared memory. A group is four warps, as in attention_split.cu, and computes a split of one
 * KV head. Splits depend on the position and the launch's maximum number of splits alone. Keys and values of F16, BF16 and FP8
 * are loaded by the lanes that multiply them, Q8_0 and Q4_0 blocks go unchanged to shared memory. A counter per KV head is 0
 * before and after.
 */
#include "attention_few.cuh"
#include "heads.h"
#include "rope.k.h"
#include "tile.cuh"

template <int FORMAT, int D> struct heads_shape {
    static constexpr bool BLOCKS = FORMAT == CACHE_Q8_0 || FORMAT == CACHE_Q4_0;
    static constexpr int BYTES = cache_row<FORMAT>::bytes(D),
                         HALF = SPAN * BYTES; /* of a warp's step, keys or values */
    static constexpr int STAGES = lane_ring<FORMAT, D>::STAGES, WARP = lane_ring<FORMAT, D>::WARP;
};

typedef scoring<1, true, 1> head_scores;

/* A head's sink, the last input, times log2(e). */
static __device__ __forceinline__ float head_sink(const gpu_call &c, int head) {
    const arg_rope_qkv_attention *a = (const arg_rope_qkv_attention *)c.arg;
    const int own = 9 + 3 * a->biases + 2 * a->norms;
    return (int)c.n_in > own ? ((const float *)c.v[c.n_in].data)[head] * LOG2_E : -INFINITY;
}

/* A split of the past of one KV head. */
struct heads_past {
    int split, used, from, begin, end, slot, pos, good;
};

static __device__ __forceinline__ heads_past past_of(const gpu_call &c, const caches &x) {
    heads_past p;
    p.slot = i32_at(&c.v[4], 0), p.pos = i32_at(&c.v[5], 0), p.split = blockIdx.x;
    p.good = place_good(x, p.slot, p.pos);
    p.from = sight_of(x, p.pos, p.pos).from;
    const int start = p.from / SPAN * SPAN, all = p.pos - start, most = gridDim.x;
    const int chunk = max(((all + most - 1) / most + STRIDE - 1) / STRIDE * STRIDE, (int)HEADS_CHUNK);
    p.used = max((all + chunk - 1) / chunk, 1);
    p.begin = start + p.split * chunk, p.end = min(p.begin + chunk, p.pos);
    return p;
}

/* A warp's step of quantized blocks, in the cache's layout, 16 bytes per lane at a time. */
template <int FORMAT, int D>
static __device__ __forceinline__ void fetch_rows(const caches &x, char *to, int block, int key) {
    typedef heads_shape<FORMAT, D> S;
    const uint64_t in = (uint64_t)(x.head * x.block + (key & (x.block - 1))) * S::BYTES;
    const uint8_t *k = x.k + (uint64_t)block * x.k_stride + in, *v = x.v + (uint64_t)block * x.v_stride + in;
    for (int i = threadIdx.x % 32; i < S::HALF / 16; i += 32) {
        copy_16(shared_address(to) + 16 * i, k + 16 * i, 1);
        copy_16(shared_address(to) + S::HALF + 16 * i, v + 16 * i, 1);
    }
}

template <int FORMAT, int D>
static __device__ __forceinline__ void fetch_step(const caches &x, char *memory, const lane_ring<FORMAT, D> &ring,
                                                  int stage, int block, int key, const heads_past &p) {
    typedef heads_shape<FORMAT, D> S;
    if constexpr (S::BLOCKS)
        fetch_rows<FORMAT, D>(x, memory + threadIdx.x / 32 * S::WARP + stage * (S::WARP / S::STAGES), block, key);
    else
        ring.fetch_pieces(
            x.k + (uint64_t)block * x.k_stride + (uint64_t)(x.head * x.block + (key & (x.block - 1))) * S::BYTES,
            x.v + (uint64_t)block * x.v_stride + (uint64_t)(x.head * x.block + (key & (x.block - 1))) * S::BYTES, stage,
            key, p.from, p.pos);
}

template <int FORMAT, int D>
static __device__ __forceinline__ void meet_step(warp_state<D, 1> &w, char *memory, const lane_ring<FORMAT, D> &ring,
                                                 head_scores &scores, int stage, int key, const heads_past &p) {
    typedef heads_shape<FORMAT, D> S;
    uint32_t b[1][2];
    if constexpr (S::BLOCKS) {
        past_rows<FORMAT, D> rows = {memory + threadIdx.x / 32 * S::WARP + stage * (S::WARP / S::STAGES), S::BYTES,
                                     p.from - key, p.pos - key};
        __syncwarp();
        weigh<FORMAT, D, 1>(w, rows, scores, 0, 0, key, p.from, p.pos, b[0]);
        rows.at += S::HALF;
        add_values<FORMAT, D, 1>(w, rows, 0, b);
        __syncwarp();
    } else {
        weigh<FORMAT, D, 1>(w, ring, scores, stage, 0, key, p.from, p.pos, b[0]);
        add_values<FORMAT, D, 1>(w, ring, stage, b);
    }
}

/* Adds the biases to the token's heads, or takes their norms, in shared memory: n query heads, then a key and a value. A warp
 * computes a head at a time. */
template <int D>
static __device__ __forceinline__ void prepare_inputs(const gpu_call &c, int kv_head, int heads, int n, float *raw) {
    const arg_rope_qkv_attention *a = (const arg_rope_qkv_attention *)c.arg;
    const int lane = threadIdx.x % 32;
    for (int head = threadIdx.x / 32; head < n; head += WARPS) {
        const int part = head < heads ? 0 : head == heads ? 1 : 2;
        float *x = raw + head * D;
        if (a->biases) {
            const float *bias = (const float *)c.v[10 + part].data + (part ? kv_head : kv_head * heads + head) * D;
            for (int i = lane; i < D; i += 32)
                x[i] += bias[i];
        }
        if (a->norms && part < 2) {
            const float *norm = (const float *)c.v[10 + part].data;
            float sum = 0;
            for (int i = lane; i < D; i += 32)
                sum += x[i] * x[i];
            for (int o = 16; o > 0; o /= 2)
                sum += __shfl_xor_sync(0xFFFFFFFFu, sum, o);
            sum = sqrtf(sum / (float)D + a->eps);
            for (int i = lane; i < D; i += 32)
                x[i] = x[i] / sum * norm[i];
        }
    }
}

/* The token's heads to shared memory; own: its key and value too, coded to `fresh` and to the caches' block (-1: nowhere). */
template <int FORMAT, int D>
static __device__ __forceinline__ void prepare(const gpu_call &c, const caches &x, const heads_past &p, int heads,
                                               float *q, float *raw, char *fresh, bool own, int block) {
    const arg_rope_qkv_attention *a = (const arg_rope_qkv_attention *)c.arg;
    const int n_rot = c.v[7].shape[1], style = a->style, all = own ? heads + 2 : heads, n = all * (D / 4);
    float *cos_sin = raw + (heads + 2) * D;
    for (int i = threadIdx.x; i < n; i += 32 * WARPS) {
        const int head = i / (D / 4);
        const float *from = head < heads    ? ROW(const float, c.v + 1, 0) + (x.head * heads + head) * D
                            : head == heads ? ROW(const float, c.v + 8, 0) + x.head * D
                                            : ROW(const float, c.v + 9, 0) + x.head * D;
        ((float4 *)raw)[i] = ((const float4 *)from)[i % (D / 4)];
    }
    for (int i = threadIdx.x; i < n_rot; i += 32 * WARPS)
        cos_sin[i] = ROW(const float, c.v + 7, 0)[i];
    __syncthreads();
    if (a->biases | a->norms) {
        prepare_inputs<D>(c, x.head, heads, all, raw);
        __syncthreads();
    }
    for (int i = threadIdx.x; i < heads * D; i += 32 * WARPS)
        q[i] = rope_at(raw + i / D * D, cos_sin, n_rot, style, i % D);
    if (own) {
        code_row<FORMAT, D>(fresh, threadIdx.x,
                            [&](int k) { return rope_at(raw + heads * D, cos_sin, n_rot, style, k); });
        code_row<FORMAT, D>(fresh + HEADS_FRESH / 2,
                            heads_shape<FORMAT, D>::BLOCKS ? (int)threadIdx.x - 64 : (int)threadIdx.x,
                            [&](int k) { return raw[(heads + 1) * D + k]; });
    }
    __syncthreads();
    for (int h = 0; own && block >= 0 && h < 2; h++) {
        constexpr int BYTES = heads_shape<FORMAT, D>::BYTES;
        uint8_t *to = (uint8_t *)(h ? x.v + (uint64_t)block * x.v_stride : x.k + (uint64_t)block * x.k_stride);
        uint16_t *row = (uint16_t *)(to + (uint64_t)(x.head * x.block + (p.pos & (x.block - 1))) * BYTES);
        for (int i = threadIdx.x; i < BYTES / 2; i += 32 * WARPS)
            row[i] = ((const uint16_t *)(fresh + h * (HEADS_FRESH / 2)))[i];
    }
}

/* Merges the warps' results in shared memory to the group's; the last split's group merges all and writes the output. */
template <int D>
static __device__ __forceinline__ void finish(const gpu_call &c, const shared_results<D> &r, int kv_head,
                                              const heads_past &p) {
    __shared__ int last;
    uint32_t *count = (uint32_t *)c.counters + kv_head;
    const int first = kv_head * r.heads;
    const auto result = [&](int head) { /* of the first split */
                                        return (float *)c.scratch +
                                               (int64_t)(first + head) * (int)gridDim.x * (D + RESULT_HEAD);
    };
    const auto write = [&](int head, int number, float4 sum, float most, float total) {
        write_four(c, 0, (first + head) * D + number, times(sum, share_of(most, total, head_sink(c, first + head))));
    };
    __syncthreads();
    merge_parts(
        r.heads, D, r.of(1, 0) - r.of(0, 0), [](int) { return WARPS; },
        [&](int head) { return (const float *)r.of(0, head); },
        [&](int head, int number, float4 sum, float most, float total) {
            if (p.used == 1)
                write(head, number, sum, most, total);
            else
                leave_four(result(head) + p.split * (D + RESULT_HEAD), number, sum, most, total);
        });
    if (p.used == 1)
        return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(count, 1) == (uint32_t)p.used - 1;
        if (last)
            *count = 0;
        __threadfence();
    }
    __syncthreads();
    if (last)
        merge_parts(
            r.heads, D, D + RESULT_HEAD, [&](int) { return p.used; },
            [&](int head) { return (const float *)result(head); }, write);
}

template <int FORMAT, int D> static __device__ __forceinline__ void heads_of(const gpu_call &c) {
    typedef heads_shape<FORMAT, D> S;
    extern __shared__ __align__(128) char heads_memory[];
    char *const memory = heads_memory;
    const arg_rope_qkv_attention *a = (const arg_rope_qkv_attention *)c.arg;
    launch_next();
    const caches x = caches_by(c, blockIdx.y, a, a->chunk, 1);
    const heads_past p = past_of(c, x);
    if (p.good && p.split >= p.used)
        return;
    if (rows_now(c, c.v[1]) < 1 || !p.good) {
        wait_before();
        if (!p.good && rows_now(c, c.v[1]) > 0)
            fault(&c);
        return;
    }
    const int32_t *row = x.table + p.slot * x.table_stride;
    const lane_ring<FORMAT, D> ring = {shared_address(memory) + threadIdx.x / 32 * S::WARP + threadIdx.x % 32 * 16};
    const bool own = p.split == p.used - 1;
    int key = p.begin + threadIdx.x / 32 * SPAN, coming = key, stage = 0, bad = 0;
#pragma unroll
    for (int i = 0; i < S::STAGES - 1; i++, coming += STRIDE) {
        if (coming < p.end)
            fetch_step<FORMAT, D>(x, memory, ring, i, good_block(x, row[coming >> x.shift], &bad), coming, p);
        copies_close();
    }
    int lost = 0;
    const int block = good_block(x, row[p.pos >> x.shift], &lost);
    int32_t next = coming < p.end ? row[coming >> x.shift] : 0;
    const int heads = c.v[1].shape[1] / c.v[2].shape[1];
    float *q = (float *)(memory + WARPS * S::WARP), *raw = q + heads * D;
    char *fresh = (char *)(raw + (heads + 3) * D);
    wait_before();
    prepare<FORMAT, D>(c, x, p, heads, q, raw, fresh, own, lost ? -1 : block);
    warp_state<D, 1> w;
    load_query<FORMAT, D, 1>(q, heads, x.scale, w);
    head_scores scores = {shaping_by(a->cap, false)};
    scores.begin(w);
    for (int to = S::STAGES - 1; key < p.end; key += STRIDE, coming += STRIDE) {
        if (coming < p.end)
            fetch_step<FORMAT, D>(x, memory, ring, to, good_block(x, next, &bad), coming, p);
        copies_close();
        if (coming + STRIDE < p.end)
            next = row[(coming + STRIDE) >> x.shift];
        copies_wait<S::STAGES - 1>();
        meet_step<FORMAT, D>(w, memory, ring, scores, stage, key, p);
        to = stage;
        stage = stage + 1 == S::STAGES ? 0 : stage + 1;
    }
    copies_wait<0>();
    if (own && threadIdx.x / 32 == WARPS - 1) {
        uint32_t b[1][2];
        past_rows<FORMAT, D> rows = {fresh, 0, 0, 1};
        weigh<FORMAT, D, 1>(w, rows, scores, 0, 0, p.pos, p.pos, p.pos + 1, b[0]);
        rows.at = fresh + HEADS_FRESH / 2;
        add_values<FORMAT, D, 1>(w, rows, 0, b);
    }
    if (bad || lost)
        fault(&c);
    __syncthreads();
    const shared_results<D> r = {(float *)memory, heads};
    leave(w, r);
    finish(c, r, blockIdx.y, p);
}

#define HEADS(D, format, FORMAT)                                                                                       \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, 2)                                                        \
        attention_heads_##D##_##format(const __grid_constant__ gpu_call c) {                                           \
        heads_of<FORMAT, D>(c);                                                                                        \
    }
#define HEADS_OF(format, FORMAT) HEADS(64, format, FORMAT) HEADS(128, format, FORMAT)
HEADS_OF(f16, CACHE_F16)
HEADS_OF(bf16, CACHE_BF16)
HEADS_OF(fp8, CACHE_FP8)
HEADS_OF(q8_0, CACHE_Q8_0)
HEADS_OF(q4_0, CACHE_Q4_0)
