/*
 * Two-byte floats and the two roundings that quantizers use, in portable C.
 *
 * A half (f16 or bf16) lives in memory as its bits in a uint16_t, little-endian like every block of a GGUF
 * file. Every conversion here is exact or rounds to nearest even; subnormals are kept, overflow becomes
 * infinity and a NaN stays a (quiet) NaN. The roundings work on the bits of the float, so that neither
 * -ffp-contract nor a changed rounding mode can alter what a quantizer writes: it must equal the numpy
 * encoder bit for bit.
 */
#ifndef SATCHEL_QUANT_HALF_H
#define SATCHEL_QUANT_HALF_H

#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
#define _Static_assert static_assert
#endif

/* Address spaces of pointers for GPU compilers (cext/kernels/port.h): DEVICE for blocks in device memory, THREAD for
 * variables of the thread. QUANT_LOCAL declares a constant array in a function. All are empty or `static` in C. */
#ifndef DEVICE
#define DEVICE
#endif
#ifndef THREAD
#define THREAD
#endif
#ifndef QUANT_LOCAL
#define QUANT_LOCAL static const
#endif

#ifdef F32_BITS /* a GPU's own */
static inline uint32_t f32_bits(float x) {
    return F32_BITS(x);
}

static inline float f32_from_bits(uint32_t bits) {
    return F32_FROM_BITS(bits);
}
#else
static inline uint32_t f32_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float f32_from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
#endif

static inline float f32_abs(float x) {
    return f32_from_bits(f32_bits(x) & 0x7FFFFFFFu);
}

/* False for infinities and NaN; true also under -ffinite-math-only, where x == x says nothing. */
static inline int f32_is_finite(float x) {
    return (f32_bits(x) & 0x7FFFFFFFu) < 0x7F800000u;
}

/* The scale of a block whose input has a NaN or an infinity: NaN, so that the error propagates. */
static inline float f32_nan(void) {
    return f32_from_bits(0x7FC00000u);
}

#if defined(__F16C__) && defined(__FLT16_MAX__) && !defined(__cplusplus)

static inline float f16_to_f32(uint16_t h) {
    _Float16 x;
    memcpy(&x, &h, sizeof x);
    return (float)x;
}

static inline uint16_t f32_to_f16(float f) {
    _Float16 x = (_Float16)f;
    uint16_t h;
    memcpy(&h, &x, sizeof h);
    return h;
}

#else

#ifdef F16_TO_F32 /* a GPU's own conversion */
static inline float f16_to_f32(uint16_t h) {
    return F16_TO_F32(h);
}
#else
static inline float f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = (h >> 10) & 0x1Fu;
    uint32_t fraction = h & 0x3FFu;
    if (exponent == 0x1Fu)
        return f32_from_bits(sign | 0x7F800000u | (fraction ? 0x400000u | (fraction << 13) : 0u));
    if (exponent == 0) {
        /* Subnormal: fraction * 2^-24, exact in float32. */
        float magnitude = (float)(int32_t)fraction * f32_from_bits(0x33800000u);
        return f32_from_bits(sign | f32_bits(magnitude));
    }
    return f32_from_bits(sign | ((exponent + 112u) << 23) | (fraction << 13));
}
#endif

static inline uint16_t f32_to_f16(float f) {
    uint32_t bits = f32_bits(f);
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t a = bits & 0x7FFFFFFFu;
    if (a > 0x7F800000u)
        return (uint16_t)(sign | 0x7E00u | ((a >> 13) & 0x3FFu));
    if (a >= 0x47800000u) /* 65536 and above, infinity included */
        return (uint16_t)(sign | 0x7C00u);
    if (a >= 0x38800000u) { /* normal half: rebias and round; a carry may reach infinity */
        uint32_t odd = (a >> 13) & 1u;
        return (uint16_t)(sign | ((a - 0x38000000u + 0xFFFu + odd) >> 13));
    }
    if (a < 0x33000000u) /* below half of the smallest subnormal */
        return (uint16_t)sign;
    {
        uint32_t shift = 126u - (a >> 23); /* 14..24 */
        uint32_t fraction = (a & 0x7FFFFFu) | 0x800000u;
        uint32_t q = fraction >> shift;
        uint32_t rest = fraction & ((1u << shift) - 1u);
        uint32_t tie = 1u << (shift - 1u);
        q += (rest > tie || (rest == tie && (q & 1u))) ? 1u : 0u;
        return (uint16_t)(sign | q);
    }
}

#endif

static inline float bf16_to_f32(uint16_t h) {
    return f32_from_bits((uint32_t)h << 16);
}

static inline uint16_t f32_to_bf16(float f) {
    uint32_t bits = f32_bits(f);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u)
        return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

/* Nearest integer of x, |x| < 2^22, ties to even, on the bits: no compiler flag can change it. */
static inline int32_t f32_round_even(float x) {
    uint32_t bits = f32_bits(x);
    uint32_t exponent = (bits >> 23) & 0xFFu;
    uint32_t fraction = (bits & 0x7FFFFFu) | 0x800000u;
    uint32_t shift, q, rest, tie;
    if (exponent < 126u) /* below one half, zero included */
        return 0;
    shift = 150u - exponent; /* 1..24 */
    q = fraction >> shift;
    rest = fraction & ((1u << shift) - 1u);
    tie = 1u << (shift - 1u);
    q += (rest > tie || (rest == tie && (q & 1u))) ? 1u : 0u;
    return (bits >> 31) ? -(int32_t)q : (int32_t)q;
}

#endif
