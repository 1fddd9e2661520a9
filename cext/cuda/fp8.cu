/* fp8.cu: products of FP8 weights with FP8 activations on the tensor cores of sm_89 and newer, for few columns.
 *
 * fp8_quantize converts activations to E4M3 with one scale per token and 128 elements, which maps the largest to 448. An
 * activation is the sum of two E4M3 numbers, the second for the remainder of the first, so it keeps more bits than a bfloat16;
 * with --precision fast it is one. In fp8_few_N a group has 16 rows of the weights. Each wave multiplies every eighth run of
 * 512 elements of K with all N columns by m16n8k32, and adds each 128 of them, times both scales, to the float32 sum. The
 * waves' sums are added in order, so a sum's bits depend on the matrices and N alone.
 */
#include "fp8.cuh"
#include "mma_fp8.h"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890

static __device__ __forceinline__ float2 fp8_values(uint32_t two) {
    uint32_t halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"((uint16_t)two));
    return floats_of_halves(halves);
}

/* One warp per block of a token, four elements per lane. A non-finite element makes its whole block NaN. */
extern "C" __global__ void __launch_bounds__(256) fp8_quantize(const __grid_constant__ gpu_call c) {
    const int lane = threadIdx.x % 32, block = blockIdx.x * 8 + threadIdx.x / 32, token = blockIdx.y;
    const int n = fp8_columns(&c), halves = fp8_halves(&c), in = token % n, blocks = fp8_blocks(&c);
    launch_next();
    wait_before();
    if (token >= rows_now(c, c.v[0]) || block >= blocks)
        return;
    const float4 x = *(const float4 *)(c.v[1].data + (uint64_t)token * c.v[1].stride + 4 * (block * FP8_K + 4 * lane));
    const uint32_t most =
        __reduce_max_sync(~0u, max(max(__float_as_uint(x.x) & 0x7FFFFFFF, __float_as_uint(x.y) & 0x7FFFFFFF),
                                   max(__float_as_uint(x.z) & 0x7FFFFFFF, __float_as_uint(x.w) & 0x7FFFFFFF)));
    const float scale =
        most >= 0x7F800000 ? __uint_as_float(0x7FC00000) : fmaxf(__uint_as_float(most) / 448.0f, 1e-30f);
    const float by = 1.0f / scale, v[4] = {x.x * by, x.y * by, x.z * by, x.w * by};
    const uint32_t low = fp8_two(v[0], v[1]), high = fp8_two(v[2], v[3]);
    const float2 a = fp8_values(low), b = fp8_values(high);
    char *item = (char *)c.scratch + ((int64_t)(token / n) * blocks + block) * fp8_item(n, halves);
    const int place = c.mode & FP8_WIDE ? ((lane / 4) ^ (in & 7)) * 4 + lane % 4 : lane % 4 * 8 + lane / 4;
    uint32_t *to = (uint32_t *)(item + in * FP8_K) + place;
    *to = low | high << 16;
    if (halves == 2)
        to[n * (FP8_K / 4)] = fp8_two(v[0] - a.x, v[1] - a.y) | fp8_two(v[2] - b.x, v[3] - b.y) << 16;
    if (lane == 0)
        ((float *)(item + halves * n * FP8_K))[in] = scale;
}

/* --- few columns */

/* Blocks whose activations are loaded together, and least groups per SM. Measured for 8 columns: three groups and two
 * blocks are 4 % slower over a model's products. */
enum { FP8_BESIDE = 2 };
template <int N> struct fp8_ahead {
    enum { BLOCKS = N == 8 ? 4 : 1 };
};

/* Loads `blocks` blocks of a wave's 16 rows, from byte `from` of a row on; rows: lane r has the address of row r. */
static __device__ __forceinline__ void fp8_fetch(uint32_t to, uint64_t rows, int64_t from, int blocks) {
    constexpr int PIECES = (FP8_UNIT * FP8_BYTES + 15) / 16 + 1;
    const int lane = threadIdx.x % 32;
#pragma unroll 4
    for (int i = 0; i < TILE_ROWS * PIECES / 32; i++) {
        const int r = (i * 32 + lane) / PIECES, piece = (i * 32 + lane) % PIECES;
        const uint64_t row = __shfl_sync(~0u, rows, r), at = row + from;
        const int left = (int)(at & 15) + blocks * FP8_BYTES - 16 * piece;
        if (row && left > 0)
            copy_part(to + r * FP8_ROW + 16 * piece, (at & ~15ull) + 16 * piece, min(left, 16));
    }
    asm volatile("cp.async.commit_group;\n cp.async.wait_group 0;" ::: "memory");
    __syncwarp();
}

/* d += a block of 16 rows (this lane's two) times N columns, whose codes and scales are at `item`. */
template <int N, bool E5M2>
static __device__ __forceinline__ void fp8_block(const char *const (&row)[2], const char *item, int halves,
                                                 float (&d)[N / 8][4]) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const float step[2] = {*(const float *)row[0], *(const float *)row[1]};
    uint32_t a[4][4];
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int r = 0; r < 4; r++)
            a[i][r] = *(const uint32_t *)(row[r % 2] + 4 + 4 * t + 32 * i + r / 2 * 16);
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        const float2 scale = *(const float2 *)(item + halves * N * FP8_K + 4 * (8 * j + 2 * t));
        float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        for (int h = 0; h < halves; h++) {
            const uint4 *b = (const uint4 *)(item + (h * N + 8 * j + g) * FP8_K + 32 * t);
            const uint4 x = b[0], y = b[1];
            mma_fp8<E5M2>(sum, a[0], x.x, x.y);
            mma_fp8<E5M2>(sum, a[1], x.z, x.w);
            mma_fp8<E5M2>(sum, a[2], y.x, y.y);
            mma_fp8<E5M2>(sum, a[3], y.z, y.w);
        }
#pragma unroll
        for (int e = 0; e < 4; e++)
            d[j][e] = fmaf(sum[e], step[e / 2] * (e % 2 ? scale.y : scale.x), d[j][e]);
    }
}

template <int N, bool E5M2> static __device__ __forceinline__ void fp8_few(const gpu_call &c) {
    extern __shared__ char shared[];
    const int lane = threadIdx.x % 32, wave = threadIdx.x / 32, g = lane / 4, slot = blockIdx.x * TILE_ROWS;
    const int blocks = fp8_blocks(&c), halves = fp8_halves(&c);
    char *own = shared + wave * (TILE_ROWS * FP8_ROW);
    const uint64_t rows = fp8_row_at(c, slot + lane % 16);
    const char *data = (const char *)c.scratch + (int64_t)blockIdx.y * blocks * fp8_item(N, halves);
    const char *first[2];
    float d[N / 8][4] = {};
#pragma unroll
    for (int r = 0; r < 2; r++)
        first[r] = own + (g + 8 * r) * FP8_ROW + (__shfl_sync(~0u, rows, g + 8 * r) & 15);
    launch_next();
    for (int k = wave * FP8_UNIT, before = 1; k < blocks; k += FP8_WAVES * FP8_UNIT, before = 0) {
        const int here = min(FP8_UNIT, blocks - k);
        __syncwarp();
        fp8_fetch(shared_address(own), rows, (int64_t)k * FP8_BYTES, here);
        if (before)
            wait_before();
#pragma unroll(fp8_ahead<N>::BLOCKS)
        for (int i = 0; i < FP8_UNIT; i++)
            if (i < here) {
                const char *const row[2] = {first[0] + i * FP8_BYTES, first[1] + i * FP8_BYTES};
                fp8_block<N, E5M2>(row, data + (int64_t)(k + i) * fp8_item(N, halves), halves, d);
            }
    }
    wait_before();
    __syncwarp();
#pragma unroll
    for (int j = 0; j < N / 8; j++)
        ((float4 *)own)[j * 32 + lane] = make_float4(d[j][0], d[j][1], d[j][2], d[j][3]);
    __syncthreads();
    for (int j = wave; j < N / 8; j += FP8_WAVES) {
        float y[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        for (int w = 0; w < FP8_WAVES; w++) {
            const float4 v = ((const float4 *)(shared + w * (TILE_ROWS * FP8_ROW)))[j * 32 + lane];
            y[0] += v.x, y[1] += v.y, y[2] += v.z, y[3] += v.w;
        }
        fp8_finish<true>(c, slot, blockIdx.y * N + 8 * j + 2 * (lane % 4), rows_now(c, c.v[0]), y);
    }
}

#define FP8_FEW_OF(N)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(32 * FP8_WAVES, FP8_BESIDE)                                           \
        fp8_few_##N(const __grid_constant__ gpu_call c) {                                                              \
        c.v[2].format == FP8_E5M2 ? fp8_few<N, true>(c) : fp8_few<N, false>(c);                                        \
    }
FP8_FEW_OF(8)
FP8_FEW_OF(16)
FP8_FEW_OF(32)
FP8_FEW_OF(64)

#endif
