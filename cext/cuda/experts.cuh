/* experts.cuh: what the kernels of mixtures share: a call's parameters, and the input, output and expert of a pair. */
#ifndef SATCHEL_CUDA_EXPERTS_CUH
#define SATCHEL_CUDA_EXPERTS_CUH

#include "experts.h"
#include "port.h"

/* A call's parameters: matrices per expert (2: gate and up), strides of pairs (token, expert) and inputs. */
struct expert_call {
    int matrices, each, width, chunks, rows, tiles, experts, formats[2];
    bool by_head;
    __device__ __forceinline__ expert_call(const gpu_call &c) {
        matrices = c.mode == EXPERTS_GATED ? 2 : 1;
        by_head = c.mode == EXPERTS_BY_HEAD;
        each = c.v[0].shape[1], rows = c.v[0].shape[2];
        experts = c.v[2].shape[0], width = c.v[2].shape[2];
        chunks = (width + CHUNK - 1) / CHUNK, tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
        formats[0] = (int)(c.v[2].format & 0xFFFFFFu);
        formats[1] = (int)(c.v[1 + matrices].format & 0xFFFFFFu);
    }
    /* The expert of token t's pair j; -1 if it is on another device, or, with a fault, if it is out of range. */
    __device__ __forceinline__ int chosen(const gpu_call &c, int t, int j) const {
        const gpu_view &ids = c.v[c.n_in];
        int id = by_head ? j : ((const int32_t *)(ids.data + t * ids.stride))[j];
        if (id < experts)
            return id < 0 ? -1 : id;
        fault(&c);
        return -1;
    }
    __device__ __forceinline__ const float *input(const gpu_call &c, int t, int j) const {
        int64_t all = (int64_t)c.v[1].shape[1] * c.v[1].shape[2];
        return (const float *)(c.v[1].data + t * c.v[1].stride) + (all == width ? 0 : (int64_t)j * width);
    }
    __device__ __forceinline__ float *output(const gpu_call &c, int t, int j) const {
        return (float *)(c.v[0].data + t * c.v[0].stride) + (int64_t)j * rows;
    }
    template <class SET>
    __device__ __forceinline__ const char *chunk(const gpu_call &c, int m, int id, int tile, int k) const {
        return (const char *)c.v[2 + m].data + id * c.v[2 + m].stride +
               ((int64_t)tile * chunks + k) * SET::bytes(formats[m]);
    }
};

__device__ __forceinline__ float expert_result(const float *y, int matrices) {
    return matrices == 2 ? y[0] / (1.0f + __expf(-y[0])) * y[1] : y[0];
}

#endif
