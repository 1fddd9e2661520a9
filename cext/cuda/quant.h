/* quant.h: dequantizes weights in the commonest formats, eight elements at a time; the other formats use the parts of 32 that
 * cext/quant defines. */
#ifndef SATCHEL_CUDA_QUANT_H
#define SATCHEL_CUDA_QUANT_H

#include "port.h"

enum { FORMAT_F32 = 0, FORMAT_F16 = 1, FORMAT_Q8_0 = 8, FORMAT_Q4_K = 12, FORMAT_Q6_K = 14, FORMAT_BF16 = 30 };

/* Eight bytes from an even address, in order. */
static __device__ __forceinline__ uint2 eight_bytes(const uint8_t *p) {
    const uint16_t *h = (const uint16_t *)p;
    return make_uint2(h[0] | (uint32_t)h[1] << 16, h[2] | (uint32_t)h[3] << 16);
}

/* Byte i (0..7) of v as a float. */
static __device__ __forceinline__ float byte_of(uint2 v, int i) {
    return (float)((i < 4 ? v.x : v.y) >> (8 * (i & 3)) & 255);
}

/* Elements k to k + 7 of a row, k a multiple of 8; bit-identical to the format's _part function. */
static __device__ __forceinline__ void eight_q4_k(const uint8_t *row, int k, float *out) {
    const block_q4_k *b = (const block_q4_k *)row + k / 256;
    const int g = k / 32 % 8;
    const uint2 *at = (const uint2 *)(b->qs + 32 * (g / 2) + k % 32);
    const uint2 v = make_uint2(at->x >> (4 * (g & 1)) & 0x0F0F0F0Fu, at->y >> (4 * (g & 1)) & 0x0F0F0F0Fu);
    uint8_t scale, min;
    q4_k_scale(b->scales, g, &scale, &min);
    const float step = f16_to_f32(b->d) * (float)scale, low = f16_to_f32(b->dmin) * (float)min;
#pragma unroll
    for (int i = 0; i < 8; i++)
        out[i] = step * byte_of(v, i) - low;
}

static __device__ __forceinline__ void eight_q6_k(const uint8_t *row, int k, float *out) {
    const block_q6_k *b = (const block_q6_k *)row + k / 256;
    const int first = k % 256, half = first / 128, part = first / 32 % 4, l = first % 32;
    const uint2 low = eight_bytes(b->ql + 64 * half + 32 * (part % 2) + l), high = eight_bytes(b->qh + 32 * half + l);
    const int down = 4 * (part / 2), up = 2 * part;
    const uint2 v = make_uint2((low.x >> down & 0x0F0F0F0Fu) | (high.x >> up & 0x03030303u) << 4,
                               (low.y >> down & 0x0F0F0F0Fu) | (high.y >> up & 0x03030303u) << 4);
    const float step = f16_to_f32(b->d) * (float)b->scales[first / 16];
#pragma unroll
    for (int i = 0; i < 8; i++)
        out[i] = step * (byte_of(v, i) - 32.0f);
}

static __device__ __forceinline__ void eight_q8_0(const uint8_t *row, int k, float *out) {
    const block_q8_0 *b = (const block_q8_0 *)row + k / 32;
    const uint2 v = eight_bytes((const uint8_t *)b->qs + k % 32);
    const float d = f16_to_f32(b->d);
#pragma unroll
    for (int i = 0; i < 8; i++)
        out[i] = d * (float)(int8_t)((i < 4 ? v.x : v.y) >> (8 * (i & 3)));
}

static __device__ __forceinline__ void eight_f32(const uint8_t *row, int k, float *out) {
    const float4 *at = (const float4 *)row + k / 4, a = at[0], b = at[1];
    out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w, out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
}

static __device__ __forceinline__ void eight_f16(const uint8_t *row, int k, float *out) {
    const uint4 v = ((const uint4 *)row)[k / 8];
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 8; i++)
        out[i] = f16_to_f32((uint16_t)(words[i / 2] >> (16 * (i & 1))));
}

static __device__ __forceinline__ void eight_bf16(const uint8_t *row, int k, float *out) {
    const uint4 v = ((const uint4 *)row)[k / 8];
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 8; i++)
        out[i] = bf16_to_f32((uint16_t)(words[i / 2] >> (16 * (i & 1))));
}

#endif
