/* expert_scaled.cu: mixture-of-experts products of MXFP4 weights with many pairs of token and expert, for --precision fast, by block-scaled
 * tensor cores: sm_120a and sm_121a have these (mma_scaled.h). A weight is multiplied as its 4-bit code and its block's scale, and never
 * becomes a bfloat16. expert_warp.cuh has the walk.
 *
 * expert_list_scaled_N rounds activations to MXFP8: E4M3 numbers, blocks of 32 under one power of two, the smallest that maps none beyond
 * 448. A block that is not finite becomes NaN.
 *
 * K is permuted within 32 elements, in which a lane has the four codes 4 t to 4 t + 3 and the four 16 later: even ones are the lower halves
 * of bytes, odd ones the upper, and make two words. Place 4 t + i holds element E = 4 t + 2 (i % 2) + 16 (i / 2), place 16 + 4 t + i
 * element E + 1.
 */
#include "expert_warp.cuh"
#include "mma_scaled.h"
#include "tile_formats.cuh"

/* Rows as MXFP8, codes and scales apart; a thread converts a block. */
struct rows_scaled {
    enum { PIECE = 32 };
    __device__ static __forceinline__ expert_scratch scratch_of(const gpu_call *c, int most) {
        return scaled_scratch_of(c, most);
    }
    __device__ static __forceinline__ void store(const gpu_call &c, const expert_scratch &s, int64_t i,
                                                 const float (&x)[PIECE]) {
        uint32_t most = 0, word[2][4];
#pragma unroll
        for (int k = 0; k < PIECE; k++)
            most = max(most, __float_as_uint(x[k]) & 0x7FFFFFFFu);
        /* 448 is 1.75 * 2^8. */
        const int power = (int)(most >> 23) - 8 + ((most & 0x7FFFFFu) > 0x600000u);
        const uint32_t e = most >= 0x7F800000u ? 255u : (uint32_t)max(power, 0);
        const float by = __uint_as_float((254u - min(e, 253u)) << 23);
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int t = 0; t < 4; t++) {
                const float *from = x + 4 * t + half;
                word[half][t] = fp8_two(from[0] * by, from[2] * by) | fp8_two(from[16] * by, from[18] * by) << 16;
            }
        uint4 *to = (uint4 *)(c.scratch + s.rows) + 2 * i;
        to[0] = make_uint4(word[0][0], word[0][1], word[0][2], word[0][3]);
        to[1] = make_uint4(word[1][0], word[1][1], word[1][2], word[1][3]);
        ((uint8_t *)(c.scratch + s.scales))[i] = (uint8_t)e;
    }
};

/* The operand of the even (0) or odd (1) stretch of a pair, from the words of tile.cuh. */
static __device__ __forceinline__ void scaled_operand(const uint4 &q, int odd, uint32_t (&a)[4]) {
    const uint32_t low = __byte_perm(q.x, q.z, odd ? 0x7632 : 0x5410),
                   high = __byte_perm(q.y, q.w, odd ? 0x7632 : 0x5410);
    a[0] = (low << 2) & 0x3C3C3C3Cu, a[1] = (high << 2) & 0x3C3C3C3Cu;
    a[2] = (low >> 2) & 0x3C3C3C3Cu, a[3] = (high >> 2) & 0x3C3C3C3Cu;
}

/* d += two tiles times stretch BYTE of a step: a has its operands, columns its N columns, scale_a and scale_b the scales of the step. */
template <int BYTE, int N>
static __device__ __forceinline__ void scaled_stretch(const uint32_t (&a)[2][4], uint32_t columns,
                                                      const uint32_t (&scale_a)[2], const uint32_t (&scale_b)[N / 8],
                                                      float (&d)[2][N / 2]) {
    const int lane = threadIdx.x % 32, row = lane % 8 + lane / 16 * 8, half = lane / 8 % 2;
#pragma unroll
    for (int n = 0; n < N / 16; n++) {
        uint32_t x[4];
        load_matrices(x, columns + (16 * n + row) * SCALED_K + (((2 * BYTE + half) ^ (row & 7)) << 4));
#pragma unroll
        for (int t = 0; t < 2; t++) {
            mma_scaled<BYTE>(d[t] + 8 * n, a[t], x[0], x[1], scale_a[t], scale_b[2 * n]);
            mma_scaled<BYTE>(d[t] + 8 * n + 4, a[t], x[2], x[3], scale_a[t], scale_b[2 * n + 1]);
        }
    }
}

/* Steps of 128 elements in MXFP8. */
struct expert_mxfp8 {
    typedef tile_mxfp4 format;
    enum { STEPS = CHUNK / SCALED_K, SCALED = 1 };
    __device__ static __forceinline__ expert_scratch scratch_of(const gpu_call *c, int most) {
        return scaled_scratch_of(c, most);
    }
    template <int PAIR, int N>
    __device__ static __forceinline__ void pair(const char *w, uint32_t columns, const uint32_t (&scale_a)[2],
                                                const uint32_t (&scale_b)[N / 8], float (&d)[2][N / 2]) {
        const int lane = threadIdx.x % 32;
        uint32_t even[2][4], odd[2][4];
#pragma unroll
        for (int t = 0; t < 2; t++) {
            const uint4 q = load_16(w + t * format::BYTES + 512 * PAIR + 16 * lane);
            scaled_operand(q, 0, even[t]);
            scaled_operand(q, 1, odd[t]);
        }
        if constexpr (N == 8) {
            uint32_t x[4]; /* both stretches at once */
            load_matrices(x, columns + lane % 8 * SCALED_K + (((4 * PAIR + lane / 8) ^ (lane & 7)) << 4));
#pragma unroll
            for (int t = 0; t < 2; t++) {
                mma_scaled<2 * PAIR>(d[t], even[t], x[0], x[1], scale_a[t], scale_b[0]);
                mma_scaled<2 * PAIR + 1>(d[t], odd[t], x[2], x[3], scale_a[t], scale_b[0]);
            }
        } else {
            scaled_stretch<2 * PAIR, N>(even, columns, scale_a, scale_b, d);
            scaled_stretch<2 * PAIR + 1, N>(odd, columns, scale_a, scale_b, d);
        }
    }
    template <int MOST, int N>
    __device__ static __forceinline__ void multiply(const char *w, uint32_t *, const char *columns, int p,
                                                    float (&d)[2][N / 2]) {
        const int lane = threadIdx.x % 32, g = lane / 4;
        const uint32_t at = shared_address(columns);
        uint32_t scale_a[2], scale_b[N / 8];
#pragma unroll
        for (int t = 0; t < 2; t++)
            scale_a[t] =
                *(const uint32_t *)(w + t * format::BYTES + CHUNK * TILE_ROWS / 2 + 8 * (g + 8 * (lane % 2)) + 4 * p);
#pragma unroll
        for (int n = 0; n < N / 8; n++)
            scale_b[n] = ((const uint32_t *)(columns + MOST * SCALED_K))[8 * n + g];
        w += 1024 * p; /* the codes of half a chunk */
        pair<0, N>(w, at, scale_a, scale_b, d);
        pair<1, N>(w, at, scale_a, scale_b, d);
    }
};

#define LIST_SCALED(N)                                                                                                 \
    extern "C" __global__ void __launch_bounds__(EXPERT_LIST_THREADS, 1)                                               \
        expert_list_scaled_##N(const __grid_constant__ gpu_call c) {                                                   \
        expert_list<rows_scaled, N>(c);                                                                                \
    }
LIST_SCALED(32)
LIST_SCALED(64)

EXPERT_WARP_32(expert_scaled_32_mxfp4) {
    expert_warp<expert_mxfp8, 32>(c);
}
EXPERT_WARP_64(expert_scaled_64_mxfp4) {
    expert_warp<expert_mxfp8, 64>(c);
}
