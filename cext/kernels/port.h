/* port.h: the language that the portable kernels are written in: what C and the C++ of GPU compilers have in common, and the
 * words below, which each target defines in a header of its own. No templates, no classes, no vendor's names.
 *
 *   FN          a function of kernels, always inlined; FN_CALL: one that is called, for what would be too much code
 *   NOT_UNROLLED   stands before a loop that would be too much code
 *   DEVICE      what a pointer to device memory points to; LOCAL: to the memory of a group, which nobody else sees; THREAD: to
 *               a variable of the thread's own; CONSTANT: to a part of the call, or to a table, which nobody changes
 *   WAVE        how many lanes a wave has, a constant
 *   KERNEL(name, threads) { ... }   a kernel of at most so many threads a group, whose body sees
 *                   CONSTANT gpu_call *c  what to do, see call.h
 *                   self m                where this thread stands
 *   BARRIER(m)              all threads of the group come here, and see what the others wrote before
 *   TAKE(m, bits, lane)     the uint32_t that this lane of the wave brings; all lanes of the wave come here
 *   ADD_LOCAL(where, x)     adds an unsigned integer to local memory that others add to at the same time
 *   QUANT_TABLE             how a constant array at file scope is declared; QUANT_LOCAL: within a function
 *   F16_TO_F32(bits)        optional: the target's own conversion; F32_BITS(x), F32_FROM_BITS(bits) too
 *
 * A kernel that barrier or TAKE is in reaches it with all threads or with none. Sums of floats are made in an order that the
 * shape alone decides; nothing is added to a float by several threads at once. Compiled without contraction of a * b + c:
 * what is to be fused says fmaf.
 */
#ifndef SATCHEL_PORT_H
#define SATCHEL_PORT_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

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
#error "no target of the portable kernels"
#endif
#ifndef CONSTANT
#define CONSTANT const
#endif

enum { GROUP = 256 }; /* threads of a group, at most, where a kernel says nothing else */

/* --- views */

/* Row i of a view, and its first byte. */
#define ROW(type, v, i) ((DEVICE type *)(uintptr_t)((v)->data + (v)->stride * (uint64_t)(i)))

FN int32_t i32_at(CONSTANT gpu_view *v, int64_t i) {
    return *ROW(const int32_t, v, i);
}

/* How many rows a view has in this step. */
FN int32_t rows_of(CONSTANT gpu_call *c, CONSTANT gpu_view *v) {
    int32_t n = v->count < 0 ? v->shape[0] : ((DEVICE const int32_t *)(uintptr_t)c->counts)[v->count];
    return n < v->shape[0] ? n : v->shape[0];
}

/* Numbers under one index of the first dimension. */
FN int64_t width_of(CONSTANT gpu_view *v) {
    return (int64_t)v->shape[1] * v->shape[2] * v->shape[3];
}

/* The step met a bad index: the run fails. */
FN void fault(CONSTANT gpu_call *c) {
    *(DEVICE uint32_t *)(uintptr_t)c->fault = c->step + 1;
}

FN int inside(int64_t i, int64_t n) {
    return i >= 0 && i < n;
}

/* --- waves and groups: all threads get the result */

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

/* A NaN counts as less than any number. */
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

/* `room` is local memory for a number of each wave. */
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
