/* reduce.cuh: collectives over peer memory: how a group of GPUs adds up or gathers rows of float32. See group_call.h for inboxes and
 * numbers.
 *
 * A message goes by words: each store has two halves of 8 bytes, whole on NVLink and PCIe, of 4 bytes of data and the collective's
 * number. The receiver polls its own inbox for the number. So there is neither fence nor flag, and one way through the link is all. In
 * one shot each member pushes to all others and adds up what they push; in two, a chunk goes to its owner alone, who adds up and pushes
 * the sum to all: fewer bytes from three members on.
 *
 * A long sum goes by parts: a group of threads pushes bfloat16 alone, then a fence and the part's flag, for half the bytes.
 *
 * Sums go in the order of ranks, then comes the residual, in both: all members have the same bits. Data are a float32 or two bfloat16;
 * a member rounds its own as it does the others'.
 *
 * A wait ends after the group's timeout, or when the group is broken: the kernel then writes its fault, breaks the group and leaves.
 */
#ifndef SATCHEL_CUDA_REDUCE_CUH
#define SATCHEL_CUDA_REDUCE_CUH

#include <stdint.h>

#include "group_call.h"
#include "half.h"
#include "words.h"

enum { WIRE_F32 = 0, WIRE_BF16 = 1 };

/* --- words */

static __device__ __forceinline__ uint32_t next_member(const gpu_group *g, uint32_t k) {
    return g->rank + k < g->members ? g->rank + k : g->rank + k - g->members;
}

/* Data of a word: of its two halves. */
typedef uint2 payload;

static __device__ __forceinline__ void push_word(uint64_t at, payload x, uint32_t number) {
    const uint64_t high = (uint64_t)number << 32;
    asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(high | x.x), "l"(high | x.y) : "memory");
}

static __device__ __forceinline__ ulonglong2 peek(uint64_t at) {
    ulonglong2 x;
    asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];" : "=l"(x.x), "=l"(x.y) : "l"(at) : "memory");
    return x;
}

static __device__ __forceinline__ bool has_come(ulonglong2 x, uint32_t number) {
    return (uint32_t)(x.x >> 32) == number && (uint32_t)(x.y >> 32) == number;
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
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(g->fault), "r"(step + 1), "r"(number),
                 "r"(missing), "r"(op)
                 : "memory");
    __threadfence_system();
    *(volatile uint32_t *)g->broken = 1;
    return 0;
}

/* Whether a wait for `missing` goes on. It looks up seldom. A member that came early sleeps between its looks: tens of thousands
 * of threads that poll hold up what the others write (8B, 64 at once on two H200s: 803 tokens a second without, 15,292 with). */
static __device__ __forceinline__ bool still_waits(const meeting &m, group_wait *w, uint32_t missing) {
    enum { AWAKE = 8 /* looks */, ASLEEP = 256 /* nanoseconds */ };
    if (w->tries > AWAKE)
        __nanosleep(ASLEEP);
    if (++w->tries & 255)
        return true;
    w->until = look_up(m.g, w->until, missing, m.number, m.step, m.op);
    return w->until != 0;
}

/* One thread counts the time that its kernel waits, and tells how far its member is. */
static __device__ __forceinline__ bool counts_time(void) {
    return blockIdx.x == 0 && threadIdx.x == 0;
}

static __device__ __forceinline__ void come(const meeting &m) {
    if (counts_time())
        ((gpu_group_counts *)m.g->counts)->number = m.number;
}

static __device__ __forceinline__ void add_waited(const meeting &m, uint64_t began) {
    if (counts_time())
        ((gpu_group_counts *)m.g->counts)->waited_ns += now_ns() - began;
}

/* Waits for EACH words of a place, `apart` bytes from each other; `left` of them are there. False: the group is broken. */
template <int EACH>
static __device__ __forceinline__ bool take_words(const meeting &m, uint32_t source, uint64_t at, uint64_t apart,
                                                  int left, payload *out) {
    ulonglong2 x[EACH];
#pragma unroll
    for (int u = 0; u < EACH; u++)
        if (u < left)
            x[u] = peek(at + u * apart);
#pragma unroll
    for (int u = 0; u < EACH; u++) {
        group_wait w = {0, 0};
        if (u >= left)
            break;
        while (!has_come(x[u], m.number)) {
            if (!still_waits(m, &w, source))
                return false;
            x[u] = peek(at + u * apart);
        }
        out[u] = make_uint2((uint32_t)x[u].x, (uint32_t)x[u].y);
    }
    return true;
}

/* --- sums */

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

/* The numbers of a word: two float32, or four bfloat16. */
template <int WIRE> struct numbers {
    enum { COUNT = WIRE == WIRE_F32 ? 2 : 4 };
    float x[COUNT];

    __device__ __forceinline__ numbers(void) {}
    __device__ __forceinline__ explicit numbers(const float *at) {
        load_numbers(x, at);
    }
    __device__ __forceinline__ explicit numbers(payload p) {
        if constexpr (WIRE == WIRE_F32) {
            x[0] = __uint_as_float(p.x), x[1] = __uint_as_float(p.y);
        } else {
            x[0] = __uint_as_float(p.x << 16), x[1] = __uint_as_float(p.x & 0xFFFF0000u);
            x[2] = __uint_as_float(p.y << 16), x[3] = __uint_as_float(p.y & 0xFFFF0000u);
        }
    }
    __device__ __forceinline__ payload packed(void) const {
        if constexpr (WIRE == WIRE_F32)
            return make_uint2(__float_as_uint(x[0]), __float_as_uint(x[1]));
        else
            return make_uint2(bfloats_of_floats(x[0], x[1]), bfloats_of_floats(x[2], x[3]));
    }
    __device__ __forceinline__ void add(const numbers &other) {
        for (int i = 0; i < COUNT; i++)
            x[i] += other.x[i];
    }
    __device__ __forceinline__ void store(float *at) const {
        store_numbers(at, x);
    }
};

template <int WIRE> static __device__ __forceinline__ numbers<WIRE> own_of(const reduction &m, int64_t word) {
    return numbers<WIRE>(number_at(m.y, m.width, word * numbers<WIRE>::COUNT));
}

template <int WIRE> static __device__ __forceinline__ void finish(const reduction &m, int64_t word, numbers<WIRE> sum) {
    const int64_t e = word * numbers<WIRE>::COUNT;
    if (m.residual.at)
        sum.add(numbers<WIRE>(number_at(m.residual, m.width, e)));
    sum.store(number_at(m.out, m.width, e));
}

/* Pushes a word to all others, each member beginning at another, so that no link has all at once. */
static __device__ __forceinline__ void push_to_all(const meeting &m, int64_t word, payload x) {
    for (uint32_t k = 1; k < m.g->members; k++)
        push_word(group_place(m.g, next_member(m.g, k), m.g->rank, m.number) + 16 * word, x, m.number);
}

/* A message of few numbers: a thread has a word, and keeps its own. Without numbers the members still hear each other. */
template <int WIRE> static __device__ void small_message(const reduction &m) {
    const int64_t word = blockIdx.x * (int64_t)GROUP_THREADS + threadIdx.x, words = m.n / numbers<WIRE>::COUNT;
    const bool any = word < words;
    numbers<WIRE> own, sum;
    uint64_t began;
    if (!any && (words || word))
        return;
    if (any)
        own = own_of<WIRE>(m, word);
    push_to_all(m, word, any ? own.packed() : make_uint2(0, 0));
    own = numbers<WIRE>(own.packed());
    began = counts_time() ? now_ns() : 0;
    for (uint32_t q = 0; q < m.g->members; q++) {
        payload x;
        if (q != m.g->rank && !take_words<1>(m, q, group_place(m.g, m.g->rank, q, m.number) + 16 * word, 0, 1, &x))
            return;
        const numbers<WIRE> theirs = q == m.g->rank ? own : numbers<WIRE>(x);
        if (q)
            sum.add(theirs);
        else
            sum = theirs;
    }
    add_waited(m, began);
    if (any)
        finish(m, word, sum);
}

/* Larger messages go in chunks of EACH words a thread; a group pushes its next chunk before it waits for the last. */
template <int WIRE, int EACH> struct chunks {
    enum { WORDS = GROUP_THREADS * EACH, APART = 16 * GROUP_THREADS };

    static __device__ __forceinline__ int64_t count(const reduction &m) {
        return (m.n / numbers<WIRE>::COUNT + WORDS - 1) / WORDS;
    }
    /* The thread's first word of a chunk, and how many it has. */
    static __device__ __forceinline__ int64_t first(const reduction &m, int64_t chunk, int *left) {
        const int64_t word = chunk * WORDS + threadIdx.x, all = m.n / numbers<WIRE>::COUNT;
        *left = word < all ? (int)min((int64_t)EACH, (all - word + GROUP_THREADS - 1) / GROUP_THREADS) : 0;
        return word;
    }
    static __device__ __forceinline__ void push(const reduction &m, int64_t chunk, uint32_t owner) {
        int left;
        const int64_t word = first(m, chunk, &left);
        numbers<WIRE> own[EACH];
#pragma unroll
        for (int u = 0; u < EACH; u++)
            if (u < left)
                own[u] = own_of<WIRE>(m, word + u * GROUP_THREADS);
#pragma unroll
        for (int u = 0; u < EACH; u++)
            if (u < left && owner == m.g->members)
                push_to_all(m, word + u * GROUP_THREADS, own[u].packed());
            else if (u < left)
                push_word(group_place(m.g, owner, m.g->rank, m.number) + 16 * (word + u * GROUP_THREADS),
                          own[u].packed(), m.number);
    }
    /* Adds up a chunk; `spread`: and pushes the sum, rounded. */
    static __device__ __forceinline__ bool sum(const reduction &m, int64_t chunk, bool spread) {
        int left;
        const int64_t word = first(m, chunk, &left);
        numbers<WIRE> all[EACH];
        const uint64_t began = counts_time() ? now_ns() : 0;
        for (uint32_t q = 0; q < m.g->members; q++) {
            payload x[EACH];
            if (q != m.g->rank &&
                !take_words<EACH>(m, q, group_place(m.g, m.g->rank, q, m.number) + 16 * word, APART, left, x))
                return false;
#pragma unroll
            for (int u = 0; u < EACH; u++) {
                if (u >= left)
                    break;
                const numbers<WIRE> theirs(q == m.g->rank ? own_of<WIRE>(m, word + u * GROUP_THREADS).packed() : x[u]);
                if (q)
                    all[u].add(theirs);
                else
                    all[u] = theirs;
            }
        }
        add_waited(m, began);
#pragma unroll
        for (int u = 0; u < EACH; u++) {
            if (u >= left)
                break;
            if (spread) {
                push_to_all(m, word + u * GROUP_THREADS, all[u].packed());
                all[u] = numbers<WIRE>(all[u].packed());
            }
            finish(m, word + u * GROUP_THREADS, all[u]);
        }
        return true;
    }
    /* Takes a chunk's sum from its owner. */
    static __device__ __forceinline__ bool take(const reduction &m, int64_t chunk, uint32_t owner) {
        int left;
        const int64_t word = first(m, chunk, &left);
        payload x[EACH];
        if (!take_words<EACH>(m, owner, group_place(m.g, m.g->rank, owner, m.number) + 16 * word, APART, left, x))
            return false;
#pragma unroll
        for (int u = 0; u < EACH; u++)
            if (u < left)
                finish(m, word + u * GROUP_THREADS, numbers<WIRE>(x[u]));
        return true;
    }
};

template <int WIRE, int EACH> static __device__ void one_shot(const reduction &m) {
    typedef chunks<WIRE, EACH> c;
    const int64_t all = c::count(m), step = gridDim.x;
    for (int64_t j = blockIdx.x; j - step < all; j += step) {
        if (j < all)
            c::push(m, j, m.g->members);
        if (j >= step && !c::sum(m, j - step, false))
            return;
    }
}

/* There must be a chunk for each member, so that all hear each other. */
template <int WIRE, int EACH> static __device__ void two_shots(const reduction &m) {
    typedef chunks<WIRE, EACH> c;
    const int64_t all = c::count(m), step = gridDim.x;
    const uint32_t members = m.g->members;
    for (int64_t j = blockIdx.x; j - 2 * step < all; j += step) {
        const int64_t sums = j - step, takes = j - 2 * step;
        if (j < all && (uint32_t)(j % members) != m.g->rank)
            c::push(m, j, (uint32_t)(j % members));
        if (sums >= 0 && sums < all && (uint32_t)(sums % members) == m.g->rank && !c::sum(m, sums, true))
            return;
        if (takes >= 0 && (uint32_t)(takes % members) != m.g->rank && !c::take(m, takes, (uint32_t)(takes % members)))
            return;
    }
}

/* --- long sums, by parts */

struct eight {
    float x[8];

    __device__ __forceinline__ eight(void) {}
    __device__ __forceinline__ explicit eight(const float *at) {
        const float4 a = ((const float4 *)at)[0], b = ((const float4 *)at)[1];
        x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
    }
    __device__ __forceinline__ explicit eight(uint4 p) {
        const uint32_t w[4] = {p.x, p.y, p.z, p.w};
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[2 * i] = __uint_as_float(w[i] << 16), x[2 * i + 1] = __uint_as_float(w[i] & 0xFFFF0000u);
    }
    __device__ __forceinline__ uint4 packed(void) const {
        return make_uint4(bfloats_of_floats(x[0], x[1]), bfloats_of_floats(x[2], x[3]), bfloats_of_floats(x[4], x[5]),
                          bfloats_of_floats(x[6], x[7]));
    }
    __device__ __forceinline__ void add(const eight &other) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            x[i] += other.x[i];
    }
    __device__ __forceinline__ void store(float *at) const {
        ((float4 *)at)[0] = make_float4(x[0], x[1], x[2], x[3]);
        ((float4 *)at)[1] = make_float4(x[4], x[5], x[6], x[7]);
    }
};

/* All threads of a group call these together. */
struct parts {
    enum { EACH = GROUP_PART_EACH };

    static __device__ __forceinline__ int64_t count(const reduction &m) {
        return (m.n + GROUP_PART - 1) / GROUP_PART;
    }
    /* The first of eight numbers of a thread. */
    static __device__ __forceinline__ int64_t first(int64_t part, int u) {
        return part * GROUP_PART + 8 * (u * GROUP_THREADS + (int)threadIdx.x);
    }
    static __device__ __forceinline__ uint4 *data_at(const meeting &m, uint32_t member, uint32_t source, int64_t e) {
        return (uint4 *)(group_parts(m.g, member, source, m.number) + m.g->parts_flags + 2 * e);
    }
    static __device__ __forceinline__ volatile uint32_t *flag_at(const meeting &m, uint32_t member, uint32_t source,
                                                                 int64_t part) {
        return (volatile uint32_t *)(group_parts(m.g, member, source, m.number) + 4 * part);
    }
    /* Behind what the group pushed of a part to a member, or to all (owner: the number of members). */
    static __device__ __forceinline__ void flag(const meeting &m, int64_t part, uint32_t owner) {
        __syncthreads();
        if (threadIdx.x)
            return;
        __threadfence_system();
        for (uint32_t k = 1; k < m.g->members; k++) {
            const uint32_t q = next_member(m.g, k);
            if (owner == m.g->members || owner == q)
                *flag_at(m, q, m.g->rank, part) = m.number;
        }
    }
    /* Waits for a part of one member, or of all others. All threads get the same answer; false: the group is broken. */
    static __device__ __forceinline__ bool await(const meeting &m, int64_t part, uint32_t from) {
        const uint32_t q = threadIdx.x;
        const uint64_t began = counts_time() ? now_ns() : 0;
        bool came = true;
        if (q < m.g->members && q != m.g->rank && (from == m.g->members || from == q)) {
            volatile uint32_t *at = flag_at(m, m.g->rank, q, part);
            group_wait w = {0, 0};
            while (came && *at != m.number)
                came = still_waits(m, &w, q);
            __threadfence_system(); /* what the flag stands for is read after it */
        }
        came = __syncthreads_and(came);
        add_waited(m, began);
        return came;
    }
    static __device__ __forceinline__ void push_to(const reduction &m, int64_t e, uint4 x, uint32_t owner) {
        for (uint32_t k = 1; k < m.g->members; k++) {
            const uint32_t q = next_member(m.g, k);
            if (owner == m.g->members || owner == q)
                *data_at(m, q, m.g->rank, e) = x;
        }
    }
    static __device__ __forceinline__ void push(const reduction &m, int64_t part, uint32_t owner) {
        eight own[EACH];
#pragma unroll
        for (int u = 0; u < EACH; u++)
            if (first(part, u) < m.n)
                own[u] = eight(number_at(m.y, m.width, first(part, u)));
#pragma unroll
        for (int u = 0; u < EACH; u++)
            if (first(part, u) < m.n)
                push_to(m, first(part, u), own[u].packed(), owner);
        flag(m, part, owner);
    }
    static __device__ __forceinline__ void end(const reduction &m, int64_t e, eight sum) {
        if (m.residual.at)
            sum.add(eight(number_at(m.residual, m.width, e)));
        sum.store(number_at(m.out, m.width, e));
    }
    /* Adds up a part that has come; `spread`: and pushes the sum, rounded. */
    static __device__ __forceinline__ bool sum(const reduction &m, int64_t part, bool spread) {
        if (!await(m, part, m.g->members))
            return false;
#pragma unroll
        for (int u = 0; u < EACH; u++) {
            const int64_t e = first(part, u);
            eight all;
            if (e >= m.n)
                break;
            for (uint32_t q = 0; q < m.g->members; q++) {
                const eight theirs(q == m.g->rank ? eight(number_at(m.y, m.width, e)).packed()
                                                  : __ldcg(data_at(m, m.g->rank, q, e)));
                if (q)
                    all.add(theirs);
                else
                    all = theirs;
            }
            if (spread) {
                push_to(m, e, all.packed(), m.g->members);
                all = eight(all.packed());
            }
            end(m, e, all);
        }
        if (spread)
            flag(m, part, m.g->members);
        return true;
    }
    static __device__ __forceinline__ bool take(const reduction &m, int64_t part, uint32_t owner) {
        if (!await(m, part, owner))
            return false;
#pragma unroll
        for (int u = 0; u < EACH; u++)
            if (first(part, u) < m.n)
                end(m, first(part, u), eight(__ldcg(data_at(m, m.g->rank, owner, first(part, u)))));
        return true;
    }
    static __device__ void one_shot(const reduction &m) {
        const int64_t all = count(m), step = gridDim.x;
        for (int64_t j = blockIdx.x; j - step < all; j += step) {
            if (j < all)
                push(m, j, m.g->members);
            if (j >= step && !sum(m, j - step, false))
                return;
        }
    }
    /* There must be a part for each member, so that all hear each other. */
    static __device__ void two_shots(const reduction &m) {
        const int64_t all = count(m), step = gridDim.x;
        const uint32_t members = m.g->members;
        for (int64_t j = blockIdx.x; j - 2 * step < all; j += step) {
            const int64_t sums = j - step, takes = j - 2 * step;
            if (j < all && (uint32_t)(j % members) != m.g->rank)
                push(m, j, (uint32_t)(j % members));
            if (sums >= 0 && sums < all && (uint32_t)(sums % members) == m.g->rank && !sum(m, sums, true))
                return;
            if (takes >= 0 && (uint32_t)(takes % members) != m.g->rank && !take(m, takes, (uint32_t)(takes % members)))
                return;
        }
    }
};

template <int WIRE> static __device__ __forceinline__ void reduce_as(const reduction &m) {
    if (m.n / numbers<WIRE>::COUNT <= (int64_t)gridDim.x * GROUP_THREADS)
        small_message<WIRE>(m);
    else if (4 * (uint64_t)m.n >= m.g->two_least && chunks<WIRE, 4>::count(m) >= m.g->members)
        two_shots<WIRE, 4>(m);
    else
        one_shot<WIRE, 4>(m);
}

/* By the message's size and the group's borders. */
static __device__ __forceinline__ void reduce(const reduction &m) {
    come(m);
    if (4 * (uint64_t)m.n >= m.g->parts_least && parts::count(m) >= m.g->members) {
        if (4 * (uint64_t)m.n >= m.g->parts_two_least)
            parts::two_shots(m);
        else
            parts::one_shot(m);
    } else if (4 * (uint64_t)m.n >= m.g->bf16_least)
        reduce_as<WIRE_BF16>(m);
    else
        reduce_as<WIRE_F32>(m);
}

/* --- sums by a vendor's library, between these two */

static __device__ __forceinline__ void begin_sum(const meeting &m) {
    volatile gpu_group_progress *host = (volatile gpu_group_progress *)m.g->progress;
    come(m);
    if (!counts_time())
        return;
    ((gpu_group_counts *)m.g->counts)->began_ns = now_ns();
    host->step = m.step + 1;
    host->began = m.number;
}

static __device__ __forceinline__ void end_sum(const meeting &m) {
    gpu_group_counts *counts = (gpu_group_counts *)m.g->counts;
    if (!counts_time())
        return;
    ((volatile gpu_group_progress *)m.g->progress)->ended = m.number;
    counts->waited_ns += now_ns() - counts->began_ns;
}

/* --- gathering */

/* `rows` rows of `width` numbers at y, which are the columns from `start` on of rows of `total` numbers. A member does not know which
 * columns are whose: all push to the place of the first source, where the words lie as the result's numbers do. */
struct gathering : meeting {
    matrix y, out;
    int64_t rows;
    int32_t width, start, total;
};

enum { GATHER_EACH = 4 };

/* A half of a word is a number. */
static __device__ __forceinline__ uint64_t half_at(const gathering &m, uint32_t member, int64_t e) {
    return group_place(m.g, member, member ? 0 : 1, m.number) + 8 * e;
}

static __device__ __forceinline__ void push_columns(const gathering &m, int64_t stride, int64_t at) {
    for (int64_t e = at, n = m.rows * m.width; e < n; e += stride) {
        const int64_t row = e / m.width, column = e - row * m.width;
        const float x = ((const float *)(m.y.at + row * m.y.stride))[column];
        const uint64_t word = (uint64_t)m.number << 32 | __float_as_uint(x);
        for (uint32_t k = 1; k < m.g->members; k++)
            *(volatile uint64_t *)half_at(m, next_member(m.g, k), row * m.total + m.start + column) = word;
        ((float *)(m.out.at + row * m.out.stride))[m.start + column] = x;
    }
}

static __device__ __forceinline__ bool take_columns(const gathering &m, int64_t stride, int64_t at) {
    const int32_t others = m.total - m.width; /* numbers of a row that others have */
    for (int64_t first = at, n = m.rows * others; first < n; first += GATHER_EACH * stride) {
        uint64_t x[GATHER_EACH], from[GATHER_EACH];
        float *to[GATHER_EACH];
#pragma unroll
        for (int u = 0; u < GATHER_EACH; u++) {
            const int64_t e = first + u * stride, row = e / others, i = e - row * others;
            const int64_t column = i < m.start ? i : i + m.width;
            if (e < n) {
                from[u] = half_at(m, m.g->rank, row * m.total + column);
                to[u] = (float *)(m.out.at + row * m.out.stride) + column;
                x[u] = *(const volatile uint64_t *)from[u];
            }
        }
#pragma unroll
        for (int u = 0; u < GATHER_EACH; u++) {
            group_wait w = {0, 0};
            if (first + u * stride >= n)
                break;
            while ((uint32_t)(x[u] >> 32) != m.number) {
                if (!still_waits(m, &w, GROUP_SOMEONE))
                    return false;
                x[u] = *(const volatile uint64_t *)from[u];
            }
            *to[u] = __uint_as_float((uint32_t)x[u]);
        }
    }
    return true;
}

static __device__ __forceinline__ void gather(const gathering &m) {
    const int64_t stride = (int64_t)gridDim.x * GROUP_THREADS, at = blockIdx.x * (int64_t)GROUP_THREADS + threadIdx.x;
    if (!m.rows) { /* the members hear each other, as in a sum of nothing */
        reduction none;
        (meeting &)none = m;
        none.n = 0;
        reduce(none);
        return;
    }
    come(m);
    push_columns(m, stride, at);
    const uint64_t began = counts_time() ? now_ns() : 0;
    if (take_columns(m, stride, at))
        add_waited(m, began);
}

#endif
