/* port_cuda.h: the words of port.h for nvcc. A module of kernels loads by the driver alone: nothing here needs CUDA's runtime.
 */
#ifndef SATCHEL_PORT_CUDA_H
#define SATCHEL_PORT_CUDA_H

#pragma nv_diag_suppress 177 /* functions of the formats that no kernel calls */

#define FN static __device__ __forceinline__
#define FN_CALL static __device__ __noinline__
#define NOT_UNROLLED _Pragma("unroll 1")
#define DEVICE
#define LOCAL
#define QUANT_TABLE static __device__ const
#define WAVE 32

#include "self.h"

FN self port_self(void) {
    extern __shared__ __align__(16) char port_local[];
    self m = {(int)threadIdx.x, (int)blockDim.x, (int)(threadIdx.x % WAVE), (int)(threadIdx.x / WAVE),
              (int)(blockDim.x / WAVE), {(int)blockIdx.x, (int)blockIdx.y, (int)blockIdx.z}, port_local};
    return m;
}

/* From compute capability 9.0 on a kernel may be launched before the one ahead has ended (gpu_kernel's `early`): it waits for that by
 * itself, with all that it wrote, and lets the next one come. */
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

/* The formats' headers are C for a host: here their functions are the device's. */
#define inline __device__ __forceinline__
#include "exact.h"
#include "formats.h"
#undef inline

#endif
