/* port.h: the language of the portable kernels: the common subset of C and of GPU compilers' C++, plus the macros below, which
 * each target (CUDA, HIP, Metal, SYCL, emulated) defines in port_<target>.h. No templates, no classes, no vendor's names.
 *
 *   FN          qualifies a device function, always inlined; FN_CALL: not inlined, for large functions
 *   NOT_UNROLLED   stands before a loop that must not be unrolled
 *   DEVICE, LOCAL, THREAD, CONSTANT   address spaces of pointers: device memory; memory of the group (CUDA: shared memory);
 *               variables of the thread; read-only memory (the call, tables)
 *   WAVE        lanes of a wave (CUDA: warp), a compile-time constant
 *   KERNEL(name, threads) { ... }   a kernel of at most `threads` threads per group (CUDA: block). Its body has
 *                   CONSTANT gpu_call *c  its argument, see call.h
 *                   self m                the thread's index in its group and grid, see self.h
 *   BARRIER(m)              barrier of the group; makes earlier writes visible to it
 *   TAKE(m, bits, lane)     wave shuffle: the uint32_t `bits` of the given lane
 *   ADD_LOCAL(where, x)     atomic add of an unsigned integer in local memory
 *   QUANT_TABLE             declares a constant array at file scope; QUANT_LOCAL: within a function
 *   UNROLLED    stands before a loop that must be unrolled whole
 *   word_16, DOT4(a, b, sum)  where the target has packed weights: see packed.k.h
 *   F16_TO_F32(bits)        optional: the target's own conversion; likewise F32_BITS(x), F32_FROM_BITS(bits)
 *
 * All threads of a group reach a BARRIER, and all lanes of a wave a TAKE, or none do. The order of a float sum depends on the
 * shape alone: there are no float atomics. Compiled without contraction of a * b + c: a fused multiply-add is written fmaf.
 */
#ifndef SATCHEL_PORT_H
#define SATCHEL_PORT_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifndef offsetof /* some targets' stddef.h is empty */
#define offsetof(type, member) __builtin_offsetof(type, member)
#endif

#include "call.h"
#include "hal.h"

#if defined(__CUDACC__)
#include "port_cuda.h"
#elif defined(__HIP__)
#include "port_hip.h"
#elif defined(PORT_SYCL)
#include "port_sycl.h"
#elif defined(PORT_METAL)
#include "port_metal.h"
#elif defined(PORT_EMULATED)
#include "port_emulated.h"
#else
#error "define a target of the portable kernels"
#endif
#ifndef CONSTANT
#define CONSTANT const
#endif

enum { GROUP = 256 }; /* default maximum of threads per group */

/* --- views */

/* Pointer to row i of a view. */
#define ROW(type, v, i) ((DEVICE type *)(uintptr_t)((v)->data + (v)->stride * (uint64_t)(i)))

FN int32_t i32_at(CONSTANT gpu_view *v, int64_t i) {
    return *ROW(const int32_t, v, i);
}

/* Rows of a view in this step. */
FN int32_t rows_of(CONSTANT gpu_call *c, CONSTANT gpu_view *v) {
    int32_t n = v->count < 0 ? v->shape[0] : ((DEVICE const int32_t *)(uintptr_t)c->counts)[v->count];
    return n < v->shape[0] ? n : v->shape[0];
}

/* Elements of a row: the product of all dimensions but the first. */
FN int64_t width_of(CONSTANT gpu_view *v) {
    return (int64_t)v->shape[1] * v->shape[2] * v->shape[3];
}

/* Reports an index out of range: the run fails. */
FN void fault(CONSTANT gpu_call *c) {
    *(DEVICE uint32_t *)(uintptr_t)c->fault = c->step + 1;
}

FN int inside(int64_t i, int64_t n) {
    return i >= 0 && i < n;
}

/* sum + the products of the four signed bytes of a and b. */
FN int32_t dot_4(uint32_t a, uint32_t b, int32_t sum) {
    for (int i = 0; i < 32; i += 8)
        sum += (int32_t)(int8_t)(a >> i & 255) * (int8_t)(b >> i & 255);
    return sum;
}

/* --- reductions over a wave or a group; all threads get the result */

FN float take_f32(self m, float x, int lane) {
    uint32_t bits = TAKE(m, f32_bits(x), lane);
    return f32_from_bits(bits);
}

FN int64_t take_i64(self m, int64_t x, int lane) {
    uint32_t low = TAKE(m, (uint32_t)x, lane), high = TAKE(m, (uint32_t)((uint64_t)x >> 32), lane);
    return (int64_t)((uint64_t)high << 32 | low);
}

FN float wave_sum(self m, float x) {
    for (int o = WAVE / 2; o > 0; o /= 2)
        x += take_f32(m, x, m.lane ^ o);
    return x;
}

/* Maximum. NaNs are ignored. */
FN float wave_most(self m, float x) {
    for (int o = WAVE / 2; o > 0; o /= 2)
        x = fmaxf(x, take_f32(m, x, m.lane ^ o));
    return x;
}

FN int64_t wave_sum_i64(self m, int64_t x) {
    for (int o = WAVE / 2; o > 0; o /= 2)
        x += take_i64(m, x, m.lane ^ o);
    return x;
}

/* room: local memory, one float per wave. */
FN float group_sum(self m, float x, LOCAL float *room) {
    float sum = 0;
    x = wave_sum(m, x);
    if (m.lane == 0)
        room[m.wave] = x;
    BARRIER(m);
    for (int i = 0; i < m.waves; i++)
        sum += room[i];
    BARRIER(m);
    return sum;
}

FN float group_most(self m, float x, LOCAL float *room) {
    float most = -INFINITY;
    x = wave_most(m, x);
    if (m.lane == 0)
        room[m.wave] = x;
    BARRIER(m);
    for (int i = 0; i < m.waves; i++)
        most = fmaxf(most, room[i]);
    BARRIER(m);
    return most;
}

FN int64_t group_sum_i64(self m, int64_t x, LOCAL int64_t *room) {
    int64_t sum = 0;
    x = wave_sum_i64(m, x);
    if (m.lane == 0)
        room[m.wave] = x;
    BARRIER(m);
    for (int i = 0; i < m.waves; i++)
        sum += room[i];
    BARRIER(m);
    return sum;
}

#endif
