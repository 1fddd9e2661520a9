/* columns_values.cuh: dequantizes packed weights to bf16 in registers, as the A operand of m64nNk16, for columns.cu.
 *
 * A lane's word r of a stretch (tile.cuh) holds four columns of a row. Elements 0 and 2 make one register, 1 and 3 another, so
 * one mask extracts a pair. K is therefore permuted within 16 columns: place 2 t + e holds column 4 t + 2 e, place 8 + 2 t + e
 * column 4 t + 1 + 2 e. Activations have the same order (columns_piece).
 *
 * A byte b by itself, read as bf16, is b 2^-133: such numbers, without or with the least exponent, lie evenly from 0 to 255. So a code needs
 * no shift to the lower bits of its byte and no exponent, and one fused multiply-add gives the weight. Weights have the factor
 * WEIGHTS_BY, so that scales for bytes are bf16 numbers; activations have its inverse. All lanes of a wave compute the scales once per chunk to a
 * table, two words per row and stretch.
 */
#ifndef SATCHEL_CUDA_COLUMNS_VALUES_CUH
#define SATCHEL_CUDA_COLUMNS_VALUES_CUH

#include "columns.h"
#include "tile_values.cuh"

static __device__ __forceinline__ uint32_t two_bf16(float low, float high) {
    return bfloats_of_floats(low, high);
}

static __device__ __forceinline__ uint32_t bf16_fma(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

static __device__ __forceinline__ uint32_t bf16_times(uint32_t a, uint32_t b) {
    uint32_t d;
#if __CUDA_ARCH__ >= 900
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
#else
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(0x80008000u));
#endif
    return d;
}

/* (x & mask) ^ flip as one lop3: with both as constants the compiler emits two instructions. */
static __device__ __forceinline__ uint32_t masked(uint32_t x, uint32_t mask, uint32_t flip) {
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, 0x6A;" : "=r"(d) : "r"(x), "r"(mask), "r"(flip));
    return d;
}

/* Formats whose codes are bits of a byte, of even stretches EVEN and of odd ones ODD. With the bits FLIP changed, the byte is UNIT times a
 * code from 0 on, of odd stretches more by ODD / EVEN; CENTER is the code whose weight is 0, or for formats with minimums one amid them. */
template <class F> struct small_code {
    enum { EVEN = 0 };
};
template <> struct small_code<tile_q4_k> {
    enum { EVEN = 0x0F, ODD = 0xF0, FLIP = 0, UNIT = 1, CENTER = 8 };
};
template <> struct small_code<tile_q4_0> {
    enum { EVEN = 0x0F, ODD = 0xF0, FLIP = 0x08, UNIT = 1, CENTER = 8 };
};
template <> struct small_code<tile_q5_k> {
    enum { EVEN = 0x1F, ODD = 0x1F, FLIP = 0, UNIT = 1, CENTER = 16 };
};
template <> struct small_code<tile_q6_k> {
    enum { EVEN = 0xFC, ODD = 0xFC, FLIP = 0x80, UNIT = 4, CENTER = 32 };
};

/* What a byte of a stretch, read as bf16, is to be multiplied with for its code times WEIGHTS_BY. */
template <class F> static __device__ __forceinline__ constexpr float code_by(int j) {
    typedef small_code<F> S;
    return (float)(0x1p133 * WEIGHTS_BY / (S::UNIT * (j % 2 ? S::ODD / S::EVEN : 1)));
}

/* Table entry of a row and stretch. For small codes two bf16, each duplicated: with minimums the scale and what is added; of two scales those of
 * both halves for bytes; else that for bytes, and what is added. For others two floats. */
template <class F> static __device__ __forceinline__ void scale_words(const tile_scale<F> &s, int j, uint32_t *to) {
    typedef small_code<F> S;
    if constexpr (S::EVEN != 0) {
        float a = (float)s.s.of(F::KIND == SCALE_HALVES ? 2 * j : j), b;
        if constexpr (F::KIND != SCALE_FLOAT)
            a *= s.s.d();
        if constexpr (F::KIND == SCALE_HALVES)
            b = s.s.d() * (float)s.s.of(2 * j + 1) * code_by<F>(j);
        else if constexpr (F::MINS != 0)
            b = ((float)S::CENTER * a - s.low(j)) * WEIGHTS_BY;
        else /* of the rounded scale, so that the sum is exact */
            b = __uint_as_float(two_bf16(a, a) & 0xFFFF0000u) * (-S::CENTER * WEIGHTS_BY);
        a *= F::MINS != 0 ? 1.0f : code_by<F>(j);
        to[0] = two_bf16(a, a), to[1] = two_bf16(b, b);
    } else {
        to[0] = __float_as_uint(s.step(j, 0) * WEIGHTS_BY), to[1] = __float_as_uint(s.low(j) * WEIGHTS_BY);
    }
}

/* Two weights of a row from two bytes that are read as bf16; `scale` of the row as the table has it. With minimums the code minus its center is
 * exact, without them the scale times the center is, so either way a weight is rounded once. No constant here may be a bf16 below 2^-126, which
 * the compiler takes for 0. */
template <class F> static __device__ __forceinline__ uint32_t two_weights(uint32_t bytes, int j, int h, uint2 scale) {
    constexpr float center = -small_code<F>::CENTER * WEIGHTS_BY;
    if constexpr (F::MINS != 0) {
        const float by = code_by<F>(j);
        return bf16_fma(bf16_fma(bytes, two_bf16(by, by), two_bf16(center, center)), scale.x, scale.y);
    } else if constexpr (F::KIND == SCALE_HALVES) {
        const float by = center / code_by<F>(j);
        const uint32_t step = h ? scale.y : scale.x;
        return bf16_fma(bytes, step, bf16_times(step, two_bf16(by, by)));
    } else {
        return bf16_fma(bytes, scale.x, scale.y);
    }
}

/* The operand of half h of stretch j from its words r = 2 h and 2 h + 1 (rows g and g + 8), whose words of the table are `scale`; h and j are
 * known as the kernel is compiled, of j whether it is odd. */
template <class F>
static __device__ __forceinline__ void operand_of(const uint32_t (&word)[4], int j, int h, const uint2 (&scale)[2],
                                                  uint32_t (&a)[4]) {
    typedef small_code<F> S;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const uint32_t x = word[2 * h + r];
        if constexpr (S::EVEN != 0) {
            const uint32_t both = 0x00010001u * (j % 2 ? S::ODD / S::EVEN : 1);
            a[r] = two_weights<F>(masked(x, S::EVEN * both, S::FLIP * both), j, h, scale[r]);
            a[2 + r] = two_weights<F>(masked(x >> 8, S::EVEN * both, S::FLIP * both), j, h, scale[r]);
        } else {
            const float step = __uint_as_float(scale[r].x), low = __uint_as_float(scale[r].y);
            float v[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                v[i] = F::MINS ? fmaf(step, byte_value<F>(x, i), -low) : step * byte_value<F>(x, i);
            a[r] = two_bf16(v[0], v[2]);
            a[2 + r] = two_bf16(v[1], v[3]);
        }
    }
}

/* Writes this lane's scales of a warp's chunk to the warp's table. */
template <class F> static __device__ __forceinline__ void store_scales(const char *w, uint32_t *table) {
    const int lane = threadIdx.x % 32;
    const tile_scale<F> s(w, lane / 2);
    uint32_t words[8];
#pragma unroll
    for (int i = 0; i < 4; i++)
        scale_words<F>(s, 4 * (lane % 2) + i, words + 2 * i);
    uint4 *to = (uint4 *)(table + lane * 8);
    to[0] = make_uint4(words[0], words[1], words[2], words[3]);
    to[1] = make_uint4(words[4], words[5], words[6], words[7]);
}

/* Writes the scales of a warp's chunk to its table. */
template <class F> static __device__ __forceinline__ void leave_scales(const char *w, uint32_t *table) {
    store_scales<F>(w, table);
    __syncwarp();
}

/* The words of stretches 2 p and 2 p + 1, as operand_of() takes them: of nibbles the same ones for both. */
template <class F>
static __device__ __forceinline__ void columns_words(const char *w, int lane, int p, uint32_t (&word)[2][4]) {
    if constexpr (small_code<F>::EVEN == 0x0F) {
        const uint4 q = load_16(w + 512 * p + 16 * lane);
#pragma unroll
        for (int r = 0; r < 4; r++)
            word[0][r] = word[1][r] = word_of(q, r);
    } else {
        F::codes(w, lane, p, word);
    }
}

/* Two activations, as all that meet such weights are. */
static __device__ __forceinline__ uint32_t two_activations(float low, float high) {
    return two_bf16(low * ACTIVATIONS_BY, high * ACTIVATIONS_BY);
}

/* Activations of 16 columns as bf16 in the operands' order: piece e of two (16 bytes). */
static __device__ __forceinline__ uint4 columns_piece(const float (&x)[16], int e) {
    return make_uint4(two_activations(x[e], x[e + 2]), two_activations(x[e + 4], x[e + 6]),
                      two_activations(x[e + 8], x[e + 10]), two_activations(x[e + 12], x[e + 14]));
}

#endif
