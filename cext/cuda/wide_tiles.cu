/* wide_tiles.cu: converts activations, or their norm, and weights of any format to bf16 panels in scratch (tiles.h), for the products of
 * wide.cu. Writing and rereading the weights costs a tenth of a product with thousands of tokens.
 *
 * The commonest formats are dequantized eight elements per lane, the others by the parts of 32 that cext/quant defines, and
 * packed weights by chunks of 16 rows and 256 columns (tile.cuh).
 *
 * wide_tiles_fixed, for PRODUCT_DETERMINISTIC, rounds packed weights as columns.cu does and orders K as it does within 16
 * columns, so products of many tokens have the bits of those of few.
 */
#include "columns_norm.cuh"
#include "columns_values.cuh"
#include "quant.h"
#include "tiles.h"

static __device__ __forceinline__ uint4 bf16_of_eight(const float *x) {
    return make_uint4(bfloats_of_floats(x[0], x[1]), bfloats_of_floats(x[2], x[3]), bfloats_of_floats(x[4], x[5]),
                      bfloats_of_floats(x[6], x[7]));
}

enum { SPANS = 4 };

/* 1024 numbers of a row, from k on: lane l brings eight of each 256. */
template <class F>
static __device__ __forceinline__ void bring(uint8_t *to, const uint8_t *row, uint32_t at_row, int k, int k_all,
                                             int across, F eight) {
#pragma unroll
    for (int i = 0; i < SPANS; i++, k += 256) {
        float x[8] = {0};
        if (k >= across * PANEL_K)
            break;
        if (k < k_all)
            eight(row, k, x);
        *(uint4 *)(to + tiles_place(at_row, k, across)) = bf16_of_eight(x);
    }
}

/* Rows of one operand; a warp takes SPANS * 256 numbers of a row at a time. Gives the item that the next operand begins with. */
template <class F>
static __device__ __forceinline__ uint32_t bring_all(const gpu_view &v, uint32_t rows, uint32_t item, uint8_t *to,
                                                     uint32_t first, uint32_t step, F eight) {
    const uint32_t k_all = v.shape[1], across = (k_all + PANEL_K - 1) / PANEL_K,
                   parts = (k_all + 256 * SPANS - 1) / (256 * SPANS);
    for (; item < rows * parts; item += gridDim.x * 8) {
        const uint32_t r = item / parts, k = item % parts * (256 * SPANS) + threadIdx.x % 32 * 8;
        const uint32_t at_row = panel_row(r, first, step);
        bring(to, (const uint8_t *)v.data + (uint64_t)r * v.stride, at_row, k, k_all, across, eight);
    }
    return item - rows * parts;
}

/* The same by parts of 32 numbers, one a lane. */
template <class F>
static __device__ __forceinline__ uint32_t bring_parts(const gpu_view &v, uint32_t item, uint8_t *to, uint32_t first,
                                                       uint32_t step, F part) {
    const uint32_t k_all = v.shape[1], across = (k_all + PANEL_K - 1) / PANEL_K, parts = (k_all + 1023) / 1024,
                   rows = v.shape[0];
    for (; item < rows * parts; item += gridDim.x * 8) {
        const uint32_t r = item / parts, k = item % parts * 1024 + threadIdx.x % 32 * 32;
        const uint32_t at_row = panel_row(r, first, step);
        float x[32] = {0};
        if (k >= across * PANEL_K)
            continue;
        if (k < k_all)
            part((const uint8_t *)v.data + (uint64_t)r * v.stride, k / 32, x);
#pragma unroll
        for (int i = 0; i < 4; i++)
            *(uint4 *)(to + tiles_place(at_row, k + 8 * i, across)) = bf16_of_eight(x + 8 * i);
    }
    return item - rows * parts;
}

/* The norms of all tokens' rows, a row a group. */
static __device__ __forceinline__ void bring_norms(const gpu_call &c, int tokens, uint8_t *to, float *room) {
    const int k_all = c.v[1].shape[1], across = (k_all + PANEL_K - 1) / PANEL_K;
    const float *w = (const float *)c.v[product_last(&c, c.mode) + 1].data;
    for (int r = blockIdx.x; r < tokens; r += gridDim.x) {
        const float *row = (const float *)(c.v[1].data + (uint64_t)r * c.v[1].stride);
        const float scale = columns_scale(c, columns_squares(row, k_all), k_all, room);
        for (int k = 8 * threadIdx.x; k < across * PANEL_K; k += 8 * 256) {
            float x[8] = {0}, by[8] = {0};
            if (k < k_all)
                eight_f32((const uint8_t *)row, k, x), eight_f32((const uint8_t *)w, k, by);
#pragma unroll
            for (int i = 0; i < 8; i++)
                x[i] = x[i] * scale * by[i];
            *(uint4 *)(to + tiles_place(r, k, across)) = bf16_of_eight(x);
        }
    }
}

#define PART_OF_1(stem, row, i, out)                                                                                   \
    for (int e = 0; e < 32; e++)                                                                                       \
    stem##_unpack((row) + 32 * (i) + e, (out) + e)
#define PART_OF_32(stem, row, i, out) stem##_unpack((row) + (i), out)
#define PART_OF_64(stem, row, i, out) stem##_part((row) + (i) / 2, (i) % 2, out)
#define PART_OF_128(stem, row, i, out) stem##_part((row) + (i) / 4, (i) % 4, out)
#define PART_OF_256(stem, row, i, out) stem##_part((row) + (i) / 8, (i) % 8, out)

/* The same of a packed weight, a chunk a warp: lane (g, t) has of each stretch of 32 columns the numbers 4 t to 4 t + 3 of both
 * halves, of rows g and g + 8. */
template <class F>
static __device__ __forceinline__ uint32_t bring_chunks(const gpu_view &v, uint32_t item, uint8_t *to, uint32_t first,
                                                        uint32_t step) {
    const uint32_t k_all = v.shape[1], across = (k_all + PANEL_K - 1) / PANEL_K, rows = v.shape[0],
                   chunks = packed_chunks(&v);
    const uint32_t lane = threadIdx.x % 32, items = packed_tiles(&v) * chunks;
    for (; item < items; item += gridDim.x * 8) {
        const char *w = (const char *)v.data + (uint64_t)item * F::BYTES;
        const uint32_t row = item / chunks * TILE_ROWS + lane / 4, k_first = item % chunks * CHUNK + lane % 4 * 4;
        const tile_scale<F> scale[2] = {{w, (int)lane / 4}, {w, (int)lane / 4 + 8}};
#pragma unroll
        for (int p = 0; p < 4; p++) {
            uint32_t a[2][4];
            F::codes(w, lane, p, a);
#pragma unroll
            for (int i = 0; i < 8; i++) { /* stretch, half, row */
                const int h = i / 4, half = i / 2 % 2, below = i % 2, j = 2 * p + h;
                const uint32_t r = row + 8 * below, k = k_first + 32 * j + 16 * half;
                const uint32_t at_row = panel_row(r, first, step);
                const float by = scale[below].step(j, half), low = scale[below].low(j);
                const uint32_t word = a[h][below + 2 * half];
                uint32_t pair[2];
                uint2 out = make_uint2(0, 0);
                if (r >= rows || k >= across * PANEL_K)
                    continue;
#pragma unroll
                for (int e = 0; e < 2; e++)
                    pair[e] = bfloats_of_floats(by * byte_value<F>(word, 2 * e) - low,
                                                by * byte_value<F>(word, 2 * e + 1) - low);
                if (k < k_all)
                    memcpy(&out, pair, sizeof out);
                *(uint2 *)(to + tiles_place(at_row, k, across) + k % 8 * 2) = out;
            }
        }
    }
    return item - items;
}

/* The rows of activations in the order of columns_values.cuh; a lane brings 16 of 512 numbers. */
static __device__ __forceinline__ uint32_t bring_pieces(const gpu_view &v, uint32_t rows, uint32_t item, uint8_t *to) {
    const uint32_t k_all = v.shape[1], across = (k_all + PANEL_K - 1) / PANEL_K, parts = (k_all + 511) / 512;
    for (; item < rows * parts; item += gridDim.x * 8) {
        const uint32_t r = item / parts, k = item % parts * 512 + threadIdx.x % 32 * 16;
        float x[16] = {0};
        if (k >= across * PANEL_K)
            continue;
        if (k < k_all) {
            eight_f32((const uint8_t *)v.data + (uint64_t)r * v.stride, k, x);
            eight_f32((const uint8_t *)v.data + (uint64_t)r * v.stride, k + 8, x + 8);
        }
        *(uint4 *)(to + tiles_place(r, k, across)) = columns_piece(x, 0);
        *(uint4 *)(to + tiles_place(r, k + 8, across)) = columns_piece(x, 1);
    }
    return item - rows * parts;
}

/* A packed weight as columns.cu multiplies it, a chunk a warp. Of 16 columns lane (g, t) makes places 2 t and 8 + 2 t, and the next of
 * each, of rows g and g + 8; an even lane stores the lower places of two lanes, an odd one the upper. */
template <class F>
static __device__ __forceinline__ uint32_t bring_operands(const gpu_view &v, uint32_t item, uint8_t *to, uint32_t first,
                                                          uint32_t step) {
    const uint32_t k_all = v.shape[1], across = (k_all + PANEL_K - 1) / PANEL_K, rows = v.shape[0],
                   chunks = packed_chunks(&v);
    const uint32_t lane = threadIdx.x % 32, odd = lane % 2, items = packed_tiles(&v) * chunks;
    for (; item < items; item += gridDim.x * 8) {
        const char *w = (const char *)v.data + (uint64_t)item * F::BYTES;
        const uint32_t row = item / chunks * TILE_ROWS + lane / 4, k_first = item % chunks * CHUNK;
        const tile_scale<F> scale[2] = {{w, (int)lane / 4}, {w, (int)lane / 4 + 8}};
#pragma unroll
        for (int p = 0; p < 4; p++) {
            uint32_t word[2][4];
            columns_words<F>(w, lane, p, word);
#pragma unroll
            for (int i = 0; i < 4; i++) { /* stretch, half */
                const int j = 2 * p + i / 2, half = i % 2;
                uint2 by[2];
                uint32_t a[4];
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    uint32_t words[2];
                    scale_words<F>(scale[r], j, words);
                    by[r] = make_uint2(words[0], words[1]);
                }
                operand_of<F>(word[i / 2], j, half, by, a);
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const uint32_t own = odd ? a[2 + r] : a[r],
                                   other = __shfl_xor_sync(0xFFFFFFFFu, odd ? a[r] : a[2 + r], 1);
                    const uint32_t at = row + 8 * r, k = k_first + 32 * j + 16 * half + 8 * odd;
                    const uint32_t at_row = panel_row(at, first, step);
                    uint2 out = odd ? make_uint2(other, own) : make_uint2(own, other);
                    if (at >= rows || k >= across * PANEL_K)
                        continue;
                    if (k >= k_all)
                        out = make_uint2(0, 0);
                    *(uint2 *)(to + tiles_place(at_row, k, across) + lane % 4 / 2 * 8) = out;
                }
            }
        }
    }
    return item - items;
}

/* A weight of any format; step 1: of a gate and an up. */
static __device__ __forceinline__ uint32_t bring_weight(const gpu_view &v, uint32_t item, uint8_t *to, uint32_t at,
                                                        uint32_t step) {
    switch (v.format) {
#define BRING_PACKED(name)                                                                                             \
    case PACKED_FLAG | tile_##name::FORMAT:                                                                            \
        return bring_chunks<tile_##name>(v, item, to, at, step);
        TILE_FORMATS(BRING_PACKED)
#undef BRING_PACKED
    }
    switch (v.format) {
#define BRING(FORMAT, eight)                                                                                           \
    case FORMAT:                                                                                                       \
        return bring_all(v, v.shape[0], item, to, at, step,                                                            \
                         [](const uint8_t *row, int k, float *x) { eight(row, k, x); });
        BRING(FORMAT_F32, eight_f32)
        BRING(FORMAT_F16, eight_f16)
        BRING(FORMAT_BF16, eight_bf16)
        BRING(FORMAT_Q8_0, eight_q8_0)
        BRING(FORMAT_Q4_K, eight_q4_k)
        BRING(FORMAT_Q6_K, eight_q6_k)
#undef BRING
    }
    switch (v.format) {
#define CPU_WEIGHT(stem, id, block, act)                                                                               \
    case id:                                                                                                           \
        return bring_parts(v, item, to, at, step, [](const uint8_t *row, int i, float *x) {                            \
            PART_OF_##block(stem, (const block_##stem *)row, i, x);                                                    \
        });
#include "types.inc"
#undef CPU_WEIGHT
    }
    return item;
}

extern "C" __global__ void __launch_bounds__(256, 5) wide_tiles(const __grid_constant__ gpu_call c) {
    __shared__ float room[8];
    const int tokens = rows_of(&c, &c.v[1]);
    uint8_t *to = (uint8_t *)c.scratch;
    uint32_t item = blockIdx.x * 8 + threadIdx.x / 32, first = 0;
    if (tokens <= 0)
        return;
    if (c.mode & PRODUCT_NORM)
        bring_norms(c, tokens, to, room);
    else
        item = bring_all(c.v[1], tokens, item, to, 0, 0,
                         [](const uint8_t *row, int k, float *x) { eight_f32(row, k, x); });
    to += tiles_bytes(c.v[1].shape[0], c.v[1].shape[1], PANEL_K);
    for (int i = 0; i < tiles_weights(&c); i++) {
        const int step = c.mode & WIDE_SWIGLU ? 1 : 0;
        item = bring_weight(c.v[2 + i], item, to, step ? i * 8 : first, step);
        first += c.v[2 + i].shape[0];
    }
}

/* All weights are packed: F16 and BF16 ones meet activations in the file's order, so wide_tiles serves. */
extern "C" __global__ void __launch_bounds__(256, 5) wide_tiles_fixed(const __grid_constant__ gpu_call c) {
    const int tokens = rows_of(&c, &c.v[1]);
    uint8_t *to = (uint8_t *)c.scratch;
    uint32_t item = blockIdx.x * 8 + threadIdx.x / 32, first = 0;
    if (tokens <= 0)
        return;
    item = bring_pieces(c.v[1], tokens, item, to);
    to += tiles_bytes(c.v[1].shape[0], c.v[1].shape[1], PANEL_K);
    for (int i = 0; i < tiles_weights(&c); i++) {
        const gpu_view &v = c.v[2 + i];
        const uint32_t step = c.mode & WIDE_SWIGLU ? 1 : 0, at = step ? i * 8 : first;
        switch (v.format) {
#define BRING_OPERANDS(name)                                                                                           \
    case PACKED_FLAG | tile_##name::FORMAT:                                                                            \
        item = bring_operands<tile_##name>(v, item, to, at, step);                                                     \
        break;
            TILE_FORMATS(BRING_OPERANDS)
#undef BRING_OPERANDS
        }
        first += v.shape[0];
    }
}
