/* columns_fetch.cuh: producer warps of columns.cu: one loads weights, one activations, into two rings of stages in shared
 * memory, ahead of the consumer warpgroups that multiply.
 */
#ifndef SATCHEL_CUDA_COLUMNS_FETCH_CUH
#define SATCHEL_CUDA_COLUMNS_FETCH_CUH

#include "columns_hand.cuh"
#include "columns_rows.cuh"
#include "tile.cuh"

/* Stages of a ring, each with a barrier for "full" and one for "empty". */
struct columns_ring {
    uint32_t at, bars;
    int bytes, stages, stage, phase;
    __device__ __forceinline__ uint32_t full() const {
        return bars + 16 * stage;
    }
    __device__ __forceinline__ uint32_t empty() const {
        return bars + 16 * stage + 8;
    }
    __device__ __forceinline__ uint32_t here() const {
        return at + stage * bytes;
    }
    __device__ __forceinline__ void next(int steps = 1) {
        if ((stage += steps) == stages)
            stage = 0, phase ^= 1;
    }
    /* Step p of the chunk that begins here: rings of activations have a multiple of a chunk's four steps as stages. */
    __device__ __forceinline__ columns_ring step(int p) const {
        columns_ring ring = *this;
        ring.stage += p;
        return ring;
    }
};

/* A warp has read the stage. */
static __device__ __forceinline__ void ring_leave(const columns_ring &ring) {
    if (threadIdx.x % 32 < RING_LANES)
        barrier_arrive(ring.empty());
}

/* The same, and goes on to the next. */
static __device__ __forceinline__ void ring_release(columns_ring &ring) {
    ring_leave(ring);
    ring.next();
}

/* All steps of a part of K in shared memory, complete before the first is read: nothing is waited for or released. */
struct columns_whole {
    uint32_t at;
    int bytes;
    __device__ __forceinline__ uint32_t here() const {
        return at;
    }
    __device__ __forceinline__ void next(int steps = 1) {
        at += steps * bytes;
    }
    __device__ __forceinline__ columns_whole step(int p) const {
        return {at + p * bytes, bytes};
    }
};

static __device__ __forceinline__ void ring_wait(const columns_ring &ring) {
    barrier_wait(ring.full(), ring.phase);
}

static __device__ __forceinline__ void ring_wait(const columns_whole &) {}

static __device__ __forceinline__ void ring_leave(const columns_whole &) {}

static __device__ __forceinline__ void ring_release(columns_whole &ring) {
    ring.next();
}

/* Loads packed weights. Run by one warp: a lane per tile of 16 rows. */
static __device__ __forceinline__ void fetch_weights(const gpu_call &c, columns_ring ring, int group, int teams,
                                                     int from, int to) {
    const int lane = threadIdx.x % 32, chunks = packed_chunks(&c.v[1]);
    const uint64_t policy = read_once();
    const char *data = nullptr;
    uint32_t bytes = 0;
    if (lane < 4 * teams) {
        const team_rows t = rows_of_team(c, group, lane / 4, teams);
        if (lane % 4 * TILE_ROWS < t.left) {
            bytes = (uint32_t)packed_bytes(c.v[t.which].format);
            data = (const char *)c.v[t.which].data + ((int64_t)(t.row / TILE_ROWS + lane % 4) * chunks + from) * bytes;
        }
    }
    const uint32_t all = __reduce_add_sync(~0u, bytes), own = lane * (ring.bytes / (4 * teams));
    for (int k = from; k < to; k++, data += bytes, ring.next()) {
        if (RING_LANES > 1) /* apart from lane 0's, whose machine code would be another where both are one condition */
            barrier_wait(ring.empty(), ring.phase ^ 1);
        if (lane == 0) {
            if (RING_LANES == 1)
                barrier_wait(ring.empty(), ring.phase ^ 1);
            barrier_expect(ring.full(), all);
        }
        __syncwarp();
        if (bytes)
            copy_bulk(ring.here() + own, data, bytes, ring.full(), policy);
    }
}

/* Loads weights in the file's layout. Run by one warp: a step of 64 columns at a time, in 128-byte swizzle. */
static __device__ __forceinline__ void fetch_dense(const gpu_call &c, columns_ring ring, int group, int teams, int from,
                                                   int to) {
    const int lane = threadIdx.x % 32, piece = lane % 8, first = lane / 8, width = c.v[1].shape[1];
    const char *rows[COLUMNS_TEAMS] = {};
    int left[COLUMNS_TEAMS] = {};
    int64_t strides[COLUMNS_TEAMS] = {};
#pragma unroll
    for (int team = 0; team < COLUMNS_TEAMS; team++)
        if (team < teams) {
            const team_rows t = rows_of_team(c, group, team, teams);
            strides[team] = 4 * (int64_t)c.v[t.which].stride;
            rows[team] = (const char *)c.v[t.which].data + (t.row + first) * (int64_t)c.v[t.which].stride + 16 * piece;
            left[team] = t.left;
        }
    for (int k = 4 * from; k < 4 * to; k++, ring.next()) {
        const int inside = k * COLUMNS_K + 8 * piece < width;
        barrier_wait(ring.empty(), ring.phase ^ 1);
#pragma unroll
        for (int team = 0; team < COLUMNS_TEAMS; team++) {
            if (team >= teams)
                break;
            const char *row = rows[team] + (int64_t)k * (2 * COLUMNS_K);
            const uint32_t place = ring.here() + team * (COLUMNS_ROWS * 128) + first * 128;
            const uint32_t even = place + ((piece ^ first) << 4), odd = place + ((piece ^ (first + 4)) << 4);
#pragma unroll
            for (int i = 0; i < COLUMNS_ROWS / 4; i++, row += strides[team]) { /* missing rows are not read */
                const int exists = inside && first + 4 * i < left[team];
                copy_16((i % 2 ? odd : even) + i * 512, exists ? row : (const char *)c.v[2].data, exists);
            }
        }
        asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(ring.full()) : "memory");
    }
    copies_wait<0>();
}

/* Loads activations. Run by one thread: four steps per chunk, in bulk. What the kernel before wrote is not ordered with bulk copies where
 * both kernels are launched early (docs/notes/gpu-products.md, "Early launch of a conversion"), so that kernel must not be. */
static __device__ __forceinline__ void fetch_columns(const gpu_call &c, columns_ring ring, int from, int to) {
    const char *data = (const char *)c.scratch + (int64_t)from * 4 * ring.bytes;
    for (int k = 4 * from; k < 4 * to; k++, data += ring.bytes, ring.next()) {
        barrier_wait(ring.empty(), ring.phase ^ 1);
        barrier_expect(ring.full(), ring.bytes);
        bulk_load(ring.here(), data, ring.bytes, ring.full());
    }
}

/* The same of N tokens by ordinary copies, after a kernel that may be launched early. Run by one warp, each lane of which arrives at
 * "full"; up to 16 tokens no slower. */
template <int N>
static __device__ __forceinline__ void copy_columns(const gpu_call &c, columns_ring ring, int from, int to) {
    const int own = threadIdx.x % 32 * 16;
    const char *data = activations_of(c) + (int64_t)from * 4 * ring.bytes + own;
    for (int k = 4 * from; k < 4 * to; k++, data += N * 128, ring.next()) {
        const uint32_t place = ring.here() + own;
        barrier_wait(ring.empty(), ring.phase ^ 1);
#pragma unroll
        for (int i = 0; i < N * 128; i += 512)
            copy_16(place + i, data + i, 1);
        asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(ring.full()) : "memory");
    }
    copies_wait<0>();
}

#endif
