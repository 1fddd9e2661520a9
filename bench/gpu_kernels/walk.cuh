/* walk.cuh: how bytes come to the waves of a walk: rings that one wave fills for the sixteen others, each at its own pace, far into
 * phases that have not begun: weights and the past do not wait for a barrier. Who fetches and who reads go the same way, entry by
 * entry, so nothing but the entries' arrival and how far was read is told between them.
 */
#ifndef SATCHEL_CUDA_WALK_CUH
#define SATCHEL_CUDA_WALK_CUH

#include "../../cext/cuda/attention_few.cuh"
#include "../../cext/cuda/dense.cuh"
#include "../../cext/cuda/gemv_group.cuh"
#include "kv.k.h"
#include "walk.h"

#ifdef WALK_TRAP /* of a bench: a wait that would never end is an error */
#define WAITED(n)                                                                                                      \
    do {                                                                                                               \
        if (++n > 1 << 22)                                                                                             \
            __trap();                                                                                                  \
    } while (0)
#else
#define WAITED(n) ((void)++n)
#endif
#ifndef WALK_STAMP
#define WALK_STAMP(phase, i) (void)0
#endif

/* Entries stand at places that follow from the sizes before: behind each other, and at 0 again where the end is near. */
struct byte_ring {
    uint32_t size, least, at, reached, n; /* reached: bytes so far, those left out at the end among them */
    __device__ __forceinline__ explicit byte_ring(uint32_t size)
        : size(size), least((size / WALK_PENDING + 127) / 128 * 128), at(0), reached(0), n(0) {}
    __device__ __forceinline__ uint32_t take(uint32_t bytes) {
        bytes = max((bytes + 15) / 16 * 16, least);
        if (at + bytes > size)
            reached += size - at, at = 0;
        uint32_t here = at;
        at += bytes, reached += bytes, n++;
        return here;
    }
};

/* Where a group's things lie in its shared memory. */
struct walk_place {
    char *rings, *room;
    walk_phase *phases;
    uint32_t barriers, read; /* shared addresses: WALK_PENDING barriers for each wave, and a word for each */
    __device__ __forceinline__ walk_place(char *shared, const walk_shape &s) {
        rings = shared;
        room = rings + WALK_WAVES * s.ring;
        phases = (walk_phase *)(room + (s.room + 127) / 128 * 128);
        barriers = shared_address(phases + 2);
        read = barriers + WALK_WAVES * WALK_PENDING * 8;
    }
};

/* A wave's end of its ring. */
struct wave_ring {
    byte_ring ring;
    char *from;
    uint32_t barriers, read;
    __device__ __forceinline__ wave_ring(const walk_place &p, uint32_t size, int wave)
        : ring(size), from(p.rings + wave * size), barriers(p.barriers + wave * WALK_PENDING * 8),
          read(p.read + 4 * wave) {}
    __device__ __forceinline__ char *next(uint32_t bytes) {
        uint32_t bar = barriers + 8 * (ring.n % WALK_PENDING), phase = ring.n / WALK_PENDING & 1;
        char *p = from + ring.take(bytes);
        barrier_wait(bar, phase);
        return p;
    }
    __device__ __forceinline__ void done() {
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            asm volatile("st.release.cta.shared::cta.u32 [%0], %1;" ::"r"(read), "r"(ring.reached) : "memory");
    }
};

/* Where the token stands; block: where its own key and value go. */
struct walk_token {
    int slot, pos, good, block;
    __device__ __forceinline__ walk_token(const gpu_call &c, const walk_shape &s) {
        const gpu_view &table = c.v[5];
        slot = i32_at(&c.v[3], 0), pos = i32_at(&c.v[4], 0), block = -1;
        good = inside(slot, table.shape[0]) && pos >= 0 && pos / s.block < table.shape[1];
        if (good)
            block = ROW(const int32_t, &table, slot)[pos / s.block];
    }
};

/* What a group has of a past: steps of 16 positions [first, last) of split `split`, of one KV head; used: splits. */
struct walk_past {
    int head, split, used, first, last, start;
    __device__ __forceinline__ walk_past(const gpu_call &c, const walk_token &token, int most) {
        const int window = ((const arg_attention *)c.arg)->window, kv = c.v[2].shape[1];
        head = (int)blockIdx.x % kv, split = (int)blockIdx.x / kv;
        start = window > 0 && token.pos + 1 > window ? token.pos + 1 - window : 0;
        int begin = start / SPAN, steps = (token.pos + SPAN - 1) / SPAN - begin;
        int each = max((steps + most - 1) / most, (int)WALK_WAVES);
        used = max((steps + each - 1) / each, 1);
        first = begin + split * each, last = begin + min(steps, (split + 1) * each);
        if (!token.good || split >= used)
            last = first;
    }
};

/* The weights of a walk are packed, of the formats of a set, or F16 and BF16. */
struct no_packed {};
template <class SET> constexpr bool takes_packed = true;
template <> constexpr bool takes_packed<no_packed> = false;

/* The entries of one wave's ring, phase by phase: next() sets where one comes from. */
template <class SET> struct walk_source {
    const walk_phase *phase;
    int left, wave, kind, most; /* left: phases behind this one */
    walk_token token;
    const char *from[2]; /* of `bytes` each; the second may be NULL */
    uint32_t bytes;
    int n_tiles, chunks, team, way; /* packed */
    bool together;
    chunk_walk at;
    gemv_tile tile;
    int pair, pairs, column, width; /* dense */
    int step, last, half, shift;    /* attention */

    __device__ __forceinline__ walk_source(const walk_phase *phases, int n, int wave, int most, walk_token token)
        : phase(phases), left(n), wave(wave), kind(0), most(most), token(token), at(0, false) {
        team = wave / WAYS, way = wave % WAYS;
    }

    __device__ __forceinline__ void begin_packed(const gpu_call &c) {
        if constexpr (takes_packed<SET>) {
            matrices<SET> m(c);
            int units = m.gated ? m.all / 2 : m.all, mine = units - (int)blockIdx.x;
            n_tiles = mine > 0 ? (mine + (int)gridDim.x - 1) / (int)gridDim.x * (1 + m.gated) : 0;
            chunks = packed_chunks(&c.v[1]);
            together = (chunks + WAYS - 1) / WAYS % TEAMS == 0;
            at = chunk_walk(team, together);
            if (at.chunk(way) >= chunks)
                at.tile = n_tiles;
            if (at.tile < n_tiles)
                tile = m.tile(c, at.tile, chunks);
        }
    }

    __device__ __forceinline__ void begin() {
        const gpu_call &c = phase->call[0];
        kind = phase->kind;
        if (kind == WALK_PACKED) {
            begin_packed(c);
        } else if (kind == WALK_DENSE) {
            pairs = c.mode & GATED ? c.v[0].shape[1] : (c.v[0].shape[1] + 1) / 2;
            pair = wave * (int)gridDim.x + (int)blockIdx.x;
            column = 0, width = c.v[1].shape[1];
        } else if (kind == WALK_ATTENTION) {
            const gpu_call &a = phase->call[3];
            walk_past p(a, token, most);
            step = p.first + wave, last = p.last, half = 0;
            shift = __ffs(a.v[2].shape[2]) - 1;
        }
    }

    __device__ __forceinline__ bool of_packed() {
        if (at.tile >= n_tiles)
            return false;
        const gpu_call &c = phase->call[0];
        from[0] = tile.data + at.chunk(way) * tile.bytes, from[1] = nullptr, bytes = tile.bytes;
        int before = at.tile;
        at.next(team, way, chunks, together);
        if constexpr (takes_packed<SET>)
            if (at.tile != before && at.tile < n_tiles)
                tile = matrices<SET>(c).tile(c, at.tile, chunks);
        return true;
    }

    __device__ __forceinline__ bool of_dense() {
        if (pair >= pairs)
            return false;
        dense_rows p = dense_pair(phase->call[0], pair);
        from[0] = p.row[0] + 2 * (int64_t)column, from[1] = p.row[1] + 2 * (int64_t)column;
        bytes = 2 * min((int)WALK_SEGMENT, width - column);
        if ((column += WALK_SEGMENT) >= width)
            column = 0, pair += WALK_WAVES * (int)gridDim.x;
        return true;
    }

    __device__ __forceinline__ bool of_past() {
        if (step >= last)
            return false;
        const gpu_call &c = phase->call[3];
        const gpu_view &v = c.v[2 + half], &table = c.v[6];
        int d = v.shape[3], block = v.shape[2], kv = v.shape[1], key = step * SPAN;
        int32_t n = ((const int32_t *)table.data)[token.slot * (int64_t)(table.stride / 4) + (key >> shift)];
        if ((uint32_t)n >= (uint32_t)v.shape[0]) {
            fault(&c);
            n = 0;
        }
        bytes = (uint32_t)kv_bytes(v.format, d);
        from[0] = (const char *)v.data + (uint64_t)n * v.stride +
                  (uint64_t)((int)blockIdx.x % kv * block + (key & (block - 1))) * bytes;
        from[1] = nullptr;
        bytes *= SPAN;
        half ^= 1;
        step += half ? 0 : (int)WALK_WAVES;
        return true;
    }

    __device__ __forceinline__ bool next() {
        for (;;) {
            if (kind == WALK_PACKED      ? of_packed()
                : kind == WALK_DENSE     ? of_dense()
                : kind == WALK_ATTENTION ? of_past()
                                         : false)
                return true;
            if (kind)
                phase++;
            if (left-- <= 0)
                return false;
            begin();
        }
    }
};

/* The wave that fetches: lane i fills wave i's ring wherever there is room. */
template <class SET>
__device__ __noinline__ void walk_fetch(const walk_phase *phases, walk_shape s, walk_place p, walk_token token) {
#if __CUDA_ARCH__ >= 900
    int lane = threadIdx.x % 32;
    walk_source<SET> source(phases, (int)s.phases, lane, (int)s.most, token);
    byte_ring ring(s.ring);
    uint64_t policy = read_once();
    uint32_t rings = shared_address(p.rings) + lane * s.ring, barriers = p.barriers + lane * WALK_PENDING * 8, idle = 0;
    bool more = lane < WALK_WAVES && source.next();
    while (__any_sync(~0u, more)) {
        bool put = false;
        if (more) {
            byte_ring tried = ring;
            uint32_t all = source.from[1] ? 2 * source.bytes : source.bytes, to = tried.take(all), read;
            asm volatile("ld.acquire.cta.shared::cta.u32 %0, [%1];" : "=r"(read) : "r"(p.read + 4 * lane) : "memory");
            put = tried.reached - read <= s.ring;
            if (put) {
                uint32_t bar = barriers + 8 * (ring.n % WALK_PENDING);
                barrier_expect(bar, all);
                copy_bulk(rings + to, source.from[0], source.bytes, bar, policy);
                if (source.from[1])
                    copy_bulk(rings + to + source.bytes, source.from[1], source.bytes, bar, policy);
                ring = tried;
                more = source.next();
            }
        }
        if (!__any_sync(~0u, put)) {
            WAITED(idle);
            __nanosleep(20);
        } else
            idle = 0;
    }
#endif
}

/* --- all threads but those that fetch */

__device__ __forceinline__ void readers_meet() {
    asm volatile("bar.sync 1, %0;" ::"n"(32 * WALK_WAVES) : "memory");
}

/* All groups have ended `phases` phases, and what they wrote is seen. */
__device__ __forceinline__ void walk_wait(uint32_t *counter, uint32_t phases) {
    if (threadIdx.x == 0) {
        uint32_t now, spins = 0;
        do {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory");
            WAITED(spins);
        } while (now < phases * gridDim.x);
    }
    readers_meet();
}

/* Behind readers_meet(). `all`: 0, or of the last phase the arrivals of a whole walk: the last of them clears the counter. */
__device__ __forceinline__ void walk_arrive(uint32_t *counter, uint32_t all) {
    uint32_t before;
    if (threadIdx.x != 0)
        return;
    if (!all) {
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
        return;
    }
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    if (before + 1 == all)
        *counter = 0;
}

#endif
