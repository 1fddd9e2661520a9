/* decode_token.h: the products of a model's token in one graph, timed; a part of decode.cu. */
struct shape {
    const char *name;
    int layers, d, q, kv, ff, vocab;
};

static const shape l1 = {"llama-3.2-1b", 16, 2048, 2048, 512, 8192, 128256},
                   l8 = {"llama-3.1-8b", 32, 4096, 4096, 1024, 14336, 128256};

/* Random weights, all of which own memory, and what they are multiplied with. */
struct token_data {
    std::vector<void *> owned;
    void *file;
    float *x, *y, *h, *norm, *logits;

    token_data(const shape &s, const format &most, int columns) {
        auto floats = [&](size_t n) { return (float *)keep(take(n * 4)); };
        file = keep(take((size_t)s.vocab * (s.d / most.columns) * most.block));
        x = floats((size_t)columns * 32768), y = floats((size_t)columns * 32768), h = floats((size_t)columns * 32768);
        norm = floats(32768), logits = floats((size_t)columns * s.vocab);
        fill_floats<<<64, 256>>>(x, columns * 32768, 1, 1.0f, 1);
        fill_floats<<<64, 256>>>(h, columns * 32768, 2, 1.0f, 1);
        fill_floats<<<64, 256>>>(norm, 32768, 2, 1.0f, 0);
        OK(cudaMemset(y, 0, (size_t)columns * 32768 * 4));
    }
    ~token_data() {
        for (void *p : owned)
            cudaFree(p);
    }
    void *keep(void *p) {
        owned.push_back(p);
        return p;
    }
    weight make(const format &f, int rows, int k) {
        weight w = make_weight(f, rows, k, owned.size() + 1, false, false, file);
        keep(w.packed);
        return w;
    }
};

/* All products of a token, in order; six: what the usual quantizers give some of the weights. */
static std::vector<planned> token_steps(token_data &t, const shape &s, const format &f, const format &six, int columns,
                                        int norms, bool split_v) {
    std::vector<planned> steps;
    int n = norms ? NORM : 0;
    for (int i = 0; i < s.layers; i++) {
        bool more = i < s.layers / 8 || i >= 7 * s.layers / 8 || (i - s.layers / 8) % 3 == 2;
        const format &v = more ? six : f;
        weight q = t.make(f, s.q, s.d), k = t.make(f, s.kv, s.d), vw = t.make(v, s.kv, s.d);
        if (split_v && &v != &f) {
            steps.push_back(plan({q, k}, n, t.h, t.norm, nullptr, t.x, columns));
            steps.push_back(plan({vw}, n, t.h, t.norm, nullptr, t.x + columns * 16384, columns));
        } else {
            steps.push_back(plan({q, k, vw}, n, t.h, t.norm, nullptr, t.x, columns));
        }
        steps.push_back(plan({t.make(f, s.d, s.q)}, ADD, t.x, nullptr, t.h, t.h, columns));
        steps.push_back(
            plan({t.make(f, s.ff, s.d), t.make(f, s.ff, s.d)}, GATED | n, t.h, t.norm, nullptr, t.y, columns));
        steps.push_back(plan({t.make(v, s.d, s.ff)}, ADD, t.y, nullptr, t.h, t.h, columns));
    }
    steps.push_back(plan({t.make(six, s.vocab, s.d)}, n, t.h, t.norm, nullptr, t.logits, columns));
    return steps;
}

/* Microseconds of the steps in one graph: the mean and the best of ten times four replays. */
static float time_graph(const std::vector<planned> &steps, bool pdl, float *least) {
    cudaStream_t st;
    cudaGraph_t g;
    cudaGraphExec_t e;
    cudaEvent_t a, b;
    float best = 1e9f, sum = 0, ms;
    OK(cudaStreamCreate(&st));
    OK(cudaDeviceSynchronize());
    OK(cudaStreamBeginCapture(st, cudaStreamCaptureModeGlobal));
    for (auto &p : steps)
        run(p, st, pdl);
    OK(cudaStreamEndCapture(st, &g));
    OK(cudaGraphInstantiate(&e, g, 0));
    cudaEventCreate(&a), cudaEventCreate(&b);
    for (int r = 0; r < 13; r++) {
        OK(cudaEventRecord(a, st));
        for (int k = 0; k < 4; k++)
            OK(cudaGraphLaunch(e, st));
        OK(cudaEventRecord(b, st));
        OK(cudaEventSynchronize(b));
        cudaEventElapsedTime(&ms, a, b);
        if (r >= 3)
            sum += ms / 4, best = ms / 4 < best ? ms / 4 : best;
    }
    OK(cudaGraphExecDestroy(e));
    OK(cudaGraphDestroy(g));
    cudaEventDestroy(a), cudaEventDestroy(b), cudaStreamDestroy(st);
    *least = best * 1000;
    return sum / 10 * 1000;
}

/* kind: q4_k_m mixes q6_k in as the usual quantizers do */
static void token(const shape &s, const char *kind, int columns, int norms, bool split_v) {
    bool m = !strcmp(kind, "q4_k_m");
    const format &f = format_named(m ? "q4_k" : kind), &six = format_named(m ? "q6_k" : kind);
    token_data data(s, six, columns);
    std::vector<planned> steps = token_steps(data, s, f, six, columns, norms, split_v);
    size_t total = 0;
    for (auto &p : steps)
        total += p.bytes;
    for (int pdl = 0; pdl < 2; pdl++) {
        float best, us = time_graph(steps, pdl, &best);
        printf("%-14s %-7s columns %d norm %d split %d pdl %d: %8.1f us/token (best %.1f) %7.0f t/s %6.0f GB/s = %4.1f "
               "%% of 4380, %zu kernels\n",
               s.name, kind, columns, norms, split_v, pdl, us, best, columns * 1e6 / us, total / us / 1000,
               total / us / 43800, steps.size());
    }
}

/* The products of each kind (q k v, output, gate and up, down) and the last one of all layers: microseconds a product by columns.cu and
 * by columns_half.cu, beside the bytes' time at 4.38 TB/s. cuts: by columns_half.cu with every partition, too. */
static void compare(const shape &s, int columns, bool cuts) {
    static const char *const names[] = {"q k v", "output", "gate and up", "down", "last"};
    const format &f = format_named("q4_k"), &six = format_named("q6_k");
    token_data data(s, six, columns);
    halves = false;
    std::vector<planned> steps = token_steps(data, s, f, six, columns, 1, false), all = steps;
    float best, total[2];
    for (int kind = 0; kind < 5; kind++) {
        std::vector<planned> part, half;
        size_t bytes = 0;
        for (size_t i = 0; i < steps.size(); i++)
            if (i + 1 == steps.size() ? kind == 4 : (int)(i % 4) == kind) {
                const half_cut h = half_cut_of(&steps[i].c, units);
                part.push_back(steps[i]);
                if (!half_recut(all[i], h.cut.teams, h.cut.parts, h.warps))
                    printf("columns_half.cu does not take it\n");
                half.push_back(all[i]);
                bytes += steps[i].bytes;
            }
        const float n = (float)part.size(), old = time_graph(part, true, &best) / n,
                    us = time_graph(half, true, &best) / n;
        printf("%-14s columns %2d %-12s floor %6.2f us, columns %6.2f (%d teams, %d parts), half %6.2f (%d teams, %d "
               "parts)\n",
               s.name, columns, names[kind], bytes / n / 4.38e6, old, part[0].cut.teams, part[0].cut.parts, us,
               half[0].cut.teams, half[0].cut.parts);
        for (int i = 0; cuts && i < 3 * COLUMNS_PARTS * 2; i++) {
            const int teams = 1 << i % 3, parts = i / 3 % COLUMNS_PARTS + 1, warps = i / 3 / COLUMNS_PARTS ? 8 : 16;
            std::vector<planned> other = half;
            bool fits = true;
            for (planned &p : other)
                fits &= half_recut(p, teams, parts, warps);
            if (fits)
                printf("    %d teams, %d parts, %2d warps: %3d groups of %6d bytes: %6.2f us, predicted %6.2f\n", teams,
                       parts, warps, other[0].cut.groups * parts, other[0].shared, time_graph(other, true, &best) / n,
                       half_time(&other[0].c, {other[0].cut, warps}, units) * 1e-3);
        }
    }
    total[0] = time_graph(steps, true, &best), total[1] = time_graph(all, true, &best);
    printf("%-14s columns %2d with norms: columns %8.1f us/token, half %8.1f\n", s.name, columns, total[0], total[1]);
}

/* A token's products with their norms whose waves bring the first bytes of what follows to the second-level cache, once they have asked
 * for all that is theirs. */
static void prefetched(const shape &s, const char *kind) {
    bool m = !strcmp(kind, "q4_k_m");
    const format &f = format_named(m ? "q4_k" : kind), &six = format_named(m ? "q6_k" : kind);
    token_data data(s, six, 1);
    std::vector<planned> steps = token_steps(data, s, f, six, 1, 1, false);
    for (int megabytes : {0, 2, 4, 8, 12, 16, 24}) {
        float best;
        for (size_t i = 0; i < steps.size(); i++) {
            const gpu_call &next = steps[(i + 1) % steps.size()].c;
            const bool second = next.v[3].format & PACKED_FLAG; /* up beside gate, or k behind q */
            uint64_t left = (uint64_t)megabytes << 20, sizes[2];
            for (int w = 0; w < 2; w++)
                sizes[w] = (uint64_t)packed_tiles(&next.v[2 + w]) * packed_chunks(&next.v[2 + w]) *
                           packed_bytes(next.v[2 + w].format);
            const uint64_t most = next.mode & GATED ? left / 2 : left;
            steps[i].c.arg[2] = next.v[2].data, steps[i].c.config = (uint32_t)(most < sizes[0] ? most : sizes[0]);
            left -= steps[i].c.config;
            steps[i].c.arg[3] = next.v[3].data;
            steps[i].c.unused = second ? (uint32_t)(left < sizes[1] ? left : sizes[1]) : 0;
        }
        const float us = time_graph(steps, true, &best);
        printf("%-14s %-7s %2d MB of the next product asked for: %8.1f us/token (best %.1f)\n", s.name, kind, megabytes,
               us, best);
    }
}
