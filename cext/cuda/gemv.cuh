/* gemv.cuh: product of a chunk of 16 rows with up to four columns of activations, and quantization of the activations.
 *
 * A column of activations uses two columns of the tensor core: int8 q, and int8 r of the remainder; x = d (q + r / 254), with
 * one d per 256 elements. That is 16 bits, so the weights' quantization dominates the error. One to four columns cost the
 * same.
 *
 * Order of a chunk's activations of T columns, in shared memory: at 0 the bytes, [stretch / 2][2 T][4 lanes] of 16: words b0
 * and b1 of the even stretch, then of the odd; at 512 T the sums of each stretch as halves, [2 T][8]; at 544 T the T scales.
 */
#ifndef SATCHEL_CUDA_GEMV_CUH
#define SATCHEL_CUDA_GEMV_CUH

#include "tile_formats.cuh"

/* 1.5 * 2^23: adding it rounds to an integer, whose low byte is the sum's low byte. */
#define ROUNDING 12582912.0f

__device__ __forceinline__ uint32_t low_bytes(const float *x) {
    uint32_t a = __byte_perm(__float_as_uint(x[0]), __float_as_uint(x[1]), 0x0040);
    uint32_t b = __byte_perm(__float_as_uint(x[2]), __float_as_uint(x[3]), 0x0040);
    return __byte_perm(a, b, 0x5410);
}

/* Quantizes four elements to bytes q and remainder bytes r; gives the sum of the quantized values. */
__device__ __forceinline__ float to_bytes(const float *x, float inverse, uint32_t &q, uint32_t &r) {
    float main[4], rest[4], sum = 0.0f;
    for (int i = 0; i < 4; i++) {
        float y = x[i] * inverse;
        main[i] = y + ROUNDING;
        rest[i] = fmaf(y - (main[i] - ROUNDING), 254.0f, ROUNDING);
        sum += y;
    }
    q = low_bytes(main);
    r = low_bytes(rest);
    return sum;
}

/* A lane's eight of 256 elements: four from 4 lane on, and four from 128 + 4 lane on. */
struct eight {
    float v[8];
    __device__ __forceinline__ void load(const float *x, int left, int lane) {
        for (int h = 0; h < 2; h++) {
            int at = 128 * h + 4 * lane;
            float4 y = at < left ? *(const float4 *)(x + at) : make_float4(0, 0, 0, 0);
            v[4 * h] = y.x, v[4 * h + 1] = y.y, v[4 * h + 2] = y.z, v[4 * h + 3] = y.w;
        }
    }
    __device__ __forceinline__ void store(float *x, int left, int lane) const {
        for (int h = 0; h < 2; h++) {
            int at = 128 * h + 4 * lane;
            if (at < left)
                *(float4 *)(x + at) = make_float4(v[4 * h], v[4 * h + 1], v[4 * h + 2], v[4 * h + 3]);
        }
    }
};

/* The largest of the lanes' numbers. */
__device__ __forceinline__ uint32_t largest_of_wave(uint32_t x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    for (int far = 16; far; far /= 2)
        x = max(x, __shfl_xor_sync(~0u, x, far));
    return x;
#else
    return __reduce_max_sync(~0u, x);
#endif
}

/* Quantizes 256 elements to column t of a chunk of `columns`, by one wave. */
__device__ __forceinline__ void gemv_quantize(const float *v, char *to, int t, int columns, int lane) {
    float sum[2];
    uint32_t bits = 0, q[2], r[2];
    for (int i = 0; i < 8; i++)
        bits = max(bits, __float_as_uint(fabsf(v[i]))); /* a NaN's bits are above all */
    float most = __uint_as_float(largest_of_wave(bits));
    float inverse = most > 1e-36f ? 127.0f * __frcp_rn(most) : 0.0f;
    for (int h = 0; h < 2; h++)
        sum[h] = to_bytes(v + 4 * h, inverse, q[h], r[h]);
    int in = lane % 8; /* word `in` of a stretch's eight: b0 of lane in, or b1 of lane in - 4 */
    for (int h = 0; h < 2; h++) {
        int stretch = 4 * h + lane / 8;
        uint32_t *word =
            (uint32_t *)(to + (((stretch / 2) * 2 * columns + 2 * t) * 4 + in % 4) * 16) + 2 * (stretch % 2) + in / 4;
        word[0] = q[h];
        word[16] = r[h];
    }
    for (int step = 1; step < 8; step *= 2)
        for (int h = 0; h < 2; h++)
            sum[h] += __shfl_xor_sync(~0u, sum[h], step);
    if (in < 2) {
        float mine = in ? sum[1] : sum[0];
        uint16_t *sums = (uint16_t *)(to + 512 * columns + 32 * t) + 4 * in + lane / 8;
        uint16_t high = half_of_float(mine);
        sums[0] = high;
        sums[8] = half_of_float((mine - float_of_half(high)) * 254.0f);
    }
    if (lane == 0)
        ((float *)(to + 544 * columns))[t] = most * (1.0f / 127.0f);
}

/* acc[0], acc[1] += rows lane / 4 and 8 more, of column lane % 4. w: the chunk; a: the activations of `columns` columns. */
template <class F>
__device__ __forceinline__ void gemv_chunk(const char *w, const char *a, int columns, int lane, float *acc) {
    int g = lane / 4, t = lane % 4;
    bool mine = g < 2 * columns;
    typename F::scales_type s[2] = {F::scales(w, g), F::scales(w, g + 8)};
    int sum[2][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
    float part[2] = {0.0f, 0.0f};
    const char *b_at = a + (g * 4 + t) * 16;
#pragma unroll
    for (int p = 0; p < 4; p++) {
        uint32_t code[2][4];
        F::codes(w, lane, p, code);
        uint4 b = mine ? load_16(b_at + p * 128 * columns) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int j = 2 * p + h, c[4] = {0, 0, 0, 0};
            uint32_t b0 = h ? b.z : b.x, b1 = h ? b.w : b.y;
            if (F::KIND == SCALE_HALVES) {
                int e[4] = {0, 0, 0, 0};
                mma_s8_half(c, code[h][0], code[h][1], b0);
                mma_s8_half(e, code[h][2], code[h][3], b1);
                for (int i = 0; i < 4; i++)
                    sum[0][i] += c[i] * (int)s[i / 2].of(2 * j) + e[i] * (int)s[i / 2].of(2 * j + 1);
                continue;
            }
            if (F::SIGNED)
                mma_s8(c, code[h], b0, b1);
            else
                mma_u8(c, code[h], b0, b1);
            for (int i = 0; i < 4; i++)
                if (F::KIND == SCALE_INT)
                    sum[F::SPLIT ? h : 0][i] += c[i] * (int)s[i / 2].of(j);
            for (int r = 0; r < 2; r++)
                if (F::KIND == SCALE_FLOAT)
                    part[r] += ((float)c[2 * r] + (float)c[2 * r + 1] * (1.0f / 254.0f)) * (float)s[r].of(j);
        }
    }
    float d = t < columns ? ((const float *)(a + 544 * columns))[t] : 0.0f;
    if constexpr (F::KIND == SCALE_FLOAT) {
        for (int r = 0; r < 2; r++)
            acc[r] += d * F::unit(0) * part[r];
    } else {
        float low[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        if constexpr (F::MINS != 0) {
            uint32_t m[2], b = mine ? *(const uint32_t *)(a + 512 * columns + 16 * g + 4 * t) : 0;
            m[0] = s[0].low_pair(t), m[1] = s[1].low_pair(t);
            mma_f16_k8(low, m[0], m[1], b);
        }
        for (int r = 0; r < 2; r++) {
            float x = ((float)sum[0][2 * r] + (float)sum[0][2 * r + 1] * (1.0f / 254.0f)) * F::unit(0);
            if (F::SPLIT)
                x += ((float)sum[1][2 * r] + (float)sum[1][2 * r + 1] * (1.0f / 254.0f)) * F::unit(1);
            float y = s[r].d() * x;
            if constexpr (F::MINS != 0)
                y -= s[r].dmin() * (low[2 * r] + low[2 * r + 1] * (1.0f / 254.0f));
            acc[r] += d * y;
        }
    }
}

#endif
