/* gemv.cu: products of packed weights with up to four columns, for decoding, at memory bandwidth. sm_90 and newer.
 *
 * A group of sixteen waves occupies an SM and owns tiles of 16 rows. Its waves form two teams of eight; a tile's chunks are
 * taken in rows of eight, one per wave of a team. If a tile has an even number of such rows, both teams share it, else they
 * alternate tiles; so the order of a sum depends on K alone. Each wave has a ring of its own in shared memory, filled by bulk
 * copies. The first chunks are loaded before the previous kernel ends, because weights depend on no kernel: on Hopper one a wave, and
 * the others behind the first requests for activations, which would wait for them. Then the waves quantize the activations to bytes.
 * Waves synchronize only after a batch of tiles. Two buffers hold the partial sums of batches, so one barrier per batch suffices.
 *
 * One group per SM is intended. If two fit, the next kernel's groups start early but in pairs, and half of the SMs have none
 * (measured: the loop takes 1.5 times as long).
 *
 * On Hopper two to four columns have clusters of groups, for four columns of 4,096 to 14,336 numbers are 65 to 230 KB, which a group by
 * itself loads at 33 bytes a nanosecond: gemv_split_* for long rows, whose groups have a part of K each (gemv_split.cuh), and gemv_pair_*,
 * two groups that quantize half of the columns each for both (gemv_pair.cuh).
 */
#include "gemv_group.cuh"

#ifndef GEMV_ASKED_ALL /* what a wave's lane does once it has asked for all its chunks: nothing, but in bench/gpu_kernels */
#define GEMV_ASKED_ALL(c)
#endif

/* A group by itself, a pair that shares the quantization of activations, a cluster that splits K. */
enum gemv_kind { ALONE, PAIR, SPLIT };

/* What a group's waves do once the previous kernel has ended: quantize the activations that are their share. ask: is called once
 * activations have been asked for. */
template <bool POSTS, class SHARE, class ASK>
__device__ __forceinline__ void gemv_prepare(const gpu_call &c, const gemv_plan &p, const SHARE &share, int from,
                                             char *shared, int columns, int most, int wave, int lane, ASK ask) {
    float *squares = (float *)(shared + p.squares), *post_squares = squares + 4 * WAVES;
    if (POSTS && c.mode & POST) {
        gemv_post_squares(c, p, post_squares, columns, wave, lane);
        ask();
        __syncthreads();
        gemv_post_activations(c, p, share, shared + p.acts, squares + wave * 4, post_squares, columns, most, wave,
                              lane);
    } else {
        gemv_activations(c, p, share, from, shared + p.acts, squares + wave * 4, columns, most, wave, lane, ask);
    }
}

template <class SET, gemv_kind KIND = ALONE> __device__ __forceinline__ void gemv(const gpu_call &c) {
    constexpr bool SPLITS = KIND == SPLIT;
    extern __shared__ __align__(128) char shared[];
    int wave = threadIdx.x / 32, lane = threadIdx.x % 32, most = c.v[0].shape[0];
    launch_next();
    matrices<SET, SPLITS> m(c);
    const gemv_place<SPLITS> place;
    int units = m.gated ? m.all / 2 : m.all;
    const int all = packed_chunks(&c.v[1]), from = gemv_part(all, place.rank, place.parts);
#ifdef GEMV_STAGES
    gemv_plan p = gemv_plan_staged(WAVES, GEMV_STAGES, m.bytes, most, all);
#else
    gemv_plan p =
        SPLITS ? gemv_split_plan(place.parts, m.bytes, most, all) : gemv_plan_of(WAVES, HOPPER, m.bytes, most, all);
#endif
    if (SPLITS) /* the longest part has the plan's chunks */
        p.chunks = gemv_part(all, place.rank + 1, place.parts) - from;
    int n_tiles = 0; /* of this group */
    for (int at = place.group(); at < units; at += place.groups())
        n_tiles += 1 + m.gated;
    const gemv_parts<SPLITS> parts(place, shared + p.bytes, n_tiles, most);
    parts.start();
    int rows = (p.chunks + WAYS - 1) / WAYS, team = wave / WAYS, way = wave % WAYS;
    bool together = rows % TEAMS == 0;
    char *ring = shared + wave * p.stages * p.chunk_bytes;
    uint32_t bars = shared_address(shared + p.bars) + wave * p.stages * 8;
    uint64_t policy = read_once();
    wave_barriers(bars, p.stages);
    chunk_walk ahead(team, together);
    if (ahead.chunk(way) >= p.chunks)
        ahead.tile = n_tiles; /* a narrow matrix has no chunk for this wave */
    gemv_tile next;           /* the next tile, valid in lanes that ask for it */
    if (wave_asks() && ahead.tile < n_tiles)
        next = m.tile(c, ahead.tile, all);
    auto fetch = [&](int stage) {
        wave_fetch(shared_address(ring + stage * p.chunk_bytes), next.data + (from + ahead.chunk(way)) * next.bytes,
                   next.bytes, bars + 8 * stage, policy);
        int before = ahead.tile;
        ahead.next(team, way, p.chunks, together);
        if (ahead.tile != before && ahead.tile < n_tiles)
            next = m.tile(c, ahead.tile, all);
        if (ahead.tile >= n_tiles) {
            GEMV_ASKED_ALL(c)
        }
    };
    const gemv_share<KIND == PAIR> share(shared_address(shared + p.bytes), wave, lane);
    const auto fetch_stages = [&](int first, int end) {
        if (wave_asks())
            for (int i = first; i < end && ahead.tile < n_tiles; i++)
                fetch(i);
    };
    const int early = HOPPER ? 1 : p.stages;
    fetch_stages(0, early);
    __syncwarp();
    share.started();
    parts.started();
    wait_before();
    const int columns = rows_now(c, c.v[0]);
    const float *squares = (const float *)(shared + p.squares);
    parts.expect(columns, c.mode & NORM);
    gemv_prepare<!SPLITS>(c, p, share, from, shared, columns, most, wave, lane, [&] {
        if (HOPPER)
            fetch_stages(early, p.stages);
    });
    share.settle(p.chunks, columns, c.mode & NORM, wave, lane);
    share.wait(together, wave);

    int stage = 0, phase = 0, group = threadIdx.x / TILE_ROWS, row = threadIdx.x % TILE_ROWS;
    int mine = most == 1 ? group : group / most,
        t = group - mine * most; /* the sum that this thread ends: tile of the batch, column */
    for (int first = 0, turn = 0; first < n_tiles; first += p.batch, turn ^= 1) {
        int batch = min(p.batch, n_tiles - first);
        bool ends = mine < batch && t < columns && (SPLITS || !(m.gated && mine % 2));
        float residual = 0.0f, *part = (float *)(shared + p.part) + turn * p.batch * WAVES * TILE_ROWS * most;
        int column = 0;
        if (!SPLITS && ends) {
            gemv_tile tile = m.tile(c, first + mine, all);
            ends = row < tile.left;
            column = tile.column + row;
            if (ends && (c.mode & ADD))
                residual = ((const float *)(c.v[c.n_in].data + t * c.v[c.n_in].stride))[column];
        }
        for (int i = together ? 0 : team; i < batch; i += together ? 1 : TEAMS) {
            float acc[2] = {0.0f, 0.0f};
            int format = SET::format(c, m, first + i, all);
            for (int k = (together ? team : 0) * WAYS + way; k < p.chunks; k += (together ? TEAMS : 1) * WAYS) {
                char *w = ring + stage * p.chunk_bytes;
                barrier_wait(bars + 8 * stage, phase);
                SET::chunk(format, w, shared + p.acts + k * p.act_bytes, most, lane, acc);
                __syncwarp();
                if (wave_asks() && ahead.tile < n_tiles)
                    fetch(stage);
                if (++stage == p.stages)
                    stage = 0, phase ^= 1;
            }
            if (lane % 4 < most) {
                float *to = part + ((i * WAVES + wave) * most + lane % 4) * TILE_ROWS + lane / 4;
                to[0] = acc[0];
                to[8] = acc[1];
            }
        }
        __syncthreads();
        if constexpr (SPLITS) {
            if (ends)
                parts.leave(parts.sums(place.rank, first + mine, t) + row, t,
                            gemv_sum(part, mine, t, row, most, together));
        } else if (ends) {
            gemv_finish(c, part, squares, column, mine, t, row, residual, most, m.gated, together);
        }
    }
    if constexpr (SPLITS)
        gemv_split_finish(c, m, parts, squares, columns);
}

#ifndef GEMV_NAME /* gemv_8.cu and gemv_7.cu have others, and no clusters */
#define GEMV_NAME(f) gemv_##f
#define GEMV_CLUSTERS
#endif
#define GEMV_KERNEL(f)                                                                                                 \
    extern "C" __global__ void __launch_bounds__(WAVES * 32, 1) GEMV_NAME(f)(const __grid_constant__ gpu_call c) {     \
        gemv<one<tile_##f>>(c);                                                                                        \
    }
TILE_FORMATS(GEMV_KERNEL)

extern "C" __global__ void __launch_bounds__(WAVES * 32, 1) GEMV_NAME(mixed)(const __grid_constant__ gpu_call c) {
    gemv<mixed>(c);
}

#if HOPPER && defined(GEMV_CLUSTERS)
#define GEMV_CLUSTER_KERNELS(f)                                                                                        \
    extern "C" __global__ void __launch_bounds__(WAVES * 32, 1) gemv_pair_##f(const __grid_constant__ gpu_call c) {    \
        gemv<one<tile_##f>, PAIR>(c);                                                                                  \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(WAVES * 32, 1) gemv_split_##f(const __grid_constant__ gpu_call c) {   \
        gemv<one<tile_##f>, SPLIT>(c);                                                                                 \
    }
TILE_FORMATS(GEMV_CLUSTER_KERNELS)

extern "C" __global__ void __launch_bounds__(WAVES * 32, 1) gemv_pair_mixed(const __grid_constant__ gpu_call c) {
    gemv<mixed, PAIR>(c);
}

extern "C" __global__ void __launch_bounds__(WAVES * 32, 1) gemv_split_mixed(const __grid_constant__ gpu_call c) {
    gemv<mixed, SPLIT>(c);
}
#endif
