/* dense.cuh: access to F16 and BF16 weights in the file's layout, for products of few columns. */
#ifndef SATCHEL_CUDA_DENSE_CUH
#define SATCHEL_CUDA_DENSE_CUH

#include "packed.h"
#include "tile.cuh"

struct as_f16 {
    __device__ static __forceinline__ float2 two(uint32_t w) {
        return floats_of_halves(w);
    }
};

struct as_bf16 {
    __device__ static __forceinline__ float2 two(uint32_t w) {
        return make_float2(__uint_as_float(w << 16), __uint_as_float(w & 0xFFFF0000u));
    }
};

struct dense_rows {
    const char *row[2];
    int column; /* of the output, of the first row; the second's is one more */
};

/* Pair `i`: rows 2 i and 2 i + 1 of matrices side by side, or row i of both; a missing row is replaced by row 0 of the last
 * matrix. */
__device__ __forceinline__ dense_rows dense_pair(const gpu_call &c, int i) {
    dense_rows p;
    bool gated = c.mode & PRODUCT_GATED;
    p.column = gated ? i : 2 * i;
    for (int k = 0; k < 2; k++) {
        int which = gated ? 2 + k : 2, at = gated ? i : 2 * i + k, last = product_last(&c, c.mode);
        while (!gated && which < last && at >= c.v[which].shape[0])
            at -= c.v[which++].shape[0];
        p.row[k] = (const char *)c.v[which].data + (at < c.v[which].shape[0] ? at : 0) * c.v[which].stride;
    }
    return p;
}

#endif
