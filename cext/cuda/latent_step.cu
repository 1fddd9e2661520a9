/* latent_step.cu: steps of a layer with MLA for few tokens, each in one launch, for sm_90 and newer.
 *
 * rope_latent_write is what stands between the product and the attention: the part of each head's query without RoPE times the head's k_b (arithmetic: gemv.cuh), RoPE of the other part, and
 * the row of the cache: the norm of the latent, RoPE of the shared key.
 *
 * A wave computes 16 rows of a head for up to four tokens, whose queries the group's waves have made bytes of, one token each; its
 * weights are asked for before the kernel ahead has ended. The first wave of a head rotates. The last groups write the tokens' rows.
 *
 * head_linear_step, the product of each head with its own matrix, has the same waves, with rows of up to four chunks.
 */
#include "gemv_group.cuh"
#include "kv.k.h"
#include "latent_step.h"

/* The row of the cache of token t; called by all threads of a group. */
static __device__ __forceinline__ void latent_row(const gpu_call &c, int t, float *row) {
    __shared__ float sums[LATENT_STEP_WAVES];
    const arg_rope_latent_write *a = (const arg_rope_latent_write *)c.arg;
    const gpu_view *cache = c.v + 3;
    const int rank = c.v[8].shape[0], n_rot = c.v[7].shape[1], d = cache->shape[3], threads = 32 * LATENT_STEP_WAVES;
    const float *x = ROW(const float, c.v + 2, t), *norm = (const float *)c.v[8].data;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < rank; i += threads)
        sum += x[i] * x[i];
    for (int far = 16; far; far /= 2)
        sum += __shfl_xor_sync(~0u, sum, far);
    if (threadIdx.x % 32 == 0)
        sums[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0.0f;
    for (int w = 0; w < LATENT_STEP_WAVES; w++)
        sum += sums[w];
    const float size = sqrtf(sum / (float)rank + a->eps);
    for (int i = threadIdx.x; i < rank; i += threads)
        row[i] = x[i] / size * norm[i];
    for (int i = threadIdx.x; i < d - rank - n_rot / 2; i += threads)
        rope_put(rope_rotate(plain_head(x + rank), ROW(const float, c.v + 7, t), n_rot, a->style, i), row + rank);
    __syncthreads();
    char *to = kv_place(cache, c.v + 4, t, 0);
    if (!to) {
        fault(&c);
        return;
    }
    if (!kv_in_blocks(cache->format))
        for (int i = threadIdx.x; i < d; i += threads)
            kv_store_one(cache->format, row[i], to, i);
    else
        for (int i = threadIdx.x; i < d / KV_BLOCK; i += threads)
            kv_store_block(cache->format, row + i * KV_BLOCK, to, i);
}

template <class F> static __device__ __forceinline__ void latent_step(const gpu_call &c) {
    __shared__ __align__(128) char chunk[LATENT_STEP_WAVES][F::BYTES], acts[LATENT_STEP_ACTS];
    __shared__ float row[LATENT_STEP_MOST];
    __shared__ __align__(8) uint64_t bars[LATENT_STEP_WAVES];
    const int wave = threadIdx.x / 32, lane = threadIdx.x % 32, from = blockIdx.y * GEMV_COLUMNS;
    const int rank = c.v[9].shape[1], nope = c.v[9].shape[2], tiles = (rank + TILE_ROWS - 1) / TILE_ROWS;
    const int per = (tiles + LATENT_STEP_WAVES - 1) / LATENT_STEP_WAVES, head = blockIdx.x / per;
    const int tile = blockIdx.x % per * LATENT_STEP_WAVES + wave, heads = c.v[9].shape[0];
    const int columns = min(GEMV_COLUMNS, rows_now(c, c.v[0]) - from), most = min(GEMV_COLUMNS, c.v[0].shape[0]);
    if (head >= heads) {
        const int t = (int)blockIdx.x - heads * per;
        wait_before();
        launch_next();
        if (t < columns)
            latent_row(c, from + t, row);
        return;
    }
    const uint32_t bar = shared_address(bars + wave);
    wave_barriers(bar, 1);
    if (wave_asks() && tile < tiles && columns > 0)
        wave_fetch(shared_address(chunk[wave]), (const char *)c.v[9].data + head * c.v[9].stride + tile * F::BYTES,
                   F::BYTES, bar, read_once());
    wait_before();
    launch_next();
    const int each = c.v[1].shape[2], n_rot = c.v[7].shape[1];
    if (wave < columns) {
        eight v;
        v.load(ROW(const float, c.v + 1, from + wave) + (int64_t)head * each, nope, lane);
        gemv_quantize(v.v, acts, wave, most, lane);
    }
    __syncthreads();
    if (tile < tiles && columns > 0) {
        float acc[2] = {0.0f, 0.0f};
        barrier_wait(bar, 0);
        gemv_chunk<F>(chunk[wave], acts, most, lane, acc);
        float *y = ROW(float, c.v, from + lane % 4) + (int64_t)head * c.v[0].shape[2];
        for (int h = 0; h < 2 && lane % 4 < columns; h++)
            if (tile * TILE_ROWS + lane / 4 + 8 * h < rank)
                y[tile * TILE_ROWS + lane / 4 + 8 * h] = acc[h];
    }
    for (int t = 0; tile == 0 && t < columns; t++) {
        const float *q = ROW(const float, c.v + 1, from + t) + (int64_t)head * each + nope;
        float *y = ROW(float, c.v, from + t) + (int64_t)head * c.v[0].shape[2] + rank;
        for (int i = lane; i < each - nope - n_rot / 2; i += 32)
            rope_put(rope_rotate(plain_head(q), ROW(const float, c.v + 7, from + t), n_rot,
                                 ((const arg_rope_latent_write *)c.arg)->style, i),
                     y);
    }
}

#define LATENT_STEP(f)                                                                                                 \
    extern "C" __global__ void __launch_bounds__(32 * LATENT_STEP_WAVES)                                               \
        rope_latent_write_##f(const __grid_constant__ gpu_call c) {                                                    \
        latent_step<tile_##f>(c);                                                                                      \
    }
template <class F> static __device__ __forceinline__ void head_step(const gpu_call &c) {
    extern __shared__ __align__(128) char shared[];
    __shared__ __align__(8) uint64_t bars[LATENT_STEP_WAVES];
    const int wave = threadIdx.x / 32, lane = threadIdx.x % 32, from = blockIdx.y * GEMV_COLUMNS;
    const int rows = c.v[2].shape[1], width = c.v[2].shape[2], tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
    const int chunks = (width + CHUNK - 1) / CHUNK, per = (tiles + LATENT_STEP_WAVES - 1) / LATENT_STEP_WAVES;
    const int head = blockIdx.x / per, tile = blockIdx.x % per * LATENT_STEP_WAVES + wave;
    const int columns = min(GEMV_COLUMNS, rows_now(c, c.v[0]) - from), most = min(GEMV_COLUMNS, c.v[0].shape[0]);
    char *chunk = shared + wave * chunks * F::BYTES, *acts = shared + LATENT_STEP_WAVES * chunks * F::BYTES;
    const uint32_t bar = shared_address(bars + wave);
    wave_barriers(bar, 1);
    if (wave_asks() && tile < tiles && columns > 0)
        wave_fetch(shared_address(chunk),
                   (const char *)c.v[2].data + head * c.v[2].stride + (int64_t)tile * chunks * F::BYTES,
                   chunks * F::BYTES, bar, read_once());
    wait_before();
    launch_next();
    for (int task = wave; task < columns * chunks; task += LATENT_STEP_WAVES) {
        const int t = task / chunks, k = task % chunks;
        eight v;
        v.load(ROW(const float, c.v + 1, from + t) + (int64_t)head * width + k * CHUNK, width - k * CHUNK, lane);
        gemv_quantize(v.v, acts + k * LATENT_STEP_ACTS, t, most, lane);
    }
    __syncthreads();
    if (tile >= tiles || columns <= 0)
        return;
    barrier_wait(bar, 0);
    float acc[2] = {0.0f, 0.0f};
    for (int k = 0; k < chunks; k++)
        gemv_chunk<F>(chunk + k * F::BYTES, acts + k * LATENT_STEP_ACTS, most, lane, acc);
    float *y = ROW(float, c.v, from + lane % 4) + (int64_t)head * rows;
    for (int h = 0; h < 2 && lane % 4 < columns; h++)
        if (tile * TILE_ROWS + lane / 4 + 8 * h < rows)
            y[tile * TILE_ROWS + lane / 4 + 8 * h] = acc[h];
}

#define HEAD_STEP(f)                                                                                                   \
    extern "C" __global__ void __launch_bounds__(32 * LATENT_STEP_WAVES)                                               \
        head_linear_step_##f(const __grid_constant__ gpu_call c) {                                                     \
        head_step<tile_##f>(c);                                                                                        \
    }
TILE_FORMATS(HEAD_STEP)

/* Those whose blocks fit rows of 128 columns. */
LATENT_STEP(q8_0)
LATENT_STEP(q4_0)
LATENT_STEP(q5_0)
LATENT_STEP(iq4_nl)
LATENT_STEP(mxfp4)
