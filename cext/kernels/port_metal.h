/* port_metal.h: the macros of port.h for Metal. Metal compiles kernels from source when a device is opened: the build expands
 * this header, and cext/metal/prelude.metal is prepended to the result. The prelude defines the address spaces, because
 * `thread` is a keyword of MSL and a member name here; the build renames the member to thread_.
 */
#ifndef SATCHEL_PORT_METAL_H
#define SATCHEL_PORT_METAL_H

#define FN static inline
#define FN_CALL static __attribute__((noinline))
#define NOT_UNROLLED
#define UNROLLED _Pragma("clang loop unroll(full)")
#define DEVICE DEVICE
#define LOCAL LOCAL
#define THREAD THREAD
#define CONSTANT CONSTANT
#define QUANT_TABLE CONSTANT
#define QUANT_LOCAL const
#define WAVE 32

/* Names that MSL reserves. */
#define double f64
#define half half_
#define thread thread_
#define uintptr_t uint64_t
#define NULL nullptr
#define INT32_MAX 0x7FFFFFFF
#define _Static_assert static_assert

/* The GPU flushes float32 denormals (below 2^-126) to zero. */
#define FLUSHED

#define F16_TO_F32 port_f16_to_f32
#define F32_BITS(x) as_type<uint>(x)
#define F32_FROM_BITS(bits) as_type<float>(bits)
#define F64_IN_INTEGERS
#define LN2 f64_from_bits(0x3FE62E42FEFA39EFul)
#define SQRT_HALF f64_from_bits(0x3FE6A09E667F3BCDul)

#include "self.h"

FN self port_self(LOCAL char *local, uint3 group, uint at, uint threads) {
    self m = {(int)at,
              (int)threads,
              (int)(at % WAVE),
              (int)(at / WAVE),
              (int)(threads / WAVE),
              {(int)group.x, (int)group.y, (int)group.z},
              local};
    return m;
}

#define KERNEL(name, most)                                                                                             \
    FN void name##_body(CONSTANT gpu_call *c, self m);                                                                 \
    [[kernel, max_total_threads_per_threadgroup(most)]] void name(                                                     \
        CONSTANT gpu_call &call [[buffer(0)]], LOCAL char *local [[threadgroup(0)]],                                   \
        uint3 group [[threadgroup_position_in_grid]], uint at [[thread_index_in_threadgroup]],                         \
        uint3 threads [[threads_per_threadgroup]]) {                                                                   \
        name##_body(&call, port_self(local, group, at, threads.x));                                                    \
    }                                                                                                                  \
    FN void name##_body(CONSTANT gpu_call *c, self m)

#define BARRIER(m) threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup)
#define TAKE(m, bits, from) simd_shuffle((uint)(bits), (ushort)(from))
#define ADD_LOCAL port_add_local

#define cosf precise::cos
#define expf precise::exp
#define fabsf fabs
#define floorf floor
#define fmaf fma
#define fmaxf fmax
#define fminf fmin
#define logf precise::log
#define sinf precise::sin
#define sqrtf precise::sqrt

#include "exact.h"
#include "formats.h"

#endif
