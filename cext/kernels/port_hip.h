/* port_hip.h: the macros of port.h for AMD GPUs, by clang builtins. Compiling needs no header and no library of ROCm, and a
 * code object has no external references.
 */
#ifndef SATCHEL_PORT_HIP_H
#define SATCHEL_PORT_HIP_H

#define FN static __attribute__((device, always_inline)) inline
#define FN_CALL static __attribute__((device, noinline))
#define NOT_UNROLLED _Pragma("nounroll")
#define UNROLLED _Pragma("unroll")
#define DEVICE
#define LOCAL
#define QUANT_TABLE static __attribute__((device)) const
/* GCN and CDNA have waves of 64 lanes, RDNA of 32. Source that is compiled at run time gets WAVE then. */
#if defined(PORT_AS_TEXT)
#define WAVE PORT_WAVE
#elif defined(__GFX9__)
#define WAVE 64
#else
#define WAVE 32
#endif

#include "self.h"

FN self port_self(void) {
    extern __attribute__((shared, aligned(16))) char port_local[];
    int thread = (int)__builtin_amdgcn_workitem_id_x(), threads = (int)__builtin_amdgcn_workgroup_size_x();
    self m = {thread,
              threads,
              thread % WAVE,
              thread / WAVE,
              threads / WAVE,
              {(int)__builtin_amdgcn_workgroup_id_x(), (int)__builtin_amdgcn_workgroup_id_y(),
               (int)__builtin_amdgcn_workgroup_id_z()},
              port_local};
    return m;
}

/* The call is read in the kernel argument segment: a copy would take private memory of every thread. */
#define KERNEL(name, threads)                                                                                          \
    FN void name##_body(const gpu_call *c, self m);                                                                    \
    extern "C" __attribute__((global, amdgpu_flat_work_group_size(1, threads))) void name(const gpu_call) {            \
        name##_body((const gpu_call *)__builtin_amdgcn_kernarg_segment_ptr(), port_self());                            \
    }                                                                                                                  \
    FN void name##_body(const gpu_call *c, self m)

/* Fences order the group's memory accesses around the barrier. */
FN void BARRIER(self m) {
    (void)m;
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

#define TAKE(m, bits, from) ((void)(m), (uint32_t)__builtin_amdgcn_ds_bpermute((from) << 2, (int)(bits)))

typedef uint32_t word_16 __attribute__((vector_size(16)));
#define LOOKUP_8(low, high, q) __builtin_amdgcn_perm(high, low, q)
#define FAR(type, from) (*(const __attribute__((address_space(1))) type *)(uintptr_t)(from))

/* gfx11 and gfx12 say of each operand whether its bytes are signed; 1: they are. Source that is compiled at run time is
 * preprocessed before its GPU is known. */
#if defined(PORT_AS_TEXT)
#define DOT4(a, b, sum) dot_4(a, b, sum)
#elif defined(__GFX11__) || defined(__GFX12__)
#define DOT4(a, b, sum) __builtin_amdgcn_sudot4(1, (int)(a), 1, (int)(b), sum, 0)
#elif defined(__gfx906__) || defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx942__) ||                      \
    defined(__gfx950__) || defined(__gfx1030__) || defined(__gfx1031__) || defined(__gfx1032__)
#define DOT4(a, b, sum) __builtin_amdgcn_sdot4((int)(a), (int)(b), sum, 0)
#else
#define DOT4(a, b, sum) dot_4(a, b, sum)
#endif

FN void ADD_LOCAL(uint32_t *where, uint32_t x) {
    (void)__hip_atomic_fetch_add(where, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
}

FN void ADD_LOCAL(uint64_t *where, uint64_t x) {
    (void)__hip_atomic_fetch_add(where, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
}

FN float F16_TO_F32(uint16_t bits) {
    return (float)__builtin_bit_cast(_Float16, bits);
}
#define F16_TO_F32 F16_TO_F32

FN double port_frexp(double x, int *e) {
    *e = __builtin_amdgcn_frexp_exp(x);
    return __builtin_amdgcn_frexp_mant(x);
}

/* Math functions by compiler builtins. */
#define expf __builtin_expf
#define fabs __builtin_fabs
#define fabsf __builtin_fabsf
#define floorf __builtin_floorf
#define fmaf __builtin_fmaf
#define fmaxf __builtin_fmaxf
#define fminf __builtin_fminf
#define frexp port_frexp
#define ldexp __builtin_amdgcn_ldexp
#define logf __builtin_logf
#define memcpy __builtin_memcpy
#define memset __builtin_memset
#define rint __builtin_rint
#define sqrt __builtin_sqrt
#define sqrtf __builtin_sqrtf

/* sin (quarter 0) or cos (quarter 1) of x, |x| < 2^30. The hardware's instructions lose digits for large x. So x is reduced to
 * |x| <= pi / 4 in float64, with pi / 2 in two parts, and then a Taylor series is summed. */
FN float port_turn(float x, int quarter) {
    double n = __builtin_rint((double)x * 0.63661977236758134);
    double r = __builtin_fma(-n, 6.123233995736766e-17, __builtin_fma(-n, 1.5707963267948966, (double)x)), s = r * r;
    int q = ((int)n + quarter) & 3;
    double sine = r * (1 + s * (-1.0 / 6 + s * (1.0 / 120 + s * (-1.0 / 5040 + s * (1.0 / 362880)))));
    double cosine = 1 + s * (-1.0 / 2 + s * (1.0 / 24 + s * (-1.0 / 720 + s * (1.0 / 40320 + s * (-1.0 / 3628800)))));
    double of = q & 1 ? cosine : sine;
    return (float)(q & 2 ? -of : of);
}
#define sinf(x) port_turn(x, 0)
#define cosf(x) port_turn(x, 1)

/* The formats' headers declare host functions in C; this makes them device functions. */
#define inline __attribute__((device, always_inline)) inline
#include "exact.h"
#include "formats.h"
#undef inline

#endif
