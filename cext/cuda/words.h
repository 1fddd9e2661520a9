/* words.h: small PTX wrappers, loads and stores that CUDA kernels share. A barrier that counts bytes needs sm_90 or newer,
 * one that counts arrivals sm_80. */
#ifndef SATCHEL_CUDA_WORDS_H
#define SATCHEL_CUDA_WORDS_H

#include <stdint.h>

#include "family.h"

static __device__ __forceinline__ uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

static __device__ __forceinline__ uint32_t word_of(const uint4 &x, int i) {
    return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
}

static __device__ __forceinline__ void store_16(uint32_t to, uint4 x) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                 : "memory");
}

/* Loads, or stores, N numbers, 2 or 4, at an address of a multiple of as many. */
template <int N> static __device__ __forceinline__ void load_numbers(float (&x)[N], const float *from) {
    if constexpr (N == 4) {
        const float4 y = *(const float4 *)from;
        x[0] = y.x, x[1] = y.y, x[2] = y.z, x[3] = y.w;
    } else {
        const float2 y = *(const float2 *)from;
        x[0] = y.x, x[1] = y.y;
    }
}

template <int N> static __device__ __forceinline__ void store_numbers(float *to, const float (&x)[N]) {
    if constexpr (N == 4)
        *(float4 *)to = make_float4(x[0], x[1], x[2], x[3]);
    else
        *(float2 *)to = make_float2(x[0], x[1]);
}

/* Bytes of the launch's dynamic shared memory, from which follows how it is divided. */
static __device__ __forceinline__ int launched_bytes() {
    int bytes;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
    return bytes;
}

/* --- barriers in shared memory */

static __device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t arrivals) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
#endif
}

#if HOPPER
/* Lane 0 alone arrives at a barrier for its warp, and waits there; __syncwarp() orders that with the other lanes' reads and copies.
 * racecheck of compute-sanitizer does not follow an order through __syncwarp() and a barrier: in a build for it (-DRACECHECK)
 * each lane arrives and waits by itself, and nothing else differs. */
#ifdef RACECHECK
#define RING_LANES 32
#else
#define RING_LANES 1
#endif

/* By the thread that has made barriers: copies may complete them, and behind cluster_arrive() other groups may send to them. */
static __device__ __forceinline__ void barriers_made() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

static __device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

static __device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

static __device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
    asm volatile("{\n .reg .pred done;\n again:\n"
                 " mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [%0], %1;\n"
                 " @!done bra again;\n}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
/* 7.5 has no such barriers. What a wave waits for its own lanes have stored: called by all of them. */
static __device__ __forceinline__ void barrier_wait(uint32_t, uint32_t) {
    __syncwarp();
}
#else
static __device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
    asm volatile("{\n .reg .pred done;\n again:\n"
                 " mbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n"
                 " @!done bra again;\n}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}
#endif

#endif
