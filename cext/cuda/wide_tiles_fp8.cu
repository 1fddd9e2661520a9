/* wide_tiles_fp8.cu: converts activations, or their norm, and weights to E4M3 panels in scratch (tiles.h), for the products of wide.cu
 * under --precision fast. Packed weights, F16 and BF16.
 *
 * A row has one scale. An activation's, and that of a weight in the file's layout, maps its largest number to 448. A packed
 * weight's is the power of two that maps below 448 what its blocks' scales allow for any codes, so the codes are read once: that may be
 * 32 times what there is, which costs nothing, for E4M3 has the same relative error over 15 powers of two; and MXFP4's numbers stay
 * exact. A row with a number that is not finite becomes NaN.
 *
 * A group takes a row, or the 16 rows of a packed tile, at a time.
 */
#include "mma_fp8.h"
#include "quant.h"
#include "tile_values.cuh"
#include "tiles.h"

enum { THREADS = 256, WAVES_OF_GROUP = THREADS / 32, RUN = 16 /* numbers of a thread's step */ };

/* What the waves of a group tell each other: of a row each wave's largest number (its bits) and sum of squares, of a packed tile each row's
 * largest. */
struct fp8_room {
    uint32_t most[TILE_ROWS];
    float squares[WAVES_OF_GROUP];
};

/* The scale of a row whose largest number has these bits. */
static __device__ __forceinline__ float row_scale(uint32_t most) {
    return most >= 0x7F800000u ? __uint_as_float(0x7FC00000u) : fmaxf(__uint_as_float(most) / 448.0f, 1e-30f);
}

/* The next power of two, from 2^-126 on. */
static __device__ __forceinline__ float power_above(float x) {
    return x == x ? __uint_as_float((__float_as_uint(x) + 0x7FFFFFu) & 0x7F800000u) : x;
}

static __device__ __forceinline__ uint32_t size_bits(float x) {
    return __float_as_uint(x) & 0x7FFFFFFFu;
}

static __device__ __forceinline__ uint32_t fp8_four(const float *x, float by) {
    return fp8_two(x[0] * by, x[1] * by) | fp8_two(x[2] * by, x[3] * by) << 16;
}

/* What the rows of activations are multiplied with: 1 / sqrt(mean square + eps), and the weights of a norm; nullptr: with nothing. */
struct row_norm {
    const float *weights;
    float eps;
};

/* Numbers k to k + RUN - 1 of a row, times the norm's weights. Gives the sum of the squares before. */
template <class F>
static __device__ __forceinline__ float load_run(const uint8_t *row, uint32_t k, const row_norm &norm, float (&x)[RUN],
                                                 F eight) {
    float sum = 0.0f;
    eight(row, k, x);
    eight(row, k + 8, x + 8);
    if (norm.weights) {
        float w[RUN];
        eight_f32((const uint8_t *)norm.weights, k, w);
        eight_f32((const uint8_t *)norm.weights, k + 8, w + 8);
#pragma unroll
        for (int i = 0; i < RUN; i++)
            sum += x[i] * x[i], x[i] *= w[i];
    }
    return sum;
}

/* A row that is not packed, by a group. Of up to 4,096 numbers, each is loaded once. */
template <class F>
static __device__ __forceinline__ void bring_row(const uint8_t *row, uint32_t k_all, uint32_t at_row, uint8_t *to,
                                                 float *scales, fp8_room &room, const row_norm &norm, F eight) {
    const uint32_t across = (k_all + PANEL_FP8 - 1) / PANEL_FP8, first = RUN * threadIdx.x;
    float own[RUN] = {0}, x[RUN], squares = 0.0f, factor = 1.0f;
    uint32_t most = 0;
    for (uint32_t k = first; k < k_all; k += RUN * THREADS) {
        squares += load_run(row, k, norm, x, eight);
#pragma unroll
        for (int i = 0; i < RUN; i++)
            most = max(most, size_bits(x[i])), own[i] = k == first ? x[i] : own[i];
    }
    most = __reduce_max_sync(~0u, most);
    for (int far = 16; far; far /= 2)
        squares += __shfl_xor_sync(~0u, squares, far);
    __syncthreads(); /* the numbers of the row before have been read */
    if (threadIdx.x % 32 == 0)
        room.most[threadIdx.x / 32] = most, room.squares[threadIdx.x / 32] = squares;
    __syncthreads();
    squares = 0.0f;
#pragma unroll
    for (int i = 0; i < WAVES_OF_GROUP; i++)
        most = max(most, room.most[i]), squares += room.squares[i];
    if (norm.weights)
        factor = rsqrtf(squares / (float)k_all + norm.eps);
    const float scale = row_scale(most), by = 1.0f / scale;
    if (threadIdx.x == 0)
        scales[at_row] = scale * factor;
    for (uint32_t k = first; k < across * PANEL_FP8; k += RUN * THREADS) {
        if (k == first)
            memcpy(x, own, sizeof x);
        else if (k < k_all)
            load_run(row, k, norm, x, eight);
        else
            memset(x, 0, sizeof x);
        *(uint4 *)(to + tiles_piece(at_row, k, across)) =
            make_uint4(fp8_four(x, by), fp8_four(x + 4, by), fp8_four(x + 8, by), fp8_four(x + 12, by));
    }
}

/* Of four lanes with four words each, lane t gets word t of each lane, in the lanes' order. */
static __device__ __forceinline__ void transpose_four(uint32_t (&word)[4]) {
    const uint32_t t = threadIdx.x % 4;
#pragma unroll
    for (int far = 1; far <= 2; far *= 2)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int low = far == 1 ? 2 * i : i, high = low + far;
            const uint32_t got = __shfl_xor_sync(~0u, t & far ? word[low] : word[high], far);
            if (t & far)
                word[low] = got;
            else
                word[high] = got;
        }
}

/* The bits of the largest number that the scales of a chunk's row allow, in the two stretches j = t, t + 4. */
template <class F>
static __device__ __forceinline__ uint32_t most_of(const tile_scale<F> &scale, uint32_t k, uint32_t k_all) {
    constexpr float least = F::SIGNED ? -128.0f : 0.0f, most = F::SIGNED ? 127.0f : 255.0f;
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int j = threadIdx.x % 4 + 4 * i;
        if (k + 32 * j < k_all)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float by = scale.step(j, half), low = scale.low(j);
                bits = max(bits, max(size_bits(by * least - low), size_bits(by * most - low)));
            }
    }
    return bits;
}

/* The 16 rows of a packed tile, by a group, each wave a chunk at a time. Lane (g, t) has of each stretch of 32 columns the numbers
 * 4 t to 4 t + 3 of both halves, of rows g and g + 8, and stores one of these four runs of 16. */
template <class F>
static __device__ __forceinline__ void bring_tile(const gpu_view &v, uint32_t tile, uint8_t *to, uint32_t first,
                                                  uint32_t step, float *scales, fp8_room &room) {
    const uint32_t k_all = v.shape[1], across = (k_all + PANEL_FP8 - 1) / PANEL_FP8, chunks = packed_chunks(&v);
    const uint32_t lane = threadIdx.x % 32, wave = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const char *data = (const char *)v.data + (uint64_t)tile * chunks * F::BYTES;
    uint32_t most[2] = {0, 0};
    for (uint32_t chunk = wave; chunk < chunks; chunk += WAVES_OF_GROUP)
#pragma unroll
        for (int below = 0; below < 2; below++)
            most[below] = max(
                most[below], most_of<F>({data + (uint64_t)chunk * F::BYTES, (int)g + 8 * below}, chunk * CHUNK, k_all));
    __syncthreads(); /* the numbers of the tile before have been read */
    if (threadIdx.x < TILE_ROWS)
        room.most[threadIdx.x] = 0;
    __syncthreads();
#pragma unroll
    for (int below = 0; below < 2; below++)
        atomicMax(room.most + g + 8 * below, most[below]);
    __syncthreads();
    if (threadIdx.x < TILE_ROWS && tile * TILE_ROWS + threadIdx.x < (uint32_t)v.shape[0])
        scales[panel_row(tile * TILE_ROWS + threadIdx.x, first, step)] = power_above(row_scale(room.most[threadIdx.x]));
    const float inverse[2] = {1.0f / power_above(row_scale(room.most[g])),
                              1.0f / power_above(row_scale(room.most[g + 8]))};
    const uint32_t own = tile * TILE_ROWS + g + t % 2 * 8, at_row = panel_row(own, first, step);
    const bool exists = own < (uint32_t)v.shape[0];
    for (uint32_t chunk = wave; chunk < chunks; chunk += WAVES_OF_GROUP) {
        const char *w = data + (uint64_t)chunk * F::BYTES;
        const tile_scale<F> scale[2] = {{w, (int)g}, {w, (int)g + 8}};
#pragma unroll
        for (int p = 0; p < 4; p++) {
            uint32_t a[2][4];
            F::codes(w, lane, p, a);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int j = 2 * p + h;
                const uint32_t k = chunk * CHUNK + 32 * j + t / 2 * 16;
                uint32_t word[4];
#pragma unroll
                for (int i = 0; i < 4; i++) { /* half, row */
                    const float by = scale[i % 2].step(j, i / 2) * inverse[i % 2],
                                low = scale[i % 2].low(j) * inverse[i % 2];
                    float x[4];
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        x[e] = by * byte_value<F>(a[h][i], e) - low;
                    word[i] = fp8_two(x[0], x[1]) | fp8_two(x[2], x[3]) << 16;
                }
                transpose_four(word);
                if (exists && k < across * PANEL_FP8)
                    *(uint4 *)(to + tiles_piece(at_row, k, across)) =
                        k < k_all ? make_uint4(word[0], word[1], word[2], word[3]) : make_uint4(0, 0, 0, 0);
            }
        }
    }
}

/* A weight's items from `item` on, every gridDim.x-th; gives the item that the next one begins with. */
static __device__ __forceinline__ uint32_t bring_weight(const gpu_view &v, uint32_t item, uint8_t *to, uint32_t first,
                                                        uint32_t step, float *scales, fp8_room &room) {
    const uint32_t items = v.format & PACKED_FLAG ? (uint32_t)packed_tiles(&v) : (uint32_t)v.shape[0];
    for (; item < items; item += gridDim.x) {
        const uint8_t *row = (const uint8_t *)v.data + (uint64_t)item * v.stride;
        const uint32_t at_row = panel_row(item, first, step);
        switch (v.format) {
#define BRING_TILE(name)                                                                                               \
    case PACKED_FLAG | tile_##name::FORMAT:                                                                            \
        bring_tile<tile_##name>(v, item, to, first, step, scales, room);                                               \
        break;
            TILE_FORMATS(BRING_TILE)
#undef BRING_TILE
#define BRING_ROW(FORMAT, eight)                                                                                       \
    case FORMAT:                                                                                                       \
        bring_row(row, v.shape[1], at_row, to, scales, room, {},                                                       \
                  [](const uint8_t *row, int k, float *x) { eight(row, k, x); });                                      \
        break;
            BRING_ROW(FORMAT_F16, eight_f16)
            BRING_ROW(FORMAT_BF16, eight_bf16)
#undef BRING_ROW
        }
    }
    return item - items;
}

extern "C" __global__ void __launch_bounds__(THREADS, 3) wide_tiles_fp8(const __grid_constant__ gpu_call c) {
    __shared__ fp8_room room;
    const uint32_t tokens = max(rows_of(&c, &c.v[1]), 0), k_all = c.v[1].shape[1];
    uint8_t *to = (uint8_t *)c.scratch;
    float *scales = (float *)(to + tiles_panels_bytes(&c, PANEL_FP8));
    uint32_t item = blockIdx.x, first = 0;
    row_norm norm = {};
    if (!tokens)
        return;
    if (c.mode & PRODUCT_NORM)
        norm = {(const float *)c.v[product_last(&c, c.mode) + 1].data, __uint_as_float((uint32_t)c.arg[0])};
    for (; item < tokens; item += gridDim.x)
        bring_row((const uint8_t *)c.v[1].data + (uint64_t)item * c.v[1].stride, k_all, item, to, scales, room, norm,
                  [](const uint8_t *row, int k, float *x) { eight_f32(row, k, x); });
    item -= tokens;
    to += tiles_bytes(c.v[1].shape[0], k_all, PANEL_FP8);
    scales += tiles_scales(&c);
    for (int i = 0; i < tiles_weights(&c); i++) {
        const uint32_t step = c.mode & WIDE_SWIGLU ? 1 : 0;
        item = bring_weight(c.v[2 + i], item, to, step ? i * 8 : first, step, scales, room);
        first += c.v[2 + i].shape[0];
    }
}
