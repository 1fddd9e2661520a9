/* fp8_wgmma.h: wrappers of wgmma m64nNk32 for FP8, accumulators as in wgmma.h; keep 0: overwrites d instead of adding.
 *
 * product_fp8(d, a, b, keep): weights (a) in registers, E4M3 activations (b) in shared memory, K-major rows of 128 elements (hopper.h's
 * operand_at). product_e4m3_N(d, a, b, keep): both so in shared memory.
 *
 * The tensor core accumulates FP8 products with about 14 bits. Who wants more restarts after 128 of K and adds in float32.
 */
#ifndef SATCHEL_CUDA_FP8_WGMMA_H
#define SATCHEL_CUDA_FP8_WGMMA_H

#include "wgmma.h"

#define FP8_PRODUCT(type, n, places, operands, keep, ...)                                                              \
    asm volatile("{\n .reg .pred keep;\n setp.ne.b32 keep, " keep ", 0;\n"                                             \
                 " wgmma.mma_async.sync.aligned.m64n" n "k32.f32." type ".e4m3 {" places "}, " operands                \
                 ", keep, 1, 1;\n}"                                                                                    \
                 : __VA_ARGS__                                                                                         \
                 : WGMMA_A, "l"(b), "r"(keep_old))

template <bool E5M2>
static __device__ __forceinline__ void product_fp8(float (&d)[16], const uint32_t (&a)[4], uint64_t b, int keep_old) {
    if constexpr (E5M2)
        FP8_PRODUCT("e5m2", "32", WGMMA_PLACES_16, "{%16, %17, %18, %19}, %20", "%21", WGMMA_SUMS_16);
    else
        FP8_PRODUCT("e4m3", "32", WGMMA_PLACES_16, "{%16, %17, %18, %19}, %20", "%21", WGMMA_SUMS_16);
}

template <bool E5M2>
static __device__ __forceinline__ void product_fp8(float (&d)[32], const uint32_t (&a)[4], uint64_t b, int keep_old) {
    if constexpr (E5M2)
        FP8_PRODUCT("e5m2", "64", WGMMA_PLACES_32, "{%32, %33, %34, %35}, %36", "%37", WGMMA_SUMS_32);
    else
        FP8_PRODUCT("e4m3", "64", WGMMA_PLACES_32, "{%32, %33, %34, %35}, %36", "%37", WGMMA_SUMS_32);
}

template <bool E5M2>
static __device__ __forceinline__ void product_fp8(float (&d)[64], const uint32_t (&a)[4], uint64_t b, int keep_old) {
    if constexpr (E5M2)
        FP8_PRODUCT("e5m2", "128", WGMMA_PLACES_64, "{%64, %65, %66, %67}, %68", "%69", WGMMA_SUMS_64);
    else
        FP8_PRODUCT("e4m3", "128", WGMMA_PLACES_64, "{%64, %65, %66, %67}, %68", "%69", WGMMA_SUMS_64);
}

#define FP8_SHARED(n, sums, A, B, KEEP)                                                                                \
    static __device__ __forceinline__ void product_e4m3_##n(float (&d)[sums], uint64_t a, uint64_t b, int keep) {      \
        asm volatile("{\n .reg .pred keep;\n setp.ne.b32 keep, %" #KEEP ", 0;\n"                                       \
                     " wgmma.mma_async.sync.aligned.m64n" #n "k32.f32.e4m3.e4m3 {" WGMMA_PLACES_##sums                 \
                     "}, %" #A ", %" #B ", keep, 1, 1;\n}"                                                             \
                     : WGMMA_SUMS_##sums                                                                               \
                     : "l"(a), "l"(b), "r"(keep));                                                                     \
    }
FP8_SHARED(256, 128, 128, 129, 130)
FP8_SHARED(128, 64, 64, 65, 66)

#endif
