/* bench.cuh: what the benches of kernels share: the end at an error of CUDA, and random numbers. */
#include <cuda_bf16.h> /* the kernels' own headers include none of the toolkit's */
#include <cuda_fp16.h>

#include <cstdio>
#include <cstdlib>

#define OK(x)                                                                                                          \
    do {                                                                                                               \
        cudaError_t e_ = (x);                                                                                          \
        if (e_ != cudaSuccess) {                                                                                       \
            printf("%s:%d %s: %s\n", __FILE__, __LINE__, #x, cudaGetErrorString(e_));                                  \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static int failures;

static __device__ inline uint32_t noise(uint32_t s, uint64_t i) {
    uint64_t x = (i + 1) * 0x9E3779B97F4A7C15ull + s * 0xD1B54A32D192ED03ull;
    x ^= x >> 32, x *= 0xD6E8FEB86659FD93ull, x ^= x >> 32, x *= 0xD6E8FEB86659FD93ull, x ^= x >> 32;
    return (uint32_t)x;
}

/* Near a normal distribution. */
static __device__ inline float normal(uint32_t s, uint64_t i) {
    float u = (noise(s, 2 * i) + 1.0f) * 2.3283064e-10f, v = noise(s, 2 * i + 1) * 2.3283064e-10f;
    return sqrtf(-2 * logf(fminf(u, 1.0f))) * cospif(2 * v);
}
