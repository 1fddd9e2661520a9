/* mma_scaled.h: products of MXFP4 weights with MXFP8 activations: d += (a times its rows' scales) (b times its columns' scales), m16n8k32.
 *
 * a: E2M1 numbers, each in bits 2 to 5 of a byte, in the order of m16n8k32's A operand; b: E4M3 numbers. A scale is a byte of E8M0, the
 * power of two 2^(e - 127), 255: NaN; of the four bytes of a word BYTE counts. A lane's scale_a is that of row lane / 4 + 8 (lane % 2),
 * its scale_b that of column lane / 4.
 *
 * sm_120a and sm_121a have one instruction for it. Elsewhere, from sm_89 on, it is a product of E4M3 numbers, whose sums are multiplied by
 * the scales. Those sums define what the instruction has to give, to the rounding of a float32 sum.
 */
#ifndef SATCHEL_CUDA_MMA_SCALED_H
#define SATCHEL_CUDA_MMA_SCALED_H

#include "mma_fp8.h"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
/* The selectors are (byte, thread): of a quad's lanes the instruction reads scale_a from the first two, scale_b from the first. */
template <int BYTE>
static __device__ __forceinline__ void mma_scaled(float *d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                                  uint32_t scale_a, uint32_t scale_b) {
    asm("mma.sync.aligned.kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f32.e2m1.e4m3.f32.ue8m0 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3}, {%10}, {%12, 0}, {%11}, {%12, 0};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(scale_a), "r"(scale_b), "n"(BYTE));
}
#else
static __device__ __forceinline__ float e8m0_value(uint32_t e) {
    return __uint_as_float(e == 255 ? 0x7FC00000u : e ? e << 23 : 0x00400000u);
}

template <int BYTE>
static __device__ __forceinline__ void mma_scaled(float *d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                                  uint32_t scale_a, uint32_t scale_b) {
    const int lane = threadIdx.x % 32;
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f}, row[2], column[2];
    uint32_t wide[4];
#pragma unroll
    for (int r = 0; r < 4; r++) /* E4M3 of the same bits is 2^-6 times the number */
        wide[r] = (a[r] & 0x1C1C1C1Cu) | ((a[r] << 2) & 0x80808080u);
    mma_fp8<false>(sum, wide, b0, b1);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        row[i] = e8m0_value(__shfl_sync(~0u, scale_a, (lane & 28) + i) >> (8 * BYTE) & 255);
        column[i] = e8m0_value(__shfl_sync(~0u, scale_b, lane % 4 * 8 + 4 * i) >> (8 * BYTE) & 255);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        d[i] = fmaf(64.0f * sum[i] * row[i / 2], column[i % 2], d[i]);
}
#endif

#endif
