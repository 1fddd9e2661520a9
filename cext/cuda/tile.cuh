/* tile.cuh: the packed layout of weights on the device, and wrappers of PTX instructions for the kernels that read it.
 *
 * A packed matrix is a sequence of tiles of 16 rows by all columns (missing rows are zeros). A tile is a sequence of chunks of
 * 256 columns, so a group streams it sequentially. Within a chunk the codes are in the order of the tensor core's A operand
 * (mma.m16n8k32): for each stretch j of 32 columns, lane 4 g + t holds four words of four codes; word r is row g + 8 (r & 1),
 * columns 32 j + 16 (r >> 1) + 4 t to + 3. The scales of the 16 rows follow the codes. A chunk has as many bytes as the file's
 * blocks.
 */
#ifndef SATCHEL_CUDA_TILE_CUH
#define SATCHEL_CUDA_TILE_CUH

#include <stdint.h>

#include "../kernels/call.h"
#include "half.h"
#include "words.h"

/* --- matrix products of a wave; c += a b */

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800 /* 7.5 has m8n8k16: a quarter of m16n8k32, of the same registers */
#define MMA_8(types, c, a, b)                                                                                          \
    asm("mma.sync.aligned.m8n8k16.row.col.s32." types ".s32 {%0,%1}, {%2}, {%3}, {%0,%1};"                             \
        : "+r"((c)[0]), "+r"((c)[1])                                                                                   \
        : "r"(a), "r"(b))
__device__ __forceinline__ void mma_u8(int *c, const uint32_t *a, uint32_t b0, uint32_t b1) {
    MMA_8("u8.s8", c, a[0], b0);
    MMA_8("u8.s8", c, a[2], b1);
    MMA_8("u8.s8", c + 2, a[1], b0);
    MMA_8("u8.s8", c + 2, a[3], b1);
}

__device__ __forceinline__ void mma_s8(int *c, const uint32_t *a, uint32_t b0, uint32_t b1) {
    MMA_8("s8.s8", c, a[0], b0);
    MMA_8("s8.s8", c, a[2], b1);
    MMA_8("s8.s8", c + 2, a[1], b0);
    MMA_8("s8.s8", c + 2, a[3], b1);
}

__device__ __forceinline__ void mma_s8_half(int *c, uint32_t a0, uint32_t a1, uint32_t b) {
    MMA_8("s8.s8", c, a0, b);
    MMA_8("s8.s8", c + 2, a1, b);
}
#undef MMA_8
#else
__device__ __forceinline__ void mma_u8(int *c, const uint32_t *a, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_s8(int *c, const uint32_t *a, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_s8_half(int *c, uint32_t a0, uint32_t a1, uint32_t b) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(b));
}
#endif

__device__ __forceinline__ void mma_f16_k8(float *c, uint32_t a0, uint32_t a1, uint32_t b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(b));
}

__device__ __forceinline__ void mma_f16(float *c, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                        uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_bf16(float *c, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                         uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* d += a b, m16n8k16, of f16 or bf16. */
template <bool HALF>
__device__ __forceinline__ void mma_16(float *d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    HALF ? mma_f16(d, a[0], a[1], a[2], a[3], b0, b1) : mma_bf16(d, a[0], a[1], a[2], a[3], b0, b1);
}

/* --- programmatic dependent launch: only weights are loaded before wait_before() */

__device__ __forceinline__ void launch_next() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ void wait_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* --- asynchronous copies from device memory to shared memory */

/* L2 policy evict_first: weights are read once per step. 7.5 has none. */
__device__ __forceinline__ uint64_t read_once() {
    uint64_t policy = 0;
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
    return policy;
}

__device__ __forceinline__ void copy_bulk(uint32_t to, const void *from, uint32_t bytes, uint32_t bar,
                                          uint64_t policy) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
            "r"(to),
        "l"(from), "r"(bytes), "r"(bar), "l"(policy)
        : "memory");
}

/* --- a wave's ring of chunks in shared memory: each stage has a barrier, which completes when the chunk has come */

/* Makes the barriers of the wave's `stages` stages, 8 bytes each. */
__device__ __forceinline__ void wave_barriers(uint32_t bars, int stages) {
    if ((int)threadIdx.x % 32 < stages) {
        barrier_init(bars + 8 * (threadIdx.x % 32), HOPPER ? 1 : 32);
#if HOPPER
        barriers_made();
#endif
    }
    __syncwarp();
}

/* Whether this lane asks for chunks: a bulk copy takes one lane. */
__device__ __forceinline__ bool wave_asks() {
    return !HOPPER || threadIdx.x % 32 == 0;
}

/* Asks for a chunk; `bytes` is a multiple of 16, at most PACKED_MOST. Called by the lanes of wave_asks(). */
__device__ __forceinline__ void wave_fetch(uint32_t to, const char *from, int bytes, uint32_t bar, uint64_t policy) {
#if HOPPER
    barrier_expect(bar, bytes);
    copy_bulk(to, from, bytes, bar, policy);
#elif __CUDA_ARCH__ < 800 /* no asynchronous copies: the chunk is there when the wave meets at barrier_wait() */
    uint4 piece[9];
#pragma unroll
    for (int i = 0; i < 9; i++)
        if (const int at = 16 * (threadIdx.x % 32) + 512 * i; at < bytes)
            piece[i] = *(const uint4 *)(from + at);
#pragma unroll
    for (int i = 0; i < 9; i++)
        if (const int at = 16 * (threadIdx.x % 32) + 512 * i; at < bytes)
            store_16(to + at, piece[i]);
#else
    for (int i = 16 * (threadIdx.x % 32); i < bytes; i += 512)
        asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to + i), "l"(from + i),
                     "l"(policy)
                     : "memory");
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(bar) : "memory");
#endif
}

/* Rows of the first dimension in this step. */
__device__ __forceinline__ int rows_now(const gpu_call &c, const gpu_view &v) {
    if (v.count < 0)
        return v.shape[0];
    int n = ((const int32_t *)c.counts)[v.count];
    return n < 0 ? 0 : n > v.shape[0] ? v.shape[0] : n;
}

#endif
