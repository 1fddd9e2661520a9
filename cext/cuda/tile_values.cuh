/* tile_values.cuh: dequantizes packed weights element by element. */
#ifndef SATCHEL_CUDA_TILE_VALUES_CUH
#define SATCHEL_CUDA_TILE_VALUES_CUH

#include "tile_formats.cuh"

/* Scale and minimum of stretch j (of half h of it). */
template <class F> struct tile_scale {
    typename F::scales_type s;
    __device__ __forceinline__ tile_scale(const char *w, int row) : s(F::scales(w, row)) {}
    __device__ __forceinline__ float step(int j, int h) const {
        if constexpr (F::KIND == SCALE_FLOAT)
            return F::unit(j) * s.of(j);
        else if constexpr (F::KIND == SCALE_HALVES)
            return F::unit(j) * s.d() * (float)s.of(2 * j + h);
        else
            return F::unit(j) * s.d() * (float)s.of(j);
    }
    __device__ __forceinline__ float low(int j) const {
        if constexpr (F::MINS != 0)
            return s.dmin() * (float)s.low(j);
        else
            return 0.0f;
    }
};

/* Byte i of a word as a float: inserted into the mantissa of 2^23, which is then subtracted. */
template <class F> __device__ __forceinline__ float byte_value(uint32_t word, int i) {
    uint32_t w = F::SIGNED ? word ^ 0x80808080u : word;
    return __uint_as_float(__byte_perm(w, 0x4B000000u, 0x7440 + i)) - (F::SIGNED ? 8388736.0f : 8388608.0f);
}

/* Elements k to k + 7 of a row, k a multiple of 8: for kernels that read a packed matrix row by row. */
template <class F>
__device__ __forceinline__ void tile_eight(const char *matrix, int chunks, int row, int k, float *out) {
    const char *w = matrix + ((int64_t)(row / TILE_ROWS) * chunks + k / CHUNK) * F::BYTES;
    int in = row % TILE_ROWS, j = k % CHUNK / 32, half = k % 32 / 16;
    tile_scale<F> scale(w, in);
    float step = scale.step(j, half), low = scale.low(j);
    for (int q = 0; q < 2; q++) {
        uint32_t a[2][4], word = 0;
        F::codes(w, in % 8 * 4 + k % 16 / 4 + q, j / 2, a);
        for (int h = 0; h < 2; h++)
            for (int r = 0; r < 4; r++)
                if (h == j % 2 && r == in / 8 + 2 * half)
                    word = a[h][r];
        for (int i = 0; i < 4; i++)
            out[4 * q + i] = step * byte_value<F>(word, i) - low;
    }
}

/* tile_eight() for a format known at run time; false: the format has no packed layout. */
__device__ __forceinline__ bool tile_eight_of(uint32_t format, const char *matrix, int chunks, int row, int k,
                                              float *out) {
    switch (format & 0xFFFFFFu) {
#define EIGHT_OF(f)                                                                                                    \
    case tile_##f::FORMAT:                                                                                             \
        tile_eight<tile_##f>(matrix, chunks, row, k, out);                                                             \
        return true;
        TILE_FORMATS(EIGHT_OF)
    }
    return false;
}

#endif
