// Prepended to the kernels' source: defines the macros of port.h in the Metal Shading Language.
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp contract(off)

#define DEVICE device
#define LOCAL threadgroup
#define THREAD thread
#define CONSTANT constant

inline float port_f16_to_f32(ushort bits) {
    return (float)as_type<half>(bits);
}

inline void memcpy(thread void *to, device const void *from, ulong n) {
    for (ulong i = 0; i < n; i++)
        ((thread uchar *)to)[i] = ((device const uchar *)from)[i];
}

inline void port_add_local(threadgroup uint *where, uint x) {
    atomic_fetch_add_explicit((threadgroup atomic_uint *)where, x, memory_order_relaxed);
}

// Metal has no 64-bit atomic add: each half is added atomically, and the thread that overflows the lower half carries.
// The sum is complete when all threads have added; no thread reads it earlier.
inline void port_add_local(threadgroup ulong *where, ulong x) {
    threadgroup atomic_uint *part = (threadgroup atomic_uint *)where;
    uint low = (uint)x, old = atomic_fetch_add_explicit(part, low, memory_order_relaxed);
    atomic_fetch_add_explicit(part + 1, (uint)(x >> 32) + (uint)(old + low < old), memory_order_relaxed);
}
