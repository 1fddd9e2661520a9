/* batch.cu: products of packed weights with any number of columns, for calls that gemv.cu, columns.cu and wide.cu don't take.
 * Three kernels: batch_convert quantizes the activations to int8; batch_16, batch_64 and, in less shared memory, batch_32 multiply so many columns; batch_finish
 * adds the partial sums and does the rest of the op.
 *
 * A group owns four tiles (64 rows), a part of the chunks (split-K), and a block of columns. Each tile has `kinds` waves: wave
 * w takes tile w % 4 and every kinds-th chunk of the part. Weights and activations are copied asynchronously to stages of
 * shared memory. Each wave's partial sums go to scratch and are added in order. Their number depends on the matrices and the
 * kernel alone, so a column's sums do not depend on other columns.
 *
 * Scratch: activations [columns / 16][chunks] of gemv.cuh's order with 16 columns, then float32 [kinds * parts][columns][rows].
 */
#include "batch.h"
#include "gemv.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
enum { STAGES = 1 }; /* copies go through registers */
__device__ __forceinline__ void copy_16(uint32_t to, const void *from) {
    store_16(to, *(const uint4 *)from);
}

__device__ __forceinline__ void copy_commit() {}

template <int LEFT> __device__ __forceinline__ void copy_wait() {}
#else
enum { STAGES = 2 };
__device__ __forceinline__ void copy_16(uint32_t to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

__device__ __forceinline__ void copy_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int LEFT> __device__ __forceinline__ void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}
#endif

/* One wave per chunk of a column; columns past the step's tokens become zeros. */
extern "C" __global__ void __launch_bounds__(256) batch_convert(const __grid_constant__ gpu_call c) {
    int width = c.v[1].shape[1], chunks = packed_chunks(&c.v[1]), t = blockIdx.y, lane = threadIdx.x % 32;
    int k = blockIdx.x * 8 + threadIdx.x / 32;
    if (k >= chunks)
        return;
    bool exists = t < rows_now(c, c.v[0]);
    eight v;
    v.load((const float *)(c.v[1].data + (exists ? t : 0) * c.v[1].stride) + k * CHUNK, exists ? width - k * CHUNK : 0,
           lane);
    gemv_quantize(v.v, (char *)c.scratch + ((int64_t)(t / 16) * chunks + k) * BATCH_ACTS, t % 16, 16, lane);
}

/* acc += 16 rows of a chunk times 16 columns: acc[n][r]: column 4 n + lane % 4, row lane / 4 + 8 r. */
template <class F>
__device__ __forceinline__ void batch_chunk(const char *w, const char *a, int lane, float (*acc)[2]) {
    int g = lane / 4, t = lane % 4;
    typename F::scales_type s[2] = {F::scales(w, g), F::scales(w, g + 8)};
    int sum[4][4];
    float part[4][2];
#pragma unroll
    for (int n = 0; n < 4; n++) {
        for (int i = 0; i < 4; i++)
            sum[n][i] = 0;
        part[n][0] = part[n][1] = 0.0f;
    }
#pragma unroll
    for (int p = 0; p < 4; p++) {
        uint32_t code[2][4];
        F::codes(w, lane, p, code);
        int times
            [2]
            [2]; /* scales of both stretches and rows: 16 times in the even one where codes of the odd one are that */
#pragma unroll
        for (int h = 0; h < 2; h++)
            for (int r = 0; r < 2; r++)
                if constexpr (F::KIND == SCALE_INT)
                    times[h][r] = (int)s[r].of(2 * p + h) * (F::SPLIT && h == 0 ? 16 : 1);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            uint4 b = load_16(a + p * 2048 + (32 * n + lane) * 16);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int j = 2 * p + h, c[4] = {0, 0, 0, 0};
                uint32_t b0 = h ? b.z : b.x, b1 = h ? b.w : b.y;
                if constexpr (F::KIND == SCALE_HALVES) {
                    int e[4] = {0, 0, 0, 0};
                    mma_s8_half(c, code[h][0], code[h][1], b0);
                    mma_s8_half(e, code[h][2], code[h][3], b1);
                    for (int i = 0; i < 4; i++)
                        sum[n][i] += c[i] * (int)s[i / 2].of(2 * j) + e[i] * (int)s[i / 2].of(2 * j + 1);
                    continue;
                }
                if (F::SIGNED)
                    mma_s8(c, code[h], b0, b1);
                else
                    mma_u8(c, code[h], b0, b1);
                if constexpr (F::KIND == SCALE_INT)
                    for (int i = 0; i < 4; i++)
                        sum[n][i] += c[i] * times[h][i / 2];
                if constexpr (F::KIND == SCALE_FLOAT)
                    for (int r = 0; r < 2; r++)
                        part[n][r] += ((float)c[2 * r] + (float)c[2 * r + 1] * (1.0f / 254.0f)) * (float)s[r].of(j);
            }
        }
    }
    uint32_t m[2] = {0, 0};
    if constexpr (F::MINS != 0)
        for (int r = 0; r < 2; r++)
            m[r] = s[r].low_pair(t);
#pragma unroll
    for (int n = 0; n < 4; n++) {
        float d = ((const float *)(a + 544 * 16))[4 * n + t], low[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        if constexpr (F::MINS != 0)
            mma_f16_k8(low, m[0], m[1], *(const uint32_t *)(a + 512 * 16 + 16 * (8 * n + g) + 4 * t));
        for (int r = 0; r < 2; r++) {
            float y;
            if constexpr (F::KIND == SCALE_FLOAT) {
                y = F::unit(0) * part[n][r];
            } else {
                y = s[r].d() *
                    (((float)sum[n][2 * r] + (float)sum[n][2 * r + 1] * (1.0f / 254.0f)) * F::unit(F::SPLIT));
                if constexpr (F::MINS != 0)
                    y -= s[r].dmin() * (low[2 * r] + low[2 * r + 1] * (1.0f / 254.0f));
            }
            acc[n][r] += d * y;
        }
    }
}

template <int SETS> __device__ __forceinline__ void batch(const gpu_call &c) {
    extern __shared__ __align__(128) char shared[];
    constexpr int KINDS = BATCH_KINDS(SETS), WAVES = 4 * KINDS, W_STAGE = WAVES * PACKED_MOST,
                  STAGE = BATCH_STAGE(SETS);
    int wave = threadIdx.x / 32, lane = threadIdx.x % 32, chunks = packed_chunks(&c.v[1]);
    int columns = rows_now(c, c.v[0]), first_column = blockIdx.z * 16 * SETS;
    if (first_column >= columns)
        return;
    batch_shape s = batch_shape_of(&c);
    int from = (int)((int64_t)chunks * blockIdx.y / s.parts), to = (int)((int64_t)chunks * (blockIdx.y + 1) / s.parts);
    int tile = blockIdx.x * 4 + wave % 4, kind = wave / 4, which = 2, at = tile;
    bool mine = tile < s.tiles;
    for (int n; mine && at >= (n = packed_tiles(&c.v[which])); which++)
        at -= n;
    int format = mine ? (int)(c.v[which].format & 0xFFFFFFu) : 0, bytes = packed_bytes((uint32_t)format);
    const char *weights = mine ? (const char *)c.v[which].data + (int64_t)at * chunks * bytes : nullptr;
    const char *acts = (const char *)c.scratch + (int64_t)(first_column / 16) * chunks * BATCH_ACTS;

    auto fetch = [&](int turn,
                     int stage) { /* chunks from + KINDS turn and on */
                                  char *base = shared + stage * STAGE;
                                  int k = from + KINDS * turn + kind;
                                  if (mine && k < to)
                                      for (int i = 16 * lane; i < bytes; i += 512)
                                          copy_16(shared_address(base + wave * PACKED_MOST + i),
                                                  weights + (int64_t)k * bytes + i);
                                  for (int set = wave; set < KINDS * SETS; set += WAVES) {
                                      int chunk = from + KINDS * turn + set / SETS;
                                      if (chunk < to)
                                          for (int i = 16 * lane; i < BATCH_ACTS; i += 512)
                                              copy_16(shared_address(base + W_STAGE + set * BATCH_ACTS + i),
                                                      acts + ((int64_t)(set % SETS) * chunks + chunk) * BATCH_ACTS + i);
                                  }
    };
    float acc[4 * SETS][2];
#pragma unroll
    for (int n = 0; n < 4 * SETS; n++)
        acc[n][0] = acc[n][1] = 0.0f;
    int turns = (to - from + KINDS - 1) / KINDS;
    fetch(0, 0);
    copy_commit();
    for (int i = 0; i < turns; i++) {
        copy_wait<0>();
        __syncthreads();
        if (STAGES == 1 && i) {
            fetch(i, 0);
            __syncthreads();
        }
        if (STAGES == 2 && i + 1 < turns)
            fetch(i + 1, (i + 1) % 2);
        copy_commit();
        const char *base = shared + i % STAGES * STAGE, *w = base + wave * PACKED_MOST,
                   *b = base + W_STAGE + kind * SETS * BATCH_ACTS;
        if (!mine || from + KINDS * i + kind >= to)
            continue;
        switch (format) {
#define BATCH_OF(f)                                                                                                    \
    case tile_##f::FORMAT:                                                                                             \
        _Pragma("unroll") for (int set = 0; set < SETS; set++)                                                         \
            batch_chunk<tile_##f>(w, b + set * BATCH_ACTS, lane, acc + 4 * set);                                       \
        break;
            TILE_FORMATS(BATCH_OF)
        }
    }
    if (!mine)
        return;
    float *out = (float *)(c.scratch + batch_acts(&c)) +
                 ((int64_t)(KINDS * blockIdx.y + kind) * s.columns + first_column) * s.tiles * TILE_ROWS +
                 tile * TILE_ROWS;
#pragma unroll
    for (int n = 0; n < 4 * SETS; n++)
        for (int r = 0; r < 2; r++)
            if (first_column + 4 * n + lane % 4 < columns)
                out[(int64_t)(4 * n + lane % 4) * s.tiles * TILE_ROWS + lane / 4 + 8 * r] = acc[n][r];
}

#ifdef BATCH_OLD
extern "C" __global__ void __launch_bounds__(BATCH_THREADS(2), 2) batch_7_32(const __grid_constant__ gpu_call c) {
    batch<2>(c);
}
#else
extern "C" __global__ void __launch_bounds__(BATCH_THREADS(1), 1) batch_16(const __grid_constant__ gpu_call c) {
    batch<1>(c);
}
extern "C" __global__ void __launch_bounds__(BATCH_THREADS(4), 1) batch_64(const __grid_constant__ gpu_call c) {
    batch<4>(c);
}

extern "C" __global__ void __launch_bounds__(BATCH_THREADS(2), 2) batch_32(const __grid_constant__ gpu_call c) {
    batch<2>(c);
}
#endif

extern "C" __global__ void __launch_bounds__(256) batch_finish(const __grid_constant__ gpu_call c) {
    batch_shape s = batch_shape_of(&c);
    int t = blockIdx.y;
    if (t >= rows_now(c, c.v[0]))
        return;
    const float *part = (const float *)(c.scratch + batch_acts(&c)) + (int64_t)t * s.tiles * TILE_ROWS;
    int64_t far = (int64_t)s.columns * s.tiles * TILE_ROWS;
    auto sum = [&](int at) {
        float y = 0.0f;
        for (int i = 0; i < s.kinds * s.parts; i++)
            y += part[i * far + at];
        return y;
    };
    float *out = (float *)(c.v[0].data + t * c.v[0].stride);
    for (int i = blockIdx.x * 256 + threadIdx.x; i < s.tiles * TILE_ROWS; i += gridDim.x * 256) {
        if (c.mode & PRODUCT_GATED) {
            int rows = c.v[2].shape[0];
            if (i < rows) {
                float gate = sum(i), up = sum(i + packed_tiles(&c.v[2]) * TILE_ROWS);
                out[i] = gate / (1.0f + __expf(-gate)) * up;
            }
            continue;
        }
        int which = 2, at = i, column = 0;
        for (int n; at >= (n = packed_tiles(&c.v[which]) * TILE_ROWS); which++) {
            at -= n;
            column += c.v[which].shape[0];
        }
        if (at < c.v[which].shape[0]) {
            float residual =
                c.mode & PRODUCT_ADD ? ((const float *)(c.v[c.n_in].data + t * c.v[c.n_in].stride))[column + at] : 0.0f;
            out[column + at] = sum(i) + residual;
        }
    }
}
