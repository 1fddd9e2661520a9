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

/* This group's place in its cluster. */
static __device__ __forceinline__ uint32_t cluster_rank() {
    uint32_t n;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(n));
    return n;
}

/* This cluster's number, and how many there are: of a grid of one dimension. */
static __device__ __forceinline__ uint32_t cluster_number() {
    uint32_t n;
    asm("mov.u32 %0, %%clusterid.x;" : "=r"(n));
    return n;
}

static __device__ __forceinline__ uint32_t cluster_count() {
    uint32_t n;
    asm("mov.u32 %0, %%nclusterid.x;" : "=r"(n));
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

/* cluster_sync() in two halves that order no data: what was made before the first by one of the cluster's threads, and fenced, the others may
 * use behind the second. */
static __device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

static __device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* The address in group `rank` of what lies at an address of this group's shared memory. */
static __device__ __forceinline__ uint32_t shared_of(uint32_t address, uint32_t rank) {
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}

/* Stores in another group's memory; `barrier`, of that group, counts the bytes once they are there. */
static __device__ __forceinline__ void send_16(uint32_t to, uint4 x, uint32_t barrier) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
        "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w), "r"(barrier)
        : "memory");
}

static __device__ __forceinline__ void send_4(uint32_t to, uint32_t x, uint32_t barrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to), "r"(x),
                 "r"(barrier)
                 : "memory");
}

/* barrier_wait() for the first bytes that other groups of the cluster have sent. */
static __device__ __forceinline__ void barrier_wait_sent(uint32_t barrier) {
    asm volatile("{\n .reg .pred done;\n again:\n"
                 " mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0;\n"
                 " @!done bra again;\n}" ::"r"(barrier)
                 : "memory");
}
#endif

#endif
