/* port_sycl.h: the macros of port.h for SYCL. SYCL compiles kernels from source when a device is opened: the build expands this
 * header, and the source then begins with SYCL's own header. A kernel is a free function; PORT_WAVE gives the lanes of a
 * wave (sub-group) at that time.
 */
#ifndef SATCHEL_PORT_SYCL_H
#define SATCHEL_PORT_SYCL_H

#define FN static inline
#define FN_CALL static __attribute__((noinline))
#define NOT_UNROLLED
#define UNROLLED _Pragma("unroll")
#define DEVICE
#define LOCAL
#define QUANT_TABLE static constexpr const
#define WAVE PORT_WAVE
#define NULL nullptr
#define INFINITY __builtin_inff()

#include "self.h"

namespace port_ext = sycl::ext::oneapi::experimental;
namespace port_here = sycl::ext::oneapi::this_work_item;

FN self port_self(char *local) {
    sycl::nd_item<3> at = port_here::get_nd_item<3>();
    int thread = (int)at.get_local_id(2), threads = (int)at.get_local_range(2);
    self m = {thread,        threads,        thread % WAVE,
              thread / WAVE, threads / WAVE, {(int)at.get_group(2), (int)at.get_group(1), (int)at.get_group(0)},
              local};
    return m;
}

/* A kernel's parameter must be a named struct. */
struct port_call {
    gpu_call is;
};

#define KERNEL(name, threads)                                                                                          \
    FN void name##_body(const gpu_call *c, self m);                                                                    \
    extern "C" SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((port_ext::nd_range_kernel<3>))                                       \
        SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((port_ext::sub_group_size<PORT_WAVE>)) void                                  \
        name(port_call call, sycl::local_accessor<char, 1> local) {                                                    \
        name##_body(&call.is, port_self(local.get_multi_ptr<sycl::access::decorated::no>().get()));                    \
    }                                                                                                                  \
    FN void name##_body(const gpu_call *c, self m)

#define BARRIER(m) ((void)(m), sycl::group_barrier(port_here::get_work_group<3>()))
#define TAKE(m, bits, from) ((void)(m), sycl::select_from_group(port_here::get_sub_group(), (uint32_t)(bits), from))

typedef uint32_t word_16 __attribute__((vector_size(16)));
#define DOT4(a, b, sum) dot_4(a, b, sum)

template <typename T> FN void ADD_LOCAL(T *where, T x) {
    sycl::atomic_ref<T, sycl::memory_order::relaxed, sycl::memory_scope::work_group,
                     sycl::access::address_space::generic_space>(*where) += x;
}

FN float F16_TO_F32(uint16_t bits) {
    return (float)sycl::bit_cast<sycl::half>(bits);
}
#define F16_TO_F32 F16_TO_F32

FN double port_frexp(double x, int *e) {
    *e = x == 0 ? 0 : sycl::ilogb(x) + 1;
    return sycl::ldexp(x, -*e);
}

/* Math functions. The build takes the names from the left sides of these macros, so no right side may use one of them. */
FN float port_fabs(float x) {
    return sycl::fabs(x);
}
FN double port_fabs(double x) {
    return sycl::fabs(x);
}
FN float port_sqrt(float x) {
    return sycl::sqrt(x);
}
FN double port_sqrt(double x) {
    return sycl::sqrt(x);
}
#define cosf(x) sycl::cos((float)(x))
#define expf(x) sycl::exp((float)(x))
#define fabs(x) port_fabs((double)(x))
#define fabsf(x) port_fabs((float)(x))
#define floorf(x) sycl::floor((float)(x))
#define fmaf(a, b, c) sycl::fma((float)(a), (float)(b), (float)(c))
#define fmaxf(a, b) sycl::fmax((float)(a), (float)(b))
#define fminf(a, b) sycl::fmin((float)(a), (float)(b))
#define frexp port_frexp
#define ldexp(x, e) sycl::ldexp((double)(x), e)
#define logf(x) sycl::log((float)(x))
#define memcpy __builtin_memcpy
#define memset __builtin_memset
#define rint(x) sycl::rint((double)(x))
#define sinf(x) sycl::sin((float)(x))
#define sqrt(x) port_sqrt((double)(x))
#define sqrtf(x) port_sqrt((float)(x))

#include "exact.h"
#include "formats.h"

#endif
