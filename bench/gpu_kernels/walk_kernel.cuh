/* walk_kernel.cuh: a stretch of a plan of one token as one kernel, one group of sixteen waves and one that fetches to each multiprocessor.
 *
 * Groups go through the phases together: what a phase wrote is seen by all behind a barrier over all groups, a counter in device
 * memory. While they wait there, the seventeenth wave has long asked for the weights of the phases to come, as far as rings reach
 * (walk.cuh). The order of a sum is that of gemv.cu: it depends on a matrix's columns alone.
 */
#include "walk_attention.cuh"

/* Formats that a kernel knows; of one alone nothing is asked. */
template <class A, class B> struct either {
    __device__ static __forceinline__ int bytes(int format) {
        return format == A::FORMAT ? A::BYTES : B::BYTES;
    }
    template <class M>
    __device__ static __forceinline__ int format(const gpu_call &c, const M &m, int local, int chunks) {
        return m.tile(c, local, chunks).format;
    }
    __device__ static __forceinline__ void chunk(int format, const char *w, const char *a, int columns, int lane,
                                                 float *acc) {
        if (format == A::FORMAT)
            gemv_chunk<A>(w, a, columns, lane, acc);
        else
            gemv_chunk<B>(w, a, columns, lane, acc);
    }
};

/* gemv_activations of one column, four chunks at a time. */
__device__ __forceinline__ void walk_activations(const gpu_call &c, const gemv_plan &p, char *acts, float *squares,
                                                 int first, int step, bool count, int lane) {
    const int DEPTH = 2, width = c.v[1].shape[1];
    const float *norm = c.mode & NORM ? (const float *)c.v[c.n_in].data : nullptr, *x = (const float *)c.v[1].data;
    float sum = 0.0f;
    for (int k = first; k < p.chunks; k += DEPTH * step) {
        eight v[DEPTH], n[2];
#pragma unroll
        for (int u = 0; u < DEPTH; u++) {
            int at = k + u * step;
            if (at < p.chunks)
                v[u].load(x + at * CHUNK, width - at * CHUNK, lane);
            if (norm && u < 2 && at < p.chunks)
                n[u].load(norm + at * CHUNK, width - at * CHUNK, lane);
        }
#pragma unroll
        for (int u = 0; u < DEPTH; u++) {
            int at = k + u * step;
            if (at >= p.chunks)
                break;
            if (norm) {
                if (u >= 2)
                    n[u % 2].load(norm + at * CHUNK, width - at * CHUNK, lane);
                for (int i = 0; i < 8; i++) {
                    float y = v[u].v[i];
                    sum += y * y;
                    v[u].v[i] = y * n[u % 2].v[i];
                }
            }
            gemv_quantize(v[u].v, acts + at * p.act_bytes, 0, 1, lane);
        }
    }
    if (norm) {
        for (int far = 16; far; far /= 2)
            sum += __shfl_xor_sync(~0u, sum, far);
        if (lane == 0)
            squares[0] = count ? sum : 0.0f;
    }
}

template <class SET>
__device__ __noinline__ wave_ring walk_packed(const gpu_call &c, wave_ring ring, char *room, uint32_t *counter,
                                              uint32_t phase) {
    int wave = threadIdx.x / 32, lane = threadIdx.x % 32, team = wave / WAYS, way = wave % WAYS;
    matrices<SET> m(c);
    gemv_plan p = {};
    p.chunks = packed_chunks(&c.v[1]), p.act_bytes = gemv_chunk_bytes(1);
    int units = m.gated ? m.all / 2 : m.all, mine = units - (int)blockIdx.x;
    int n_tiles = mine > 0 ? (mine + (int)gridDim.x - 1) / (int)gridDim.x * (1 + m.gated) : 0;
    int rows = (p.chunks + WAYS - 1) / WAYS, columns = rows_now(c, c.v[0]);
    bool together = rows % TEAMS == 0;
    float *squares = (float *)(room + 2 * WALK_BATCH * WALK_WAVES * TILE_ROWS * 4);
    char *acts = (char *)(squares + 64);
    walk_wait(counter, phase);
    WALK_STAMP(-1, 1);
    if (!n_tiles)
        return ring;
    if (rows < 3 || together) {
        walk_activations(c, p, acts, squares + wave * 4, together ? wave : way, together ? WAVES : WAYS,
                         together || team == 0, lane);
        __syncwarp();
    } else {
        walk_activations(c, p, acts, squares + wave * 4, wave, WAVES, true, lane);
        readers_meet();
    }
    WALK_STAMP(-1, 2);
    int group = threadIdx.x / TILE_ROWS, row = threadIdx.x % TILE_ROWS;
    for (int first = 0, turn = 0; first < n_tiles; first += WALK_BATCH, turn ^= 1) {
        int batch = min((int)WALK_BATCH, n_tiles - first), column = 0;
        bool ends = group < batch && columns > 0 && !(m.gated && group % 2);
        float residual = 0.0f, *part = (float *)room + turn * WALK_BATCH * WAVES * TILE_ROWS;
        if (ends) {
            gemv_tile tile = m.tile(c, first + group, p.chunks);
            ends = row < tile.left;
            column = tile.column + row;
            if (ends && (c.mode & ADD))
                residual = ((const float *)c.v[c.n_in].data)[column];
        }
        for (int i = together ? 0 : team; i < batch; i += together ? 1 : TEAMS) {
            float acc[2] = {0.0f, 0.0f};
            int format = SET::format(c, m, first + i, p.chunks);
            for (int k = (together ? team : 0) * WAYS + way; k < p.chunks; k += (together ? TEAMS : 1) * WAYS) {
                char *w = ring.next(SET::bytes(format));
                SET::chunk(format, w, acts + k * p.act_bytes, 1, lane, acc);
                ring.done();
            }
            if (lane % 4 == 0) {
                float *to = part + (i * WAVES + wave) * TILE_ROWS + lane / 4;
                to[0] = acc[0];
                to[8] = acc[1];
            }
        }
        WALK_STAMP(-1, 3);
        readers_meet();
        if (ends)
            gemv_finish(c, part, squares, column, group, 0, row, residual, 1, m.gated, together);
    }
    return ring;
}

/* Activations as they are, times a norm's weights where there are such, in blocks of 256: first the even, then the odd fours. */
__device__ __forceinline__ float dense_activations(const gpu_call &c, float *x, float *room) {
    int width = c.v[1].shape[1];
    const float4 *from = (const float4 *)c.v[1].data,
                 *norm = c.mode & NORM ? (const float4 *)c.v[c.n_in].data : nullptr;
    float sum = 0.0f;
    for (int j = threadIdx.x; j < width / 4; j += 32 * WALK_WAVES) {
        float4 v = from[j];
        if (norm) {
            float4 n = norm[j];
            sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
            v = make_float4(v.x * n.x, v.y * n.y, v.z * n.z, v.w * n.w);
        }
        ((float4 *)x)[j / 64 * 64 + j % 2 * 32 + j % 64 / 2] = v;
    }
    if (norm) {
        for (int far = 16; far; far /= 2)
            sum += __shfl_xor_sync(~0u, sum, far);
        if (threadIdx.x % 32 == 0)
            room[threadIdx.x / 32] = sum;
    }
    readers_meet();
    if (!norm)
        return 1.0f;
    sum = 0.0f;
    for (int w = 0; w < WALK_WAVES; w++)
        sum += room[w];
    return rsqrtf(sum / (float)width + __uint_as_float((uint32_t)c.arg[0]));
}

template <class AS>
__device__ __noinline__ wave_ring walk_dense(const gpu_call &c, wave_ring ring, char *room, uint32_t *counter,
                                             uint32_t phase) {
    int wave = threadIdx.x / 32, lane = threadIdx.x % 32, width = c.v[1].shape[1], n = c.v[0].shape[1];
    int pairs = c.mode & GATED ? n : (n + 1) / 2, columns = rows_now(c, c.v[0]);
    walk_wait(counter, phase);
    float *x = (float *)(room + 128), scale = dense_activations(c, x, (float *)room);
    for (int i = wave * (int)gridDim.x + (int)blockIdx.x; i < pairs; i += WALK_WAVES * (int)gridDim.x) {
        float acc[2] = {0.0f, 0.0f};
        int column = c.mode & GATED ? i : 2 * i;
        for (int at = 0; at < width; at += WALK_SEGMENT) {
            int wide = min((int)WALK_SEGMENT, width - at);
            const char *w = ring.next(4 * wide);
#pragma unroll
            for (int d = 0; d < WALK_SEGMENT / 256; d++) {
                int k = 256 * d + 8 * lane;
                if (k >= wide)
                    continue;
                const float4 a = *(const float4 *)(x + at + 256 * d + 4 * lane),
                             b = *(const float4 *)(x + at + 256 * d + 128 + 4 * lane);
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    uint4 v = load_16(w + 2 * wide * r + 2 * k);
                    float2 q0 = AS::two(v.x), q1 = AS::two(v.y), q2 = AS::two(v.z), q3 = AS::two(v.w);
                    float y = acc[r];
                    y = fmaf(q0.x, a.x, y), y = fmaf(q0.y, a.y, y), y = fmaf(q1.x, a.z, y), y = fmaf(q1.y, a.w, y);
                    y = fmaf(q2.x, b.x, y), y = fmaf(q2.y, b.y, y), y = fmaf(q3.x, b.z, y), y = fmaf(q3.y, b.w, y);
                    acc[r] = y;
                }
            }
            ring.done();
        }
        for (int far = 16; far; far /= 2)
            for (int r = 0; r < 2; r++)
                acc[r] += __shfl_xor_sync(~0u, acc[r], far);
        float *out = (float *)c.v[0].data, y = (lane ? acc[1] : acc[0]) * scale;
        if (columns < 1)
            continue;
        if (c.mode & GATED) {
            if (lane == 0)
                out[column] = y / (1.0f + __expf(-y)) * (acc[1] * scale);
        } else if (lane < 2 && column + lane < n)
            out[column + lane] = c.mode & ADD ? y + ((const float *)c.v[c.n_in].data)[column + lane] : y;
    }
    return ring;
}

template <class SET>
__device__ __forceinline__ wave_ring walk_product(const walk_phase &p, wave_ring ring, char *room, uint32_t *counter,
                                                  uint32_t phase) {
    if constexpr (takes_packed<SET>)
        return walk_packed<SET>(p.call[0], ring, room, counter, phase);
    else if (p.call[0].v[2].format == CACHE_F16)
        return walk_dense<as_f16>(p.call[0], ring, room, counter, phase);
    else
        return walk_dense<as_bf16>(p.call[0], ring, room, counter, phase);
}

/* The rows of up to four tensors, one each; the last group has nothing else to do. */
__device__ __noinline__ void walk_gather_rows(const walk_phase &p, uint32_t *counter, uint32_t phase) {
    walk_wait(counter, phase);
    if (blockIdx.x != gridDim.x - 1)
        return;
    for (int i = 0; i < p.calls; i++) {
        const gpu_call *c = p.call + i;
        if (rows_of(c, c->v) < 1)
            continue;
        int row = i32_at(c->v + 2, 0), width = (int)width_of(c->v);
        if (!inside(row, c->v[1].shape[0])) {
            fault(c);
            continue;
        }
        for (int k = threadIdx.x; k < width; k += 32 * WALK_WAVES)
            ROW(float, c->v, 0)[k] = ROW(const float, c->v + 1, row)[k];
    }
}

/* A phase's calls come to shared memory while the one before is at work. */
__device__ __forceinline__ void walk_bring(walk_phase *to, const walk_phase *from) {
    for (uint32_t i = threadIdx.x; i < sizeof(walk_phase) / 16; i += 32 * WALK_WAVES)
        copy_16(shared_address(to) + 16 * i, (const char *)from + 16 * i, 1);
    copies_close();
}

template <class SET, int D>
__device__ __forceinline__ void walk_phases(const gpu_call &call, const walk_shape &shape, const walk_place &place,
                                            const walk_token &token) {
    const walk_phase *phases = (const walk_phase *)call.v[0].data;
    uint32_t *counter = (uint32_t *)call.v[1].data;
    wave_ring ring(place, shape.ring, threadIdx.x / 32);
    walk_bring(place.phases, phases);
    copies_wait<0>();
    readers_meet();
    for (uint32_t i = 0; i < shape.phases; i++) {
        const walk_phase &now = place.phases[i % 2];
        WALK_STAMP(i, 0);
        if (i + 1 < shape.phases)
            walk_bring(place.phases + (i + 1) % 2, phases + i + 1);
        if (now.kind == WALK_ATTENTION)
            ring = walk_attention<D>(now, token, ring, place.room, shape.most, counter, i);
        else if (now.kind == WALK_GATHER_ROWS)
            walk_gather_rows(now, counter, i);
        else
            ring = walk_product<SET>(now, ring, place.room, counter, i);
        WALK_STAMP(i, 4);
        copies_wait<0>();
        readers_meet();
        WALK_STAMP(i, 5);
        walk_arrive(counter, i + 1 < shape.phases ? 0 : shape.phases * gridDim.x);
    }
}

template <class SET, int D> __device__ __forceinline__ void walk_all(const gpu_call &call) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) char shared[];
    const walk_shape shape = *(const walk_shape *)call.arg;
    const walk_place place(shared, shape);
    const walk_token token(call, shape);
    if (threadIdx.x < WALK_WAVES * WALK_PENDING)
        barrier_init(place.barriers + 8 * threadIdx.x, 1);
    if (threadIdx.x < WALK_WAVES)
        *(uint32_t *)((char *)(place.phases + 2) + WALK_WAVES * WALK_PENDING * 8 + 4 * threadIdx.x) = 0;
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    __syncthreads();
    if (rows_now(call, call.v[2]) < 1)
        return;
    if (threadIdx.x >= 32 * WALK_WAVES) {
        if (threadIdx.x < 32 * (WALK_WAVES + 1))
            walk_fetch<SET>((const walk_phase *)call.v[0].data, shape, place, token);
    } else {
        walk_phases<SET, D>(call, shape, place, token);
    }
#endif
}

#define WALK(name, D, ...)                                                                                             \
    extern "C" __global__ void __launch_bounds__(WALK_THREADS, 1)                                                      \
        walk_##name##_##D(const __grid_constant__ gpu_call c) {                                                        \
        walk_all<__VA_ARGS__, D>(c);                                                                                   \
    }
#define WALKS(D)                                                                                                       \
    WALK(k, D, either<tile_q4_k, tile_q6_k>)                                                                           \
    WALK(q8_0, D, one<tile_q8_0>)                                                                                      \
    WALK(dense, D, no_packed)
WALKS(64)
WALKS(128)
