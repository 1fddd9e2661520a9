/* columns_values.cuh: dequantizes packed weights to bf16 in registers, as the A operand of m64nNk16, for columns.cu.
 *
 * A lane's word r of a stretch (tile.cuh) holds four columns of a row. Elements 0 and 2 make one register, 1 and 3 another, so
 * one mask extracts a pair. K is therefore permuted within 16 columns: place 2 t + e holds column 4 t + 2 e, place 8 + 2 t + e
 * column 4 t + 1 + 2 e. Activations have the same order (columns_piece).
 *
 * A code of up to seven bits becomes the bf16 2^7 + code by setting exponent bits; minus CENTER it is exact, and one fused
 * multiply-add gives the weight. All lanes of a wave compute the scales once per chunk to a table, two words per row and
 * stretch.
 */
#ifndef SATCHEL_CUDA_COLUMNS_VALUES_CUH
#define SATCHEL_CUDA_COLUMNS_VALUES_CUH

#include "tile_values.cuh"

static __device__ __forceinline__ uint32_t two_bf16(float low, float high) {
    return bfloats_of_floats(low, high);
}

static __device__ __forceinline__ uint32_t bf16_minus(uint32_t a, uint32_t b) {
    uint32_t d;
#if __CUDA_ARCH__ >= 900
    asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
#else /* a times 1 - b, which is rounded once too */
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(0x3F803F80u), "r"(b ^ 0x80008000u));
#endif
    return d;
}

static __device__ __forceinline__ uint32_t bf16_fma(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

/* (x & mask) ^ flip as one lop3: with both as constants the compiler emits two instructions. */
static __device__ __forceinline__ uint32_t masked(uint32_t x, uint32_t mask, uint32_t flip) {
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, 0x6A;" : "=r"(d) : "r"(x), "r"(mask), "r"(flip));
    return d;
}

/* Formats whose codes take at most seven bits: two words of a code word as 128 + code (+ CENTER). */
template <class F> struct small_code {
    enum { CENTER = 0 };
};
template <> struct small_code<tile_q4_k> {
    enum { CENTER = 8, FLIP = 0, MASK = 0x0F };
};
template <> struct small_code<tile_q4_0> {
    enum { CENTER = 8, FLIP = 8, MASK = 0x0F };
};
template <> struct small_code<tile_q5_k> {
    enum { CENTER = 16, FLIP = 0, MASK = 0x1F };
};
template <> struct small_code<tile_q6_k> {
    enum { CENTER = 32, FLIP = 32, MASK = 0x3F };
};

/* Words of stretches 2 p and 2 p + 1 with the codes in the lower bits of each byte from `shift` on. */
template <class F>
static __device__ __forceinline__ void small_words(const char *w, int lane, int p, uint32_t (&a)[2][4]) {
    if constexpr (F::FORMAT == tile_q4_k::FORMAT || F::FORMAT == tile_q4_0::FORMAT) {
        uint4 q = load_16(w + 512 * p + 16 * lane);
        for (int r = 0; r < 4; r++)
            a[0][r] = word_of(q, r), a[1][r] = word_of(q, r) >> 4;
    } else {
        F::codes(w, lane, p, a);
        if (F::FORMAT == tile_q6_k::FORMAT)
            for (int i = 0; i < 8; i++)
                a[i / 4][i % 4] >>= 2;
    }
}

/* Table entry of a row and stretch: for small codes two bf16, each duplicated, else floats. */
template <class F> static __device__ __forceinline__ void scale_words(const tile_scale<F> &s, int j, uint32_t *to) {
    typedef small_code<F> S;
    if constexpr (F::KIND == SCALE_HALVES) {
        float a = s.s.d() * (float)s.s.of(2 * j), b = s.s.d() * (float)s.s.of(2 * j + 1);
        to[0] = two_bf16(a, a), to[1] = two_bf16(b, b);
    } else if constexpr (S::CENTER != 0) {
        float step = (float)s.s.of(j), off = 0.0f;
        if constexpr (F::KIND == SCALE_INT)
            step *= s.s.d();
        if constexpr (F::MINS != 0)
            off = (float)S::CENTER * step - s.low(j);
        to[0] = two_bf16(step, step), to[1] = two_bf16(off, off);
    } else {
        to[0] = __float_as_uint(s.step(j, 0)), to[1] = __float_as_uint(s.low(j));
    }
}

/* The operand of half h of a stretch from its words r = 2 h and 2 h + 1 (rows g and g + 8), whose words of the table are `scale`. */
template <class F>
static __device__ __forceinline__ void operand_of(const uint32_t (&word)[4], int h, const uint2 (&scale)[2],
                                                  uint32_t (&a)[4]) {
    typedef small_code<F> S;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const uint32_t x = word[2 * h + r];
        if constexpr (S::CENTER != 0) {
            constexpr uint32_t mask = S::MASK * 0x00010001u, flip = (0x4300u | S::FLIP) * 0x00010001u,
                               center = (0x4300u | S::CENTER) * 0x00010001u;
            const uint32_t even = bf16_minus(masked(x, mask, flip), center),
                           odd = bf16_minus(masked(x >> 8, mask, flip), center);
            const uint32_t step = F::KIND == SCALE_HALVES && h ? scale[r].y : scale[r].x;
            const uint32_t off = F::KIND == SCALE_HALVES || F::MINS == 0 ? 0x80008000u : scale[r].y;
            a[r] = bf16_fma(even, step, off);
            a[2 + r] = bf16_fma(odd, step, off);
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

/* The words of stretches 2 p and 2 p + 1, as operand_of() takes them. */
template <class F>
static __device__ __forceinline__ void columns_words(const char *w, int lane, int p, uint32_t (&word)[2][4]) {
    if constexpr (small_code<F>::CENTER != 0)
        small_words<F>(w, lane, p, word);
    else
        F::codes(w, lane, p, word);
}

/* Activations of 16 columns as bf16 in the operands' order: piece e of two (16 bytes). */
static __device__ __forceinline__ uint4 columns_piece(const float (&x)[16], int e) {
    return make_uint4(two_bf16(x[e], x[e + 2]), two_bf16(x[e + 4], x[e + 6]), two_bf16(x[e + 8], x[e + 10]),
                      two_bf16(x[e + 12], x[e + 14]));
}

#endif
