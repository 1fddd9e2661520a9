/* latent.cu: checks and times the kernels of latent attention (cext/cuda/attention_latent.cu) on an sm_90 GPU, alone.
 *
 * Build: nvcc -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -Icext/kernels -Icext/include -Icext/quant \
 *        -IBUILD/cext/headers -o latent bench/gpu_kernels/latent.cu   (BUILD: where CMake built the C libraries)
 * `latent check` compares with a plain kernel in float64: new numbers each time, NaN wherever nothing must be read or written.
 * `latent time` prints microseconds, medians of graphs of 16 launches over several caches.
 */
#include "../../cext/cuda/attention_latent.cu"
#include "paged.cuh"

/* sums: squares of errors, squares of the reference, faults (NaN, or something written where no token is). */
__global__ void reference(const gpu_call c, double *sums, uint32_t format, int listed) {
    const int t = blockIdx.x, head = blockIdx.y, lane = threadIdx.x;
    const float *y = (const float *)(c.v[0].data + t * c.v[0].stride) + head * LATENT_V;
    extern __shared__ double score[];
    if (t >= rows_of(&c, &c.v[1])) {
        for (int j = lane; j < LATENT_V; j += blockDim.x)
            if (y[j] == y[j])
                atomicAdd(sums + 2, 1.0);
        return;
    }
    const caches x = caches_of(c, 0);
    const int slot = ((int32_t *)c.v[4].data)[t], pos = ((int32_t *)c.v[5].data)[t];
    const int32_t *list = listed ? (const int32_t *)(c.v[7].data + t * c.v[7].stride) : nullptr;
    const float *q = (const float *)(c.v[1].data + (uint64_t)t * c.v[1].stride) + head * LATENT_D;
    int n = pos + 1;
    if (listed)
        for (n = 0; n < c.v[7].shape[1] && list[n] >= 0;)
            n++;
    auto row = [&](int i) {
        const int p = listed ? list[i] : i;
        return x.k + x.table[slot * x.table_stride + p / x.block] * x.k_stride +
               p % x.block * cache_bytes(format, LATENT_D);
    };
    for (int p = lane; p < n; p += blockDim.x) {
        double s = 0;
        const uint8_t *k = row(p);
        for (int j = 0; j < LATENT_D; j++)
            s += (double)q[j] * cache_value(k, format, j);
        score[p] = s * x.scale;
    }
    __syncthreads();
    double most = -INFINITY, total = 0;
    for (int p = 0; p < n; p++)
        most = fmax(most, score[p]);
    __syncthreads();
    for (int p = lane; p < n; p += blockDim.x)
        score[p] = exp(score[p] - most);
    __syncthreads();
    for (int p = 0; p < n; p++)
        total += score[p];
    for (int j = lane; j < LATENT_V; j += blockDim.x) {
        double o = 0;
        for (int p = 0; p < n; p++)
            o += score[p] * cache_value(row(p), format, j);
        o /= total;
        if (y[j] != y[j])
            atomicAdd(sums + 2, 1.0);
        atomicAdd(sums, (y[j] - o) * (y[j] - o));
        atomicAdd(sums + 1, o * o);
    }
}

struct latent_case {
    gpu_call call = {};
    std::vector<memory *> held;
    int heads, tokens, most, chosen;
    uint32_t format;

    uint8_t *hold(size_t n, int fill = 0xFF) {
        held.push_back(new memory(n, fill));
        return held.back()->at;
    }
    template <class T> T *hold(const std::vector<T> &from) {
        T *at = (T *)hold(from.size() * sizeof(T));
        OK(cudaMemcpy(at, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
        return at;
    }
    /* chosen: positions of a list; 0: no lists. */
    latent_case(const std::vector<run> &runs, int heads, int block, uint32_t format, int more, float size, int chosen)
        : heads(heads), chosen(chosen), format(format) {
        paged_runs of(runs, block, false);
        tokens = (int)of.slot.size(), most = tokens + more;
        std::vector<int32_t> lists((size_t)most * std::max(chosen, 1), -1);
        for (int t = 0; t < tokens && chosen; t++)
            for (int i = 0, n = std::min(chosen, of.pos[t] + 1), at = 0; i < n; i++) {
                const int left = of.pos[t] + 1 - at - (n - i); /* how many may still be skipped */
                at += left ? rand() % (std::min(left, 3 * left / (n - i) + 1) + 1) : 0;
                lists[(size_t)t * chosen + i] = at++;
            }
        of.slot.resize(most, 1 << 30), of.pos.resize(most, -5);
        const uint64_t stride = (uint64_t)block * cache_bytes(format, LATENT_D);
        float *q = (float *)hold((size_t)most * heads * LATENT_D * 4);
        fill_f32<<<1024, 256, 0, stream>>>(q, (size_t)most * heads * LATENT_D, seed++, size, 0);
        call.v[1] = view_of(q, {most, heads, LATENT_D}, 4ull * heads * LATENT_D, 0, 0);
        call.v[0] =
            view_of(hold((size_t)most * heads * LATENT_V * 4), {most, heads * LATENT_V}, 4ull * heads * LATENT_V, 0, 0);
        call.v[4] = view_of(hold(of.slot), {most}, 4, 26, 0);
        call.v[5] = view_of(hold(of.pos), {most}, 4, 26, 0);
        const int32_t *table_at = hold(of.table), *used_at = hold(of.used);
        call.v[6] = view_of(table_at, {of.slots, of.width}, 4ull * of.width, 26);
        uint8_t *cache = hold(of.blocks * stride);
        OK(cudaDeviceSynchronize());
        fill_cache<<<dim3(256, of.slots), 128, 0, stream>>>(cache, table_at, of.width, used_at, 1, block, LATENT_D,
                                                            format, seed++);
        call.v[2] = call.v[3] = view_of(cache, {of.blocks, 1, block, LATENT_D}, stride, format);
        if (chosen)
            call.v[7] = view_of(hold(lists), {most, chosen}, 4ull * chosen, 26, 0);
        const arg_attention a = {1.0f / sqrtf(192.0f), 0, 0, LATENT_V, 0, 1, 0};
        const arg_sparse_attention b = {a.scale, LATENT_V};
        chosen ? memcpy(call.arg, &b, sizeof b) : memcpy(call.arg, &a, sizeof a);
        const std::vector<int32_t> counts = {tokens};
        call.n_in = chosen ? 7 : 6;
        call.counts = (uint64_t)hold(counts), call.fault = (uint64_t)hold(4, 0);
        call.scratch = (uint64_t)hold(latent_scratch(&call, whole()));
        OK(cudaDeviceSynchronize());
    }
    ~latent_case() {
        OK(cudaStreamSynchronize(stream));
        for (memory *m : held)
            delete m;
    }
    int whole() const {
        return !chosen && most > LATENT_FEW;
    }
    void launch() {
        static const kernel kernels[3][5] = {FORMATS_OF(attention_latent), FORMATS_OF(attention_cut),
                                             FORMATS_OF(attention_listed)};
        static const kernel joins[2][5] = {FORMATS_OF(attention_cut_join), FORMATS_OF(attention_listed_join)};
        const int place = format_place(format), kind = whole() ? 0 : chosen ? 2 : 1;
        const int tokens_each = latent_tokens(heads, whole()), tiles = latent_tiles(heads);
        const int splits = whole() ? 1 : latent_splits(most, heads, call.config);
        const void *k = (const void *)kernels[kind][place];
        allow(k, LATENT_SHARED);
        ::launch(k, {dim3((most + tokens_each - 1) / tokens_each * tiles, splits), LATENT_THREADS, LATENT_SHARED, true},
                 call);
        if (splits > 1)
            ::launch((const void *)joins[chosen > 0][place], {dim3(4 * heads, most), LATENT_JOINERS, 0, true}, call);
    }
    void check(const char *what, double bound) {
        memory sums(24, 0);
        std::vector<double> s(3);
        int bad = 0;
        allow((const void *)reference, 200000);
        reference<<<dim3(most, heads), 128, 200000, stream>>>(call, (double *)sums.at, format, chosen > 0);
        OK(cudaMemcpyAsync(s.data(), sums.at, 24, cudaMemcpyDeviceToHost, stream));
        OK(cudaMemcpyAsync(&bad, (void *)call.fault, 4, cudaMemcpyDeviceToHost, stream));
        OK(cudaStreamSynchronize(stream));
        s[2] += bad;
        char name[96];
        snprintf(name, sizeof name, "%s fmt %u T=%d H=%d lists of %d", what, format, tokens, heads, chosen);
        report(name, s, bound);
        fflush(stdout);
    }
};

static void check_all(bool small) {
    const uint32_t formats[] = {CACHE_F16, CACHE_BF16, CACHE_FP8, CACHE_Q8_0, CACHE_Q4_0};
    for (uint32_t f : formats) {
        const double bound = f == CACHE_F16 || f == CACHE_FP8 ? 2e-6 : 3e-4;
        auto one = [&](const char *what, std::vector<run> runs, int heads, int block, int more, float size, int list) {
            latent_case a(runs, heads, block, f, more, size, list);
            a.launch();
            a.check(what, bound);
        };
        one("one", {{0, 0, 1}}, 16, 16, 0, 1, 0);
        one("one", {{0, 63, 1}}, 16, 64, 0, 1, 0);
        one("one", {{0, 64, 1}}, 16, 32, 0, 1, 0);
        one("one", {{0, 700, 1}}, 16, 16, 0, 3, 0);
        one("one of 128 heads", {{0, 300, 1}}, 128, 64, 0, 1, 0);
        one("pair", {{1, 130, 1}, {0, 5, 1}}, 16, 16, 2, 1, 0);
        one("40 heads", {{1, 130, 1}, {0, 5, 3}}, 40, 16, 2, 1, 0);
        one("lists", {{0, 130, 2}, {1, 10, 2}}, 16, 16, 2, 1, 64);
        if (small)
            continue;
        one("long", {{0, 9000, 1}}, 16, 64, 0, 1, 0);
        one("batch", {{0, 100, 1}, {1, 200, 1}, {2, 1000, 1}, {3, 3, 1}, {4, 64, 1}}, 16, 16, 3, 1, 0);
        one("prompt of few", {{0, 0, 100}}, 16, 16, 28, 1, 0);
        one("prompt", {{0, 0, 500}}, 16, 16, 12, 1, 0);
        one("prompt", {{0, 300, 200}, {1, 0, 57}, {2, 1000, 1}, {3, 999, 1}}, 16, 64, 9, 4, 0);
        one("prompt of 128 heads", {{0, 100, 150}}, 128, 16, 0, 1, 0);
        one("prompt of 32 heads", {{0, 100, 151}, {1, 7, 1}}, 32, 16, 0, 1, 0);
        one("lists", {{0, 3000, 3}, {1, 10, 2}, {2, 2047, 2}}, 128, 64, 1, 1, 2048);
        one("large scores", {{0, 1500, 1}, {1, 400, 1}}, 16, 16, 0, 30, 0);
    }
    printf(failures ? "%d FAILED\n" : "all right\n", failures);
}

/* Tokens of a prompt after `past`, or one token of each of so many sequences. */
static void time_one(int heads, int tokens, int past, bool prompt, uint32_t format, int list) {
    std::vector<latent_case *> cases;
    std::vector<run> runs;
    double pairs = 0, bytes = 0;
    if (prompt)
        runs.push_back({0, past, tokens});
    else
        for (int i = 0; i < tokens; i++)
            runs.push_back({i, past, 1});
    for (const run &r : runs)
        for (int i = 0; i < r.length; i++)
            pairs += list ? std::min(list, r.pos + i + 1) : r.pos + i + 1;
    bytes = prompt ? (double)(past + tokens) * cache_bytes(format, LATENT_D) : pairs * cache_bytes(format, LATENT_D);
    const int layers = std::max(1, std::min(8, (int)(120e6 / bytes) + 1));
    for (int i = 0; i < layers; i++)
        cases.push_back(new latent_case(runs, heads, 64, format, 0, 1, list));
    auto launch = [&](int i) { cases[i % cases.size()]->launch(); };
    for (int i = 0; i < layers; i++)
        launch(i);
    const double us = graph_us(launch, 16, 11), flop = 2 * pairs * heads * (LATENT_D + LATENT_V);
    printf("H=%-3d T=%-4d past %-5d %s fmt %-4u lists of %-4d %9.1f us  %6.0f TFLOP/s  %5.2f TB/s\n", heads, tokens,
           past, prompt ? "prompt " : "decode ", format, list, us, flop / us / 1e6, bytes / us / 1e6);
    fflush(stdout);
    for (latent_case *a : cases)
        delete a;
}

int main(int n, char **words) {
    OK(cudaStreamCreate(&stream));
    const std::string what = n > 1 ? words[1] : "check";
    if (what != "time")
        check_all(what == "small");
    else {
        for (int heads : {16, 128}) {
            time_one(heads, 512, 0, true, CACHE_F16, 0);
            time_one(heads, 4096, 0, true, CACHE_F16, 0);
            time_one(heads, 512, 8192, true, CACHE_F16, 0);
            for (int past : {128, 1024, 4096, 8192, 32768})
                time_one(heads, 1, past, false, CACHE_F16, 0);
            for (int count : {16, 64, 128})
                time_one(heads, count, 160, false, CACHE_F16, 0);
            time_one(heads, 64, 4096, false, CACHE_F16, 0);
        }
        for (uint32_t f : {(uint32_t)CACHE_BF16, (uint32_t)CACHE_FP8, (uint32_t)CACHE_Q8_0, (uint32_t)CACHE_Q4_0}) {
            time_one(16, 4096, 0, true, f, 0);
            time_one(16, 1, 8192, false, f, 0);
            time_one(16, 64, 4096, false, f, 0);
        }
        time_one(128, 1, 32768, false, CACHE_F16, 2048);
        time_one(128, 512, 32768, true, CACHE_F16, 2048);
    }
    return failures != 0;
}
