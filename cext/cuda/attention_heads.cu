/* attention_heads.cu: one launch for all attention steps of a layer, of up to 128 tokens: biases or norms of heads, RoPE, quantization of
 * the tokens' keys and values and their write to the cache, attention over the past, and the merge of splits by the last group.
 *
 * A group is four warps, as in attention_split.cu, and computes a split of the past of one token and KV head. Of calls of up to 16 tokens it takes
 * a run of them (run_of in attention_few.cuh); longer calls are meant for tokens of as many sequences, though any may come. The past ends where
 * the step's own keys of that slot begin, so it does not depend on this step, and its first keys and values are loaded before the previous kernel
 * ends. The step's own keys and values are prepared by each group that needs them, and read from shared memory: by the group of the last split,
 * which writes those of its tokens to the cache. In calls of more than 16 tokens it holds its own token's alone, and prepares the others that this
 * one sees where its ring was, 16 at a time. Splits depend on the position and the launch's maximum number of splits alone. Keys and values of
 * F16, BF16 and FP8 are loaded by the lanes that multiply them, Q8_0 and Q4_0 blocks go unchanged to shared memory. A counter per token and KV head
 * is 0 before and after.
 */
#include "attention_heads.cuh"

template <int FORMAT, int D, int KIND> struct heads_shape {
    static constexpr bool BLOCKS = FORMAT == CACHE_Q8_0 || FORMAT == CACHE_Q4_0;
    static constexpr int BYTES = cache_row<FORMAT>::bytes(D),
                         HALF = SPAN * BYTES; /* of a warp's step, keys or values */
    static constexpr int STAGES = heads_stages(D, KIND, HOPPER);
    typedef lane_ring<FORMAT, D, false, STAGES> ring;
    static constexpr int WARP = ring::WARP;
};

/* What a group's scores see. Of one token: positions of the past, [first, end). */
template <int N, int KIND> struct head_scores : scoring<N, true, 1> {};

/* Of one token among others: of these positions not the `holes` at `hole`, which this step writes and which are read as its own keys. */
template <int N> struct head_scores<N, HEADS_MANY> : scoring<N, true, 1> {
    int holes;
    const int *hole;

    __device__ __forceinline__ void hide(float (&s)[4], int n, int key, int first, int end) const {
        if (key >= first && key + SPAN <= end && holes == 0)
            return;
        const int row = key + (int)threadIdx.x % 32 / 4;
        scoring<N, true, 1>::hide(s, n, key, first, end);
#pragma unroll 1
        for (int j = 0; j < holes; j++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                if (row + 8 * h == hole[j])
                    s[2 * h] = s[2 * h + 1] = -INFINITY;
    }
};

/* Of a run: each token sees positions of its own, and all tokens those of a step in [clear, end). */
template <int N> struct head_scores<N, HEADS_FEW> : scoring<N, true, 1> {
    int from[N][2], to[N][2], clear, holes;
    const int *hole;

    __device__ __forceinline__ void hide(float (&s)[4], int n, int key, int first, int end) const {
        if (key >= clear && key + SPAN <= end && holes == 0)
            return;
        const int row = key + (int)threadIdx.x % 32 / 4;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int at = row + i / 2 * 8;
            if (at < max(first, from[n][i % 2]) || at >= min(end, to[n][i % 2]))
                s[i] = -INFINITY;
        }
#pragma unroll 1
        for (int j = 0; j < holes; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (row + i / 2 * 8 == hole[j])
                    s[i] = -INFINITY;
    }
};

/* A warp's step of quantized blocks, in the cache's layout, 16 bytes per lane at a time. */
template <int FORMAT, int D>
static __device__ __forceinline__ void fetch_rows(const caches &x, char *to, int block, int key) {
    constexpr int HALF = SPAN * cache_row<FORMAT>::bytes(D);
    const uint64_t in = (uint64_t)(x.head * x.block + (key & (x.block - 1))) * cache_row<FORMAT>::bytes(D);
    const uint8_t *k = x.k + (uint64_t)block * x.k_stride + in, *v = x.v + (uint64_t)block * x.v_stride + in;
    for (int i = threadIdx.x % 32; i < HALF / 16; i += 32) {
        copy_16(shared_address(to) + 16 * i, k + 16 * i, 1);
        copy_16(shared_address(to) + HALF + 16 * i, v + 16 * i, 1);
    }
}

template <class S, int FORMAT, int D>
static __device__ __forceinline__ void fetch_step(const caches &x, char *memory, const typename S::ring &ring,
                                                  int stage, int block, int key, const heads_past &p) {
    if constexpr (S::BLOCKS)
        fetch_rows<FORMAT, D>(x, memory + threadIdx.x / 32 * S::WARP + stage * (S::WARP / S::STAGES), block, key);
    else
        ring.fetch_pieces(
            x.k + (uint64_t)block * x.k_stride + (uint64_t)(x.head * x.block + (key & (x.block - 1))) * S::BYTES,
            x.v + (uint64_t)block * x.v_stride + (uint64_t)(x.head * x.block + (key & (x.block - 1))) * S::BYTES, stage,
            key, p.from, p.first);
}

template <class S, int FORMAT, int D, int N, class SCORES>
static __device__ __forceinline__ void meet_step(warp_state<D, N> &w, char *memory, const typename S::ring &ring,
                                                 SCORES &scores, int stage, int key, const heads_past &p) {
    if constexpr (S::BLOCKS) {
        const char *at = memory + threadIdx.x / 32 * S::WARP + stage * (S::WARP / S::STAGES);
        const past_rows<FORMAT, D> keys = {at, S::BYTES, p.from - key, p.first - key},
                                   values = {at + S::HALF, S::BYTES, p.from - key, p.first - key};
        __syncwarp();
        meet<FORMAT, D, N>(w, keys, values, scores, 0, key, p.from, p.first);
        __syncwarp();
    } else {
        meet<FORMAT, D, N>(w, ring, ring, scores, stage, key, p.from, p.first);
    }
}

/* Merges the warps' results in shared memory to the group's; the last split's group merges all and writes the output. r has `heads` results of
 * each of the group's tokens, one token's behind the other's. */
template <int D>
static __device__ __forceinline__ void finish(const gpu_call &c, const shared_results<D> &r, int kv_head, int heads,
                                              const heads_past &p) {
    __shared__ int last;
    uint32_t *count = (uint32_t *)c.counters + p.token * c.v[2].shape[1] + kv_head;
    const auto result = [&](int i) {
        const int turn = turn_of(p, i, heads);
        const int64_t row = (int64_t)(p.token + turn) * c.v[1].shape[1] + kv_head * heads + i - turn * heads;
        return (float *)c.scratch + row * p.most * (D + RESULT_HEAD); /* of the first split */
    };
    const auto write = [&](int i, int number, float4 sum, float most, float total) {
        const int turn = turn_of(p, i, heads), head = kv_head * heads + i - turn * heads;
        write_four(c, p.token + turn, head * D + number, times(sum, share_of(most, total, head_sink(c, head))));
    };
    __syncthreads();
    merge_parts(
        r.heads, D, r.of(1, 0) - r.of(0, 0), [](int) { return WARPS; },
        [&](int i) { return (const float *)r.of(0, i); },
        [&](int i, int number, float4 sum, float most, float total) {
            if (p.used == 1)
                write(i, number, sum, most, total);
            else
                leave_four(result(i) + p.split * (D + RESULT_HEAD), number, sum, most, total);
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
            r.heads, D, D + RESULT_HEAD, [&](int) { return p.used; }, [&](int i) { return (const float *)result(i); },
            write);
}

/* What tokens see: of the past by position, of the step's own keys (`fresh`) by their rows. */
template <int N, int KIND>
static __device__ __forceinline__ void set_sight(head_scores<N, KIND> &scores, const caches &x, const heads_past &p,
                                                 int heads, bool fresh, const int *hole) {
    if constexpr (KIND != HEADS_ONE)
        scores.hole = hole, scores.holes = p.holes && !fresh ? p.fresh - 1 : 0;
    if constexpr (KIND == HEADS_FEW) {
        const int base = fresh ? p.first : 0, last = p.pos + p.count - 1;
        scores.clear = fresh ? INT32_MAX : sight_of(x, last, last).from;
#pragma unroll
        for (int i = 0; i < 2 * N; i++) {
            const int token = turn_of(p, i / 2 * 8 + (int)threadIdx.x % 4 * 2 + i % 2, heads), pos = p.pos + token;
            const bool all = N == 1 && (p.holes || p.count == 1);
            scores.from[i / 2][i % 2] = all ? 0 : sight_of(x, pos, pos).from - base;
            scores.to[i / 2][i % 2] = all ? INT32_MAX : token < p.count ? pos + 1 - base : 0;
        }
    }
}

/* How many of the step's keys a group holds beside its ring. */
template <int KIND> static __device__ __forceinline__ int fresh_beside(const heads_past &p) {
    return KIND == HEADS_MANY ? 1 : p.fresh;
}

/* Of a call of more than FEW tokens: the keys and values of the step that the past's token sees beside its own, FEW at a time in `memory`, the
 * group's ring, whose last steps are done. Called by the whole group; its last warp meets them. */
template <int FORMAT, int D, class SCORES>
static __device__ __forceinline__ void meet_others(const gpu_call &c, const heads_past &p, int kv_head,
                                                   heads_room<FORMAT, D> room, char *memory, warp_state<D, 1> &w,
                                                   SCORES &scores) {
    constexpr int BYTES = cache_row<FORMAT>::bytes(D), PARTS = WALKERS / 32;
    const uint32_t before = (1u << threadIdx.x % 32) - 1;
    int row[PARTS], count = 0;
    heads_past others = p;
    others.count = 0; /* no queries */
    room.keys = memory, room.values = memory + FEW * BYTES;
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        const uint32_t seen = other_tokens(c, p, part);
        row[part] = seen >> threadIdx.x % 32 & 1 ? count + __popc(seen & before) : -1;
        count += __popc(seen);
    }
    for (int first = 0; first < count; first += FEW) {
        const int fresh = min(count - first, (int)FEW);
        __syncthreads();
        prepare<FORMAT, D>(c, others, kv_head, 1, room, fresh, [&](int i) {
            int token = 0;
#pragma unroll
            for (int part = 0; part < PARTS; part++)
                if (const uint32_t found = __ballot_sync(~0u, row[part] == first + i))
                    token = 32 * part + __ffs(found) - 1;
            return token;
        });
        __syncthreads();
        if (threadIdx.x / 32 == WARPS - 1) {
            const past_rows<FORMAT, D> keys = {room.keys, BYTES, 0, fresh}, values = {room.values, BYTES, 0, fresh};
            meet<FORMAT, D, 1>(w, keys, values, scores, 0, 0, 0, fresh);
        }
    }
}

/* The rest of a group whose first steps of the past are on their way, up to position `coming`. next: the block there; hole: the holes'
 * positions. */
template <int FORMAT, int D, int N, int KIND>
static __device__ __forceinline__ void heads_group(const gpu_call &c, const caches &x, const heads_past &p,
                                                   const heads_room<FORMAT, D> &room, char *memory, int coming,
                                                   int32_t next, int bad, const int *hole) {
    typedef heads_shape<FORMAT, D, KIND> S;
    const arg_rope_qkv_attention *a = (const arg_rope_qkv_attention *)c.arg;
    const int32_t *row = x.table + p.slot * x.table_stride;
    const typename S::ring ring = {shared_address(memory) + threadIdx.x / 32 * S::WARP + threadIdx.x % 32 * 16};
    const int heads = c.v[1].shape[1] / c.v[2].shape[1];
    int key = p.begin + threadIdx.x / 32 * SPAN, stage = 0;
    warp_state<D, N> w;
    load_query<FORMAT, D, N>(room.q, p.count * heads, x.scale, w);
    head_scores<N, KIND> scores;
    scores.shape = shaping_by(a->cap, false);
    scores.begin(w);
    set_sight(scores, x, p, heads, false, hole);
    for (int to = S::STAGES - 1; key < p.end; key += STRIDE, coming += STRIDE) {
        if (coming < p.end)
            fetch_step<S, FORMAT, D>(x, memory, ring, to, good_block(x, next, &bad), coming, p);
        copies_close();
        if (coming + STRIDE < p.end)
            next = row[(coming + STRIDE) >> x.shift];
        copies_wait<S::STAGES - 1>();
        meet_step<S, FORMAT, D, N>(w, memory, ring, scores, stage, key, p);
        to = stage;
        stage = stage + 1 == S::STAGES ? 0 : stage + 1;
    }
    copies_wait<0>();
    if (p.split == p.used - 1 && threadIdx.x / 32 == WARPS - 1) {
        const int stride = KIND == HEADS_FEW ? S::BYTES : 0; /* else there is one row, which stands for all 16 */
        const int fresh = fresh_beside<KIND>(p);
        const past_rows<FORMAT, D> keys = {room.keys, stride, 0, fresh}, values = {room.values, stride, 0, fresh};
        set_sight(scores, x, p, heads, true, hole);
        meet<FORMAT, D, N>(w, keys, values, scores, 0, 0, 0, fresh);
    }
    if constexpr (KIND == HEADS_MANY)
        if (p.split == p.used - 1 && p.fresh > 1)
            meet_others<FORMAT, D>(c, p, x.head, room, memory, w, scores);
    if (bad)
        fault(&c);
    __syncthreads();
    const shared_results<D> r = {(float *)memory, p.count * heads};
    leave(w, r);
    finish(c, r, x.head, heads, p);
}

/* The positions of the keys of the step that the past's one token sees beside its own. Called by one warp. */
static __device__ __forceinline__ void find_holes(const gpu_call &c, const heads_past &p, int *hole) {
    for (int part = 0; 32 * part < rows_now(c, c.v[1]); part++) {
        const uint32_t seen = other_tokens(c, p, part);
        if (seen >> threadIdx.x % 32 & 1)
            hole[__popc(seen & ((1u << threadIdx.x % 32) - 1))] = i32_at(&c.v[5], 32 * part + threadIdx.x % 32);
        hole += __popc(seen);
    }
}

template <int FORMAT, int D, int KIND> static __device__ __forceinline__ void heads_of(const gpu_call &c) {
    typedef heads_shape<FORMAT, D, KIND> S;
    constexpr bool MANY = KIND != HEADS_ONE;
    extern __shared__ __align__(128) char heads_memory[];
    __shared__ int hole[KIND == HEADS_MANY ? WALKERS : KIND == HEADS_FEW ? FEW : 1];
    char *const memory = heads_memory;
    const arg_rope_qkv_attention *a = (const arg_rope_qkv_attention *)c.arg;
    launch_next();
    const int now = rows_now(c, c.v[1]);
    const caches x = caches_by(c, MANY ? blockIdx.x : blockIdx.y, a, a->chunk, 1);
    const heads_past p = past_of<KIND>(c, x);
    if (MANY && (int)blockIdx.y >= max(now, 1)) /* its place may be any, and is not looked at */
        return;
    if (MANY && now > 0 && (p.count == 0 || (p.good && p.split >= p.used)))
        return;
    if (!MANY && p.good && p.split >= p.used)
        return;
    if (now < 1 || !p.good) {
        wait_before();
        if (!p.good && now > 0)
            fault(&c);
        return;
    }
    const int32_t *row = x.table + p.slot * x.table_stride;
    const typename S::ring ring = {shared_address(memory) + threadIdx.x / 32 * S::WARP + threadIdx.x % 32 * 16};
    int coming = p.begin + threadIdx.x / 32 * SPAN, bad = 0, lost = 0;
#pragma unroll
    for (int i = 0; i < S::STAGES - 1; i++, coming += STRIDE) {
        if (coming < p.end)
            fetch_step<S, FORMAT, D>(x, memory, ring, i, good_block(x, row[coming >> x.shift], &bad), coming, p);
        copies_close();
    }
    const int block = good_block(x, row[p.pos >> x.shift], &lost);
    const int32_t next = coming < p.end ? row[coming >> x.shift] : 0;
    const int heads = c.v[1].shape[1] / c.v[2].shape[1], most = heads_columns(heads, KIND);
    const bool own = p.split == p.used - 1;
    heads_room<FORMAT, D> room;
    room.q = (float *)(memory + WARPS * S::WARP), room.own = room.q + (most + threadIdx.x / 32) * D;
    room.keys = (char *)(room.q + (most + WARPS) * D), room.values = room.keys + heads_fresh(KIND) * 2 * D;
    if (MANY && p.holes && threadIdx.x < 32)
        find_holes(c, p, hole);
    wait_before();
    prepare<FORMAT, D>(c, p, x.head, heads, room, own ? fresh_beside<KIND>(p) : 0,
                       [&](int row) { return KIND == HEADS_MANY ? p.token : token_of_row(p, row); });
    __syncthreads();
    if (own)
        write_rows<FORMAT, D>(x, p, room, KIND == HEADS_MANY ? 0 : row_of_token(p), block, &lost);
    if (lost)
        fault(&c);
    if constexpr (KIND == HEADS_FEW)
        if (p.count > 1)
            return heads_group<FORMAT, D, 2, KIND>(c, x, p, room, memory, coming, next, bad, hole);
    heads_group<FORMAT, D, 1, KIND>(c, x, p, room, memory, coming, next, bad, hole);
}

/* Grid of one token: splits by KV heads; of several, KV heads by tokens by splits: those that a short past does not have come last, so they take
 * no other's place. */
#define HEADS(D, format, FORMAT)                                                                                       \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, 2)                                                        \
        attention_heads_##D##_##format(const __grid_constant__ gpu_call c) {                                           \
        heads_of<FORMAT, D, HEADS_ONE>(c);                                                                             \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, 2)                                                        \
        attention_heads_few_##D##_##format(const __grid_constant__ gpu_call c) {                                       \
        heads_of<FORMAT, D, HEADS_FEW>(c);                                                                             \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, 3)                                                        \
        attention_heads_many_##D##_##format(const __grid_constant__ gpu_call c) {                                      \
        heads_of<FORMAT, D, HEADS_MANY>(c);                                                                            \
    }
#define HEADS_OF(format, FORMAT) HEADS(64, format, FORMAT) HEADS(128, format, FORMAT)
HEADS_OF(f16, CACHE_F16)
HEADS_OF(bf16, CACHE_BF16)
HEADS_OF(fp8, CACHE_FP8)
HEADS_OF(q8_0, CACHE_Q8_0)
HEADS_OF(q4_0, CACHE_Q4_0)
