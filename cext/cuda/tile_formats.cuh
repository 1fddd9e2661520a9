/* tile_formats.cuh: the packed formats: layout of a chunk's bytes (its order is in tile.cuh), extraction of codes, and scales.
 * A format is a struct of constants and two functions, which all kernels over tiles share:
 *
 * codes(w, lane, p, a): the four words of each of the stretches 2 p and 2 p + 1, as bytes that the tensor core multiplies.
 * scales(w, row): an object with of(j), the scale of stretch j (with scales of 16 columns: of half j).
 *
 * weight = byte * unit(j) * of(j) * d [- low(j) * dmin]. SIGNED: bytes are signed, else unsigned. A code may stay unshifted in
 * the upper bits, so that a byte is 16 times the code; unit(j) reverts that exactly.
 */
#ifndef SATCHEL_CUDA_TILE_FORMATS_CUH
#define SATCHEL_CUDA_TILE_FORMATS_CUH

#include "packed.h"
#include "tile.cuh"

enum { SCALE_FLOAT, SCALE_INT, SCALE_HALVES }; /* a float per 32 columns; an integer per 32; an integer per 16 */

__device__ __forceinline__ uint4 load_16(const char *p) {
    return *(const uint4 *)p;
}
__device__ __forceinline__ float half_low(uint32_t x) {
    return float_of_half((uint16_t)x);
}
__device__ __forceinline__ float half_high(uint32_t x) {
    return float_of_half((uint16_t)(x >> 16));
}
__device__ __forceinline__ int signed_byte(uint32_t x, int i) {
    return (int)(x << (24 - 8 * i)) >> 24;
}

/* Eight halves, one per stretch. */
struct scales_half8 {
    uint4 v;
    __device__ __forceinline__ float of(int j) const {
        uint32_t w = word_of(v, j / 2);
        return j % 2 ? half_high(w) : half_low(w);
    }
};

/* The file's 16 bytes at the head of a q4_k or q5_k block: d, dmin and 6-bit scales and minimums. */
struct scales_k {
    uint32_t dd, s[2], m[2];
    __device__ __forceinline__ scales_k(uint4 h) {
        dd = h.x;
        s[0] = h.y & 0x3F3F3F3Fu;
        m[0] = h.z & 0x3F3F3F3Fu;
        s[1] = (h.w & 0x0F0F0F0Fu) | ((h.y >> 2) & 0x30303030u);
        m[1] = ((h.w >> 4) & 0x0F0F0F0Fu) | ((h.z >> 2) & 0x30303030u);
    }
    __device__ __forceinline__ int of(int j) const {
        return (int)__byte_perm(j < 4 ? s[0] : s[1], 0, 0x4440 + j % 4);
    }
    __device__ __forceinline__ int low(int j) const {
        return (int)__byte_perm(j < 4 ? m[0] : m[1], 0, 0x4440 + j % 4);
    }
    /* Minimums 2 t and 2 t + 1 as halves, which hold them exactly. */
    __device__ __forceinline__ uint32_t low_pair(int t) const {
        uint32_t pair = __byte_perm(t < 2 ? m[0] : m[1], 0x64646464u, t % 2 ? 0x4342 : 0x4140);
        return halves_minus(pair, 0x64006400u);
    }
    __device__ __forceinline__ float d() const {
        return half_low(dd);
    }
    __device__ __forceinline__ float dmin() const {
        return half_high(dd);
    }
};

struct tile_q4_k {
    enum { FORMAT = 12, BYTES = 2304, KIND = SCALE_INT, SIGNED = 0, MINS = 1, SPLIT = 1 };
    typedef scales_k scales_type;
    __device__ static __forceinline__ float unit(int j) {
        return j % 2 ? 0.0625f : 1.0f;
    }
    __device__ static __forceinline__ void codes(const char *w, int lane, int p, uint32_t a[2][4]) {
        uint4 q = load_16(w + 512 * p + 16 * lane);
        for (int r = 0; r < 4; r++) {
            a[0][r] = word_of(q, r) & 0x0F0F0F0Fu;
            a[1][r] = word_of(q, r) & 0xF0F0F0F0u;
        }
    }
    __device__ static __forceinline__ scales_k scales(const char *w, int row) {
        return scales_k(load_16(w + 2048 + 16 * row));
    }
};

struct tile_q5_k {
    enum { FORMAT = 13, BYTES = 2816, KIND = SCALE_INT, SIGNED = 0, MINS = 1, SPLIT = 0 };
    typedef scales_k scales_type;
    __device__ static __forceinline__ float unit(int) {
        return 1.0f;
    }
    __device__ static __forceinline__ void codes(const char *w, int lane, int p, uint32_t a[2][4]) {
        uint4 q = load_16(w + 512 * p + 16 * lane);
        uint32_t high = ((const uint32_t *)(w + 2048 + 16 * lane))[p]; /* bit r of a byte: of word r of the pair */
        for (int r = 0; r < 4; r++) {
            a[0][r] = (word_of(q, r) & 0x0F0F0F0Fu) | ((high << (4 - r)) & 0x10101010u);
            a[1][r] = ((word_of(q, r) >> 4) & 0x0F0F0F0Fu) | ((high >> r) & 0x10101010u);
        }
    }
    __device__ static __forceinline__ scales_k scales(const char *w, int row) {
        return scales_k(load_16(w + 2560 + 16 * row));
    }
};

/* Scales of 16 columns, signed bytes; d stands behind them. */
struct scales_q6 {
    uint4 v;
    uint32_t half;
    __device__ __forceinline__ int of(int j) const {
        return signed_byte(word_of(v, j / 4), j % 4);
    }
    __device__ __forceinline__ float d() const {
        return half_low(half);
    }
};

struct tile_q6_k {
    enum { FORMAT = 14, BYTES = 3360, KIND = SCALE_HALVES, SIGNED = 1, MINS = 0, SPLIT = 0 };
    typedef scales_q6 scales_type;
    __device__ static __forceinline__ float unit(int) {
        return 0.25f;
    }
    /* Of three words the upper six bits are codes - 32 of three words, their lower two bits those of the fourth. */
    __device__ static __forceinline__ void codes(const char *w, int lane, int p, uint32_t a[2][4]) {
        for (int h = 0; h < 2; h++) {
            uint32_t v[3];
            for (int i = 0; i < 3; i++) {
                int n = 3 * (2 * (p % 2) + h) + i; /* of the twelve words of four stretches */
                v[i] = *(const uint32_t *)(w + 1536 * (p / 2) + 512 * (n / 4) + 16 * lane + 4 * (n % 4));
                a[h][i] = v[i] & 0xFCFCFCFCu;
            }
            a[h][3] = ((v[0] << 6) & 0xC0C0C0C0u) | ((v[1] << 4) & 0x30303030u) | ((v[2] << 2) & 0x0C0C0C0Cu);
        }
    }
    __device__ static __forceinline__ scales_q6 scales(const char *w, int row) {
        scales_q6 s = {load_16(w + 3072 + 16 * row), *(const uint16_t *)(w + 3328 + 2 * row)};
        return s;
    }
};

struct tile_q8_0 {
    enum { FORMAT = 8, BYTES = 4352, KIND = SCALE_FLOAT, SIGNED = 1, MINS = 0, SPLIT = 0 };
    typedef scales_half8 scales_type;
    __device__ static __forceinline__ float unit(int) {
        return 1.0f;
    }
    __device__ static __forceinline__ void codes(const char *w, int lane, int p, uint32_t a[2][4]) {
        for (int h = 0; h < 2; h++) {
            uint4 q = load_16(w + 512 * (2 * p + h) + 16 * lane);
            a[h][0] = q.x, a[h][1] = q.y, a[h][2] = q.z, a[h][3] = q.w;
        }
    }
    __device__ static __forceinline__ scales_half8 scales(const char *w, int row) {
        return {load_16(w + 4096 + 16 * row)};
    }
};

/* Nibbles are codes - 8 as two's complement: in the upper half of a byte they are 16 times that. */
struct tile_q4_0 {
    enum { FORMAT = 2, BYTES = 2304, KIND = SCALE_FLOAT, SIGNED = 1, MINS = 0, SPLIT = 0 };
    typedef scales_half8 scales_type;
    __device__ static __forceinline__ float unit(int) {
        return 0.0625f;
    }
    __device__ static __forceinline__ void codes(const char *w, int lane, int p, uint32_t a[2][4]) {
        uint4 q = load_16(w + 512 * p + 16 * lane);
        for (int r = 0; r < 4; r++) {
            a[0][r] = (word_of(q, r) << 4) & 0xF0F0F0F0u;
            a[1][r] = word_of(q, r) & 0xF0F0F0F0u;
        }
    }
    __device__ static __forceinline__ scales_half8 scales(const char *w, int row) {
        return {load_16(w + 2048 + 16 * row)};
    }
};

/* Codes - 16 as two's complement, 8 times that in a byte. */
struct tile_q5_0 {
    enum { FORMAT = 6, BYTES = 2816, KIND = SCALE_FLOAT, SIGNED = 1, MINS = 0, SPLIT = 0 };
    typedef scales_half8 scales_type;
    __device__ static __forceinline__ float unit(int) {
        return 0.125f;
    }
    __device__ static __forceinline__ void codes(const char *w, int lane, int p, uint32_t a[2][4]) {
        uint4 q = load_16(w + 512 * p + 16 * lane);
        uint32_t high = ((const uint32_t *)(w + 2048 + 16 * lane))[p];
        for (int r = 0; r < 4; r++) {
            a[0][r] = ((word_of(q, r) << 3) & 0x78787878u) | ((high << (7 - r)) & 0x80808080u);
            a[1][r] = ((word_of(q, r) >> 1) & 0x78787878u) | ((high << (3 - r)) & 0x80808080u);
        }
    }
    __device__ static __forceinline__ scales_half8 scales(const char *w, int row) {
        return {load_16(w + 2560 + 16 * row)};
    }
};

/* Four values of a table of 16 signed bytes for the nibbles in the lower half of q. */
__device__ __forceinline__ uint32_t table_4(uint32_t q, uint4 table) {
    uint32_t low = __byte_perm(table.x, table.y, q & 0x7777u), high = __byte_perm(table.z, table.w, q & 0x7777u);
    return __byte_perm(low, high, 0x3210u | ((q & 0x8888u) >> 1));
}

/* In tables' formats a word's lower four nibbles are the even stretch's codes. */
template <class TABLE> __device__ __forceinline__ void table_codes(const char *w, int lane, int p, uint32_t a[2][4]) {
    uint4 q = load_16(w + 512 * p + 16 * lane);
    for (int r = 0; r < 4; r++) {
        a[0][r] = table_4(word_of(q, r), TABLE::table());
        a[1][r] = table_4(word_of(q, r) >> 16, TABLE::table());
    }
}

struct table_nl {
    __device__ static __forceinline__ uint4 table() {
        return make_uint4(0xBFAD9881u, 0xF6EADDCFu, 0x26190D01u, 0x71594535u);
    }
};

struct table_e2m1 {
    __device__ static __forceinline__ uint4 table() {
        return make_uint4(0x03020100u, 0x0C080604u, 0xFDFEFF00u, 0xF4F8FAFCu);
    }
};

struct tile_iq4_nl {
    enum { FORMAT = 20, BYTES = 2304, KIND = SCALE_FLOAT, SIGNED = 1, MINS = 0, SPLIT = 0 };
    typedef scales_half8 scales_type;
    __device__ static __forceinline__ float unit(int) {
        return 1.0f;
    }
    __device__ static __forceinline__ void codes(const char *w, int lane, int p, uint32_t a[2][4]) {
        table_codes<table_nl>(w, lane, p, a);
    }
    __device__ static __forceinline__ scales_half8 scales(const char *w, int row) {
        return {load_16(w + 2048 + 16 * row)};
    }
};

/* Eight powers of two, 2^(e - 128). */
struct scales_e8 {
    uint32_t v[2];
    __device__ __forceinline__ float of(int j) const {
        uint32_t e = (j < 4 ? v[0] : v[1]) >> (8 * (j % 4)) & 255;
        return __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
    }
};

struct tile_mxfp4 {
    enum { FORMAT = 39, BYTES = 2176, KIND = SCALE_FLOAT, SIGNED = 1, MINS = 0, SPLIT = 0 };
    typedef scales_e8 scales_type;
    __device__ static __forceinline__ float unit(int) {
        return 1.0f;
    }
    __device__ static __forceinline__ void codes(const char *w, int lane, int p, uint32_t a[2][4]) {
        table_codes<table_e2m1>(w, lane, p, a);
    }
    __device__ static __forceinline__ scales_e8 scales(const char *w, int row) {
        const uint32_t *s = (const uint32_t *)(w + 2048 + 8 * row);
        return {{s[0], s[1]}};
    }
};

/* The file's 8 bytes at the head of an iq4_xs block: d, upper bits of the scales, lower bits. */
struct scales_xs {
    uint32_t v[2];
    __device__ __forceinline__ int of(int j) const {
        return (int)((v[1] >> (4 * j) & 15) | (v[0] >> (16 + 2 * j) & 3) << 4) - 32;
    }
    __device__ __forceinline__ float d() const {
        return half_low(v[0]);
    }
};

struct tile_iq4_xs {
    enum { FORMAT = 23, BYTES = 2176, KIND = SCALE_INT, SIGNED = 1, MINS = 0, SPLIT = 0 };
    typedef scales_xs scales_type;
    __device__ static __forceinline__ float unit(int) {
        return 1.0f;
    }
    __device__ static __forceinline__ void codes(const char *w, int lane, int p, uint32_t a[2][4]) {
        table_codes<table_nl>(w, lane, p, a);
    }
    __device__ static __forceinline__ scales_xs scales(const char *w, int row) {
        const uint32_t *s = (const uint32_t *)(w + 2048 + 8 * row);
        return {{s[0], s[1]}};
    }
};

/* The float scales of both halves of 128 columns. */
struct scales_float2 {
    float v[2];
    __device__ __forceinline__ float of(int j) const {
        return j < 4 ? v[0] : v[1];
    }
};

struct tile_i8_g128 {
    enum { FORMAT = 2003, BYTES = 4224, KIND = SCALE_FLOAT, SIGNED = 1, MINS = 0, SPLIT = 0 };
    typedef scales_float2 scales_type;
    __device__ static __forceinline__ float unit(int) {
        return 1.0f;
    }
    __device__ static __forceinline__ void codes(const char *w, int lane, int p, uint32_t a[2][4]) {
        tile_q8_0::codes(w, lane, p, a);
    }
    __device__ static __forceinline__ scales_float2 scales(const char *w, int row) {
        const float2 s = *(const float2 *)(w + 4096 + 8 * row);
        return {{s.x, s.y}};
    }
};

#define SAME_BYTES(name, number, bytes, block)                                                                         \
    static_assert(tile_##name::FORMAT == number && tile_##name::BYTES == bytes, #name);
PACKED_FORMATS(SAME_BYTES)
#undef SAME_BYTES

#ifndef TILE_FORMATS /* a bench may name fewer, for it compiles sooner */
#define TILE_FORMATS(f) f(q4_k) f(q5_k) f(q6_k) f(q8_0) f(q4_0) f(q5_0) f(iq4_nl) f(iq4_xs) f(mxfp4) f(i8_g128)
#endif

#endif
