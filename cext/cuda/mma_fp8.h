/* mma_fp8.h: conversion to E4M3, and products of FP8 numbers on the tensor cores of sm_89 and newer. */
#ifndef SATCHEL_CUDA_MMA_FP8_H
#define SATCHEL_CUDA_MMA_FP8_H

#include <stdint.h>

/* Rounds two floats to E4M3; the first is in the lower byte. */
static __device__ __forceinline__ uint32_t fp8_two(float a, float b) {
    uint16_t x;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(x) : "f"(b), "f"(a));
    return x;
}

/* d += a b, m16n8k32, of E5M2 or E4M3 times E4M3. */
template <bool E5M2>
static __device__ __forceinline__ void mma_fp8(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (E5M2)
        asm("mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e4m3.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#endif
