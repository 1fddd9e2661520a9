/* columns_sums.cuh: epilogue of columns.cu: collects the warps' partial sums in shared memory, adds them over the groups of a
 * cluster in order of their parts of K, and writes the output (plain, with residual, or gated).
 */
#ifndef SATCHEL_CUDA_COLUMNS_SUMS_CUH
#define SATCHEL_CUDA_COLUMNS_SUMS_CUH

#include "cluster.h"
#include "columns_hand.cuh"
#include "columns_rows.cuh"
#include "geglu.cuh"

template <int N>
static __device__ __forceinline__ void leave_sums(float *sums, int stride, int columns, const float (&d)[N / 2]) {
    const int lane = threadIdx.x % 32;
    float *own = sums + threadIdx.x / 32 * TILE_ROWS + lane / 4;
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        const int token = i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (token < columns)
            own[token * stride + i % 4 / 2 * 8] = d[i];
    }
}

/* Rows row to row + 3 of a token's sums, added in the order of the parts. */
static __device__ __forceinline__ float4 added(const float *sums, int stride, int token, int row, uint32_t parts) {
    const float *at = sums + token * stride + row;
    if (!HOPPER || parts == 1)
        return *(const float4 *)at;
#if HOPPER
    const uint32_t address = shared_address(at);
    float4 v[COLUMNS_PARTS], y = make_float4(0, 0, 0, 0);
#pragma unroll
    for (uint32_t i = 0; i < COLUMNS_PARTS; i++)
        if (i < parts)
            v[i] = numbers_of(address, i);
#pragma unroll
    for (uint32_t i = 0; i < COLUMNS_PARTS; i++)
        if (i < parts)
            y.x += v[i].x, y.y += v[i].y, y.z += v[i].z, y.w += v[i].w;
    return y;
#endif
}

static __device__ __forceinline__ float gated_by(float gate, float up) {
    return __fdividef(gate, 1.0f + __expf(-gate)) * up;
}

/* Writes this group's tokens, every parts-th one. A thread writes four rows of a token. first: the token that the sums' first is; factors:
 * of each token, by columns_factors, or nullptr. HANDS: whether the kernel takes and hands over activations; the code for it costs the others
 * 1 % of a step. */
template <bool HANDS = false>
static __device__ __forceinline__ void columns_finish(const gpu_call &c, const float *sums, const team_rows *where,
                                                      int stride, int teams, uint32_t parts, uint32_t rank, int columns,
                                                      int first = 0, const float *factors = nullptr) {
    const bool gated = c.mode & PRODUCT_GATED, whole = (c.v[0].data | c.v[0].stride) % 16 == 0;
    const int rows = gated ? teams * (COLUMNS_ROWS / 2) : teams * COLUMNS_ROWS, shift = __ffs(rows / 4) - 1;
    for (int i = threadIdx.x;; i += blockDim.x) {
        const int token = (i >> shift) * (int)parts + (int)rank, row = (i & ((1 << shift) - 1)) * 4,
                  in = row % COLUMNS_ROWS;
        if (token >= columns)
            break;
        const team_rows t = where[row / COLUMNS_ROWS];
        const int left = t.left - in, at = t.column + in;
        if (left <= 0)
            continue;
        float *out = (float *)(c.v[0].data + (int64_t)(first + token) * c.v[0].stride) + at;
        float v[4], more[4] = {-0.0f, -0.0f, -0.0f, -0.0f}; /* which changes no number, not -0 either */
        if (c.mode & PRODUCT_ADD) {
            const float *from = (const float *)(c.v[c.n_in].data + (int64_t)(first + token) * c.v[c.n_in].stride) + at;
#pragma unroll
            for (int e = 0; e < 4; e++)
                more[e] = e < left ? from[e] : 0.0f;
        }
        const float4 y = added(sums, stride, token, row, parts);
        const float factor = HANDS && factors ? factors[token] : 1.0f;
        v[0] = y.x * factor, v[1] = y.y * factor, v[2] = y.z * factor, v[3] = y.w * factor;
        if (gated) {
            const float4 up = added(sums, stride, token, row + rows, parts);
            const float ups[4] = {up.x * factor, up.y * factor, up.z * factor, up.w * factor};
#pragma unroll
            for (int e = 0; e < 4; e++)
                v[e] = c.mode & PRODUCT_GELU ? geglu_of(c, v[e], ups[e]) : gated_by(v[e], ups[e]);
        }
        if (whole && left >= 4 && at % 4 == 0) {
            const float4 all = make_float4(v[0] + more[0], v[1] + more[1], v[2] + more[2], v[3] + more[3]);
            *(float4 *)out = all;
            if (HANDS && c.handed.at)
                columns_hand(c, first + token, at, all);
            continue;
        }
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (e < left)
                out[e] = v[e] + more[e];
    }
}

#endif
