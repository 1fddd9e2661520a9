/* experts_step.cu: the experts of a step of few tokens in two launches. The arithmetic is gemv.cu's.
 *
 * norm_expert_swiglu: a group has some tiles of gate and up of one (token, expert) pair. It ranks the router's logits itself, asks
 * for its weights, normalizes and quantizes the token meanwhile. expert_linear_sum: a group has some tiles of a token's result,
 * for which it multiplies the rows of all its experts; the sum over experts, in their order, is weighted by the router.
 *
 * Of several tokens some have the same expert: expert_grouped_gate and expert_grouped_down have groups for each four
 * tokens of an expert, and expert_grouped_sum weighs and adds. Every group ranks all tokens' logits, a wave one token.
 *
 * Every wave has a ring of its own in shared memory, filled by bulk copies. The order of a sum depends on shapes alone.
 *
 * The down products read the logits, and ask for their weights, before the kernel ahead has ended. That is sound because
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
    __device__ __forceinline__ step_choice(float *keys, float *logits, int *ids)
        : keys(keys), logits(logits), ids(ids) {}
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
        wave_barriers(bars, stages);
    }
    __device__ __forceinline__ void fetch(int at, const char *from, uint64_t policy) const {
        wave_fetch(shared_address(ring + at * bytes), from, bytes, bars + 8 * at, policy);
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

/* Multiplies a wave's tasks in turn: from(task) is a task's chunk of weights, column(task) its chunk of activations, place(task, row)
 * where a row's sum goes. */
template <class F, class FROM, class COLUMN, class PLACE>
static __device__ __forceinline__ void step_products(step_ring &ring, const char *acts, float *part, int tasks,
                                                     uint64_t policy, FROM from, COLUMN column, PLACE place) {
    const int wave = threadIdx.x / 32, lane = threadIdx.x % 32;
    int ahead = wave + ring.stages * EXPERT_WAVES;
    for (int task = wave; task < tasks; task += EXPERT_WAVES, ahead += EXPERT_WAVES) {
        float acc[2] = {0.0f, 0.0f};
        gemv_chunk<F>(ring.wait(), acts + column(task) * gemv_chunk_bytes(1), 1, lane, acc);
        __syncwarp();
        if (wave_asks() && ahead < tasks)
            ring.fetch(ring.stage, from(ahead), policy);
        ring.next();
        if (lane % 4 == 0) {
            part[place(task, lane / 4)] = acc[0];
            part[place(task, lane / 4 + 8)] = acc[1];
        }
    }
}

template <class F> static __device__ __forceinline__ void step_gate_up(const gpu_call &c) {
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
    if (wave_asks())
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
    step_products<F>(
        ring, shared + r.acts, part, tasks, policy, from, [&](int task) { return task % chunks; },
        [](int task, int row) { return task * TILE_ROWS + row; });
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
}

/* The routing weights of the chosen experts, as expert_weights computes them; by one wave, of at most 32. */
static __device__ __forceinline__ void step_weigh(const float *logits, const int *ids, int experts, int k, int norm,
                                                  bool sigmoid, float scale, float *weights) {
    const int lane = threadIdx.x % 32;
    float most = -INFINITY, total = 0.0f, chosen = 0.0f;
    for (int i = lane; i < experts; i += 32)
        most = fmaxf(most, logits[i]);
    for (int far = 16; far; far /= 2)
        most = fmaxf(most, __shfl_xor_sync(~0u, most, far));
    for (int i = lane; i < experts; i += 32)
        total += expf(logits[i] - most);
    for (int far = 16; far; far /= 2)
        total += __shfl_xor_sync(~0u, total, far);
    const float x = lane < k ? logits[ids[lane]] : 0.0f;
    const float own = sigmoid ? 1.0f / (1.0f + expf(-x)) : expf(x - most) / total;
    for (int j = 0; j < k; j++)
        chosen += __shfl_sync(~0u, own, j);
    if (lane < k)
        weights[lane] = own / (norm ? chosen + 1e-20f : 1.0f) * scale;
}

template <class F> static __device__ __forceinline__ void step_down(const gpu_call &c) {
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
    if (wave_asks())
        for (int i = 0; i < ring.stages && wave + i * EXPERT_WAVES < tasks; i++)
            ring.fetch(i, from(wave + i * EXPERT_WAVES), policy);
    if (wave == EXPERT_WAVES - 1)
        step_weigh(chosen.logits, chosen.ids, experts, each, a->norm, a->sigmoid, a->scale, weights);
    wait_before();
    const float *x = ROW(const float, c.v + 1, t);
    float residual = 0.0f; /* of the first row that this wave ends */
    if (first * TILE_ROWS + wave < rows)
        residual = ROW(const float, c.v + 4, t)[first * TILE_ROWS + wave];
    for (int at = wave; at < columns; at += EXPERT_WAVES) {
        const int k = at % chunks;
        eight v;
        v.load(x + (int64_t)(at / chunks) * width + k * CHUNK, width - k * CHUNK, lane);
        gemv_quantize(v.v, shared + r.acts + at * gemv_chunk_bytes(1), 0, 1, lane);
    }
    __syncthreads();
    const int pitch = columns | 1; /* a row's sums lie side by side, rows in different banks */
    step_products<F>(
        ring, shared + r.acts, part, tasks, policy, from, [&](int task) { return task % columns; },
        [&](int task, int row) { return (task / columns * TILE_ROWS + row) * pitch + task % columns; });
    __syncthreads();
    for (int i = wave; i < count * TILE_ROWS; i += EXPERT_WAVES) {
        const int row = first * TILE_ROWS + i;
        float sum = 0.0f;
        for (int k = lane; k < columns; k += 32)
            sum += weights[k / chunks] * part[i * pitch + k];
        for (int far = 16; far; far /= 2)
            sum += __shfl_xor_sync(~0u, sum, far);
        if (lane == 0 && row < rows)
            ROW(float, c.v, t)[row] = sum + (i < EXPERT_WAVES ? residual : ROW(const float, c.v + 4, t)[row]);
    }
}

/* A score as an integer of the same order; NaN is least. */
static __device__ __forceinline__ uint32_t step_key(float score) {
    const uint32_t bits = __float_as_uint(score == score ? score + 0.0f /* no -0 */ : -INFINITY);
    return bits ^ (bits >> 31 ? 0xFFFFFFFFu : 0x80000000u);
}

/* Ranks the experts of one token, as step_choose, by one wave. */
static __device__ __forceinline__ void step_rank(int *ids, const float *x, const float *bias, int experts, int k,
                                                 bool sigmoid) {
    const int lane = threadIdx.x % 32;
    uint32_t keys[STEP_EXPERTS / 32];
#pragma unroll
    for (int i = 0; i < STEP_EXPERTS / 32; i++) {
        const int e = 32 * i + lane;
        keys[i] = 0; /* below all scores */
        if (e < experts) {
            const float score = sigmoid ? 1.0f / (1.0f + expf(-x[e])) : x[e];
            keys[i] = step_key(score + (bias ? bias[e] : 0.0f));
        }
    }
    for (int j = 0; j < k; j++) {
        uint32_t best = 0;
        int at = STEP_EXPERTS;
#pragma unroll
        for (int i = STEP_EXPERTS / 32 - 1; i >= 0; i--)
            if (keys[i] && keys[i] >= best)
                best = keys[i], at = 32 * i + lane;
        const uint32_t most = __reduce_max_sync(~0u, best);
        at = __reduce_min_sync(~0u, best == most ? at : STEP_EXPERTS);
#pragma unroll
        for (int i = 0; i < STEP_EXPERTS / 32; i++)
            if (at == 32 * i + lane)
                keys[i] = 0;
        if (lane == 0)
            ids[j] = at;
    }
}

/* The experts of a step's tokens, in their groups' shared memory. */
struct step_list {
    int all[STEP_TOKENS * STEP_CHOSEN], members[GEMV_COLUMNS];
};

/* Ranks all tokens, and lists the pairs of the expert of pair `own` that its group takes: `own` and the next three. Gives their
 * number; 0 if `own` is among the pairs of an earlier group. Called by all threads. */
static __device__ __forceinline__ int step_members(step_list &list, const gpu_call &c, const gpu_view *logits,
                                                   const float *bias, int tokens, int k, int own, bool sigmoid) {
    const int wave = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (wave < tokens)
        step_rank(list.all + wave * k, ROW(const float, logits, wave), bias, logits->shape[1], k, sigmoid);
    __syncthreads();
    const int id = list.all[own];
    int n = 0, before = 0; /* pairs of the expert, and those before `own` */
    for (int base = 0; base < tokens * k; base += 32) {
        const bool mine = base + lane < tokens * k && list.all[base + lane] == id;
        const uint32_t who = __ballot_sync(~0u, mine);
        const int ahead = own - base; /* lanes below are before `own` */
        const uint32_t earlier = ahead >= 32 ? ~0u : ahead > 0 ? (1u << ahead) - 1 : 0;
        before += __popc(who & earlier);
        const int at = n - before + __popc(who & ((1u << lane) - 1));
        if (mine && wave == 0 && base + lane >= own && at < GEMV_COLUMNS)
            list.members[at] = base + lane;
        n += __popc(who);
    }
    __syncthreads();
    return before % GEMV_COLUMNS ? 0 : min(n - before, (int)GEMV_COLUMNS);
}

/* All products of one expert's tiles for up to four of its pairs: gate and up with the norm, or down into scratch (pairs, N). */
template <class F, bool GATED> static __device__ __forceinline__ void step_grouped(const gpu_call &c) {
    extern __shared__ __align__(128) char shared[];
    __shared__ step_list list;
    enum { MATRICES_OF = GATED ? 2 : 1, LOGITS = GATED ? 5 : 3, BIAS = GATED ? 6 : 5 };
    const arg_norm_expert_swiglu *g = (const arg_norm_expert_swiglu *)c.arg;
    const arg_expert_linear_sum *d = (const arg_expert_linear_sum *)c.arg;
    const int wave = threadIdx.x / 32, lane = threadIdx.x % 32, each = GATED ? g->k : d->k, own = blockIdx.y;
    const int width = c.v[2].shape[2], rows = c.v[2].shape[1];
    const int chunks = (width + CHUNK - 1) / CHUNK, tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
    const int per = (tiles + gridDim.x - 1) / gridDim.x, first = blockIdx.x * per, end = min(first + per, tiles);
    const step_group_room r = step_group_room_of(F::BYTES, chunks);
    const float *bias = (int)c.n_in == BIAS ? (const float *)c.v[BIAS].data : nullptr;
    const uint64_t policy = read_once();
    float *squares = (float *)(shared + r.squares);
    char *acts = shared + r.acts;
    const int act_bytes = gemv_chunk_bytes(GEMV_COLUMNS);
    step_room room;
    room.stages = r.stages, room.bars = r.bars;
    step_ring ring(shared, room, F::BYTES);
    if (GATED) {
        wait_before();
        launch_next();
    } else {
        launch_next();
    }
    const int tokens = min(rows_now(c, c.v[0]), (int)STEP_TOKENS);
    const int n = own < tokens * each
                      ? step_members(list, c, c.v + LOGITS, bias, tokens, each, own, GATED ? g->sigmoid : d->sigmoid)
                      : 0;
    if (n == 0) {
        if (!GATED)
            wait_before();
        return;
    }
    const int id = list.all[own],
              mine = (end - first - wave + EXPERT_WAVES - 1) / EXPERT_WAVES; /* tiles of this wave */
    const int steps = max(mine, 0) * MATRICES_OF * chunks;
    auto from = [&](int i) {
        const int tile = first + wave + i / (MATRICES_OF * chunks) * EXPERT_WAVES;
        const gpu_view *w = c.v + 2 + (GATED ? i / chunks % 2 : 0);
        return (const char *)w->data + id * w->stride + ((int64_t)tile * chunks + i % chunks) * F::BYTES;
    };
    if (wave_asks())
        for (int i = 0; i < ring.stages && i < steps; i++)
            ring.fetch(i, from(i), policy);
    int ahead = ring.stages;
    if (!GATED)
        wait_before();
    for (int task = wave; task < n * chunks; task += EXPERT_WAVES) {
        const int t = task / chunks, k = task % chunks, pair = list.members[t];
        const float *x = ROW(const float, c.v + 1, pair / each) + (GATED ? 0 : (int64_t)(pair % each) * width);
        float sum = 0.0f;
        eight v, w;
        v.load(x + k * CHUNK, width - k * CHUNK, lane);
        if (GATED) {
            w.load((const float *)c.v[4].data + k * CHUNK, width - k * CHUNK, lane);
            for (int i = 0; i < 8; i++) {
                sum += v.v[i] * v.v[i];
                v.v[i] *= w.v[i];
            }
            for (int far = 16; far; far /= 2)
                sum += __shfl_xor_sync(~0u, sum, far);
            if (lane == 0)
                squares[task] = sum;
        }
        gemv_quantize(v.v, acts + k * act_bytes, t, GEMV_COLUMNS, lane);
    }
    __syncthreads();
    const int t = lane % 4, pair = t < n ? list.members[t] : 0;
    float scale = 0.0f;
    if (GATED && t < n) {
        for (int k = 0; k < chunks; k++)
            scale += squares[t * chunks + k];
        scale = rsqrtf(scale / (float)width + g->eps);
    }
    for (int tile = first + wave; tile < end; tile += EXPERT_WAVES) {
        float y[2][MATRICES_OF]; /* row lane / 4 and 8 more */
#pragma unroll
        for (int m = 0; m < MATRICES_OF; m++) {
            float acc[2] = {0.0f, 0.0f};
            for (int k = 0; k < chunks; k++, ahead++) {
                gemv_chunk<F>(ring.wait(), acts + k * act_bytes, GEMV_COLUMNS, lane, acc);
                __syncwarp();
                if (wave_asks() && ahead < steps)
                    ring.fetch(ring.stage, from(ahead), policy);
                ring.next();
            }
            y[0][m] = acc[0];
            y[1][m] = acc[1];
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = tile * TILE_ROWS + lane / 4 + 8 * h;
            if (row >= rows || t >= n)
                continue;
            if (GATED) {
                const float gate = y[h][0] * scale;
                (ROW(float, c.v, pair / each) + (int64_t)(pair % each) * rows)[row] =
                    gate / (1.0f + __expf(-gate)) * (y[h][MATRICES_OF - 1] * scale);
            } else {
                ((float *)c.scratch)[(int64_t)pair * rows + row] = y[h][0];
            }
        }
    }
}

/* The weighted sum of grouped_down's rows, and the residual. */
extern "C" __global__ void __launch_bounds__(STEP_THREADS) expert_grouped_sum(const __grid_constant__ gpu_call c) {
    __shared__ float keys[STEP_EXPERTS], logits[STEP_EXPERTS], weights[STEP_CHOSEN];
    __shared__ int ids[STEP_CHOSEN];
    const arg_expert_linear_sum *a = (const arg_expert_linear_sum *)c.arg;
    const int t = blockIdx.y, rows = c.v[0].shape[1], row = blockIdx.x * STEP_THREADS + threadIdx.x;
    const int experts = c.v[3].shape[1];
    launch_next();
    if (t < rows_now(c, c.v[0])) {
        const step_choice chosen(keys, logits, ids);
        step_choose(chosen, ROW(const float, c.v + 3, t), c.n_in == 5 ? (const float *)c.v[5].data : nullptr, experts,
                    a->k, a->sigmoid);
        if (threadIdx.x < 32)
            step_weigh(logits, ids, experts, a->k, a->norm, a->sigmoid, a->scale, weights);
        __syncthreads();
    }
    wait_before();
    if (t >= rows_now(c, c.v[0]) || row >= rows)
        return;
    const float *y = (const float *)c.scratch + (int64_t)t * a->k * rows + row;
    float sum = 0.0f;
    for (int j = 0; j < a->k; j++)
        sum = fmaf(weights[j], y[(int64_t)j * rows], sum);
    ROW(float, c.v, t)[row] = sum + ROW(const float, c.v + 4, t)[row];
}

/* expert_sum_add: the experts' rows times the router's weights, and the residual. */
extern "C" __global__ void __launch_bounds__(STEP_THREADS) expert_sum_rows(const __grid_constant__ gpu_call c) {
    __shared__ float weights[STEP_CHOSEN];
    const arg_expert_sum_add *a = (const arg_expert_sum_add *)c.arg;
    const int t = blockIdx.y, rows = c.v[0].shape[1], row = 4 * (blockIdx.x * STEP_THREADS + threadIdx.x);
    const int k = c.v[1].shape[1], experts = c.v[2].shape[1];
    wait_before();
    launch_next();
    if (t >= rows_now(c, c.v[0]))
        return;
    const int *ids = ROW(const int32_t, c.v + 3, t);
    if (threadIdx.x < 32) {
        const int id = (int)threadIdx.x < k ? ids[threadIdx.x] : 0;
        if (!__all_sync(~0u, id >= 0 && id < experts)) {
            fault(&c);
            weights[threadIdx.x] = 0.0f;
        } else {
            step_weigh(ROW(const float, c.v + 2, t), ids, experts, k, a->norm, a->sigmoid, a->scale, weights);
        }
    }
    const float *y = ROW(const float, c.v + 1, t) + row;
    float4 sum = make_float4(0, 0, 0, 0), r = sum;
    if (row < rows)
        r = *(const float4 *)(ROW(const float, c.v + 4, t) + row);
    __syncthreads();
    if (row >= rows)
        return;
#pragma unroll 8
    for (int j = 0; j < k; j++) {
        const float4 v = *(const float4 *)(y + (int64_t)j * rows);
        const float w = weights[j];
        sum = make_float4(fmaf(w, v.x, sum.x), fmaf(w, v.y, sum.y), fmaf(w, v.z, sum.z), fmaf(w, v.w, sum.w));
    }
    *(float4 *)(ROW(float, c.v, t) + row) = make_float4(sum.x + r.x, sum.y + r.y, sum.z + r.z, sum.w + r.w);
}

/* top_experts without groups of experts: a group ranks a token's. */
extern "C" __global__ void __launch_bounds__(STEP_THREADS) top_experts_rows(const __grid_constant__ gpu_call c) {
    __shared__ float keys[STEP_EXPERTS], logits[STEP_EXPERTS];
    __shared__ int ids[STEP_CHOSEN];
    const int t = blockIdx.x, k = c.v[0].shape[1];
    wait_before();
    launch_next();
    if (t >= rows_now(c, c.v[0]))
        return;
    step_choose(step_choice(keys, logits, ids), ROW(const float, c.v + 1, t),
                c.n_in == 2 ? (const float *)c.v[2].data : nullptr, c.v[1].shape[1], k,
                ((const arg_top_experts *)c.arg)->sigmoid);
    if ((int)threadIdx.x < k)
        ROW(int32_t, c.v, t)[threadIdx.x] = ids[threadIdx.x];
}

#define STEP_KERNELS(f)                                                                                                \
    extern "C" __global__ void __launch_bounds__(STEP_THREADS, 2)                                                      \
        norm_expert_swiglu_##f(const __grid_constant__ gpu_call c) {                                                   \
        step_gate_up<tile_##f>(c);                                                                                     \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(STEP_THREADS, 2)                                                      \
        expert_linear_sum_##f(const __grid_constant__ gpu_call c) {                                                    \
        step_down<tile_##f>(c);                                                                                        \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(STEP_THREADS, 2)                                                      \
        expert_grouped_gate_##f(const __grid_constant__ gpu_call c) {                                                  \
        step_grouped<tile_##f, true>(c);                                                                               \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(STEP_THREADS, 2)                                                      \
        expert_grouped_down_##f(const __grid_constant__ gpu_call c) {                                                  \
        step_grouped<tile_##f, false>(c);                                                                              \
    }
TILE_FORMATS(STEP_KERNELS)
