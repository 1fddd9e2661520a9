/* columns_sums.cuh: epilogue of columns.cu: collects the warps' partial sums in shared memory, adds them over the groups of a
 * cluster in order of their parts of K, and writes the output (plain, with residual, or gated).
 *
 * A token is written by one of the cluster's groups. With few tokens (COLUMNS_SENT) the others send their sums to it (st.async), and a barrier
 * there counts the bytes: so no group waits for one that it needs nothing of. With more, groups meet, it reads theirs, and they meet again.
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

/* What columns_finish() asks for rows row to row + 3 of a token's sums; own: which of the group's tokens it is. Here: all in this group's memory. */
struct sums_here {
    const float *at;
    int stride;
    __device__ __forceinline__ float4 operator()(int token, int, int row) const {
        return *(const float4 *)(at + token * stride + row);
    }
};

#if HOPPER
/* Adds a part's sums, in the order of the parts. */
static __device__ __forceinline__ void add_part(float4 &y, float4 part) {
    y.x += part.x, y.y += part.y, y.z += part.z, y.w += part.w;
}

/* In the memory of all groups of a cluster, which have met since they left them and do so again before they end. */
struct sums_of_cluster {
    const float *at;
    int stride;
    uint32_t parts;
    __device__ __forceinline__ float4 operator()(int token, int, int row) const {
        const float *here = at + token * stride + row;
        if (parts == 1)
            return *(const float4 *)here;
        const uint32_t address = shared_address(here);
        float4 v[COLUMNS_PARTS], y = make_float4(0, 0, 0, 0);
#pragma unroll
        for (uint32_t i = 0; i < COLUMNS_PARTS; i++)
            if (i < parts)
                v[i] = numbers_of(address, i);
#pragma unroll
        for (uint32_t i = 0; i < COLUMNS_PARTS; i++)
            if (i < parts)
                add_part(y, v[i]);
        return y;
    }
};

/* Sent to the group that writes the token, by itself too: [parts][tokens of a group][stride]. A group that others send to does not end before
 * all has come, for some thread writes a token and waits. */
struct sums_sent {
    const float *at;
    int stride, tokens;
    uint32_t parts, arrived;
    __device__ __forceinline__ float4 operator()(int, int own, int row) const {
        const float *first = at + own * stride + row;
        float4 y = make_float4(0, 0, 0, 0);
        barrier_wait_sent(arrived);
#pragma unroll
        for (uint32_t i = 0; i < COLUMNS_PARTS; i++)
            if (i < parts)
                add_part(y, *(const float4 *)(first + i * tokens * stride));
        return y;
    }
    /* By one thread: what is sent is counted from now on, or has come already. */
    __device__ __forceinline__ void expect(int teams, int columns, uint32_t rank) const {
        barrier_expect(arrived, (columns + parts - 1 - rank) / parts * parts * teams * COLUMNS_ROWS * 4);
    }
};

/* Sends a warp's sums. */
template <int N>
static __device__ __forceinline__ void send_sums(const sums_sent &s, uint32_t rank, int columns,
                                                 const float (&d)[N / 2]) {
    const int lane = threadIdx.x % 32;
    const uint32_t first =
        shared_address(s.at) + 4 * ((int)rank * s.tokens * s.stride + threadIdx.x / 32 * TILE_ROWS + lane / 4);
#pragma unroll
    for (int i = 0; i < N / 8; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const uint32_t token = 8 * i + lane % 4 * 2 + j, own = token / s.parts, owner = token - own * s.parts;
            const uint32_t to = shared_of(first + 4 * own * s.stride, owner), barrier = shared_of(s.arrived, owner);
            if ((int)token < columns) {
                send_4(to, __float_as_uint(d[4 * i + j]), barrier);
                send_4(to + 32, __float_as_uint(d[4 * i + j + 2]), barrier);
            }
        }
}
#endif

static __device__ __forceinline__ float gated_by(float gate, float up) {
    return __fdividef(gate, 1.0f + __expf(-gate)) * up;
}

/* Writes this group's tokens, every parts-th one. A thread writes four rows of a token. sums: one of the above; first: the token that the sums'
 * first is; factors: of each token, by columns_factors, or nullptr. HANDS: whether the kernel takes and hands over activations; the code for it costs the others
 * 1 % of a step. */
template <bool HANDS = false, class SUMS>
static __device__ __forceinline__ void columns_finish(const gpu_call &c, const SUMS &sums, const team_rows *where,
                                                      int teams, uint32_t parts, uint32_t rank, int columns,
                                                      int first = 0, const float *factors = nullptr) {
    const bool gated = c.mode & PRODUCT_GATED, whole = (c.v[0].data | c.v[0].stride) % 16 == 0;
    const int rows = gated ? teams * (COLUMNS_ROWS / 2) : teams * COLUMNS_ROWS, shift = __ffs(rows / 4) - 1;
    for (int i = threadIdx.x;; i += blockDim.x) {
        const int own = i >> shift, token = own * (int)parts + (int)rank, row = (i & ((1 << shift) - 1)) * 4,
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
        const float4 y = sums(token, own, row);
        const float factor = HANDS && factors ? factors[token] : 1.0f;
        v[0] = y.x * factor, v[1] = y.y * factor, v[2] = y.z * factor, v[3] = y.w * factor;
        if (gated) {
            const float4 up = sums(token, own, row + rows);
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
