/* mma_tf32.h: products of warps by mma.sync with tf32 operands (PTX ISA, m16n8k8), and barriers of some of a group's warps.
 *
 * Lane l has g = l / 4 and t = l % 4. Accumulators are elements (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1). The order of
 * the k elements is free as long as both operands share it: here a lane's two are 2t and 2t + 1, so accumulators are operands of
 * the next product as they are, and an operand in shared memory is read as pairs.
 */
#ifndef SATCHEL_CUDA_MMA_TF32_H
#define SATCHEL_CUDA_MMA_TF32_H

#include <stdint.h>

/* Bits whose upper 19, all that a product reads, are x rounded to tf32. */
static __device__ __forceinline__ uint32_t tf32_of(float x) {
    return __float_as_uint(x) + 0x1000u;
}

/* d += a b. */
static __device__ __forceinline__ void mma_tf32(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ void some_sync(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

static __device__ __forceinline__ void some_arrive(int barrier, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

#endif
