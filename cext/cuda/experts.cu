/* experts.cu: mixture-of-experts products with packed weights (E, N, K), and head_linear. Layout and
 * arithmetic are gemv.cu's (tile.cuh, gemv.cuh): 16-bit activations, sums over chunks in order. Both kernels add the same
 * terms in the same order, so a token's bits depend on its experts alone.
 *
 * few: a group computes some tiles of one (token, expert) pair; its waves split the chunks and add partial sums in shared
 * memory. many: a group computes some tiles of one expert. It looks up the expert's pairs, a window at a time, and processes
 * four at once. Several groups share an expert's pairs, four by four in turn, because a router may send most tokens to one
 * expert.
 */
#include "experts.cuh"
#include "gemv_group.cuh"

/* Writes zeros to the rows of tiles first .. end - 1 of a pair of another device. Called by all threads. */
__device__ __forceinline__ void expert_zeros(const gpu_call &c, const expert_call &e, int t, int j, int first,
                                             int end) {
    for (int row = first * TILE_ROWS + (int)threadIdx.x; row < min(end * TILE_ROWS, e.rows); row += EXPERT_WAVES * 32)
        e.output(c, t, j)[row] = 0.0f;
}

/* Quantizes chunk k of a column to bytes, by one wave. */
__device__ __forceinline__ void expert_bytes(const float *x, int width, int k, char *acts, int t, int columns,
                                             int lane) {
    eight v;
    v.load(x + k * CHUNK, width - k * CHUNK, lane);
    gemv_quantize(v.v, acts + k * gemv_chunk_bytes(columns), t, columns, lane);
}

/* Prefetches the group's tiles to L2 while activations are quantized. */
template <class SET>
__device__ __forceinline__ void expert_fetch(const gpu_call &c, const expert_call &e, int id, int first, int end) {
#if HOPPER
    if ((int)threadIdx.x < e.matrices && first < end) {
        int m = (int)threadIdx.x;
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(e.template chunk<SET>(c, m, id, first, 0)),
                     "r"((end - first) * e.chunks * SET::bytes(e.formats[m])));
    }
#else
    for (int m = 0; m < e.matrices && first < end; m++) {
        const char *from = e.template chunk<SET>(c, m, id, first, 0);
        const int bytes = (end - first) * e.chunks * SET::bytes(e.formats[m]);
        for (int i = 128 * (int)threadIdx.x; i < bytes; i += 128 * EXPERT_WAVES * 32)
            asm volatile("prefetch.global.L2 [%0];" ::"l"(from + i));
    }
#endif
}

template <class SET> __device__ __forceinline__ void experts_few(const gpu_call &c) {
    extern __shared__ __align__(128) char shared[];
    expert_call e(c);
    int wave = threadIdx.x / 32, lane = threadIdx.x % 32, t = blockIdx.y / e.each, j = blockIdx.y % e.each;
    int per = (e.tiles + gridDim.x - 1) / gridDim.x, first = blockIdx.x * per, end = min(first + per, e.tiles);
    float *part = (float *)(shared + expert_acts(e.chunks, 1));
    launch_next();
    wait_before();
    if (t >= rows_now(c, c.v[0]))
        return;
    int id = e.chosen(c, t, j);
    if (id < 0) {
        expert_zeros(c, e, t, j, first, end);
        return;
    }
    expert_fetch<SET>(c, e, id, first, end);
    for (int k = wave; k < e.chunks; k += EXPERT_WAVES)
        expert_bytes(e.input(c, t, j), e.width, k, shared, 0, 1, lane);
    __syncthreads();
    for (int task = wave; task < (end - first) * e.matrices * e.chunks; task += EXPERT_WAVES) {
        int k = task % e.chunks, m = task / e.chunks % e.matrices, tile = first + task / e.chunks / e.matrices;
        float acc[2] = {0.0f, 0.0f};
        SET::chunk(e.formats[m], e.template chunk<SET>(c, m, id, tile, k), shared + k * gemv_chunk_bytes(1), 1, lane,
                   acc);
        if (lane % 4 == 0) {
            part[task * TILE_ROWS + lane / 4] = acc[0];
            part[task * TILE_ROWS + lane / 4 + 8] = acc[1];
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < (end - first) * TILE_ROWS; i += EXPERT_WAVES * 32) {
        float y[2] = {0.0f, 0.0f};
        int row = first * TILE_ROWS + i;
        for (int m = 0; m < e.matrices; m++)
            for (int k = 0; k < e.chunks; k++)
                y[m] += part[((i / TILE_ROWS * e.matrices + m) * e.chunks + k) * TILE_ROWS + i % TILE_ROWS];
        if (row < e.rows)
            e.output(c, t, j)[row] = expert_result(y, e.matrices);
    }
}

/* Lists the pairs of first .. end - 1 (t * each + j) with this expert, in order; gives their number. Called by all threads. */
__device__ __forceinline__ int pairs_of(const gpu_call &c, const expert_call &e, int expert, int first, int end,
                                        int *list, int *counts) {
    int found = 0, wave = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int base = first; base < end; base += EXPERT_WAVES * 32) {
        int at = base + (int)threadIdx.x, before = 0, all = 0;
        bool mine = at < end && e.chosen(c, at / e.each, at % e.each) == expert;
        uint32_t who = __ballot_sync(~0u, mine);
        if (lane == 0)
            counts[wave] = __popc(who);
        __syncthreads();
        for (int w = 0; w < EXPERT_WAVES; w++) {
            before += w < wave ? counts[w] : 0;
            all += counts[w];
        }
        if (mine)
            list[found + before + __popc(who & ((1u << lane) - 1))] = at;
        found += all;
        __syncthreads();
    }
    return found;
}

template <class SET> __device__ __forceinline__ void experts_many(const gpu_call &c) {
    extern __shared__ __align__(128) char shared[];
    __shared__ int list[EXPERT_WINDOW], counts[EXPERT_WAVES];
    expert_call e(c);
    int wave = threadIdx.x / 32, lane = threadIdx.x % 32, id = blockIdx.y, most = expert_columns(e.chunks);
    int per = (e.tiles + gridDim.x - 1) / gridDim.x, first = blockIdx.x * per, end = min(first + per, e.tiles);
    launch_next();
    wait_before();
    int pairs = rows_now(c, c.v[0]) * e.each;
    for (int window = 0; window < pairs; window += EXPERT_WINDOW) {
        int last = min(window + EXPERT_WINDOW, pairs);
        if (id == 0 && blockIdx.z == 0) {
            int others = pairs_of(c, e, -1, window, last, list, counts);
            for (int i = 0; i < others; i++)
                expert_zeros(c, e, list[i] / e.each, list[i] % e.each, first, end);
            __syncthreads();
        }
        int n = pairs_of(c, e, id, window, last, list, counts);
        if (n > (int)blockIdx.z * most)
            expert_fetch<SET>(c, e, id, first, end);
        for (int at = (int)blockIdx.z * most; at < n; at += (int)gridDim.z * most) {
            int columns = min(most, n - at), t = lane % 4;
            for (int task = wave; task < columns * e.chunks; task += EXPERT_WAVES) {
                int pair = list[at + task / e.chunks];
                expert_bytes(e.input(c, pair / e.each, pair % e.each), e.width, task % e.chunks, shared,
                             task / e.chunks, most, lane);
            }
            __syncthreads();
            for (int tile = first + wave; tile < end; tile += EXPERT_WAVES) {
                float y[2][2] = {{0.0f, 0.0f}, {0.0f, 0.0f}}; /* row lane / 4 and 8 more, gate and up */
                for (int m = 0; m < e.matrices; m++)
                    for (int k = 0; k < e.chunks; k++) {
                        float acc[2] = {0.0f, 0.0f};
                        SET::chunk(e.formats[m], e.template chunk<SET>(c, m, id, tile, k),
                                   shared + k * gemv_chunk_bytes(most), most, lane, acc);
                        y[0][m] += acc[0];
                        y[1][m] += acc[1];
                    }
                for (int h = 0; h < 2 && t < columns; h++) {
                    int row = tile * TILE_ROWS + lane / 4 + 8 * h, pair = list[at + t];
                    if (row < e.rows)
                        e.output(c, pair / e.each, pair % e.each)[row] = expert_result(y[h], e.matrices);
                }
            }
            __syncthreads();
        }
    }
}

#define EXPERTS_KERNELS(f)                                                                                             \
    extern "C" __global__ void __launch_bounds__(EXPERT_WAVES * 32, 2)                                                 \
        experts_few_##f(const __grid_constant__ gpu_call c) {                                                          \
        experts_few<one<tile_##f>>(c);                                                                                 \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(EXPERT_WAVES * 32, 2)                                                 \
        experts_many_##f(const __grid_constant__ gpu_call c) {                                                         \
        experts_many<one<tile_##f>>(c);                                                                                \
    }
TILE_FORMATS(EXPERTS_KERNELS)

extern "C" __global__ void __launch_bounds__(EXPERT_WAVES * 32, 1)
    experts_few_mixed(const __grid_constant__ gpu_call c) {
    experts_few<mixed>(c);
}

extern "C" __global__ void __launch_bounds__(EXPERT_WAVES * 32, 1)
    experts_many_mixed(const __grid_constant__ gpu_call c) {
    experts_many<mixed>(c);
}
