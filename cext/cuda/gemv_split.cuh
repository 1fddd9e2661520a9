/* gemv_split.cuh: clusters of groups of gemv.cu that split K.
 *
 * The groups of a cluster have the same tiles, and each a part of K: so each loads and quantizes its part of the activations alone. A
 * column belongs to one group of the cluster. Once a batch of tiles is done, each group sends its sums of a column to that group
 * (st.async), whose barrier counts the bytes; that group adds the parts in their order, and ends the op. What is sent has a place of its
 * own until the end, so there is nothing to wait for before. A group that others send to waits for all of it, so none ends before.
 */
#ifndef SATCHEL_CUDA_GEMV_SPLIT_CUH
#define SATCHEL_CUDA_GEMV_SPLIT_CUH

#include "cluster.h"
#include "gemv.cuh"

/* Which tiles and which part of K are a group's; SPLIT: of a cluster, a group by itself has all of K. */
template <bool SPLIT> struct gemv_place {
    enum { parts = 1, rank = 0 };
    __device__ __forceinline__ static int group() {
        return (int)blockIdx.x;
    }
    __device__ __forceinline__ static uint32_t groups() {
        return gridDim.x;
    }
};

/* The sums of a cluster's groups, as a group has them. */
template <bool SPLIT> struct gemv_parts {
    __device__ __forceinline__ gemv_parts(const gemv_place<SPLIT> &, char *, int, int) {}
    __device__ __forceinline__ void start() const {}
    __device__ __forceinline__ void started() const {}
    __device__ __forceinline__ void expect(int, bool) const {}
};

#if HOPPER
template <> struct gemv_place<true> {
    int parts, rank;
    __device__ __forceinline__ gemv_place() {
        parts = (int)cluster_size();
        rank = (int)cluster_rank();
    }
    __device__ __forceinline__ static int group() {
        return (int)cluster_number();
    }
    __device__ __forceinline__ static uint32_t groups() {
        return cluster_count();
    }
};

/* [parts][tiles][columns][16], behind a barrier and the parts' sums of squares, four each. */
template <> struct gemv_parts<true> {
    gemv_place<true> place;
    char *memory;
    int tiles, most;

    __device__ __forceinline__ gemv_parts(const gemv_place<true> &of, char *at, int n, int columns)
        : place(of), memory(at), tiles(n), most(columns) {}
    __device__ __forceinline__ uint32_t barrier() const {
        return shared_address(memory);
    }
    __device__ __forceinline__ float *squares(int part) const {
        return (float *)(memory + GEMV_SPLIT_BARRIER) + 4 * part;
    }
    __device__ __forceinline__ float *sums(int part, int tile, int t) const {
        return (float *)(memory + GEMV_SPLIT_HEAD) + ((part * tiles + tile) * most + t) * TILE_ROWS;
    }
    __device__ __forceinline__ int owner(int t) const {
        return t & (place.parts - 1);
    }
    /* Of so many columns those that this group has: every parts-th one. */
    __device__ __forceinline__ int owned(int columns) const {
        return (columns + place.parts - 1 - place.rank) / place.parts;
    }
    /* Before anything is sent. Thread 0 makes the barrier; all threads of the cluster call both. */
    __device__ __forceinline__ void start() const {
        if (threadIdx.x == 0) {
            barrier_init(barrier(), 1);
            barriers_made();
        }
        __syncwarp();
        cluster_arrive();
    }
    __device__ __forceinline__ void started() const {
        cluster_wait();
    }
    /* What the other groups send is counted from now on, or has come already. */
    __device__ __forceinline__ void expect(int columns, bool norm) const {
        if (threadIdx.x == 0)
            barrier_expect(barrier(),
                           (uint32_t)((place.parts - 1) * owned(columns) * (tiles * TILE_ROWS * 4 + (norm ? 4 : 0))));
    }
    __device__ __forceinline__ void wait() const {
        barrier_wait_sent(barrier());
    }
    /* Leaves a number of column t at the group that the column belongs to. */
    __device__ __forceinline__ void leave(float *at, int t, float x) const {
        if (owner(t) == place.rank)
            *at = x;
        else
            send_4(shared_of(shared_address(at), owner(t)), __float_as_uint(x), shared_of(barrier(), owner(t)));
    }
    /* A row's sum over K, in the order of the parts. */
    __device__ __forceinline__ float added(int tile, int t, int row) const {
        float sum = 0.0f;
        for (int i = 0; i < place.parts; i++)
            sum += sums(i, tile, t)[row];
        return sum;
    }
    __device__ __forceinline__ float all_squares(int t) const {
        float sum = 0.0f;
        for (int i = 0; i < place.parts; i++)
            sum += squares(i)[t];
        return sum;
    }
};
#endif

#endif
