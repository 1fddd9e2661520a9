/* hopper.h: wrappers of sm_90a's PTX instructions (wgmma, bulk copies), and of those that move 16 bytes on any device, one function each.
 *
 * wgmma's operands in shared memory are tiles of rows of 128 bytes in 128-byte swizzle: piece p (16 bytes) of row r is at piece
 * p ^ (r % 8), and a tile is 1024-byte aligned (PTX ISA, asynchronous warpgroup level matrices).
 */
#ifndef SATCHEL_CUDA_HOPPER_H
#define SATCHEL_CUDA_HOPPER_H

#include <stdint.h>

#include "half.h"
#include "port.h"
#include "words.h"

/* --- copies */

static __device__ __forceinline__ void bulk_load(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

/* Copies shared memory to global memory in bulk; of multiples of 16 bytes. What a thread has asked for is closed, then waited for: until
 * shared memory has been read, or until all is written. */
static __device__ __forceinline__ void bulk_store(void *to, uint32_t from, uint32_t bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
                 : "memory");
}

static __device__ __forceinline__ void bulk_stores_close(void) {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

static __device__ __forceinline__ void bulk_stores_read(void) {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

static __device__ __forceinline__ void bulk_stores_end(void) {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

#ifndef COPY_HINT
#define COPY_HINT ".L2::128B"
#endif
/* Copies 16 bytes asynchronously (cp.async); zeros if `valid` is 0. */
static __device__ __forceinline__ void copy_16(uint32_t to, const void *from, int valid) {
    asm volatile("cp.async.cg.shared.global" COPY_HINT " [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0)
                 : "memory");
}

/* Copies 8 bytes asynchronously. */
static __device__ __forceinline__ void copy_8(uint32_t to, const void *from, int valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(valid ? 8 : 0) : "memory");
}

/* Copies 4 bytes asynchronously. */
static __device__ __forceinline__ void copy_4(uint32_t to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

static __device__ __forceinline__ void copies_close(void) {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int LEFT> static __device__ __forceinline__ void copies_wait(void) {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

/* Barrier of a group whose warps may be at different places of the code. */
static __device__ __forceinline__ void group_barrier(void) {
    asm volatile("bar.sync 0;" ::: "memory");
}

/* Proxy fence: after it and a barrier, wgmma and bulk copies see earlier ordinary stores to shared memory. */
static __device__ __forceinline__ void shared_to_async(void) {
#if HOPPER
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* --- warpgroup products */

static __device__ __forceinline__ void products_open(void) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void products_close(void) {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int LEFT> static __device__ __forceinline__ void products_wait(void) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

/* Four 8 x 8 matrices of 16-bit numbers from shared memory: lane l has the address of row l % 8 of matrix l / 8. */
static __device__ __forceinline__ void load_matrices(uint32_t (&x)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(at)
                 : "memory");
}

static __device__ __forceinline__ void load_transposed(uint32_t (&x)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(at)
                 : "memory");
}

/* Address of piece i (16 bytes) of row r in adjacent tiles of so many rows. */
static __device__ __forceinline__ uint32_t piece_at(int r, int i, int rows) {
    return (i / 8) * rows * 128 + r * 128 + (((i & 7) ^ (r & 7)) << 4);
}

/* The lower half of operand_at(). */
static __device__ __forceinline__ uint32_t operand_low(uint32_t address, uint32_t lead) {
    return (address & 0x3FFFF) >> 4 | (lead >> 4) << 16;
}

/* wgmma's matrix descriptor of swizzled tiles; `stride` bytes between groups of 8 rows, `lead` bytes between adjacent tiles. */
static __device__ __forceinline__ uint64_t operand_at(uint32_t address, uint32_t stride, uint32_t lead) {
    return operand_low(address, lead) | (uint64_t)(stride >> 4) << 32 | 1ull << 62;
}

template <int N> static __device__ __forceinline__ void registers_take(void) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> static __device__ __forceinline__ void registers_give(void) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

#endif
