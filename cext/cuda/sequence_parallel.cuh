/* sequence_parallel.cuh: the collectives of sequence parallelism over peer memory: reduce_scatter, all_gather, and all_gather behind a norm.
 * Rows of float32 are divided among the members of a group (own_rows.h); see group_call.h for inboxes and numbers.
 *
 * A member's own rows go in chunks. Of a chunk, a group of threads pushes what the others need into their inboxes of parts, then comes
 * a fence and the chunk's flag. It pushes its next chunk before it waits for the last one's. All members flag as many chunks, one at
 * least, so each hears all others also where it has no row.
 *
 * On the wire a number is bfloat16, or float32: where the group is exact, and where the plan asks for a gather that does not round. A
 * member rounds its own gathered rows as the others get them, so all have the same bits. Own parts of a sum are not rounded: one
 * member alone has it.
 */
#ifndef SATCHEL_CUDA_SEQUENCE_PARALLEL_CUH
#define SATCHEL_CUDA_SEQUENCE_PARALLEL_CUH

#include "own_rows.h"
#include "reduce.cuh"

/* Rows that a group divides. A chunk has `each` rows at most. */
struct divided : meeting {
    matrix rows, own; /* all rows, and this member's */
    int32_t tokens, each;
    uint32_t width;

    __device__ __forceinline__ int32_t first(uint32_t member) const {
        return own_rows_first(tokens, member, g->members);
    }
    /* Chunks of the member with the most rows. */
    __device__ __forceinline__ int64_t chunks(void) const {
        const int32_t most = (tokens + (int32_t)g->members - 1) / (int32_t)g->members;
        return most ? (most + each - 1) / each : 1;
    }
    /* The number of a member's rows in a chunk, the first of which is `each * chunk` of its own. */
    __device__ __forceinline__ int32_t left(uint32_t member, int64_t chunk) const {
        const int64_t rows = own_rows_count(tokens, member, g->members) - chunk * each;
        return rows < 0 ? 0 : rows < each ? (int32_t)rows : each;
    }
};

/* Eight numbers on the wire. */
template <int WIRE> struct wired {
    enum { BYTES = WIRE == WIRE_F32 ? 32 : 16 };

    static __device__ __forceinline__ void put(uint64_t at, const eight &x) {
        if constexpr (WIRE == WIRE_F32)
            x.store((float *)at);
        else
            *(uint4 *)at = x.packed();
    }
    static __device__ __forceinline__ eight get(uint64_t at) {
        if constexpr (WIRE == WIRE_F32) {
            const float4 a = __ldcg((const float4 *)at), b = __ldcg((const float4 *)at + 1);
            const float both[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
            eight x;
#pragma unroll
            for (int i = 0; i < 8; i++)
                x.x[i] = both[i];
            return x;
        } else
            return eight(__ldcg((const uint4 *)at));
    }
    static __device__ __forceinline__ eight rounded(const eight &x) {
        if constexpr (WIRE == WIRE_F32)
            return x;
        else
            return eight(x.packed());
    }
    /* Where a source's eighth v of a chunk lies in a member's inbox. */
    static __device__ __forceinline__ uint64_t place(const divided &m, uint32_t member, uint32_t source, int64_t chunk,
                                                     int32_t v) {
        return group_parts(m.g, member, source, m.number) + m.g->parts_flags +
               BYTES * (chunk * m.each * (m.width / 8) + v);
    }
};

static __device__ __forceinline__ float *eighth_of(const divided &m, const matrix &x, int32_t row, int32_t v) {
    const int32_t across = (int32_t)m.width / 8, down = v / across;
    return (float *)(x.at + (uint64_t)(row + down) * x.stride) + 8 * (v - down * across);
}

enum { DEEP = 4 /* eighths that a thread loads before it stores */ };

/* --- sums */

struct scattering : divided {
    matrix residual; /* at NULL: there is none */
    int whole;       /* the residual has all rows; 0: this member's own */
};

/* Pushes each other member its rows of a chunk. */
template <int WIRE> static __device__ __forceinline__ void push_parts(const scattering &m, int64_t chunk) {
    for (uint32_t k = 1; k < m.g->members; k++) {
        const uint32_t q = next_member(m.g, k);
        const int32_t from = m.first(q) + (int32_t)(chunk * m.each), n = m.left(q, chunk) * (int32_t)(m.width / 8);
        for (int32_t v = (int32_t)threadIdx.x; v < n; v += DEEP * GROUP_THREADS) {
            eight x[DEEP];
#pragma unroll
            for (int u = 0; u < DEEP; u++)
                if (v + u * GROUP_THREADS < n)
                    x[u] = eight(eighth_of(m, m.rows, from, v + u * GROUP_THREADS));
#pragma unroll
            for (int u = 0; u < DEEP; u++)
                if (v + u * GROUP_THREADS < n)
                    wired<WIRE>::put(wired<WIRE>::place(m, q, m.g->rank, chunk, v + u * GROUP_THREADS), x[u]);
        }
    }
    parts::flag(m, chunk, m.g->members);
}

/* Adds up this member's rows of a chunk, in the order of ranks. */
template <int WIRE> static __device__ __forceinline__ bool sum_parts(const scattering &m, int64_t chunk) {
    const uint32_t rank = m.g->rank;
    const int32_t row = (int32_t)(chunk * m.each), from = m.first(rank) + row;
    const int32_t n = m.left(rank, chunk) * (int32_t)(m.width / 8);
    if (!parts::await(m, chunk, m.g->members))
        return false;
    for (int32_t v = (int32_t)threadIdx.x; v < n; v += DEEP * GROUP_THREADS) {
        eight sum[DEEP];
        for (uint32_t q = 0; q < m.g->members; q++)
#pragma unroll
            for (int u = 0; u < DEEP; u++) {
                const int32_t at = v + u * GROUP_THREADS;
                if (at >= n)
                    break;
                const eight x = q == rank ? eight(eighth_of(m, m.rows, from, at))
                                          : wired<WIRE>::get(wired<WIRE>::place(m, rank, q, chunk, at));
                if (q)
                    sum[u].add(x);
                else
                    sum[u] = x;
            }
#pragma unroll
        for (int u = 0; u < DEEP; u++) {
            const int32_t at = v + u * GROUP_THREADS;
            if (at >= n)
                break;
            if (m.residual.at)
                sum[u].add(eight(eighth_of(m, m.residual, m.whole ? from : row, at)));
            sum[u].store(eighth_of(m, m.own, row, at));
        }
    }
    return true;
}

template <int WIRE> static __device__ __forceinline__ void scatter_sums(const scattering &m) {
    const int64_t all = m.chunks(), step = gridDim.x;
    for (int64_t j = blockIdx.x; j - step < all; j += step) {
        if (j < all)
            push_parts<WIRE>(m, j);
        if (j >= step && !sum_parts<WIRE>(m, j - step))
            return;
    }
}

/* --- gathers. What a member pushes of a chunk is a function object's: rows as they are, or normed. */

/* Keeps eight of this member's numbers, rounded as the others get them, and pushes them to all. */
template <int WIRE>
static __device__ __forceinline__ void spread_eighth(const divided &m, int64_t chunk, int32_t v, const eight &x) {
    const int32_t row = m.first(m.g->rank) + (int32_t)(chunk * m.each);
    for (uint32_t k = 1; k < m.g->members; k++)
        wired<WIRE>::put(wired<WIRE>::place(m, next_member(m.g, k), m.g->rank, chunk, v), x);
    wired<WIRE>::rounded(x).store(eighth_of(m, m.rows, row, v));
}

template <int WIRE> struct plain_rows {
    __device__ __forceinline__ void operator()(const divided &m, int64_t chunk) const {
        const int32_t row = (int32_t)(chunk * m.each), n = m.left(m.g->rank, chunk) * (int32_t)(m.width / 8);
        for (int32_t v = (int32_t)threadIdx.x; v < n; v += DEEP * GROUP_THREADS) {
            eight x[DEEP];
#pragma unroll
            for (int u = 0; u < DEEP; u++)
                if (v + u * GROUP_THREADS < n)
                    x[u] = eight(eighth_of(m, m.own, row, v + u * GROUP_THREADS));
#pragma unroll
            for (int u = 0; u < DEEP; u++)
                if (v + u * GROUP_THREADS < n)
                    spread_eighth<WIRE>(m, chunk, v + u * GROUP_THREADS, x[u]);
        }
    }
};

/* The sum over all threads of the group, in an order that depends on nothing; all get it. */
static __device__ __forceinline__ float sum_of_threads(float x) {
    __shared__ float waves[GROUP_THREADS / 32];
    float sum = 0;
#pragma unroll
    for (int o = 16; o > 0; o /= 2)
        x += __shfl_xor_sync(~0u, x, o);
    __syncthreads(); /* the last sum has been read */
    if (threadIdx.x % 32 == 0)
        waves[threadIdx.x / 32] = x;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < GROUP_THREADS / 32; i++)
        sum += waves[i];
    return sum;
}

/* Rows of rms_norm(x, w): the group has a row at a time in its registers, MOST eighths a thread. */
template <int WIRE, int MOST> struct normed_rows {
    const float *w;
    float eps;

    __device__ __forceinline__ void operator()(const divided &m, int64_t chunk) const {
        const int32_t across = (int32_t)m.width / 8, rows = m.left(m.g->rank, chunk);
        for (int32_t row = 0; row < rows; row++) {
            eight x[MOST];
            float sum = 0;
#pragma unroll
            for (int u = 0; u < MOST; u++) {
                const int32_t v = (int32_t)threadIdx.x + u * GROUP_THREADS;
                if (v >= across)
                    break;
                x[u] = eight(eighth_of(m, m.own, (int32_t)(chunk * m.each) + row, v));
#pragma unroll
                for (int i = 0; i < 8; i++)
                    sum += x[u].x[i] * x[u].x[i];
            }
            const float size = sqrtf(sum_of_threads(sum) / (float)m.width + eps);
#pragma unroll
            for (int u = 0; u < MOST; u++) {
                const int32_t v = (int32_t)threadIdx.x + u * GROUP_THREADS;
                if (v >= across)
                    break;
                const eight scale(w + 8 * v);
#pragma unroll
                for (int i = 0; i < 8; i++)
                    x[u].x[i] = x[u].x[i] / size * scale.x[i];
                spread_eighth<WIRE>(m, chunk, row * across + v, x[u]);
            }
        }
    }
};

/* Copies a chunk of each other member. */
template <int WIRE> static __device__ __forceinline__ bool take_rows(const divided &m, int64_t chunk) {
    if (!parts::await(m, chunk, m.g->members))
        return false;
    for (uint32_t k = 1; k < m.g->members; k++) {
        const uint32_t q = next_member(m.g, k);
        const int32_t row = m.first(q) + (int32_t)(chunk * m.each), n = m.left(q, chunk) * (int32_t)(m.width / 8);
        for (int32_t v = (int32_t)threadIdx.x; v < n; v += DEEP * GROUP_THREADS) {
            eight x[DEEP];
#pragma unroll
            for (int u = 0; u < DEEP; u++)
                if (v + u * GROUP_THREADS < n)
                    x[u] = wired<WIRE>::get(wired<WIRE>::place(m, m.g->rank, q, chunk, v + u * GROUP_THREADS));
#pragma unroll
            for (int u = 0; u < DEEP; u++)
                if (v + u * GROUP_THREADS < n)
                    x[u].store(eighth_of(m, m.rows, row, v + u * GROUP_THREADS));
        }
    }
    return true;
}

template <int WIRE, typename PUSH> static __device__ __forceinline__ void gather_chunks(const divided &m, PUSH push) {
    const int64_t all = m.chunks(), step = gridDim.x;
    for (int64_t j = blockIdx.x; j - step < all; j += step) {
        if (j < all) {
            push(m, j);
            parts::flag(m, j, m.g->members);
        }
        if (j >= step && !take_rows<WIRE>(m, j - step))
            return;
    }
}

#endif
