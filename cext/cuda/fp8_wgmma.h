/* fp8_wgmma.h: wrappers of wgmma m64nNk32 for FP8: weights (a) in registers, E4M3 activations (b) in shared memory, K-major
 * rows of 128 elements (hopper.h's operand_at), accumulators as in wgmma.h; keep 0: overwrites d instead of adding.
 *
 * The tensor core accumulates FP8 products with about 14 bits, so the caller restarts after 128 of K and adds in float32.
 */
#ifndef SATCHEL_CUDA_FP8_WGMMA_H
#define SATCHEL_CUDA_FP8_WGMMA_H

#include <stdint.h>

/* Operand lists of the accumulators, sixteen at a time. */
#define FP8_PLACES_0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define FP8_PLACES_1 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define FP8_PLACES_2 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define FP8_PLACES_3 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define FP8_PLACES_ALL FP8_PLACES_0 ", " FP8_PLACES_1 ", " FP8_PLACES_2 ", " FP8_PLACES_3
#define FP8_FOUR(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define FP8_SUMS(i) FP8_FOUR(i), FP8_FOUR(i + 4), FP8_FOUR(i + 8), FP8_FOUR(i + 12)

#define FP8_PRODUCT(type, n, places, operands, keep, ...)                                                              \
    asm volatile("{\n .reg .pred keep;\n setp.ne.b32 keep, " keep ", 0;\n"                                             \
                 " wgmma.mma_async.sync.aligned.m64n" n "k32.f32." type ".e4m3 {" places "}, " operands                \
                 ", keep, 1, 1;\n}"                                                                                    \
                 : __VA_ARGS__                                                                                         \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep_old))

template <bool E5M2>
static __device__ __forceinline__ void product_fp8(float (&d)[16], const uint32_t (&a)[4], uint64_t b, int keep_old) {
    if constexpr (E5M2)
        FP8_PRODUCT("e5m2", "32", FP8_PLACES_0, "{%16, %17, %18, %19}, %20", "%21", FP8_SUMS(0));
    else
        FP8_PRODUCT("e4m3", "32", FP8_PLACES_0, "{%16, %17, %18, %19}, %20", "%21", FP8_SUMS(0));
}

template <bool E5M2>
static __device__ __forceinline__ void product_fp8(float (&d)[32], const uint32_t (&a)[4], uint64_t b, int keep_old) {
    if constexpr (E5M2)
        FP8_PRODUCT("e5m2", "64", FP8_PLACES_0 ", " FP8_PLACES_1, "{%32, %33, %34, %35}, %36", "%37", FP8_SUMS(0),
                    FP8_SUMS(16));
    else
        FP8_PRODUCT("e4m3", "64", FP8_PLACES_0 ", " FP8_PLACES_1, "{%32, %33, %34, %35}, %36", "%37", FP8_SUMS(0),
                    FP8_SUMS(16));
}

template <bool E5M2>
static __device__ __forceinline__ void product_fp8(float (&d)[64], const uint32_t (&a)[4], uint64_t b, int keep_old) {
    if constexpr (E5M2)
        FP8_PRODUCT("e5m2", "128", FP8_PLACES_ALL, "{%64, %65, %66, %67}, %68", "%69", FP8_SUMS(0), FP8_SUMS(16),
                    FP8_SUMS(32), FP8_SUMS(48));
    else
        FP8_PRODUCT("e4m3", "128", FP8_PLACES_ALL, "{%64, %65, %66, %67}, %68", "%69", FP8_SUMS(0), FP8_SUMS(16),
                    FP8_SUMS(32), FP8_SUMS(48));
}

#endif
