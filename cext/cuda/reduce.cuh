/* reduce.cuh: collectives over peer memory: how a group of GPUs adds up or gathers rows of float32. See group_call.h for inboxes and
 * numbers.
 *
 * one-shot by words: each thread pushes its numbers to all others, 16 bytes {data, number, data, number} in a store, and polls its own
 * inbox for theirs. Halves of such a store are whole on NVLink and PCIe, so it needs neither fence nor flag: one way through the link.
 * one-shot by parts: a group pushes a part to all others, then a fence, then the part's flag: no bytes but data, for large messages.
 * two-shot: a part is pushed to its owner alone, who adds up and pushes the sum to all: fewer bytes from three members on.
 *
 * Sums go in the order of ranks, then comes the residual, in every one of them: all members have the same bits. A part on the wire is
 * float32 or bfloat16; a member rounds its own as it does the others'.
 *
 * A wait ends after the group's timeout, or when the group is broken: the kernel then writes its fault, breaks the group and leaves.
 */
#ifndef SATCHEL_CUDA_REDUCE_CUH
#define SATCHEL_CUDA_REDUCE_CUH

#include <cuda_bf16.h>
#include <stdint.h>

#include "group_call.h"

enum { WIRE_F32 = 0, WIRE_BF16 = 1 };

/* --- addresses */

static __device__ __forceinline__ uint8_t *place_of(const gpu_group *g, uint32_t member, uint32_t source,
                                                    uint32_t number) {
    return (uint8_t *)group_place(g, member, source, number);
}

static __device__ __forceinline__ uint32_t next_member(const gpu_group *g, uint32_t k) {
    return g->rank + k < g->members ? g->rank + k : g->rank + k - g->members;
}

static __device__ __forceinline__ void push_16(void *at, uint4 x) {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                 : "memory");
}

static __device__ __forceinline__ uint4 peek_16(const void *at) {
    uint4 x;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(at)
                 : "memory");
    return x;
}

/* --- waiting */

static __device__ __forceinline__ uint64_t now_ns(void) {
    uint64_t t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

/* Which collective a kernel is. */
typedef struct {
    const gpu_group *g;
    uint32_t number, step, op;
} meeting;

typedef struct {
    uint64_t until;
    uint32_t tries;
} group_wait;

/* Looks at the clock and the host's memory: the time at which a wait for `missing` ends, 0: now. */
static __device__ __noinline__ uint64_t look_up(const gpu_group *g, uint64_t until, uint32_t missing, uint32_t number,
                                                uint32_t step, uint32_t op) {
    const uint64_t now = now_ns();
    if (*(volatile uint32_t *)g->broken)
        return 0;
    if (!until)
        return now + g->timeout_ns;
    if (now < until)
        return until;
    push_16((void *)g->fault, make_uint4(step + 1, number, missing, op));
    __threadfence_system();
    *(volatile uint32_t *)g->broken = 1;
    return 0;
}

/* Whether a wait for `missing` goes on. It looks up seldom. */
static __device__ __forceinline__ bool still_waits(const meeting &m, group_wait *w, uint32_t missing) {
    if (++w->tries & 255)
        return true;
    w->until = look_up(m.g, w->until, missing, m.number, m.step, m.op);
    return w->until != 0;
}

/* One thread counts the time that its kernel waits. */
static __device__ __forceinline__ bool counts_time(void) {
    return blockIdx.x == 0 && threadIdx.x == 0;
}

static __device__ __forceinline__ void add_waited(const meeting &m, uint64_t began) {
    if (counts_time())
        *(uint64_t *)m.g->waited += now_ns() - began;
}

/* --- one-shot by words */

/* What thread i of a message's words does before it waits. */
static __device__ __forceinline__ void push_words(const meeting &m, int64_t i, float2 own) {
    const gpu_group *g = m.g;
    const uint4 x = make_uint4(__float_as_uint(own.x), m.number, __float_as_uint(own.y), m.number);
    for (uint32_t k = 1; k < g->members; k++) /* each begins at another member, so that no link has all at once */
        push_16(place_of(g, next_member(g, k), g->rank, m.number) + 16 * i, x);
}

/* False: the group is broken. */
static __device__ __forceinline__ bool take_words(const meeting &m, uint32_t source, int64_t i, float2 *out) {
    const uint8_t *at = place_of(m.g, m.g->rank, source, m.number) + 16 * i;
    uint4 x = peek_16(at);
    if (x.y != m.number || x.w != m.number) {
        group_wait w = {0, 0};
        do {
            if (!still_waits(m, &w, source))
                return false;
            x = peek_16(at);
        } while (x.y != m.number || x.w != m.number);
    }
    *out = make_float2(__uint_as_float(x.x), __uint_as_float(x.z));
    return true;
}

/* The sum over members, in their order, of pair i. */
static __device__ __forceinline__ bool sum_words(const meeting &m, int64_t i, float2 own, float2 *sum) {
    for (uint32_t q = 0; q < m.g->members; q++) {
        float2 x = own;
        if (q != m.g->rank && !take_words(m, q, i, &x))
            return false;
        *sum = q ? make_float2(sum->x + x.x, sum->y + x.y) : x;
    }
    return true;
}

/* --- parts */

struct eight {
    float x[8];
};

static __device__ __forceinline__ eight load_8(const float *at) {
    float4 a = ((const float4 *)at)[0], b = ((const float4 *)at)[1];
    return {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
}

static __device__ __forceinline__ void store_8(float *at, const eight &v) {
    ((float4 *)at)[0] = make_float4(v.x[0], v.x[1], v.x[2], v.x[3]);
    ((float4 *)at)[1] = make_float4(v.x[4], v.x[5], v.x[6], v.x[7]);
}

static __device__ __forceinline__ uint32_t bf16_pair(float a, float b) {
    __nv_bfloat162 p = __floats2bfloat162_rn(a, b);
    uint32_t bits;
    memcpy(&bits, &p, 4);
    return bits;
}

/* Eight numbers as they are on the wire. */
template <int WIRE> struct wire_8;
template <> struct wire_8<WIRE_BF16> {
    enum { BYTES = 16 };
    uint4 a;
    __device__ __forceinline__ explicit wire_8(const eight &v)
        : a(make_uint4(bf16_pair(v.x[0], v.x[1]), bf16_pair(v.x[2], v.x[3]), bf16_pair(v.x[4], v.x[5]),
                       bf16_pair(v.x[6], v.x[7]))) {}
    __device__ __forceinline__ explicit wire_8(const uint8_t *at) : a(__ldcg((const uint4 *)at)) {}
    __device__ __forceinline__ void push(uint8_t *at) const {
        *(uint4 *)at = a;
    }
    __device__ __forceinline__ eight value(void) const {
        const uint32_t w[4] = {a.x, a.y, a.z, a.w};
        eight v;
        for (int i = 0; i < 4; i++) {
            v.x[2 * i] = __uint_as_float(w[i] << 16);
            v.x[2 * i + 1] = __uint_as_float(w[i] & 0xFFFF0000u);
        }
        return v;
    }
};
template <> struct wire_8<WIRE_F32> {
    enum { BYTES = 32 };
    uint4 a, b;
    __device__ __forceinline__ explicit wire_8(const eight &v) {
        memcpy(&a, v.x, 16);
        memcpy(&b, v.x + 4, 16);
    }
    __device__ __forceinline__ explicit wire_8(const uint8_t *at)
        : a(__ldcg((const uint4 *)at)), b(__ldcg((const uint4 *)at + 1)) {}
    __device__ __forceinline__ void push(uint8_t *at) const {
        ((uint4 *)at)[0] = a;
        ((uint4 *)at)[1] = b;
    }
    __device__ __forceinline__ eight value(void) const {
        eight v;
        memcpy(v.x, &a, 16);
        memcpy(v.x + 4, &b, 16);
        return v;
    }
};

/* Rows of float32 in device memory. */
struct matrix {
    uint8_t *at;
    uint64_t stride; /* bytes from row to row; 0: all rows are one */
};

/* A message of n numbers in rows of `width`: the sum of all members' y, and residual (at NULL: none) -> out. Both counts are
 * multiples of 8. */
struct reduction : meeting {
    matrix y, residual, out;
    int64_t n;
    uint32_t width;
};

/* Number e of a message in a matrix. */
static __device__ __forceinline__ float *number_at(const matrix &x, uint32_t width, int64_t e) {
    const uint32_t row = (uint32_t)e / width, column = (uint32_t)e - row * width;
    return (float *)(x.at + row * x.stride) + column;
}

enum { GROUP_ALL = 1 << 30 };

template <int EACH> static __device__ __forceinline__ int64_t parts_of(const reduction &m) {
    return (m.n + GROUP_PART * EACH - 1) / (GROUP_PART * EACH);
}

/* After its group pushed part j to member `to` (GROUP_ALL: to all). */
static __device__ __forceinline__ void flag_part(const meeting &m, int64_t j, uint32_t to) {
    const gpu_group *g = m.g;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence_system();
        for (uint32_t q = 0; q < g->members; q++)
            if (q != g->rank && (to == GROUP_ALL || q == to))
                *(volatile uint32_t *)(place_of(g, q, g->rank, m.number) + g->flags + 4 * j) = m.number;
    }
}

/* Waits for part j of member `from` (GROUP_ALL: of all others). All threads of the group agree on the result. */
static __device__ __forceinline__ bool await_part(const meeting &m, int64_t j, uint32_t from) {
    const gpu_group *g = m.g;
    bool came = true;
    const uint32_t q = threadIdx.x;
    const uint64_t began = counts_time() ? now_ns() : 0;
    if (q < g->members && q != g->rank && (from == GROUP_ALL || q == from)) {
        const volatile uint32_t *at = (const volatile uint32_t *)(place_of(g, g->rank, q, m.number) + g->flags + 4 * j);
        group_wait w = {0, 0};
        while (*at != m.number)
            if (!still_waits(m, &w, q)) {
                came = false;
                break;
            }
        __threadfence_system(); /* acquires what the flag stands for */
    }
    came = __syncthreads_and(came);
    add_waited(m, began);
    return came;
}

/* The numbers of part j that a thread has are 8 at every EACH * threads * 8. */
#define FOR_PART(e, j, m, EACH)                                                                                        \
    _Pragma("unroll") for (int u_ = 0; u_ < EACH;                                                                      \
                           u_++) if (int64_t e = ((j) * EACH + u_) * GROUP_PART + 8 * (int64_t)threadIdx.x; e < (m).n)

template <int WIRE, int EACH>
static __device__ __forceinline__ void push_part(const reduction &m, int64_t j, uint32_t to) {
    const gpu_group *g = m.g;
    FOR_PART(e, j, m, EACH) {
        wire_8<WIRE> x(load_8(number_at(m.y, m.width, e)));
        for (uint32_t k = 1; k < g->members; k++) {
            const uint32_t q = next_member(g, k);
            if (to == GROUP_ALL || q == to)
                x.push(place_of(g, q, g->rank, m.number) + g->data + e / 8 * wire_8<WIRE>::BYTES);
        }
    }
    flag_part(m, j, to);
}

template <int WIRE> static __device__ __forceinline__ eight sum_of(const reduction &m, int64_t e) {
    const gpu_group *g = m.g;
    eight own = wire_8<WIRE>(load_8(number_at(m.y, m.width, e))).value(), sum;
    for (uint32_t q = 0; q < g->members; q++) {
        eight x = own;
        if (q != g->rank)
            x = wire_8<WIRE>(place_of(g, g->rank, q, m.number) + g->data + e / 8 * wire_8<WIRE>::BYTES).value();
        for (int i = 0; i < 8; i++)
            sum.x[i] = q ? sum.x[i] + x.x[i] : x.x[i];
    }
    return sum;
}

static __device__ __forceinline__ void finish_8(const reduction &m, int64_t e, eight sum) {
    if (m.residual.at) {
        const eight r = load_8(number_at(m.residual, m.width, e));
        for (int i = 0; i < 8; i++)
            sum.x[i] += r.x[i];
    }
    store_8(number_at(m.out, m.width, e), sum);
}

template <int WIRE, int EACH> static __device__ void one_shot(const reduction &m) {
    const int64_t parts = parts_of<EACH>(m), step = gridDim.x;
    for (int64_t j = blockIdx.x; j - step < parts; j += step) {
        if (j < parts)
            push_part<WIRE, EACH>(m, j, GROUP_ALL);
        if (j >= step) {
            if (!await_part(m, j - step, GROUP_ALL))
                return;
            FOR_PART(e, j - step, m, EACH)
            finish_8(m, e, sum_of<WIRE>(m, e));
        }
    }
}

template <int WIRE, int EACH> static __device__ void two_shot(const reduction &m) {
    const gpu_group *g = m.g;
    const int64_t parts = parts_of<EACH>(m), step = gridDim.x;
    for (int64_t j = blockIdx.x; j - 2 * step < parts; j += step) {
        const int64_t sums = j - step, takes = j - 2 * step;
        if (j < parts && (uint32_t)(j % g->members) != g->rank)
            push_part<WIRE, EACH>(m, j, (uint32_t)(j % g->members));
        if (sums >= 0 && sums < parts && (uint32_t)(sums % g->members) == g->rank) {
            if (!await_part(m, sums, GROUP_ALL))
                return;
            FOR_PART(e, sums, m, EACH) {
                wire_8<WIRE> x(sum_of<WIRE>(m, e));
                for (uint32_t k = 1; k < g->members; k++) {
                    const uint32_t q = next_member(g, k);
                    x.push(place_of(g, q, g->rank, m.number) + g->data + e / 8 * wire_8<WIRE>::BYTES);
                }
                finish_8(m, e, x.value());
            }
            flag_part(m, sums, GROUP_ALL);
        }
        if (takes >= 0 && (uint32_t)(takes % g->members) != g->rank) {
            const uint32_t owner = (uint32_t)(takes % g->members);
            if (!await_part(m, takes, owner))
                return;
            FOR_PART(e, takes, m, EACH)
            finish_8(
                m, e,
                wire_8<WIRE>(place_of(g, g->rank, owner, m.number) + g->data + e / 8 * wire_8<WIRE>::BYTES).value());
        }
    }
}

/* A message by words, EACH pairs of a thread at a time. Without numbers the members still hear each other. */
template <int EACH> static __device__ void by_words(const reduction &m) {
    const int64_t pairs = m.n / 2, stride = (int64_t)gridDim.x * GROUP_THREADS;
    int64_t e = blockIdx.x * (int64_t)GROUP_THREADS + threadIdx.x;
    if (!pairs && !e) {
        float2 none = {0, 0};
        push_words(m, 0, none);
        sum_words(m, 0, none, &none);
    }
    for (; e < pairs; e += EACH * stride) {
        float2 own[EACH];
        uint64_t began;
#pragma unroll
        for (int u = 0; u < EACH; u++)
            if (e + u * stride < pairs) {
                own[u] = *(const float2 *)number_at(m.y, m.width, 2 * (e + u * stride));
                push_words(m, e + u * stride, own[u]);
            }
        began = counts_time() ? now_ns() : 0;
#pragma unroll
        for (int u = 0; u < EACH; u++) {
            const int64_t at = e + u * stride;
            float2 sum = {0, 0}, rest = {0, 0};
            if (at >= pairs)
                break;
            if (m.residual.at)
                rest = *(const float2 *)number_at(m.residual, m.width, 2 * at);
            if (!sum_words(m, at, own[u], &sum))
                return;
            if (!u)
                add_waited(m, began);
            if (m.residual.at)
                sum = make_float2(sum.x + rest.x, sum.y + rest.y);
            *(float2 *)number_at(m.out, m.width, 2 * at) = sum;
        }
    }
}

/* By the message's size and the group's borders. Two shots need a part for each member, so that all hear each other. */
static __device__ __forceinline__ void reduce(const reduction &m) {
    const uint64_t bytes = 4 * (uint64_t)m.n;
    const bool bf16 = bytes >= m.g->bf16_least, large = m.n > GROUP_PART * (int64_t)gridDim.x;
    if (bytes <= m.g->words_most)
        by_words<1>(m);
    else if (bytes >= m.g->two_least && parts_of<4>(m) >= m.g->members) {
        if (bf16)
            two_shot<WIRE_BF16, 4>(m);
        else
            two_shot<WIRE_F32, 4>(m);
    } else if (bf16) {
        if (large)
            one_shot<WIRE_BF16, 4>(m);
        else
            one_shot<WIRE_BF16, 1>(m);
    } else if (large)
        one_shot<WIRE_F32, 4>(m);
    else
        one_shot<WIRE_F32, 1>(m);
}

/* --- gathering */

/* `rows` rows of `width` numbers at y, which are the columns from `start` on of rows of `total` numbers. */
struct gathering : meeting {
    matrix y, out;
    int64_t rows;
    int32_t width, start, total;
};

/* T: float, or float4 where all three widths are whole fours. All members' columns lie side by side in the data of the first place. */
template <typename T> static __device__ void push_columns(const gathering &m) {
    const gpu_group *g = m.g;
    const int each = sizeof(T) / sizeof(float), width = m.width / each, total = m.total / each, start = m.start / each;
    const int64_t n = m.rows * width, stride = (int64_t)gridDim.x * GROUP_THREADS;
    for (int64_t e = blockIdx.x * (int64_t)GROUP_THREADS + threadIdx.x; e < n; e += stride) {
        const int64_t row = e / width, column = e - row * width, at = start + column;
        const T x = ((const T *)(m.y.at + row * m.y.stride))[column];
        for (uint32_t k = 1; k < g->members; k++) {
            const uint32_t q = next_member(g, k);
            ((T *)(place_of(g, q, q ? 0 : 1, m.number) + g->data))[row * total + at] = x;
        }
        ((T *)(m.out.at + row * m.out.stride))[at] = x;
    }
}

template <typename T> static __device__ void take_columns(const gathering &m) {
    const gpu_group *g = m.g;
    const int each = sizeof(T) / sizeof(float), width = m.width / each, total = m.total / each, start = m.start / each;
    const T *from = (const T *)(place_of(g, g->rank, g->rank ? 0 : 1, m.number) + g->data);
    const int64_t n = m.rows * total, stride = (int64_t)gridDim.x * GROUP_THREADS;
    for (int64_t e = blockIdx.x * (int64_t)GROUP_THREADS + threadIdx.x; e < n; e += stride) {
        const int64_t row = e / total, column = e - row * total;
        if (column < start || column >= start + width)
            ((T *)(m.out.at + row * m.out.stride))[column] = __ldcg(from + e);
    }
}

/* Waits for every group's flag: a group does not know which columns are another member's. Their grids are of one size. */
static __device__ __forceinline__ bool await_all(const meeting &m) {
    const gpu_group *g = m.g;
    const uint64_t began = counts_time() ? now_ns() : 0;
    bool came = true;
    for (uint32_t i = threadIdx.x; i < gridDim.x * (g->members - 1); i += GROUP_THREADS) {
        const uint32_t k = i / gridDim.x, q = next_member(g, k + 1);
        const volatile uint32_t *at = (const volatile uint32_t *)(place_of(g, g->rank, q, m.number) + g->flags);
        group_wait w = {0, 0};
        while (came && at[i - k * gridDim.x] != m.number)
            came = still_waits(m, &w, q);
    }
    __threadfence_system();
    came = __syncthreads_and(came);
    add_waited(m, began);
    return came;
}

static __device__ __forceinline__ void gather(const gathering &m) {
    const bool fours = (m.width | m.start | m.total) % 4 == 0 &&
                       ((uint64_t)m.y.at | m.y.stride | (uint64_t)m.out.at | m.out.stride) % 16 == 0;
    if (fours)
        push_columns<float4>(m);
    else
        push_columns<float>(m);
    flag_part(m, blockIdx.x, GROUP_ALL);
    if (!await_all(m))
        return;
    if (fours)
        take_columns<float4>(m);
    else
        take_columns<float>(m);
}

#endif
