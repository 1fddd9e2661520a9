/* geglu.cuh: the gate of products in mode PRODUCT_GELU. */
#ifndef SATCHEL_CUDA_GEGLU_CUH
#define SATCHEL_CUDA_GEGLU_CUH

#include "gated.k.h"

/* gelu(gate) * up, in the style that norm_linear_geglu's arguments state. */
static __device__ __forceinline__ float geglu_of(const gpu_call &c, float gate, float up) {
    return gelu_of(gate, ((const arg_norm_linear_geglu *)c.arg)->style) * up;
}

#endif
