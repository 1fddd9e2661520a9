/* cluster.h: words of the groups of a thread-block cluster, for Hopper's files. */
#ifndef SATCHEL_CUDA_CLUSTER_H
#define SATCHEL_CUDA_CLUSTER_H

#include <stdint.h>

#include "family.h"

#if HOPPER
static __device__ __forceinline__ uint32_t cluster_size() {
    uint32_t n;
    asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(n));
    return n;
}

static __device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* Four floats at a shared memory address of group `rank` of the cluster. */
static __device__ __forceinline__ float4 numbers_of(uint32_t address, uint32_t rank) {
    float4 v;
    asm volatile("{\n .reg .b32 there;\n mapa.shared::cluster.u32 there, %4, %5;\n"
                 " ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n}"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(address), "r"(rank)
                 : "memory");
    return v;
}
#endif

#endif
