/* gemv_pair.cuh: how the two groups of a cluster share the quantization of activations in gemv.cu.
 *
 * Both groups need all activations as bytes. Of a wave's chunks one group quantizes the even columns, the other the odd ones; the waves of
 * a number in both groups have the same chunks. A wave stores a column in its own group's memory, then sends it to the other's (st.async),
 * where the barrier of the wave of that number counts the bytes. So no chunk, sum of squares or sum over K has another order than in a
 * group by itself, and waves wait for those alone whose columns they multiply. All waves wait for what is sent to them, so a group that
 * ends has received all.
 */
#ifndef SATCHEL_CUDA_GEMV_PAIR_CUH
#define SATCHEL_CUDA_GEMV_PAIR_CUH

#include "cluster.h"
#include "gemv.cuh"

/* A wave's share of the activations; PAIR: in a group of two. */
template <bool PAIR> struct gemv_share;

/* Of a group by itself: its waves quantize all columns, and send them to nobody. */
template <> struct gemv_share<false> {
    enum { first = 0 };
    __device__ __forceinline__ gemv_share(uint32_t, int, int) {}
    __device__ __forceinline__ void started() const {}
    __device__ __forceinline__ int after(int t, int columns) const {
        return t + 1 == columns ? 0 : t + 1;
    }
    __device__ __forceinline__ bool owns(int) const {
        return true;
    }
    __device__ __forceinline__ bool writes() const {
        return blockIdx.x == 0;
    }
    __device__ __forceinline__ void send(const char *, int, int, int) const {}
    __device__ __forceinline__ void send_square(const float *, float) const {}
    __device__ __forceinline__ void settle(int, int, bool, int, int) const {}
    /* together: a wave has quantized the chunks that it multiplies. */
    __device__ __forceinline__ void wait(bool together, int) const {
        if (together)
            __syncwarp();
        else
            __syncthreads();
    }
};

#if HOPPER
template <> struct gemv_share<true> {
    enum { COLUMN_BYTES = 512 + 32 + 4 /* of a chunk: bytes, sums and scale */ };
    uint32_t ready, there,
        other; /* the group's barriers, one a wave; this wave's in the other group; that group's rank */
    int first; /* this wave's first column; it has every second one */

    /* Makes the wave's barrier and tells the other group that it is there. */
    __device__ __forceinline__ gemv_share(uint32_t barriers, int wave, int lane) : ready(barriers) {
        const uint32_t rank = cluster_rank();
        other = rank ^ 1;
        first = (wave ^ (int)rank) & 1;
        there = shared_of(ready + 8 * wave, other);
        if (lane == 0) {
            barrier_init(ready + 8 * wave, RING_LANES);
            barriers_made();
        }
        __syncwarp();
        cluster_arrive();
    }
    /* Before anything is sent: the other group has its barriers, and this one's waves have each other's. */
    __device__ __forceinline__ void started() const {
        cluster_wait();
    }
    __device__ __forceinline__ int after(int t, int columns) const {
        return t + 2 < columns ? t + 2 : first;
    }
    __device__ __forceinline__ bool owns(int t) const {
        return ((t ^ first) & 1) == 0;
    }
    /* What one group writes once, the waves of the first two write here: each the columns that it has. */
    __device__ __forceinline__ bool writes() const {
        return blockIdx.x < 2;
    }
    /* Sends column t of a chunk, which this wave has quantized: four pieces of 128 bytes, the sums, the scale. */
    __device__ __forceinline__ void send(const char *chunk, int t, int columns, int lane) const {
        __syncwarp();
        const char *bytes = chunk + (lane / 8 * columns + t) * 128 + lane % 8 * 16,
                   *sums = chunk + 512 * columns + 32 * t + 16 * lane, *scale = chunk + 544 * columns + 4 * t;
        send_16(shared_of(shared_address(bytes), other), *(const uint4 *)bytes, there);
        if (lane < 2)
            send_16(shared_of(shared_address(sums), other), *(const uint4 *)sums, there);
        if (lane == 2)
            send_4(shared_of(shared_address(scale), other), *(const uint32_t *)scale, there);
    }
    __device__ __forceinline__ void send_square(const float *at, float sum) const {
        send_4(shared_of(shared_address(at), other), __float_as_uint(sum), there);
    }
    /* This wave's share is in its own group's memory. What the other group's wave sends is counted from now on, or has come already. */
    __device__ __forceinline__ void settle(int chunks, int columns, bool norm, int wave, int lane) const {
        const int sent = (columns + (first & 1)) / 2,
                  mine = wave < chunks ? (chunks - wave + GEMV_WAVES - 1) / GEMV_WAVES : 0;
        __syncwarp();
        if (RING_LANES > 1 && lane > 0)
            barrier_arrive(ready + 8 * wave);
        if (lane == 0)
            barrier_expect(ready + 8 * wave, (uint32_t)(sent * (mine * COLUMN_BYTES + (norm ? 4 : 0))));
    }
    /* Waits for the chunks that the wave multiplies: its own, or those of its number in both teams. */
    __device__ __forceinline__ void wait(bool together, int wave) const {
        if (!together)
            barrier_wait_sent(ready + 8 * (wave ^ GEMV_WAVES / 2));
        barrier_wait_sent(ready + 8 * wave);
    }
};
#endif

#endif
