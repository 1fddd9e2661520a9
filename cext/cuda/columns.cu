/* columns.cu: matrix products of weights with few columns (5 to 128 tokens), in bf16 with float32 accumulators.
 *
 * columns_convert converts activations, or their norm, to bf16 in the layout that wgmma reads, unless the kernel before has left
 * them so (columns_hand.cuh). In columns_N each warpgroup dequantizes 64 rows to bf16 in registers, the A operand, and multiplies N
 * columns that all warpgroups of the group share. One warp loads weights (before the previous kernel ends), another activations,
 * into two rings of stages. columns_dense_N does the same with F16 and BF16 weights in the file's layout. The groups of a cluster
 * split K; each then adds the partial sums of some of the tokens, in order of the parts, through distributed shared memory. The
 * order of a sum depends on the matrices and N alone, not on the number of columns in use.
 */
#include "columns_convert.cuh"
#include "columns_fetch.cuh"
#include "columns_sums.cuh"
#include "wgmma_columns.h"

/* --- multiplying */

/* Two steps of 16 columns of K, a and a + 1, times this lane's part of all columns: warp by warp where columns are few, for the
 * matrix unit takes as long for 8 columns by wgmma as for 32. b: the step's address; i: which 16 of its 64 come first. */
template <int N>
static __device__ __forceinline__ void multiply_two(float (&d)[N / 2], const uint32_t (&a)[2][4], uint32_t b, int i) {
    if constexpr (N > COLUMNS_BY_WARP) {
        const uint32_t at = operand_low(b, 16);
        products_open();
        product_columns(d, a[0], at + 2 * i);
        product_columns(d, a[1], at + 2 * i + 2);
        products_close();
        products_wait<1>();
    } else {
        const int lane = threadIdx.x % 32, row = lane % 8 + (N > 8 ? lane / 16 * 8 : 0);
        const int half = lane / 8 % 2, more = N > 8 ? 0 : lane / 16; /* of 8 columns, both steps at once */
#pragma unroll
        for (int n = 0; n < N / 8; n += 2) {
            uint32_t x[2][4];
#pragma unroll
            for (int k = 0; k < (N > 8 ? 2 : 1); k++)
                asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                             : "=r"(x[k][0]), "=r"(x[k][1]), "=r"(x[k][2]), "=r"(x[k][3])
                             : "r"(b + (8 * n + row) * 128 + (((2 * (i + k + more) + half) ^ (row & 7)) << 4))
                             : "memory");
#pragma unroll
            for (int k = 0; k < 2; k++)
                if constexpr (N == 8) {
                    mma_bf16(d, a[k][0], a[k][1], a[k][2], a[k][3], x[0][2 * k], x[0][2 * k + 1]);
                } else {
                    mma_bf16(d + 4 * n, a[k][0], a[k][1], a[k][2], a[k][3], x[k][0], x[k][1]);
                    mma_bf16(d + 4 * n + 4, a[k][0], a[k][1], a[k][2], a[k][3], x[k][2], x[k][3]);
                }
        }
    }
}

/* d += a chunk of 64 rows (w: this warp's 16) times four steps of columns. */
template <class F, int N, class RING>
static __device__ __forceinline__ void columns_chunk(const char *w, uint32_t *table, RING &ring, float (&d)[N / 2]) {
    const int lane = threadIdx.x % 32, g = lane / 4;
    constexpr bool late = N > COLUMNS_BY_WARP; /* stages that wgmma reads are released one step later */
    leave_scales<F>(w, table);
#pragma unroll
    for (int p = 0; p < 4; p++) {
        uint32_t word[2][4];
        columns_words<F>(w, lane, p, word);
        const uint4 low = *(const uint4 *)(table + g * 16 + 4 * p),
                    high = *(const uint4 *)(table + (g + 8) * 16 + 4 * p);
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const uint2 scale[2] = {j ? make_uint2(low.z, low.w) : make_uint2(low.x, low.y),
                                    j ? make_uint2(high.z, high.w) : make_uint2(high.x, high.y)};
            uint32_t a[2][4];
            operand_of<F>(word[j], j, 0, scale, a[0]);
            operand_of<F>(word[j], j, 1, scale, a[1]);
            if (j == 0)
                ring_wait(ring.step(p));
            multiply_two<N>(d, a, ring.step(p).here(), 2 * j);
            if (late && p && j == 0)
                ring_leave(ring.step(p - 1));
        }
        if (!late) {
            __syncwarp();
            ring_leave(ring.step(p));
        }
    }
    if (late) {
        products_wait<0>();
        ring_leave(ring.step(3));
    }
    ring.next(4);
    __syncwarp();
}

/* Two halves as two bf16. */
static __device__ __forceinline__ uint32_t bf16_of_halves(uint32_t x) {
    const float2 v = floats_of_halves(x);
    return two_bf16(v.x, v.y);
}

/* d += a step of 64 rows (w: where this warp's 16 lie) times a step of columns. */
template <int N>
static __device__ __forceinline__ void dense_step(uint32_t w, uint32_t b, bool halves, float (&d)[N / 2]) {
    const int lane = threadIdx.x % 32, row = lane % 16;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        uint32_t a[2][4];
#pragma unroll
        for (int k = 0; k < 2; k++) {
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(a[k][0]), "=r"(a[k][1]), "=r"(a[k][2]), "=r"(a[k][3])
                         : "r"(w + row * 128 + (((2 * (i + k) + lane / 16) ^ (row & 7)) << 4))
                         : "memory");
            if (halves)
#pragma unroll
                for (int r = 0; r < 4; r++)
                    a[k][r] = bf16_of_halves(a[k][r]);
        }
        multiply_two<N>(d, a, b, i);
    }
}

template <int N, class RING>
static __device__ __forceinline__ void multiply_dense(const gpu_call &c, columns_ring weights, RING columns,
                                                      const team_rows &t, int teams, int from, int to,
                                                      float (&d)[N / 2]) {
    const uint32_t own = threadIdx.x / 32 * (weights.bytes / (4 * teams));
    const bool halves = c.v[t.which].format == 1;
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        d[i] = 0.0f;
    for (int k = 4 * from; k < 4 * to; k++) {
        barrier_wait(weights.full(), weights.phase);
        ring_wait(columns);
        dense_step<N>(weights.here() + own, columns.here(), halves, d);
        if constexpr (N > COLUMNS_BY_WARP)
            products_wait<0>();
        __syncwarp();
        ring_release(weights);
        ring_release(columns);
    }
}

template <int N, class RING>
static __device__ __forceinline__ void multiply(const gpu_call &c, columns_ring weights, RING columns, uint32_t *tables,
                                                const char *memory, const team_rows &t, int teams, int from, int to,
                                                float (&d)[N / 2]) {
    const int warp = threadIdx.x / 32, format = (int)(c.v[t.which].format & 0xFFFFFFu);
    uint32_t *table = tables + warp * (COLUMNS_TABLE / 4);
    const char *own = memory + warp * (weights.bytes / (4 * teams));
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        d[i] = 0.0f;
    for (int k = from; k < to; k++) {
        const char *w = own + weights.stage * weights.bytes;
        barrier_wait(weights.full(), weights.phase);
        switch (format) {
#define COLUMNS_OF(f)                                                                                                  \
    case tile_##f::FORMAT:                                                                                             \
        columns_chunk<tile_##f, N>(w, table, columns, d);                                                              \
        break;
            TILE_FORMATS(COLUMNS_OF)
        }
        ring_release(weights);
    }
}

/* Converts the activations of chunks [from, to) to all steps of them, by all warps but the one that loads weights. */
static __device__ __forceinline__ void convert_whole(const gpu_call &c, char *memory, int from, int to, int teams,
                                                     bool dense) {
    const int threads = 128 * teams + 32, width = c.v[1].shape[1], now = rows_now(c, c.v[0]),
              thread = (int)threadIdx.x < 128 * teams ? threadIdx.x : threadIdx.x - 32;
    const int pieces = (to - from) * (CHUNK / 16);
    for (int i = thread; i < now * pieces; i += threads) {
        const int token = i / pieces, k = from * CHUNK + i % pieces * 16;
        float x[16];
        columns_load((const float *)(c.v[1].data + token * c.v[1].stride), k, width, x);
        columns_store(memory, 8, token, k - from * CHUNK, x, dense);
    }
    asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory");
}

/* Adds the sums d of all parts of K and writes this group's share of the output. */
template <int N, bool HANDS>
static __device__ __forceinline__ void columns_end(const gpu_call &c, char *memory, const sums_sent &sent,
                                                   const team_rows *where, int teams, uint32_t rank, int now,
                                                   const float (&d)[N / 2], const float *factors) {
    const bool multiplies = (int)threadIdx.x < 128 * teams;
    if (N <= COLUMNS_SENT && sent.parts > 1) {
        if (multiplies)
            send_sums<N>(sent, rank, now, d);
        __syncthreads(); /* the factors */
        columns_finish<HANDS>(c, sent, where, teams, sent.parts, rank, now, 0, factors);
        return;
    }
    __syncthreads(); /* the stages have been read: the sums reuse their memory */
    if (multiplies)
        leave_sums<N>((float *)memory, sent.stride, now, d);
    if constexpr (N <= COLUMNS_SENT) {
        __syncthreads();
        columns_finish<HANDS>(c, sums_here{(const float *)memory, sent.stride}, where, teams, 1, 0, now, 0, factors);
    } else {
        sent.parts > 1 ? cluster_sync() : __syncthreads();
        columns_finish<HANDS>(c, sums_of_cluster{(const float *)memory, sent.stride, sent.parts}, where, teams,
                              sent.parts, rank, now, 0, factors);
        if (sent.parts > 1)
            cluster_sync(); /* others read this group's memory */
    }
}

/* WHOLE: of up to 8 tokens; there is no columns_convert, each group converts its part itself. */
template <int N, bool DENSE, bool WHOLE = false> static __device__ __forceinline__ void columns(const gpu_call &c) {
    constexpr bool COPIES = COLUMNS_COPIED(N), HANDS = N <= COLUMNS_HANDED && !WHOLE;
    const bool copies = COPIES || (HANDS && c.taken); /* what the kernel before handed over is not read in bulk */
    extern __shared__ char shared[];
    char *memory = shared + ((1024 - (shared_address(shared) & 1023)) & 1023);
    const int teams = ((int)blockDim.x - COLUMNS_FETCHERS) / 128, warp = threadIdx.x / 32,
              chunks = packed_chunks(&c.v[1]);
    const uint32_t parts = cluster_size(), rank = blockIdx.x % parts, group = blockIdx.x / parts,
                   base = shared_address(memory);
    const int from = columns_part(chunks, rank, parts), to = columns_part(chunks, rank + 1, parts);
    const columns_room r = WHOLE ? columns_whole_room(columns_steps(&c, parts), teams, (int)parts, columns_bytes(&c))
                                 : columns_room_of(N, teams, (int)parts, columns_bytes(&c));
    /* all dynamic: static shared memory would reduce the limit of dynamic */
    team_rows *where = (team_rows *)(memory + r.teams);
    const columns_ring weights = {base + r.weights, base + r.bars, r.weight, r.weight_stages, 0, 0};
    const columns_ring columns = {base, base + r.bars + 128, N * 128, r.column_stages, 0, 0};
    const bool sends = N <= COLUMNS_SENT && parts > 1;
    const sums_sent sent = {(const float *)(memory + r.sent), columns_stride(teams), columns_own(N, (int)parts), parts,
                            base + r.arrived};
    launch_next();
    if (threadIdx.x < COLUMNS_TEAMS && (int)threadIdx.x < teams)
        where[threadIdx.x] = rows_of_team(c, group, threadIdx.x, teams);
    if (threadIdx.x == 0) {
        for (int i = 0; i < r.weight_stages; i++)
            barrier_init(weights.bars + 16 * i, DENSE ? 32 : 1),
                barrier_init(weights.bars + 16 * i + 8, 4 * teams * RING_LANES);
        for (int i = 0; i < r.column_stages && !WHOLE; i++)
            barrier_init(columns.bars + 16 * i, copies ? 32 : 1),
                barrier_init(columns.bars + 16 * i + 8, 4 * teams * RING_LANES);
        if (sends)
            barrier_init(sent.arrived, 1);
        barriers_made();
    }
    __syncthreads();
    if (sends)
        cluster_arrive();
    float d[N / 2];
    if (warp == 4 * teams)
        DENSE ? fetch_dense(c, weights, group, teams, from, to) : fetch_weights(c, weights, group, teams, from, to);
    wait_before();
    const int now = rows_now(c, c.v[0]);
    if (sends) {
        cluster_wait(); /* the others have their barriers */
        if (threadIdx.x == 0)
            sent.expect(teams, now, rank);
    }
    if (WHOLE && warp != 4 * teams)
        convert_whole(c, memory, from, to, teams, DENSE);
    if (!WHOLE && copies && warp == 4 * teams + 1)
        copy_columns<N>(c, columns, from, to);
    if (!WHOLE && !copies && warp == 4 * teams + 1 && threadIdx.x % 32 == 0)
        fetch_columns(c, columns, from, to);
    float *const factors = HANDS && columns_factored(c) ? (float *)(memory + r.factors) : nullptr;
    if (factors && warp < 4 * teams)
        columns_factors(c, now, warp, 4 * teams, factors);
    const auto run = [&](auto ring) {
        if (DENSE && warp < 4 * teams)
            multiply_dense<N>(c, weights, ring, where[warp / 4], teams, from, to, d);
        if (!DENSE && warp < 4 * teams)
            multiply<N>(c, weights, ring, (uint32_t *)(memory + r.tables), memory + r.weights, where[warp / 4], teams,
                        from, to, d);
    };
    if constexpr (WHOLE)
        run(columns_whole{base, N * 128});
    else
        run(columns);
    columns_end<N, HANDS>(c, memory, sent, where, teams, rank, now, d, factors);
}

#define COLUMNS(name, N, DENSE)                                                                                        \
    extern "C" __global__ void __launch_bounds__(128 * COLUMNS_TEAMS_OF(N) + COLUMNS_FETCHERS, 1)                      \
        name##_##N(const __grid_constant__ gpu_call c) {                                                               \
        columns<N, DENSE>(c);                                                                                          \
    }
#define COLUMNS_OF_ALL(name, DENSE)                                                                                    \
    COLUMNS(name, 8, DENSE)                                                                                            \
    COLUMNS(name, 16, DENSE)                                                                                           \
    COLUMNS(name, 32, DENSE)                                                                                           \
    COLUMNS(name, 64, DENSE)                                                                                           \
    COLUMNS(name, 128, DENSE)
COLUMNS_OF_ALL(columns, false)
COLUMNS_OF_ALL(columns_dense, true)

extern "C" __global__ void __launch_bounds__(128 * COLUMNS_TEAMS + COLUMNS_FETCHERS, 1)
    columns_whole_8(const __grid_constant__ gpu_call c) {
    columns<8, false, true>(c);
}
extern "C" __global__ void __launch_bounds__(128 * COLUMNS_TEAMS + COLUMNS_FETCHERS, 1)
    columns_dense_whole_8(const __grid_constant__ gpu_call c) {
    columns<8, true, true>(c);
}
