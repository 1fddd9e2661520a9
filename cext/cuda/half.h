/* half.h: conversions between float and 16-bit floats, each one or two PTX instructions. Kernels include no header of a CUDA
 * toolkit, so that NVRTC compiles them where there is none. Two numbers are a word, the first in its lower half.
 */
#ifndef SATCHEL_CUDA_HALF_H
#define SATCHEL_CUDA_HALF_H

#include <math.h>
#include <stdint.h>

#define LOG2_E 1.442695041f

static __device__ __forceinline__ float float_of_half(uint16_t bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}

static __device__ __forceinline__ uint16_t half_of_float(float x) {
    uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

static __device__ __forceinline__ float2 floats_of_halves(uint32_t two) {
    float2 out;
    asm("{\n .reg .f16 low, high;\n mov.b32 {low, high}, %2;\n cvt.f32.f16 %0, low;\n cvt.f32.f16 %1, high;\n}"
        : "=f"(out.x), "=f"(out.y)
        : "r"(two));
    return out;
}

static __device__ __forceinline__ uint32_t halves_of_floats(float low, float high) {
    uint32_t two;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
    return two;
}

static __device__ __forceinline__ uint32_t bfloats_of_floats(float low, float high) {
    uint32_t two;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
    return two;
}

static __device__ __forceinline__ uint32_t halves_minus(uint32_t a, uint32_t b) {
    uint32_t two;
    asm("sub.f16x2 %0, %1, %2;" : "=r"(two) : "r"(a), "r"(b));
    return two;
}

#endif
