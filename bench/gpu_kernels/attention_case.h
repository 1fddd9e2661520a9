/* attention_case.h: a plain kernel of attention in float64, cases with paged caches of every format and every kind of sight, and
 * how they look to a kernel; attention.cu and drafts.cu launch theirs.
 */
static bool in_order; /* blocks of a slot follow each other */

/* Positions [from, to) that a token sees, as attention() of runtime/ops/paged.py has them. */
__device__ static void reference_sight(const gpu_call &c, int slot, int pos, int *from, int *to) {
    const arg_attention *arg = (const arg_attention *)c.arg;
    const int rows = rows_of(&c, &c.v[1]);
    *from = 0, *to = pos + 1;
    if (arg->causal) {
        if (arg->window)
            *from = max(*from, pos - arg->window + 1);
        if (arg->chunk)
            *from = max(*from, pos - pos % arg->chunk);
    } else {
        for (int i = 0; i < rows; i++)
            if (((int32_t *)c.v[4].data)[i] == slot)
                *to = max(*to, ((int32_t *)c.v[5].data)[i] + 1);
        if (arg->window)
            *from = max(*from, pos - arg->window / 2), *to = min(*to, pos + arg->window / 2 + 1);
    }
}

/* Turns n scores into weights, by all threads; their sum, with the sink's. */
__device__ static double reference_weights(double *scores, int n, double sink) {
    double total = 0, most = sink;
    __syncthreads();
    for (int i = 0; i < n; i++)
        most = fmax(most, scores[i]);
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        scores[i] = exp(scores[i] - most);
    __syncthreads();
    for (int i = 0; i < n; i++)
        total += scores[i];
    return total + exp(sink - most);
}

__global__ void attention_reference(const gpu_call c, double *sums, uint32_t format) {
    const arg_attention *arg = (const arg_attention *)c.arg;
    const gpu_view *k = c.v + 2, *v = c.v + 3, *table = c.v + 6;
    const int t = blockIdx.x, head = blockIdx.y, d = c.v[1].shape[2], heads = c.v[1].shape[1], lane = threadIdx.x;
    const int kv_head = head / (heads / k->shape[1]), block = k->shape[2];
    const float *y = (const float *)(c.v[0].data + t * c.v[0].stride) + head * d;
    extern __shared__ double shared[];
    if (t >= rows_of(&c, &c.v[1])) {
        for (int j = lane; j < d; j += blockDim.x)
            if (y[j] == y[j])
                atomicAdd(sums + 2, 1.0);
        return;
    }
    const int slot = ((int32_t *)c.v[4].data)[t], pos = ((int32_t *)c.v[5].data)[t];
    int from, to;
    reference_sight(c, slot, pos, &from, &to);
    const double slope = arg->alibi ? ((float *)c.v[c.n_in].data)[head] : 0;
    const float *q = (const float *)(c.v[1].data + t * c.v[1].stride) + head * d;
    auto row = [&](const gpu_view *cache, int p) {
        const int n = ((const int32_t *)(table->data + slot * table->stride))[p / block];
        return (const uint8_t *)cache->data + n * cache->stride +
               (kv_head * block + p % block) * cache_bytes(format, d);
    };
    for (int p = from + lane; p < to; p += blockDim.x) {
        double s = 0;
        for (int j = 0; j < d; j++)
            s += (double)q[j] * cache_value(row(k, p), format, j);
        s *= arg->scale;
        s = arg->cap > 0 ? arg->cap * tanh(s / arg->cap) : s;
        shared[p - from] = s - slope * abs(p - pos);
    }
    const double sink = (int)c.n_in - arg->alibi == 7 ? ((float *)c.v[7].data)[head] : -INFINITY;
    const double total = reference_weights(shared, to - from, sink);
    for (int j = lane; j < d; j += blockDim.x) {
        double o = 0;
        for (int p = from; p < to; p++)
            o += shared[p - from] * cache_value(row(v, p), format, j);
        o /= total;
        if (y[j] != y[j])
            atomicAdd(sums + 2, 1.0);
        atomicAdd(sums, (y[j] - o) * (y[j] - o));
        atomicAdd(sums + 1, o * o);
    }
}

/* What attention is like beside its shapes. sinks: their size (about half are negative), 0: none; slopes: of ALiBi, likewise. */
struct kind {
    int window = 0, chunk = 0, causal = 1;
    float cap = 0, sinks = 0, slopes = 0;
};

/* Rounds queries to 8 bits, so that a kernel's own rounding of them is exact. */
__global__ void round_queries(float *x, size_t n) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        x[i] = __bfloat162float(__float2bfloat16(x[i]));
}

struct attention_case {
    gpu_call call = {};
    std::vector<memory *> held;
    memory counts{32, 0}, fault{4, 0}, joined{4 * JOIN_COUNTERS, 0};
    int heads, kv, d, tokens, most;
    uint32_t format;
    void hold(size_t n) {
        held.push_back(new memory(n));
    }
    kind how;
    int block;
    attention_case(const std::vector<run> &runs, int heads, int kv, int d, int block, const kind &how, uint32_t format,
                   int more, float size)
        : heads(heads), kv(kv), d(d), format(format), how(how), block(block) {
        paged_runs of(runs, block, in_order);
        const int slots = of.slots, width = of.width, blocks = of.blocks;
        tokens = (int)of.slot.size(), most = tokens + more;
        of.slot.resize(most, 1 << 30), of.pos.resize(most, -5);
        const uint64_t stride = (uint64_t)kv * block * cache_bytes(format, d);
        hold((size_t)most * heads * d * 4);
        fill_f32<<<1024, 256, 0, stream>>>((float *)held.back()->at, (size_t)most * heads * d, seed++, size, 0);
        round_queries<<<1024, 256, 0, stream>>>((float *)held.back()->at, (size_t)most * heads * d);
        call.v[1] = view_of(held.back()->at, {most, heads, d}, 4ull * heads * d, 0, 0);
        hold((size_t)most * heads * d * 4);
        call.v[0] = view_of(held.back()->at, {most, heads * d}, 4ull * heads * d, 0, 0);
        auto numbers = [&](const std::vector<int32_t> &from) {
            hold(from.size() * 4);
            OK(cudaMemcpy(held.back()->at, from.data(), from.size() * 4, cudaMemcpyHostToDevice));
            return held.back()->at;
        };
        call.v[4] = view_of(numbers(of.slot), {most}, 4, 26, 0);
        call.v[5] = view_of(numbers(of.pos), {most}, 4, 26, 0);
        const int32_t *table_at = (int32_t *)numbers(of.table), *used_at = (int32_t *)numbers(of.used);
        call.v[6] = view_of(table_at, {slots, width}, 4ull * width, 26);
        for (int i = 2; i < 4; i++) {
            hold(blocks * stride);
            OK(cudaStreamSynchronize(stream));
            fill_cache<<<dim3(256, slots), 128, 0, stream>>>(held.back()->at, table_at, width, used_at, kv, block, d,
                                                             format, seed++);
            call.v[i] = view_of(held.back()->at, {blocks, kv, block, d}, stride, format);
        }
        const arg_attention a = {1.0f / sqrtf((float)d), how.window, how.cap, 0, how.chunk, how.causal,
                                 how.slopes != 0};
        OK(cudaMemcpy(counts.at, &tokens, 4, cudaMemcpyHostToDevice));
        memcpy(call.arg, &a, sizeof a);
        call.n_in = 6;
        for (float size : {how.sinks, how.slopes})
            if (size != 0) {
                std::vector<int32_t> list(heads);
                for (int i = 0; i < heads; i++) {
                    const float x = size * (i % 2 ? 1 : -1) * (0.5f + 0.5f * (float)(i % 7) / 6);
                    memcpy(&list[i], &x, 4);
                }
                call.v[++call.n_in] = view_of(numbers(list), {heads}, 4, 0);
            }
        call.counts = (uint64_t)counts.at, call.fault = (uint64_t)fault.at, call.counters = (uint64_t)joined.at;
        hold(attention_scratch(&call));
        call.scratch = (uint64_t)held.back()->at;
    }
    ~attention_case() {
        OK(cudaStreamSynchronize(stream));
        for (memory *m : held)
            delete m;
    }
    bool exact() const {
        return (d == 64 || d == 128 || d == 256) && how.cap == 0 && how.slopes == 0 && how.causal;
    }
    void wide();
    void split(bool early);
    void check(const char *what, double bound) {
        memory sums(24, 0);
        std::vector<double> s(3);
        int bad = 0;
        OK(cudaFuncSetAttribute(attention_reference, cudaFuncAttributeMaxDynamicSharedMemorySize, 200000));
        attention_reference<<<dim3(most, heads), 128, 190000, stream>>>(call, (double *)sums.at, format);
        OK(cudaMemcpyAsync(s.data(), sums.at, 24, cudaMemcpyDeviceToHost, stream));
        OK(cudaMemcpyAsync(&bad, fault.at, 4, cudaMemcpyDeviceToHost, stream));
        OK(cudaStreamSynchronize(stream));
        OK(cudaMemsetAsync((void *)call.v[0].data, 0xFF, (size_t)most * heads * d * 4, stream));
        s[2] += bad;
        char name[128];
        snprintf(name, sizeof name, "%s fmt %u T=%d H=%d/%d D=%d B=%d w%d c%d%s cap %g sink %g slope %g", what, format,
                 tokens, heads, kv, d, block, how.window, how.chunk, how.causal ? "" : " both ways", how.cap, how.sinks,
                 how.slopes);
        report(name, s, bound);
    }
};
