/* wgmma_columns.h: wrappers of wgmma m64nNk16 as in wgmma.h, for few columns: a (weights) in registers, b (activations) in
 * shared memory, K-major, given by the lower half of its descriptor (groups of 8 rows are 1024 bytes apart); adds to d.
 */
#ifndef SATCHEL_CUDA_WGMMA_COLUMNS_H
#define SATCHEL_CUDA_WGMMA_COLUMNS_H

#include "wgmma.h"

#define WGMMA_COLUMNS(n, sums, A0, A1, A2, A3, B)                                                                      \
    static __device__ __forceinline__ void product_columns(float (&d)[sums], const uint32_t (&a)[4], uint32_t b) {     \
        asm volatile("{\n .reg .pred one;\n .reg .b64 at;\n setp.eq.u32 one, 0, 0;\n"                                  \
                     " mov.b64 at, {%" #B ", 0x40000040};\n"                                                           \
                     " wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" WGMMA_PLACES_##sums                 \
                     "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, at, one, 1, 1, 0;\n}"                               \
                     : WGMMA_SUMS_##sums                                                                               \
                     : WGMMA_A, "r"(b));                                                                               \
    }

WGMMA_COLUMNS(8, 4, 4, 5, 6, 7, 8)
WGMMA_COLUMNS(16, 8, 8, 9, 10, 11, 12)
WGMMA_COLUMNS(32, 16, 16, 17, 18, 19, 20)
WGMMA_COLUMNS(64, 32, 32, 33, 34, 35, 36)
WGMMA_COLUMNS(128, 64, 64, 65, 66, 67, 68)

#endif
