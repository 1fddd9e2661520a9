/* wgmma.h: wrappers of wgmma m64nNk16 with float32 accumulators. Lane (g, c) = (lane / 4, lane % 4) of warp w holds columns
 * 8 j + 2 c + {0, 1} of row 16 w + g in d[4 j + {0, 1}], and those of row 16 w + g + 8 in d[4 j + {2, 3}].
 *
 * product_T_N(d, a, b, keep): both operands in shared memory, K-major; keep 0: overwrites d instead of adding.
 * product_T_a_N(d, a, b): a in registers, b in shared memory, MN-major; adds to d.
 * scores_T_N(d, a, b, keep): like product_T_N; weighted_T_N: with b MN-major. Both take lower halves of descriptors.
 */
#ifndef SATCHEL_CUDA_WGMMA_H
#define SATCHEL_CUDA_WGMMA_H

#include <stdint.h>

/* Operand lists of N accumulators: their places in the instruction, and the variables. */
#define WGMMA_PLACES_4 "%0, %1, %2, %3"
#define WGMMA_PLACES_8 WGMMA_PLACES_4 ", %4, %5, %6, %7"
#define WGMMA_PLACES_16 WGMMA_PLACES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define WGMMA_PLACES_32                                                                                                \
    WGMMA_PLACES_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_PLACES_64                                                                                                \
    WGMMA_PLACES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "               \
                    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_PLACES_128                                                                                               \
    WGMMA_PLACES_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "               \
                    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "                 \
                    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "     \
                    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define WGMMA_FOUR(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define WGMMA_SIXTEEN(i) WGMMA_FOUR(i), WGMMA_FOUR(i + 4), WGMMA_FOUR(i + 8), WGMMA_FOUR(i + 12)
#define WGMMA_SUMS_4 WGMMA_FOUR(0)
#define WGMMA_SUMS_8 WGMMA_FOUR(0), WGMMA_FOUR(4)
#define WGMMA_SUMS_16 WGMMA_SIXTEEN(0)
#define WGMMA_SUMS_32 WGMMA_SIXTEEN(0), WGMMA_SIXTEEN(16)
#define WGMMA_SUMS_64 WGMMA_SUMS_32, WGMMA_SIXTEEN(32), WGMMA_SIXTEEN(48)
#define WGMMA_SUMS_128 WGMMA_SUMS_64, WGMMA_SIXTEEN(64), WGMMA_SIXTEEN(80), WGMMA_SIXTEEN(96), WGMMA_SIXTEEN(112)
#define WGMMA_A "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])

/* n: columns; sums: accumulators of a lane; A, B, KEEP, A0 .. A3: places of the other operands. */
#define WGMMA_SHARED(type, n, sums, A, B, KEEP)                                                                        \
    static __device__ __forceinline__ void product_##type##_##n(float (&d)[sums], uint64_t a, uint64_t b, int keep) {  \
        asm volatile("{\n .reg .pred keep;\n setp.ne.b32 keep, %" #KEEP ", 0;\n"                                       \
                     " wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." #type "." #type " {" WGMMA_PLACES_##sums       \
                     "}, %" #A ", %" #B ", keep, 1, 1, 0, 0;\n}"                                                       \
                     : WGMMA_SUMS_##sums                                                                               \
                     : "l"(a), "l"(b), "r"(keep));                                                                     \
    }
#define WGMMA_REGISTERS(type, n, sums, A0, A1, A2, A3, B)                                                              \
    static __device__ __forceinline__ void product_##type##_a_##n(float (&d)[sums], const uint32_t (&a)[4],            \
                                                                  uint64_t b) {                                        \
        asm volatile("{\n .reg .pred one;\n setp.eq.u32 one, 0, 0;\n"                                                  \
                     " wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." #type "." #type " {" WGMMA_PLACES_##sums       \
                     "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", one, 1, 1, 1;\n}"                          \
                     : WGMMA_SUMS_##sums                                                                               \
                     : WGMMA_A, "l"(b));                                                                               \
    }
/* Operands by the lower half of their descriptors (groups of 8 rows are 1024 bytes apart), which leaves half as many registers
 * to compute; MN_MAJOR: b is MN-major, not K-major. */
#define WGMMA_LOWER(name, type, n, sums, A, B, KEEP, MN_MAJOR)                                                         \
    static __device__ __forceinline__ void name##_##type##_##n(float (&d)[sums], uint32_t a, uint32_t b, int keep) {   \
        asm volatile("{\n .reg .pred keep;\n .reg .b64 x, y;\n setp.ne.b32 keep, %" #KEEP ", 0;\n"                     \
                     " mov.b64 x, {%" #A ", 0x40000040};\n mov.b64 y, {%" #B ", 0x40000040};\n"                        \
                     " wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." #type "." #type " {" WGMMA_PLACES_##sums       \
                     "}, x, y, keep, 1, 1, 0, " #MN_MAJOR ";\n}"                                                       \
                     : WGMMA_SUMS_##sums                                                                               \
                     : "r"(a), "r"(b), "r"(keep));                                                                     \
    }

WGMMA_SHARED(bf16, 256, 128, 128, 129, 130)
WGMMA_SHARED(bf16, 128, 64, 64, 65, 66)
WGMMA_SHARED(bf16, 64, 32, 32, 33, 34)
WGMMA_SHARED(bf16, 32, 16, 16, 17, 18)
WGMMA_SHARED(f16, 64, 32, 32, 33, 34)
WGMMA_SHARED(f16, 32, 16, 16, 17, 18)
WGMMA_REGISTERS(bf16, 64, 32, 32, 33, 34, 35, 36)
WGMMA_REGISTERS(bf16, 128, 64, 64, 65, 66, 67, 68)
WGMMA_REGISTERS(bf16, 256, 128, 128, 129, 130, 131, 132)
WGMMA_REGISTERS(f16, 64, 32, 32, 33, 34, 35, 36)
WGMMA_REGISTERS(f16, 128, 64, 64, 65, 66, 67, 68)
WGMMA_REGISTERS(f16, 256, 128, 128, 129, 130, 131, 132)
WGMMA_LOWER(scores, bf16, 64, 32, 32, 33, 34, 0)
WGMMA_LOWER(scores, f16, 64, 32, 32, 33, 34, 0)
WGMMA_LOWER(weighted, bf16, 256, 128, 128, 129, 130, 1)
WGMMA_LOWER(weighted, f16, 256, 128, 128, 129, 130, 1)

#endif
