/* prompt_attention.h: the part of prompt.cu about attention: a plain kernel in float64, cases with paged caches of every format,
 * and how the kernels are launched. Included by prompt.cu alone, which has the memory, the random numbers and the report.
 */
__device__ static float cache_value(const uint8_t *row, uint32_t format, int i) {
    if (format == CACHE_F16)
        return __half2float(((const __half *)row)[i]);
    if (format == CACHE_BF16)
        return __bfloat162float(((const __nv_bfloat16 *)row)[i]);
    if (format == CACHE_FP8) {
        const int b = row[i], e = b >> 3 & 15;
        const float m = e ? ldexpf(1 + (b & 7) / 8.0f, e - 7) : ldexpf((b & 7) / 8.0f, -6);
        return b & 128 ? -m : m;
    }
    const uint8_t *block = row + i / 32 * (format == CACHE_Q8_0 ? 34 : 18);
    __half d;
    memcpy(&d, block, 2);
    if (format == CACHE_Q8_0)
        return __half2float(d) * (int8_t)block[2 + i % 32];
    const int q = block[2 + i % 16];
    return __half2float(d) * ((i % 32 < 16 ? q & 15 : q >> 4) - 8);
}

static __host__ __device__ int cache_bytes(uint32_t format, int d) {
    return format == CACHE_F16 || format == CACHE_BF16 ? 2 * d
           : format == CACHE_FP8                       ? d
                                                       : d / 32 * (format == CACHE_Q8_0 ? 34 : 18);
}

/* Positions below `used` of each slot get numbers; all else keeps its NaN. */
__global__ void fill_cache(uint8_t *cache, const int32_t *table, int width, const int32_t *used, int heads, int block,
                           int d, uint32_t format, uint32_t s) {
    const int slot = blockIdx.y, bytes = cache_bytes(format, d);
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < (int64_t)used[slot] * heads;
         i += (int64_t)gridDim.x * blockDim.x) {
        const int pos = (int)(i / heads), h = (int)(i % heads);
        uint8_t *row = cache + (((int64_t)table[slot * width + pos / block] * heads + h) * block + pos % block) * bytes;
        const uint64_t at = ((uint64_t)slot << 40) + i * d;
        for (int j = 0; j < d; j++) {
            const float x = normal(s, at + j);
            if (format == CACHE_F16)
                ((__half *)row)[j] = __float2half(x);
            else if (format == CACHE_BF16)
                ((__nv_bfloat16 *)row)[j] = __float2bfloat16(x);
            else if (format == CACHE_FP8)
                row[j] = (uint8_t)(noise(s, at + j) & 0xBF);
            else {
                const int size = format == CACHE_Q8_0 ? 34 : 18;
                const __half scale = __float2half(format == CACHE_Q8_0 ? 0.015f : 0.25f);
                if (j % 32 == 0)
                    memcpy(row + j / 32 * size, &scale, 2);
                if (j % 32 < size - 2)
                    row[j / 32 * size + 2 + j % 32] = (uint8_t)noise(s, at + j);
            }
        }
    }
}

__global__ void attention_reference(const gpu_call c, double *sums, uint32_t format) {
    const int t = blockIdx.x, head = blockIdx.y, d = c.v[1].shape[2], heads = c.v[1].shape[1];
    const float *y = (const float *)(c.v[0].data + t * c.v[0].stride) + head * d;
    const int lane = threadIdx.x;
    extern __shared__ float shared[];
    if (t >= rows_of(&c, &c.v[1])) {
        for (int j = lane; j < d; j += blockDim.x)
            if (y[j] == y[j])
                atomicAdd(sums + 2, 1.0);
        return;
    }
    const caches x = caches_of(c, head / (heads / c.v[2].shape[1]));
    const int slot = ((int32_t *)c.v[4].data)[t], pos = ((int32_t *)c.v[5].data)[t], from = first_seen(x, pos);
    const float *q = (const float *)(c.v[1].data + t * c.v[1].stride) + head * d;
    auto row = [&](const uint8_t *base, uint64_t stride, int p) {
        return base + x.table[slot * x.table_stride + p / x.block] * stride +
               (x.head * x.block + p % x.block) * cache_bytes(format, d);
    };
    float most = -INFINITY;
    for (int p = from + lane; p <= pos; p += blockDim.x) {
        double s = 0;
        const uint8_t *k = row(x.k, x.k_stride, p);
        for (int j = 0; j < d; j++)
            s += (double)q[j] * cache_value(k, format, j);
        shared[p - from] = (float)(s * x.scale);
    }
    __syncthreads();
    double total = 0;
    for (int p = 0; p <= pos - from; p++)
        most = fmaxf(most, shared[p]);
    for (int p = 0; p <= pos - from; p++)
        total += exp((double)shared[p] - most);
    for (int j = lane; j < d; j += blockDim.x) {
        double o = 0;
        for (int p = from; p <= pos; p++)
            o += exp((double)shared[p - from] - most) * cache_value(row(x.v, x.v_stride, p), format, j);
        o /= total;
        if (y[j] != y[j])
            atomicAdd(sums + 2, 1.0);
        atomicAdd(sums, (y[j] - o) * (y[j] - o));
        atomicAdd(sums + 1, o * o);
    }
}

struct run {
    int slot, pos, length;
};

struct attention_case {
    gpu_call call = {};
    std::vector<memory *> held;
    memory counts{32, 0}, fault{4, 0}, argument{8};
    int heads, kv, d, tokens, most;
    uint32_t format;
    void hold(size_t n) {
        held.push_back(new memory(n));
    }
    attention_case(const std::vector<run> &runs, int heads, int kv, int d, int block, int window, uint32_t format,
                   int more, float size)
        : heads(heads), kv(kv), d(d), format(format) {
        std::vector<int32_t> slot, pos, used, table;
        int slots = 0, longest = 0;
        for (const run &r : runs) {
            for (int i = 0; i < r.length; i++)
                slot.push_back(r.slot), pos.push_back(r.pos + i);
            slots = std::max(slots, r.slot + 1);
            longest = std::max(longest, r.pos + r.length);
        }
        used.resize(slots);
        for (const run &r : runs)
            used[r.slot] = std::max(used[r.slot], r.pos + r.length);
        const int width = (longest + block - 1) / block + 1, blocks = slots * width + 3;
        std::vector<int32_t> order(blocks);
        for (int i = 0; i < blocks; i++)
            order[i] = i;
        srand(seed);
        for (int i = blocks - 1; i > 0 && !in_order; i--)
            std::swap(order[i], order[rand() % (i + 1)]);
        table.assign(order.begin(), order.begin() + slots * width);
        tokens = (int)slot.size(), most = tokens + more;
        slot.resize(most, 1 << 30), pos.resize(most, -5);
        const uint64_t stride = (uint64_t)kv * block * cache_bytes(format, d);
        hold((size_t)most * heads * d * 4);
        fill_f32<<<1024, 256, 0, stream>>>((float *)held.back()->at, (size_t)most * heads * d, seed++, size, 0);
        call.v[1] = view_of(held.back()->at, {most, heads, d}, 4ull * heads * d, 0, 0);
        hold((size_t)most * heads * d * 4);
        call.v[0] = view_of(held.back()->at, {most, heads * d}, 4ull * heads * d, 0, 0);
        auto numbers = [&](const std::vector<int32_t> &from) {
            hold(from.size() * 4);
            OK(cudaMemcpy(held.back()->at, from.data(), from.size() * 4, cudaMemcpyHostToDevice));
            return held.back()->at;
        };
        call.v[4] = view_of(numbers(slot), {most}, 4, 26, 0);
        call.v[5] = view_of(numbers(pos), {most}, 4, 26, 0);
        const int32_t *table_at = (int32_t *)numbers(table), *used_at = (int32_t *)numbers(used);
        call.v[6] = view_of(table_at, {slots, width}, 4ull * width, 26);
        for (int i = 2; i < 4; i++) {
            hold(blocks * stride);
            OK(cudaStreamSynchronize(stream));
            fill_cache<<<dim3(256, slots), 128, 0, stream>>>(held.back()->at, table_at, width, used_at, kv, block, d,
                                                             format, seed++);
            call.v[i] = view_of(held.back()->at, {blocks, kv, block, d}, stride, format);
        }
        const arg_attention a = {1.0f / sqrtf((float)d), window, 0, 0, 0, 1};
        OK(cudaMemcpy(argument.at, &a, 8, cudaMemcpyHostToDevice));
        OK(cudaMemcpy(counts.at, &tokens, 4, cudaMemcpyHostToDevice));
        memcpy(call.arg, &a, 8);
        call.n_in = 6;
        call.counts = (uint64_t)counts.at, call.fault = (uint64_t)fault.at;
        hold(attention_scratch(&call));
        call.scratch = (uint64_t)held.back()->at;
    }
    ~attention_case() {
        OK(cudaStreamSynchronize(stream));
        for (memory *m : held)
            delete m;
    }
    int pick() const {
        return d == 64 ? 0 : d == 128 ? 1 : 2;
    }
    void wide();
    void split(bool early);
    void check(const char *what, int block, int window, double bound) {
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
        snprintf(name, sizeof name, "%s fmt %u T=%d H=%d/%d D=%d block %d window %d", what, format, tokens, heads, kv,
                 d, block, window);
        report(name, s, bound);
    }
};

#define FORMATS_OF(prefix) {prefix##_f16, prefix##_bf16, prefix##_fp8, prefix##_q8_0, prefix##_q4_0}
typedef void (*kernel)(const gpu_call);
static int format_place(uint32_t f) {
    return f == CACHE_F16 ? 0 : f == CACHE_BF16 ? 1 : f == CACHE_FP8 ? 2 : f == CACHE_Q8_0 ? 3 : 4;
}

void attention_case::wide() {
    static const kernel all[3][5] = {FORMATS_OF(attention_wide_64), FORMATS_OF(attention_wide_128),
                                     FORMATS_OF(attention_wide_256)};
    const int shared = wide_shared(d);
    const void *k = (const void *)all[pick()][format_place(format)];
    allow(k, shared);
    launch(k, {dim3((most + TOKENS - 1) / TOKENS * heads), 256, shared, false}, call);
}

void attention_case::split(bool early) {
    static const kernel all[2][3][5] = {
        {FORMATS_OF(attention_split_64_8), FORMATS_OF(attention_split_128_8), FORMATS_OF(attention_split_256_8)},
        {FORMATS_OF(attention_split_64_16), FORMATS_OF(attention_split_128_16), {}}};
    static const kernel joins[3][5] = {FORMATS_OF(attention_join_64), FORMATS_OF(attention_join_128),
                                       FORMATS_OF(attention_join_256)};
    const int group = heads / kv, shared = split_shared(d, group);
    const void *k = (const void *)all[group > 8][pick()][format_place(format)];
    const int walkers = most <= FEW ? most : WALKERS, splits = most_splits(&call);
    allow(k, shared);
    launch(k, {dim3(splits, kv, walkers), 32 * WARPS, shared, early}, call);
    launch((const void *)joins[pick()][format_place(format)], {dim3(heads, walkers), d, 0, early}, call);
}

/* Microseconds of one of many launches in a graph, over several layers' caches. */
static double graph_us(const std::vector<attention_case *> &layers, const std::function<void(attention_case &)> &f) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    for (attention_case *a : layers)
        f(*a);
    OK(cudaStreamSynchronize(stream));
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < 32; i++)
        f(*layers[i % layers.size()]);
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    const double us = median_us([&] { OK(cudaGraphLaunch(exec, stream)); }, 20) / 32;
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    return us;
}
