/* attention_bulk.cu: attention_heads.cu's launch for one token on Hopper, whose past comes to shared memory by bulk copies.
 *
 * A group computes a split of the past of one KV head, and its shared memory leaves room for no second group on a multiprocessor: so each has
 * one, and splits that fill the device take equal time. Eight warps multiply, a ninth fetches tiles of 64 positions into a ring from
 * before the previous kernel ends on. Only positions of earlier steps are copied; the step's own key and value are met from where they are
 * prepared, for a bulk copy may miss what has just been written.
 *
 * A tile is four runs of 16 positions, keys and values, each of which is one copy, since a block of the cache has a head's rows behind each
 * other. Run j lies 32 j bytes beyond a multiple of 128. Tiles go in turn to two teams of four warps, and a warp has four rows of each run:
 * row f of its 16 is row f % 2 + f / 8 * 2 of these of run f % 8 / 2, or for odd f of the run two further on. So eight lanes that read pieces
 * of keys have two rows whose runs are 64 bytes apart, those that read values four rows 32 bytes apart, and no two meet in a bank (of
 * F16 and BF16, and of FP8 in heads of 128).
 *
 * Splits are merged in the order of their positions: those of a cluster in its groups' shared memory, others in memory by the last group.
 */
#include "attention_heads.cuh"
#include "cluster.h"

template <int FORMAT, int D> struct bulk_shape {
    static constexpr int ROW = cache_row<FORMAT>::bytes(D), RUN = SPAN * ROW + BULK_PAD, HALF = BULK_RUNS * RUN,
                         STAGE = 2 * HALF, STAGES = bulk_stages(ROW);
};

/* A warp's 16 keys and values of a tile: where this lane's pieces lie in the first stage. In later ones they lie `stage` bytes behind. */
template <int FORMAT, int D> struct bulk_rows {
    typedef bulk_shape<FORMAT, D> S;
    static constexpr int PIECE = S::ROW / (D / 8);
    uint32_t key, even, odd; /* its first key; values of even and of odd rows */

    __device__ __forceinline__ bulk_rows(uint32_t ring) {
        const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4, first = threadIdx.x / 32 % BULK_TEAM * 4 * S::ROW;
        key = ring + first + run_of_row(g) * S::RUN + g % 2 * S::ROW + c * PIECE;
        even = ring + first + S::HALF + c * S::RUN + g * PIECE;
        odd = ring + first + S::HALF + (c + 2) % 4 * S::RUN + S::ROW + g * PIECE;
    }

    /* Of row f of 8. */
    static __device__ __forceinline__ int run_of_row(int f) {
        return (f / 2 + f % 2 * 2) % 4;
    }

    /* The position of row threadIdx.x % 32 / 4 in the tile; that of 8 rows further is two more. */
    static __device__ __forceinline__ int place(void) {
        const int g = threadIdx.x % 32 / 4;
        return run_of_row(g) * SPAN + threadIdx.x / 32 % BULK_TEAM * 4 + g % 2;
    }

    /* As attention_few.cuh asks for them. */
    __device__ __forceinline__ uint4 piece(int stage, int i) const {
        const int h = (i - D / 16) / (D / 64), q = (i - D / 16) % (D / 64);
        const uint32_t at = stage + (i < D / 16 ? key + i / (D / 32) * 2 * S::ROW + i % (D / 32) * 4 * PIECE
                                                : (h % 2 ? odd : even) + h / 2 * 2 * S::ROW + q * 8 * PIECE);
        uint4 x;
        if (FORMAT == CACHE_FP8) {
            uint2 raw;
            asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(raw.x), "=r"(raw.y) : "r"(at) : "memory");
            return halves_of_fp8(raw);
        }
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                     : "r"(at)
                     : "memory");
        return x;
    }

    /* Zeros instead of the warp's values at positions outside [from, to), of a tile at position `at`: a weight of 0 does not hide a NaN.
     * The fence puts this before the bulk copy that fills the stage next. */
    static __device__ __forceinline__ void clear_values(uint32_t tile, int at, int from, int to) {
        const int first = threadIdx.x / 32 % BULK_TEAM * 4;
        for (int i = threadIdx.x % 32; i < SPAN * (S::ROW / 16); i += 32) {
            const int row = i / (S::ROW / 16), run = row / 4, in = first + row % 4, pos = at + run * SPAN + in;
            if (pos < from || pos >= to)
                store_16(tile + S::HALF + run * S::RUN + in * S::ROW + i % (S::ROW / 16) * 16, make_uint4(0, 0, 0, 0));
        }
        shared_to_async();
        __syncwarp();
    }
};

/* Hides scores by where bulk_rows has a row's position. */
struct bulk_scores : scoring<1, true, 1> {
    int place;
    __device__ __forceinline__ void hide(float (&s)[4], int, int key, int from, int to) const {
#pragma unroll
        for (int h = 0; h < 2; h++)
            if (key + place + 2 * h < from || key + place + 2 * h >= to)
                s[2 * h] = s[2 * h + 1] = -INFINITY;
    }
};

/* Where a tile is in the ring, and how often its stage has been used before (modulo 2). */
template <int STAGES> struct bulk_turn {
    int stage, phase;
    __device__ __forceinline__ void add(int tiles) {
        stage += tiles;
        if (stage >= STAGES)
            stage -= STAGES, phase ^= 1;
    }
};

/* Barriers of a stage: `full` has one arrival, of the warp that fetches, and counts the bytes; `empty` has one of each warp of a team. */
static __device__ __forceinline__ uint32_t bulk_full(uint32_t bars, int stage) {
    return bars + 16 * stage;
}

static __device__ __forceinline__ uint32_t bulk_empty(uint32_t bars, int stage) {
    return bars + 16 * stage + 8;
}

/* A meeting of all warps after the barriers are made; the one that makes them does not wait. */
static __device__ __forceinline__ void bulk_made(void) {
    asm volatile("bar.arrive 1, %0;" ::"n"((int)BULK_THREADS) : "memory");
}

static __device__ __forceinline__ void bulk_wait_made(void) {
    asm volatile("bar.sync 1, %0;" ::"n"((int)BULK_THREADS) : "memory");
}

/* The warp that fetches. Lanes 0 to 3 copy the keys of a tile's runs, 4 to 7 the values. Lane l knows the block of run l of 32. */
template <int FORMAT, int D>
static __device__ __forceinline__ void bulk_fetch(const gpu_call &c, const caches &x, const heads_past &p,
                                                  uint32_t ring, uint32_t bars) {
    typedef bulk_shape<FORMAT, D> S;
    const int lane = threadIdx.x % 32, run = lane % BULK_RUNS;
    const int32_t *row = x.table + p.slot * x.table_stride;
    const auto block_of = [&](int n) { return p.begin + SPAN * n < p.end ? row[(p.begin + SPAN * n) >> x.shift] : 0; };
    const uint8_t *const from = lane < BULK_RUNS ? x.k : x.v;
    const uint64_t stride = lane < BULK_RUNS ? x.k_stride : x.v_stride;
    bulk_turn<S::STAGES> turn = {0, 1}; /* in the first round nothing is waited for */
    int32_t blocks = block_of(lane), later = block_of(32 + lane);
    int bad = 0;
    for (int tile = 0, at = p.begin; at < p.end; tile++, at += BULK_TILE) {
        if (tile > 0 && tile % 8 == 0)
            blocks = later, later = block_of(4 * tile + 32 + lane);
        const int rows = min(p.end - at, (int)BULK_TILE), own = min(rows - run * SPAN, (int)SPAN);
        const int block = good_block(x, __shfl_sync(~0u, blocks, tile % 8 * 4 + run), &bad);
        const int in = (at + run * SPAN) & (x.block - 1);
        if (tile >= S::STAGES)
            barrier_wait(bulk_empty(bars, turn.stage), turn.phase);
        if (lane == 0)
            barrier_expect(bulk_full(bars, turn.stage), 2 * rows * S::ROW);
        __syncwarp();
        if (lane < 2 * BULK_RUNS && own > 0)
            bulk_load(ring + turn.stage * S::STAGE + lane / BULK_RUNS * S::HALF + run * S::RUN,
                      from + (uint64_t)block * stride + (uint64_t)(x.head * x.block + in) * S::ROW, own * S::ROW,
                      bulk_full(bars, turn.stage));
        turn.add(1);
    }
    if (bad) {
        wait_before();
        fault(&c);
    }
    __syncwarp();
}

/* A warp that multiplies: its team's tiles, and of the last split's group the step's own key and value by the last warp. */
template <int FORMAT, int D>
static __device__ __forceinline__ void bulk_meet(const gpu_call &c, const caches &x, const heads_past &p,
                                                 const heads_room<FORMAT, D> &room, uint32_t ring, uint32_t bars,
                                                 int heads, warp_state<D, 1> &w) {
    typedef bulk_shape<FORMAT, D> S;
    const int team = threadIdx.x / 32 / BULK_TEAM;
    const bulk_rows<FORMAT, D> rows(ring);
    load_query<FORMAT, D, 1>(room.q, heads, x.scale, w);
    bulk_scores scores;
    scores.shape = shaping_by(((const arg_rope_qkv_attention *)c.arg)->cap, false);
    scores.begin(w);
    scores.place = rows.place();
    bulk_turn<S::STAGES> turn = {team, 0};
    for (int at = p.begin + team * BULK_TILE; at < p.end; at += BULK_TEAMS * BULK_TILE) {
        barrier_wait(bulk_full(bars, turn.stage), turn.phase);
        if (at < p.from || at + BULK_TILE > p.end)
            rows.clear_values(ring + turn.stage * S::STAGE, at, p.from, p.end);
        meet<FORMAT, D, 1>(w, rows, rows, scores, turn.stage * S::STAGE, at, p.from, p.end);
        __syncwarp();
        if (threadIdx.x % 32 < RING_LANES)
            barrier_arrive(bulk_empty(bars, turn.stage));
        turn.add(BULK_TEAMS);
    }
    if (p.split == p.used - 1 && threadIdx.x / 32 == BULK_WARPS - 1) {
        scoring<1, true, 1> &own = scores; /* of one row, which stands for all 16 */
        const past_rows<FORMAT, D> keys = {room.keys, 0, 0, 1}, values = {room.values, 0, 0, 1};
        meet<FORMAT, D, 1>(w, keys, values, own, 0, 0, 0, 1);
    }
}

/* Merges `all` results of a head, 32 at most, that lie `apart` numbers behind each other, in their order, by a warp. Calls done(number, sum,
 * most, total) for four numbers of what is merged. The first AT_ONCE results are asked for together with what they are weighed by. */
template <int D, int AT_ONCE, class DONE>
static __device__ __forceinline__ void merge_row(const float *first, int64_t apart, int all, DONE done) {
    const int lane = threadIdx.x % 32, at = 4 * lane;
    float4 x[AT_ONCE];
    const auto ask = [&](int i) {
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++)
            if (i + j < all && at < D)
                x[j] = *(const float4 *)(first + (i + j) * apart + RESULT_HEAD + at);
    };
    float2 own = make_float2(-INFINITY, 0);
    if (lane < all)
        own = *(const float2 *)(first + lane * apart);
    ask(0);
    float most = own.x;
#pragma unroll
    for (int j = 1; j < 32; j *= 2)
        most = fmaxf(most, __shfl_xor_sync(~0u, most, j));
    const float share = power_of_two(own.x - (most == -INFINITY ? 0 : most));
    float total = own.y * share;
#pragma unroll
    for (int j = 1; j < 32; j *= 2)
        total += __shfl_xor_sync(~0u, total, j);
    float4 sum = make_float4(0, 0, 0, 0);
    for (int i = 0; i < all; i += AT_ONCE) {
        if (i > 0)
            ask(i);
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            const float its = __shfl_sync(~0u, share, i + j & 31);
            if (i + j < all && at < D)
                sum.x += x[j].x * its, sum.y += x[j].y * its, sum.z += x[j].z * its, sum.w += x[j].w * its;
        }
    }
    if (at < D)
        done(at, sum, most, total);
}

/* Merges the splits' results, which each group of the cluster has as r's part `part`, in order of the splits: a group takes every p.used-th
 * four numbers of them, from all groups' shared memory. The groups without a split have ended, and nobody waits for these. */
template <int D, class DONE>
static __device__ __forceinline__ void merge_cluster(const shared_results<D> &r, int part, const heads_past &p,
                                                     DONE done) {
    __syncwarp();
    cluster_sync();
    for (int i = p.split + p.used * threadIdx.x; i < r.heads * (D / 4); i += p.used * BULK_THREADS) {
        const int head = i / (D / 4), number = i % (D / 4) * 4;
        const uint32_t from = shared_address(r.of(part, head));
        float4 own[BULK_CLUSTER], x[BULK_CLUSTER], sum = make_float4(0, 0, 0, 0);
        float most = -INFINITY, total = 0;
#pragma unroll
        for (int j = 0; j < BULK_CLUSTER; j++)
            if (j < p.used) {
                own[j] = numbers_of(from, j);
                x[j] = numbers_of(from + 4 * (RESULT_HEAD + number), j);
            }
#pragma unroll
        for (int j = 0; j < BULK_CLUSTER; j++)
            most = j < p.used ? fmaxf(most, own[j].x) : most;
#pragma unroll
        for (int j = 0; j < BULK_CLUSTER; j++)
            if (j < p.used) {
                const float share = power_of_two(own[j].x - (most == -INFINITY ? 0 : most));
                total += own[j].y * share;
                sum.x += x[j].x * share, sum.y += x[j].y * share, sum.z += x[j].z * share, sum.w += x[j].w * share;
            }
        done(head, number, sum, most, total);
    }
    __syncwarp();
    cluster_sync(); /* others read this group's memory */
}

/* Counts that a warp has left a split's result of a head in memory. True: all `splits` are there, and the count is 0 again. */
static __device__ __forceinline__ bool last_of(uint32_t *count, int splits) {
    uint32_t before = 0;
    __threadfence();
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        before = atomicAdd(count, 1);
        if (before == (uint32_t)splits - 1)
            *count = 0;
        __threadfence();
    }
    __syncwarp();
    return __shfl_sync(~0u, before, 0) == (uint32_t)splits - 1;
}

/* Merges the warps' results, a warp those of a head. Splits that are no cluster leave theirs in memory; the warp that is the last to do so
 * merges all of the head's and writes the output, so no group waits for all of its warps. */
template <int D>
static __device__ __forceinline__ void bulk_finish(const gpu_call &c, const shared_results<D> &r, int kv_head,
                                                   const heads_past &p) {
    const int first = kv_head * r.heads;
    const bool together = cluster_size() > 1;
    const auto write = [&](int i, int number, float4 sum, float most, float total) {
        const float share = share_of(most, total, head_sink(c, first + i));
        write_four(c, 0, (first + i) * D + number, times(sum, share));
    };
    __syncthreads();
    for (int i = threadIdx.x / 32; i < r.heads; i += BULK_WARPS + 1) {
        float *const result = (float *)c.scratch + (int64_t)(first + i) * p.most * (D + RESULT_HEAD); /* of split 0 */
        float *const to = together ? r.of(BULK_WARPS, i) : result + p.split * (D + RESULT_HEAD);
        const auto write_own = [&](int number, float4 sum, float most, float total) {
            write(i, number, sum, most, total);
        };
        merge_row<D, BULK_WARPS>(r.of(0, i), r.of(1, 0) - r.of(0, 0), BULK_WARPS,
                                 [&](int number, float4 sum, float most, float total) {
                                     if (p.used == 1)
                                         write_own(number, sum, most, total);
                                     else
                                         leave_four(to, number, sum, most, total);
                                 });
        if (p.used > 1 && !together && last_of((uint32_t *)c.counters + first + i, p.used))
            merge_row<D, 16>(result, D + RESULT_HEAD, p.used, write_own);
    }
    if (p.used > 1 && together)
        merge_cluster(r, BULK_WARPS, p, write);
}

/* What the warps that multiply do before their loop: the queries, and of the last split's group the step's own key and value. */
template <int FORMAT, int D>
static __device__ __forceinline__ void bulk_prepare(const gpu_call &c, const caches &x, const heads_past &p,
                                                    const heads_room<FORMAT, D> &room, int heads) {
    const bool own = p.split == p.used - 1;
    int lost = 0;
    const int block = good_block(x, x.table[p.slot * x.table_stride + (p.pos >> x.shift)], &lost);
    wait_before();
    prepare<FORMAT, D, BULK_WARPS>(c, p, x.head, heads, room, own, [](int) { return 0; });
    bulk_wait_made();
    if (own)
        write_rows<FORMAT, D, BULK_WARPS>(x, p, room, 0, block, &lost);
    if (lost)
        fault(&c);
}

template <int FORMAT, int D> static __device__ __forceinline__ void bulk_of(const gpu_call &c) {
    typedef bulk_shape<FORMAT, D> S;
    extern __shared__ __align__(128) char bulk_memory[];
    __shared__ __align__(16) uint64_t bars[2 * S::STAGES];
    char *const memory = bulk_memory;
    const arg_rope_qkv_attention *a = (const arg_rope_qkv_attention *)c.arg;
    launch_next();
    const caches x = caches_by(c, blockIdx.y, a, a->chunk, 1);
    const heads_past p = past_of<HEADS_ONE, SPAN>(c, x);
    const int now = rows_now(c, c.v[1]), warp = threadIdx.x / 32, heads = c.v[1].shape[1] / c.v[2].shape[1];
    if (p.good && p.split >= p.used)
        return;
    if (now < 1 || !p.good) {
        wait_before();
        if (now > 0)
            fault(&c);
        return;
    }
    const uint32_t ring = shared_address(memory), at = shared_address(bars);
    const shared_results<D> r = {(float *)memory, heads}; /* where the ring was */
    if (warp == BULK_WARPS) {
        for (int i = threadIdx.x % 32; i < S::STAGES; i += 32)
            barrier_init(bulk_full(at, i), 1), barrier_init(bulk_empty(at, i), BULK_TEAM * RING_LANES);
        barriers_made();
        __syncwarp();
        bulk_made();
        bulk_fetch<FORMAT, D>(c, x, p, ring, at);
        group_barrier();
    } else {
        heads_room<FORMAT, D> room;
        room.q = (float *)(memory + S::STAGES * S::STAGE), room.own = room.q + (heads + warp) * D;
        room.keys = (char *)(room.q + (heads + BULK_WARPS) * D), room.values = room.keys + 2 * D;
        warp_state<D, 1> w;
        bulk_prepare<FORMAT, D>(c, x, p, room, heads);
        bulk_meet<FORMAT, D>(c, x, p, room, ring, at, heads, w);
        group_barrier(); /* all copies have come, and have been read */
        leave(w, r);
    }
    bulk_finish(c, r, x.head, p);
}

/* Grid: splits by KV heads; splits of a KV head may be a cluster. */
#define BULK(D, format, FORMAT)                                                                                        \
    extern "C" __global__ void __launch_bounds__(BULK_THREADS, 1)                                                      \
        attention_bulk_##D##_##format(const __grid_constant__ gpu_call c) {                                            \
        bulk_of<FORMAT, D>(c);                                                                                         \
    }
#define BULK_OF(format, FORMAT) BULK(64, format, FORMAT) BULK(128, format, FORMAT)
BULK_OF(f16, CACHE_F16)
BULK_OF(bf16, CACHE_BF16)
BULK_OF(fp8, CACHE_FP8)
