/* port_cuda.h: the macros of port.h for nvcc. Kernels load through the driver API; nothing here needs the CUDA runtime. */
#ifndef SATCHEL_PORT_CUDA_H
#define SATCHEL_PORT_CUDA_H

#pragma nv_diag_suppress 177 /* unused functions: the formats' headers define more than kernels call */

#define FN static __device__ __forceinline__
#define FN_CALL static __device__ __noinline__
#define UNROLLED _Pragma("unroll")
#define NOT_UNROLLED _Pragma("unroll 1")
#define DEVICE
#define LOCAL
#define QUANT_TABLE static __device__ const
#define WAVE 32

#include "self.h"

FN self port_self(void) {
    extern __shared__ __align__(16) char port_local[];
    self m = {(int)threadIdx.x,
              (int)blockDim.x,
              (int)(threadIdx.x % WAVE),
              (int)(threadIdx.x / WAVE),
              (int)(blockDim.x / WAVE),
              {(int)blockIdx.x, (int)blockIdx.y, (int)blockIdx.z},
              port_local};
    return m;
}

/* Programmatic dependent launch, from compute capability 9.0 on (`early` of gpu_kernel): a kernel may be launched before its
 * predecessor ends. It then waits for the predecessor and its writes itself, and allows the next launch. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define AWAIT_BEFORE() asm volatile("griddepcontrol.wait;\n\tgriddepcontrol.launch_dependents;" ::: "memory")
#else
#define AWAIT_BEFORE()
#endif

#define KERNEL(name, threads)                                                                                          \
    FN void name##_body(const gpu_call *c, self m);                                                                    \
    extern "C" __global__ void __launch_bounds__(threads) name(const __grid_constant__ gpu_call call) {                \
        AWAIT_BEFORE();                                                                                                \
        name##_body(&call, port_self());                                                                               \
    }                                                                                                                  \
    FN void name##_body(const gpu_call *c, self m)

#define BARRIER(m) __syncthreads()
#define TAKE(m, bits, from) __shfl_sync(0xFFFFFFFFu, bits, from)

FN void ADD_LOCAL(uint32_t *where, uint32_t x) {
    atomicAdd(where, x);
}

FN void ADD_LOCAL(uint64_t *where, uint64_t x) {
    atomicAdd((unsigned long long *)where, (unsigned long long)x);
}

FN float F16_TO_F32(uint16_t bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}
#define F16_TO_F32 F16_TO_F32

/* The formats' headers declare host functions in C; this makes them device functions. */
#define inline __device__ __forceinline__
#include "exact.h"
#include "formats.h"
#undef inline

#endif
