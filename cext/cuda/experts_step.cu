/* experts_step.cu: the experts of a step of few tokens in two launches, for sm_90 and newer. The arithmetic is gemv.cu's.
 *
 * norm_expert_swiglu: a group has some tiles of gate and up of one (token, expert) pair. It ranks the router's logits itself, asks
 * for its weights, normalizes and quantizes the token meanwhile. expert_linear_sum: a group has some tiles of a token's result,
 * for which it multiplies the rows of all its experts; the sum over experts, in their order, is weighted by the router.
 *
 * Every wave has a ring of its own in shared memory, filled by bulk copies. The order of a sum depends on shapes alone.
 *
 * expert_linear_sum reads the logits, and asks for its weights, before the kernel ahead has ended. That is sound because
 * norm_expert_swiglu, which stands between the router and it in every plan, launches the next kernel only after its own wait:
 * by then the router has ended, and whatever is launched later sees its logits.
 */
#include "experts_step.h"
#include "gemv_group.cuh"
#include "port.h"

/* What a group knows of its router's logits: keys (scores that rank), logits, and the chosen experts, best first. */
struct step_choice {
    float *keys, *logits;
    int *ids;
    __device__ __forceinline__ step_choice(char *shared, const step_room &r, int experts)
        : keys((float *)(shared + r.keys)), logits(keys + (experts + 3) / 4 * 4), ids((int *)(shared + r.chosen)) {}
};

/* Ranks a token's experts as top_experts does: higher scores first, of equal ones the lower id, NaN last. An expert has as many
 * adjacent threads as fit, which count those before it. Called by all threads; ends with a barrier. */
static __device__ __forceinline__ void step_choose(const step_choice &o, const float *x, const float *bias, int experts,
                                                   int k, bool sigmoid) {
    const int i = threadIdx.x;
    if (i < experts) {
        const float y = x[i];
        float score = sigmoid ? 1.0f / (1.0f + expf(-y)) : y;
        score += bias ? bias[i] : 0.0f;
        o.logits[i] = y;
        o.keys[i] = score == score ? score : -INFINITY;
    }
    __syncthreads();
    int split = 32;
    while (split > 1 && split * experts > STEP_THREADS)
        split /= 2;
    const int e = i / split;
    int rank = 0;
    if (e < experts) {
        const float own = o.keys[e];
        for (int other = i % split; other < experts; other += split) {
            const float y = o.keys[other];
            rank += y > own || (y == own && other < e);
        }
    }
    for (int far = 1; far < split; far *= 2)
        rank += __shfl_xor_sync(~0u, rank, far);
    if (e < experts && i % split == 0 && rank < k)
        o.ids[rank] = e;
    __syncthreads();
}

/* A wave's ring of chunks: fetch() asks for its next task's weights, wait() gives the oldest that was asked for. */
struct step_ring {
    char *ring;
    uint32_t bars;
    int stages, bytes, stage, phase;
    __device__ __forceinline__ step_ring(char *shared, const step_room &r, int chunk_bytes)
        : ring(shared + (threadIdx.x / 32) * r.stages * chunk_bytes),
          bars(shared_address(shared + r.bars) + (threadIdx.x / 32) * STEP_STAGES * 8), stages(r.stages),
          bytes(chunk_bytes), stage(0), phase(0) {
        if ((int)threadIdx.x % 32 < stages) {
            barrier_init(bars + 8 * (threadIdx.x % 32), 1);
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        }
        __syncwarp();
    }
    __device__ __forceinline__ void fetch(int at, const char *from, uint64_t policy) const {
        barrier_expect(bars + 8 * at, bytes);
        copy_bulk(shared_address(ring + at * bytes), from, bytes, bars + 8 * at, policy);
    }
    __device__ __forceinline__ const char *wait() const {
        barrier_wait(bars + 8 * stage, phase);
        return ring + stage * bytes;
    }
    __device__ __forceinline__ void next() {
        if (++stage == stages)
            stage = 0, phase ^= 1;
    }
};

/* Multiplies a wave's tasks in turn: from(task) is a task's chunk of weights, column(task) its chunk of activations. */
template <class F, class FROM, class COLUMN>
static __device__ __forceinline__ void step_products(step_ring &ring, const char *acts, float *part, int tasks,
                                                     uint64_t policy, FROM from, COLUMN column) {
    const int wave = threadIdx.x / 32, lane = threadIdx.x % 32;
    int ahead = wave + ring.stages * EXPERT_WAVES;
    for (int task = wave; task < tasks; task += EXPERT_WAVES, ahead += EXPERT_WAVES) {
        float acc[2] = {0.0f, 0.0f};
        gemv_chunk<F>(ring.wait(), acts + column(task) * gemv_chunk_bytes(1), 1, lane, acc);
        __syncwarp();
        if (lane == 0 && ahead < tasks)
            ring.fetch(ring.stage, from(ahead), policy);
        ring.next();
        if (lane % 4 == 0) {
            part[task * TILE_ROWS + lane / 4] = acc[0];
            part[task * TILE_ROWS + lane / 4 + 8] = acc[1];
        }
    }
}

template <class F> static __device__ __forceinline__ void step_gate_up(const gpu_call &c) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) char shared[];
    const arg_norm_expert_swiglu *a = (const arg_norm_expert_swiglu *)c.arg;
    const int wave = threadIdx.x / 32, lane = threadIdx.x % 32, each = c.v[0].shape[1], rows = c.v[0].shape[2];
    const int width = c.v[2].shape[2], chunks = (width + CHUNK - 1) / CHUNK, tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
    const int t = blockIdx.y / each, j = blockIdx.y % each, experts = c.v[5].shape[1];
    const int per = (tiles + gridDim.x - 1) / gridDim.x, first = blockIdx.x * per, count = min(per, tiles - first);
    const int tasks = count * 2 * chunks;
    const step_room r = step_room_of(F::BYTES, per * 2 * chunks, chunks, experts);
    const step_choice chosen(shared, r, experts);
    float *squares = (float *)(shared + r.chosen + STEP_CHOSEN * 8), *part = (float *)(shared + r.part);
    const float *norm = (const float *)c.v[4].data;
    const uint64_t policy = read_once();
    step_ring ring(shared, r, F::BYTES);
    eight v, n;
    n.load(norm + wave * CHUNK, width - wave * CHUNK, lane);
    wait_before();
    launch_next();
    if (t >= rows_now(c, c.v[0]))
        return;
    const float *x = ROW(const float, c.v + 1, t);
    v.load(x + wave * CHUNK, width - wave * CHUNK, lane);
    step_choose(chosen, ROW(const float, c.v + 5, t), c.n_in == 6 ? (const float *)c.v[6].data : nullptr, experts, each,
                a->sigmoid);
    const int id = chosen.ids[j];
    auto from = [&](int task) {
        const gpu_view *w = c.v + 2 + task / chunks % 2;
        return (const char *)w->data + id * w->stride +
               ((int64_t)(first + task / chunks / 2) * chunks + task % chunks) * F::BYTES;
    };
    if (lane == 0)
        for (int i = 0; i < ring.stages && wave + i * EXPERT_WAVES < tasks; i++)
            ring.fetch(i, from(wave + i * EXPERT_WAVES), policy);
    float sum = 0.0f;
    for (int k = wave; k < chunks; k += EXPERT_WAVES) {
        if (k != wave) {
            v.load(x + k * CHUNK, width - k * CHUNK, lane);
            n.load(norm + k * CHUNK, width - k * CHUNK, lane);
        }
        for (int i = 0; i < 8; i++) {
            sum += v.v[i] * v.v[i];
            v.v[i] *= n.v[i];
        }
        gemv_quantize(v.v, shared + r.acts + k * gemv_chunk_bytes(1), 0, 1, lane);
    }
    for (int far = 16; far; far /= 2)
        sum += __shfl_xor_sync(~0u, sum, far);
    if (lane == 0)
        squares[wave] = sum;
    __syncthreads();
    step_products<F>(ring, shared + r.acts, part, tasks, policy, from, [&](int task) { return task % chunks; });
    __syncthreads();
    for (int i = threadIdx.x; i < count * TILE_ROWS; i += STEP_THREADS) {
        float y[2] = {0.0f, 0.0f}, mean = 0.0f;
        for (int w = 0; w < EXPERT_WAVES; w++)
            mean += squares[w];
        const float scale = rsqrtf(mean / (float)width + a->eps);
        for (int m = 0; m < 2; m++)
            for (int k = 0; k < chunks; k++)
                y[m] += part[((i / TILE_ROWS * 2 + m) * chunks + k) * TILE_ROWS + i % TILE_ROWS];
        const int row = first * TILE_ROWS + i;
        const float gate = y[0] * scale;
        if (row < rows)
            (ROW(float, c.v, t) + (int64_t)j * rows)[row] = gate / (1.0f + __expf(-gate)) * (y[1] * scale);
    }
#endif
}

/* The routing weights of the chosen experts, as expert_weights computes them; by one wave, of at most 32. */
static __device__ __forceinline__ void step_weigh(const step_choice &o, const arg_expert_linear_sum *a, int experts,
                                                  int k, float *weights) {
    const int lane = threadIdx.x % 32;
    float most = -INFINITY, total = 0.0f, chosen = 0.0f;
    for (int i = lane; i < experts; i += 32)
        most = fmaxf(most, o.logits[i]);
    for (int far = 16; far; far /= 2)
        most = fmaxf(most, __shfl_xor_sync(~0u, most, far));
    for (int i = lane; i < experts; i += 32)
        total += expf(o.logits[i] - most);
    for (int far = 16; far; far /= 2)
        total += __shfl_xor_sync(~0u, total, far);
    const float x = lane < k ? o.logits[o.ids[lane]] : 0.0f;
    const float own = a->sigmoid ? 1.0f / (1.0f + expf(-x)) : expf(x - most) / total;
    for (int j = 0; j < k; j++)
        chosen += __shfl_sync(~0u, own, j);
    if (lane < k)
        weights[lane] = own / (a->norm ? chosen + 1e-20f : 1.0f) * a->scale;
}

template <class F> static __device__ __forceinline__ void step_down(const gpu_call &c) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) char shared[];
    const arg_expert_linear_sum *a = (const arg_expert_linear_sum *)c.arg;
    const int wave = threadIdx.x / 32, lane = threadIdx.x % 32, each = c.v[1].shape[1], rows = c.v[0].shape[1];
    const int width = c.v[2].shape[2], chunks = (width + CHUNK - 1) / CHUNK, tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
    const int t = blockIdx.y, experts = c.v[3].shape[1], columns = each * chunks;
    const int per = (tiles + gridDim.x - 1) / gridDim.x, first = blockIdx.x * per, count = min(per, tiles - first);
    const int tasks = count * columns;
    const step_room r = step_room_of(F::BYTES, per * columns, columns, experts);
    const step_choice chosen(shared, r, experts);
    float *part = (float *)(shared + r.part), *weights = (float *)(chosen.ids + STEP_CHOSEN);
    const uint64_t policy = read_once();
    launch_next();
    step_ring ring(shared, r, F::BYTES);
    if (t >= rows_now(c, c.v[0])) {
        wait_before();
        return;
    }
    step_choose(chosen, ROW(const float, c.v + 3, t), c.n_in == 5 ? (const float *)c.v[5].data : nullptr, experts, each,
                a->sigmoid);
    auto from = [&](int task) {
        const int column = task % columns;
        return (const char *)c.v[2].data + chosen.ids[column / chunks] * c.v[2].stride +
               ((int64_t)(first + task / columns) * chunks + column % chunks) * F::BYTES;
    };
    if (lane == 0)
        for (int i = 0; i < ring.stages && wave + i * EXPERT_WAVES < tasks; i++)
            ring.fetch(i, from(wave + i * EXPERT_WAVES), policy);
    if (wave == EXPERT_WAVES - 1)
        step_weigh(chosen, a, experts, each, weights);
    wait_before();
    const float *x = ROW(const float, c.v + 1, t);
    float residual = 0.0f;
    if ((int)threadIdx.x < count * TILE_ROWS && first * TILE_ROWS + (int)threadIdx.x < rows)
        residual = ROW(const float, c.v + 4, t)[first * TILE_ROWS + threadIdx.x];
    for (int at = wave; at < columns; at += EXPERT_WAVES) {
        const int k = at % chunks;
        eight v;
        v.load(x + (int64_t)(at / chunks) * width + k * CHUNK, width - k * CHUNK, lane);
        gemv_quantize(v.v, shared + r.acts + at * gemv_chunk_bytes(1), 0, 1, lane);
    }
    __syncthreads();
    step_products<F>(ring, shared + r.acts, part, tasks, policy, from, [&](int task) { return task % columns; });
    __syncthreads();
    for (int i = threadIdx.x; i < count * TILE_ROWS; i += STEP_THREADS) {
        const int row = first * TILE_ROWS + i;
        float sum = 0.0f;
        for (int j = 0; j < each; j++) {
            float y = 0.0f;
            for (int k = 0; k < chunks; k++)
                y += part[(i / TILE_ROWS * columns + j * chunks + k) * TILE_ROWS + i % TILE_ROWS];
            sum = fmaf(weights[j], y, sum);
        }
        if (row < rows)
            ROW(float, c.v, t)[row] = sum + (i < STEP_THREADS ? residual : ROW(const float, c.v + 4, t)[row]);
    }
#endif
}

#define STEP_KERNELS(f)                                                                                                \
    extern "C" __global__ void __launch_bounds__(STEP_THREADS, 2)                                                      \
        norm_expert_swiglu_##f(const __grid_constant__ gpu_call c) {                                                   \
        step_gate_up<tile_##f>(c);                                                                                     \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(STEP_THREADS, 2)                                                      \
        expert_linear_sum_##f(const __grid_constant__ gpu_call c) {                                                    \
        step_down<tile_##f>(c);                                                                                        \
    }
TILE_FORMATS(STEP_KERNELS)
