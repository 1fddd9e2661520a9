/* columns_half.cuh: products of Q4_K, Q5_K and Q6_K weights with 5 to 16 tokens, in f16 with float32 accumulators, for decoding of
 * several sequences and the verification of draft tokens.
 *
 * A code times its integer scale is a whole number of 12 bits at most, so it is a half, exactly but for the largest of Q6_K. It takes two
 * instructions for two weights: one sets the exponent of 1024 above the code, one multiplies by the scale and takes 1024 times
 * the scale away (of Q6_K three). The block's own float scales, and the minimums, meet the sums of a chunk. Activations are
 * halves under a power of two for each 256 numbers of a token, so their range does not matter; their rounding is the error,
 * an NMSE of 2e-8.
 *
 * columns_half_convert brings the activations, or their norm, in order. In columns_half_N a group has those of its part of K in
 * shared memory, fetched once; weights come through a ring, before the previous kernel ends. Warps multiply by mma.sync. They
 * split their group's tiles and chunks (columns_half.h); their sums meet in shared memory, those of a cluster's groups as in
 * columns.cu. The order of a sum depends on the matrices, the kernel and the device, not on the number of columns in use.
 *
 * No plan uses it: decode.cu checks and times it.
 */
#include "../../cext/cuda/columns_convert.cuh"
#include "../../cext/cuda/columns_fetch.cuh"
#include "../../cext/cuda/columns_sums.cuh"
#include "../../cext/cuda/hopper.h"
#include "columns_half.h"

/* --- activations */

/* Stores elements k to k + 15 of a token of a chunk, with its scale and the sums of its stretches; k is a multiple of 16. The 16 lanes of
 * half a warp have a chunk. */
static __device__ __forceinline__ void half_store(char *chunk, int columns, int token, int k, float (&x)[16]) {
    const uint32_t lanes = 0xFFFFu << (threadIdx.x & 16);
    uint32_t bits = 0;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 16; i++)
        bits = max(bits, __float_as_uint(fabsf(x[i]))); /* a NaN's bits are above all */
#pragma unroll
    for (int far = 8; far; far /= 2)
        bits = max(bits, __shfl_xor_sync(lanes, bits, far));
    const uint32_t up = min(262u - (bits >> 23), 253u); /* exponent of what makes the largest 256 to 512 */
#pragma unroll
    for (int i = 0; i < 16; i++)
        x[i] *= __uint_as_float(up << 23), sum += x[i];
    sum += __shfl_xor_sync(lanes, sum, 1);
    char *row = chunk + k / COLUMNS_K * (columns * 128) + token * 128;
#pragma unroll
    for (int e = 0; e < 2; e++)
        *(uint4 *)(row + (((k / 16 % 4 * 2 + e) ^ (token & 7)) << 4)) =
            make_uint4(halves_of_floats(x[e], x[e + 2]), halves_of_floats(x[e + 4], x[e + 6]),
                       halves_of_floats(x[e + 8], x[e + 10]), halves_of_floats(x[e + 12], x[e + 14]));
    if (k % 32 == 0) {
        uint16_t *to = (uint16_t *)(chunk + half_sums_at(columns) + 32 * token) + k / 64 * 4 + k / 32 % 2;
        to[0] = half_of_float(sum);
        to[2] = half_of_float(sum - float_of_half(to[0]));
    }
    if (k == 0)
        ((float *)(chunk + half_scales_at(columns)))[token] = __uint_as_float((254u - up) << 23);
}

/* A group converts a row, or without a norm part of a row. A thread's first 16 elements stay in registers; the norm's weights depend on
 * no kernel. */
extern "C" __global__ void __launch_bounds__(256) columns_half_convert(const __grid_constant__ gpu_call c) {
    __shared__ float room[8];
    const int token = blockIdx.y, width = c.v[1].shape[1], all = packed_chunks(&c.v[1]) * CHUNK;
    const int columns = half_columns(c.v[0].shape[0]), bytes = half_chunk_bytes(columns);
    const int first = 16 * (blockIdx.x * 256 + threadIdx.x), step = 16 * 256 * gridDim.x;
    const float *row = (const float *)(c.v[1].data + token * c.v[1].stride);
    const float *norm = c.mode & PRODUCT_NORM ? (const float *)c.v[product_last(&c, c.mode) + 1].data : nullptr;
    float scale = 1.0f, x[16], w[16];
    launch_next();
    if (norm)
        columns_load(norm, first, width, w);
    wait_before();
    if (token >= rows_now(c, c.v[0]))
        return;
    if (c.mode & PRODUCT_POST)
        row = columns_post(c, token, width, room);
    columns_load(row, first, width, x);
    if (norm) {
        float sum = 0.0f, y[16];
#pragma unroll
        for (int i = 0; i < 16; i++)
            sum += x[i] * x[i];
        for (int k = first + step; k < width; k += step) {
            columns_load(row, k, width, y);
#pragma unroll
            for (int i = 0; i < 16; i++)
                sum += y[i] * y[i];
        }
        scale = columns_scale(c, sum, width, room);
    }
    for (int k = first; k < all; k += step) {
        if (k != first) {
            columns_load(row, k, width, x);
            if (norm)
                columns_load(norm, k, width, w);
        }
        if (norm)
#pragma unroll
            for (int i = 0; i < 16; i++)
                x[i] = x[i] * scale * w[i];
        half_store((char *)c.scratch + (int64_t)(k / CHUNK) * bytes, columns, token, k % CHUNK, x);
    }
}

/* --- weights as halves */

static __device__ __forceinline__ uint32_t halves_times(uint32_t a, uint32_t b) {
    uint32_t d;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

static __device__ __forceinline__ uint32_t halves_fma(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

/* Byte i of a word as two equal halves, plus 1024. */
static __device__ __forceinline__ uint32_t doubled_byte(uint32_t word, int i) {
    return __byte_perm(word, 0x64646464u, 0x4040 + 0x0101 * i);
}

/* Words of stretch j's scales: of each stretch a factor and what takes the magic number away, of Q6_K the factors of both halves. Q4_K's
 * odd stretches have 16 times the code. */
template <class F>
static __device__ __forceinline__ void half_scale(const typename F::scales_type &s, int j, uint32_t (&to)[2]) {
    if constexpr (F::FORMAT == tile_q6_k::FORMAT) {
        const uint32_t word = word_of(s.v, j / 2) ^ 0x80808080u;
        to[0] = halves_minus(doubled_byte(word, j % 2 * 2), 0x64806480u); /* 1024 + 128 */
        to[1] = halves_minus(doubled_byte(word, j % 2 * 2 + 1), 0x64806480u);
    } else {
        const uint32_t step = halves_minus(doubled_byte(j < 4 ? s.s[0] : s.s[1], j % 4), 0x64006400u);
        const bool high = F::FORMAT == tile_q4_k::FORMAT && j % 2;
        to[0] = high ? halves_times(step, 0x2C002C00u) : step;        /* 1 / 16 */
        to[1] = halves_times(step, high ? 0xD400D400u : 0xE400E400u); /* -64, -1024 */
    }
}

/* The operand of half h of a stretch (odd: its number is) from its words of rows g and g + 8, in the order of columns_values.cuh. */
template <class F>
static __device__ __forceinline__ void half_operand(const uint32_t (&word)[4], int odd, int h,
                                                    const uint32_t (&scale)[2][2], uint32_t (&a)[4]) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const uint32_t x = word[2 * h + r];
        if constexpr (F::FORMAT == tile_q6_k::FORMAT) {
            a[r] = halves_times(halves_minus(masked(x, 0x003F003Fu, 0x64206420u), 0x64206420u), scale[r][h]);
            a[2 + r] = halves_times(halves_minus(masked(x >> 8, 0x003F003Fu, 0x64206420u), 0x64206420u), scale[r][h]);
        } else {
            const uint32_t mask = F::FORMAT == tile_q5_k::FORMAT ? 0x001F001Fu : odd ? 0x00F000F0u : 0x000F000Fu;
            a[r] = halves_fma(masked(x, mask, 0x64006400u), scale[r][0], scale[r][1]);
            a[2 + r] = halves_fma(masked(x >> 8, mask, 0x64006400u), scale[r][0], scale[r][1]);
        }
    }
}

/* Words of stretches 2 p and 2 p + 1; of Q4_K those of both are the same. */
template <class F>
static __device__ __forceinline__ void half_words(const char *w, int lane, int p, uint32_t (&word)[2][4]) {
    if constexpr (F::FORMAT == tile_q4_k::FORMAT) {
        const uint4 q = load_16(w + 512 * p + 16 * lane);
#pragma unroll
        for (int r = 0; r < 4; r++)
            word[0][r] = word[1][r] = word_of(q, r);
    } else {
        F::codes(w, lane, p, word);
        for (int i = 0; i < 8 && F::FORMAT == tile_q6_k::FORMAT; i++)
            word[i / 4][i % 4] >>= 2;
    }
}

/* --- multiplying */

enum { HALF_TILES = 2 /* of a warp */ };

/* The B operands of stretch j of two in a step (b: its address) for both halves of it: [half of the stretch][eight columns]. */
template <int N> static __device__ __forceinline__ void half_columns_of(uint32_t b, int j, uint32_t (&x)[2][N / 8][2]) {
    const int lane = threadIdx.x % 32, half = lane / 8 % 2;
    uint32_t four[4];
    if constexpr (N == 8) {
        const int row = lane % 8;
        load_matrices(four, b + row * 128 + (((2 * (2 * j + lane / 16) + half) ^ row) << 4));
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[i / 2][0][i % 2] = four[i];
    } else {
        const int row = lane % 8 + lane / 16 * 8;
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int n = 0; n < N / 8; n += 2) {
                load_matrices(four, b + (8 * n + row) * 128 + (((2 * (2 * j + h) + half) ^ (row & 7)) << 4));
#pragma unroll
                for (int i = 0; i < 4; i++)
                    x[h][n + i / 2][i % 2] = four[i];
            }
    }
}

/* d += this warp's two tiles of a chunk (w: the first, `apart` bytes before the second) times its activations. */
template <class F, int N>
static __device__ __forceinline__ void half_chunk(const char *w, int apart, const char *acts,
                                                  float (&d)[HALF_TILES][N / 2]) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t at = shared_address(acts);
    const typename F::scales_type s[HALF_TILES][2] = {{F::scales(w, g), F::scales(w, g + 8)},
                                                      {F::scales(w + apart, g), F::scales(w + apart, g + 8)}};
    float part[HALF_TILES][N / 2];
#pragma unroll
    for (int i = 0; i < HALF_TILES * N / 2; i++)
        part[i / (N / 2)][i % (N / 2)] = 0.0f;
#pragma unroll
    for (int p = 0; p < 4; p++) {
        uint32_t word[HALF_TILES][2][4];
#pragma unroll
        for (int i = 0; i < HALF_TILES; i++)
            half_words<F>(w + i * apart, lane, p, word[i]);
#pragma unroll
        for (int j = 0; j < 2; j++) {
            uint32_t x[2][N / 8][2];
            half_columns_of<N>(at + p * (N * 128), j, x);
#pragma unroll
            for (int i = 0; i < HALF_TILES; i++) {
                uint32_t scale[2][2];
                half_scale<F>(s[i][0], 2 * p + j, scale[0]);
                half_scale<F>(s[i][1], 2 * p + j, scale[1]);
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    uint32_t a[4];
                    half_operand<F>(word[i][j], j, h, scale, a);
#pragma unroll
                    for (int n = 0; n < N / 8; n++)
                        mma_f16(part[i] + 4 * n, a[0], a[1], a[2], a[3], x[h][n][0], x[h][n][1]);
                }
            }
        }
    }
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
        const float2 scale = *(const float2 *)(acts + half_scales_at(N) + 4 * (8 * n + 2 * t));
        uint2 sums = make_uint2(0, 0);
        if constexpr (F::MINS != 0)
            sums = *(const uint2 *)(acts + half_sums_at(N) + 32 * (8 * n + g) + 8 * t);
#pragma unroll
        for (int i = 0; i < HALF_TILES; i++) {
            float low[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            if constexpr (F::MINS != 0) {
                const uint32_t m[2] = {s[i][0].low_pair(t), s[i][1].low_pair(t)};
                mma_f16(low, m[0], m[1], m[0], m[1], sums.x, sums.y);
            }
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float y = s[i][e / 2].d() * part[i][4 * n + e];
                if constexpr (F::MINS != 0)
                    y -= s[i][e / 2].dmin() * low[e];
                d[i][4 * n + e] += y * (e % 2 ? scale.y : scale.x);
            }
        }
    }
}

/* Stores the sums of a warp's tiles; own: where the first row's are. */
template <int N>
static __device__ __forceinline__ void half_leave(float *own, int stride, int now,
                                                  const float (&d)[HALF_TILES][N / 2]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < HALF_TILES; i++)
#pragma unroll
        for (int e = 0; e < N / 2; e++) {
            const int token = e / 4 * 8 + lane % 4 * 2 + e % 2;
            if (token < now)
                own[token * stride + i * TILE_ROWS + lane / 4 + e % 4 / 2 * 8] = d[i][e];
        }
}

/* Adds the turns' sums of `now` tokens to the first one's, in order. */
template <int N> static __device__ __forceinline__ void half_add(float *sums, int stride, int turns, int now) {
    for (int i = 4 * threadIdx.x; i < now * stride; i += 4 * blockDim.x) {
        float4 y = *(const float4 *)(sums + i);
        for (int turn = 1; turn < turns; turn++) {
            const float4 v = *(const float4 *)(sums + turn * N * stride + i);
            y.x += v.x, y.y += v.y, y.z += v.z, y.w += v.w;
        }
        *(float4 *)(sums + i) = y;
    }
}

/* Stages of a group's turns: chunk i of its part is in round i / turns of the ring of turn i % turns. */
struct half_ring {
    uint32_t bars;
    int turns, stages;
    __device__ __forceinline__ int stage(int i) const {
        return i % turns * stages + i / turns % stages;
    }
    __device__ __forceinline__ uint32_t full(int i) const {
        return bars + 16 * stage(i);
    }
    __device__ __forceinline__ uint32_t empty(int i) const {
        return bars + 16 * stage(i) + 8;
    }
    __device__ __forceinline__ int phase(int i) const {
        return i / turns / stages & 1;
    }
};

/* Loads the weights of chunks [from, to). Run by one warp: a lane per tile of 16 rows. */
static __device__ __forceinline__ void half_fetch(const gpu_call &c, const half_ring &ring, const half_room &r,
                                                  uint32_t base, int group, int teams, int from, int to) {
    const int lane = threadIdx.x % 32, chunks = packed_chunks(&c.v[1]);
    const uint64_t policy = read_once();
    const char *data = nullptr;
    uint32_t bytes = 0;
    if (lane < 4 * teams) {
        const team_rows t = rows_of_team(c, group, lane / 4, teams);
        if (lane % 4 * TILE_ROWS < t.left) {
            bytes = (uint32_t)packed_bytes(c.v[t.which].format);
            data = (const char *)c.v[t.which].data + ((int64_t)(t.row / TILE_ROWS + lane % 4) * chunks + from) * bytes;
        }
    }
    const uint32_t all = __reduce_add_sync(~0u, bytes), own = base + r.weights + lane * (r.weight / (4 * teams));
    for (int i = 0; i < to - from; i++, data += bytes) {
        if (lane == 0) {
            barrier_wait(ring.empty(i), ring.phase(i) ^ 1);
            barrier_expect(ring.full(i), all);
        }
        __syncwarp();
        if (bytes)
            copy_bulk(own + ring.stage(i) * r.weight, data, bytes, ring.full(i), policy);
    }
}

template <int N> static __device__ __forceinline__ void columns_half(const gpu_call &c) {
    extern __shared__ char shared[];
    char *memory = shared + ((128 - (shared_address(shared) & 127)) & 127);
    constexpr int BYTES = (548 * N + 127) / 128 * 128;
    const int warps = half_warps(blockDim.x), teams = 1 << (blockDim.x / 32 - warps - 2), warp = threadIdx.x / 32,
              chunks = packed_chunks(&c.v[1]);
    const uint32_t parts = cluster_size(), rank = blockIdx.x % parts, group = blockIdx.x / parts,
                   base = shared_address(memory);
    const int from = columns_part(chunks, rank, parts), to = columns_part(chunks, rank + 1, parts);
    const half_room r = half_room_of(N, half_chunks(&c, parts), warps, teams, columns_bytes(&c));
    const half_ring ring = {base + r.bars, half_turns(warps, teams), r.stages};
    team_rows *where = (team_rows *)(memory + r.teams);
    const uint32_t arrived = base + r.bars + 16 * HALF_STAGES;
    launch_next();
    if ((int)threadIdx.x < teams)
        where[threadIdx.x] = rows_of_team(c, group, threadIdx.x, teams);
    if (threadIdx.x == 0) {
        for (int i = 0; i < ring.turns * ring.stages; i++)
            barrier_init(ring.bars + 16 * i, 1), barrier_init(ring.bars + 16 * i + 8, 2 * teams);
        for (int k = from; k < to; k++)
            barrier_init(arrived + 8 * (k - from), 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (warp == warps)
        half_fetch(c, ring, r, base, group, teams, from, to);
    wait_before();
    const int now = rows_now(c, c.v[0]), team = warp / 2 % teams, turn = warp / (2 * teams),
              tile = 4 * team + warp % 2 * HALF_TILES; /* of the group */
    if (warp == warps + 1 && threadIdx.x % 32 == 0)
        for (int k = from; k < to; k++) {
            barrier_expect(arrived + 8 * (k - from), BYTES);
            bulk_load(base + (k - from) * BYTES, (const char *)c.scratch + (int64_t)k * BYTES, BYTES,
                      arrived + 8 * (k - from));
        }
    float d[HALF_TILES][N / 2];
#pragma unroll
    for (int i = 0; i < HALF_TILES * N / 2; i++)
        d[i / (N / 2)][i % (N / 2)] = 0.0f;
    if (warp < warps) {
        const int format = (int)(c.v[where[team].which].format & 0xFFFFFFu), apart = r.weight / (4 * teams);
        for (int i = turn; i < to - from; i += ring.turns) {
            const char *w = memory + r.weights + ring.stage(i) * r.weight + tile * apart;
            const char *acts = memory + i * BYTES;
            barrier_wait(ring.full(i), ring.phase(i));
            barrier_wait(arrived + 8 * i, 0);
            switch (format) {
            case tile_q4_k::FORMAT:
                half_chunk<tile_q4_k, N>(w, apart, acts, d);
                break;
            case tile_q5_k::FORMAT:
                half_chunk<tile_q5_k, N>(w, apart, acts, d);
                break;
            case tile_q6_k::FORMAT:
                half_chunk<tile_q6_k, N>(w, apart, acts, d);
                break;
            }
            __syncwarp();
            if (threadIdx.x % 32 == 0)
                barrier_arrive(ring.empty(i));
        }
    }
    __syncthreads(); /* all has been read: the sums reuse the memory */
    const int stride = columns_stride(teams);
    if (warp < warps)
        half_leave<N>((float *)memory + turn * N * stride + tile * TILE_ROWS, stride, now, d);
    __syncthreads();
    half_add<N>((float *)memory, stride, ring.turns, now);
    parts > 1 ? cluster_sync() : __syncthreads();
    columns_finish(c, sums_of_cluster{(const float *)memory, stride, parts}, where, teams, parts, rank, now);
    if (parts > 1)
        cluster_sync(); /* others read this group's memory */
}

#define COLUMNS_HALF(N)                                                                                                \
    extern "C" __global__ void __launch_bounds__(640, 1) columns_half_##N(const __grid_constant__ gpu_call c) {        \
        columns_half<N>(c);                                                                                            \
    }
COLUMNS_HALF(8)
COLUMNS_HALF(16)
