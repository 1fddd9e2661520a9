/* expert_warp.cu: mixture-of-experts products of packed weights (E, N, K) with many pairs of token and expert, in bf16 with float32
 * accumulators, by mma.sync: for devices without wgmma. expert_warp.cuh has the walk. A warp dequantizes a weight in registers, once for the
 * pairs of a tile.
 */
#include "columns_step.cuh"
#include "expert_warp.cuh"

/* Steps of 64 elements in bf16. */
template <class F> struct expert_bf16 {
    typedef F format;
    enum { STEPS = CHUNK / COLUMNS_K, SCALED = 0 };
    __device__ static __forceinline__ expert_scratch scratch_of(const gpu_call *c, int most) {
        return expert_scratch_of(c, most);
    }
    template <int MOST, int N>
    __device__ static __forceinline__ void multiply(const char *w, uint32_t *table, const char *columns, int p,
                                                    float (&d)[2][N / 2]) {
        warp_step<F, N, 2>(w, F::BYTES, table, shared_address(columns), p, d);
    }
};

EXPERT_LIST(32)
EXPERT_LIST(64)

#ifndef EXPERT_FORMATS
#define EXPERT_FORMATS TILE_FORMATS
#endif
#define EXPERT_32(f)                                                                                                   \
    EXPERT_WARP_32(expert_warp_32_##f) {                                                                               \
        expert_warp<expert_bf16<tile_##f>, 32>(c);                                                                     \
    }
#define EXPERT_64(f)                                                                                                   \
    EXPERT_WARP_64(expert_warp_64_##f) {                                                                               \
        expert_warp<expert_bf16<tile_##f>, 64>(c);                                                                     \
    }
EXPERT_FORMATS(EXPERT_32)
EXPERT_FORMATS(EXPERT_64)
