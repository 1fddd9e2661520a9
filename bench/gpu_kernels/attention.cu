/* attention.cu: checks and times the attention kernels (cext/cuda) on an sm_90 GPU, alone.
 *
 * Build: nvcc -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -Icext/kernels -Icext/include -Icext/quant \
 *        -IBUILD/cext/headers -o attention bench/gpu_kernels/attention.cu   (BUILD: where CMake built the C libraries)
 * Every check draws new numbers, poisons what must not be read or written with NaN, and compares with a plain kernel in
 * float64. Times are medians of events.
 */
#include "../../cext/cuda/attention_split.cu"
#include "../../cext/cuda/attention_wide.cu"
#include "paged.cuh"

#include "attention_case.h"

/* Of kernels for heads of up to 64, 128, 256, 512 numbers. */
static int size_place(int d) {
    return d <= 64 ? 0 : d <= 128 ? 1 : d <= 256 ? 2 : 3;
}

void attention_case::wide() {
    static const kernel all[2][4][5] = {
        {FORMATS_OF(attention_wide_64), FORMATS_OF(attention_wide_128), FORMATS_OF(attention_wide_256), {}},
        {FORMATS_OF(attention_wide_any_64), FORMATS_OF(attention_wide_any_128), FORMATS_OF(attention_wide_any_256),
         FORMATS_OF(attention_wide_any_512)}};
    const int place = size_place(d), shared = wide_shared(64 << place, column_parts(64 << place), 1);
    const void *k = (const void *)all[!exact()][place][format_place(format)];
    allow(k, shared);
    launch(k, {dim3((most + TOKENS - 1) / TOKENS * heads * column_parts(64 << place)), 256, shared, false}, call);
}

void attention_case::split(bool early) {
    static const kernel all[2][3][5] = {
        {FORMATS_OF(attention_split_64_8), FORMATS_OF(attention_split_128_8), FORMATS_OF(attention_split_256_8)},
        {FORMATS_OF(attention_split_64_16), FORMATS_OF(attention_split_128_16), FORMATS_OF(attention_split_256_8)}};
    static const kernel any[3][5] = {FORMATS_OF(attention_split_any_128), FORMATS_OF(attention_split_any_256),
                                     FORMATS_OF(attention_split_any_512)};
    static const kernel joins[5] = FORMATS_OF(attention_join);
    const int group = heads / kv, place = exact() ? size_place(d) : std::max(size_place(d), 1);
    const int most_heads = exact() && place < 2 && group > 8 ? 16 : 8;
    const int shared = split_shared(64 << place, std::min(group, most_heads), 1);
    const void *k = (const void *)(exact() ? all[group > 8][place] : any[place - 1])[format_place(format)];
    const int walkers = most <= FEW ? most : WALKERS, splits = most_splits(&call);
    allow(k, shared);
    launch(k, {dim3(kv * ((group + most_heads - 1) / most_heads), walkers, splits), 32 * WARPS, shared, early}, call);
    if (most > FEW)
        launch((const void *)joins[format_place(format)], {dim3(heads, walkers), 32 * WARPS, 0, early}, call);
}

static const uint32_t every[] = {CACHE_F16, CACHE_BF16, CACHE_FP8, CACHE_Q8_0, CACHE_Q4_0};
/* Runs of many kinds: long and short ones, several of a slot, tiles of short runs. */
static const std::vector<run> mixed = {{2, 300, 1}, {0, 0, 70},   {1, 513, 200}, {3, 31, 1},
                                       {4, 32, 1},  {5, 1000, 1}, {6, 0, 1},     {7, 63, 65}};
static const std::vector<run> singles = {{1, 700, 1}, {0, 5, 3}, {2, 64, 1}, {3, 0, 1}};

static double bound_of(uint32_t format) {
    return format == CACHE_F16 || format == CACHE_FP8 ? 1e-6 : 2e-5;
}

static void check_one(const char *what, const std::vector<run> &runs, int heads, int kv, int d, int block,
                      const kind &how, uint32_t format, float size, double bound) {
    attention_case a(runs, heads, kv, d, block, how, format, 5, size);
    if (a.most > FEW)
        a.wide();
    a.split(how.window == 0);
    a.check(what, bound);
}

/* Heads of every size and number, plain. */
static void check_shapes(void) {
    for (uint32_t f : every) {
        for (int d : {64, 128, 256, 32, 80, 96, 192, 512, 320}) {
            const int group = d == 64 ? 1 : d == 128 ? 16 : d == 512 ? 10 : 7;
            if ((f == CACHE_Q8_0 || f == CACHE_Q4_0) && d % 32)
                continue;
            check_one("mixed", mixed, 2 * group, 2, d, 32, {}, f, 1, bound_of(f));
            check_one("singles", singles, 2 * group, 2, d, 16, {}, f, 1, bound_of(f));
        }
        check_one("singles, 1 KV head", singles, 71, 1, 64, 16, {}, f, 1, bound_of(f));
    }
}

/* Each kind of sight, in every format. */
static void check_kinds(void) {
    std::vector<kind> kinds(14);
    kinds[0].window = 100;
    kinds[1].window = 1;
    kinds[2].chunk = 64;
    kinds[3].chunk = 100, kinds[3].window = 70;
    kinds[4].causal = 0;
    kinds[5].causal = 0, kinds[5].window = 33;
    kinds[6].causal = 0, kinds[6].window = 1;
    kinds[7].sinks = 4;
    kinds[8].sinks = 30, kinds[8].window = 128;
    kinds[9].cap = 20;
    kinds[10].cap = 50, kinds[10].window = 300;
    kinds[11].slopes = 0.06f;
    kinds[12].slopes = 0.5f, kinds[12].causal = 0, kinds[12].sinks = 3;
    kinds[13].cap = 5, kinds[13].slopes = 0.01f, kinds[13].sinks = 2, kinds[13].chunk = 128;
    int turn = 0;
    for (uint32_t f : every)
        for (const kind &how : kinds) {
            const int d = turn % 4 == 0   ? 64
                          : turn % 4 == 1 ? 128
                          : turn % 4 == 2 ? 256
                                          : 512,
                      block = turn % 3 ? 16 : 64;
            const float size = how.cap > 0 ? 30 : how.sinks == 30 ? 8 : 1;
            /* Weights are rounded to 11 or 8 bits: a row that sees one position or few has nothing to even that out. */
            const double bound = bound_of(f) * (size > 1 || how.window || how.chunk || how.slopes > 0 ? 4 : 1);
            turn++;
            check_one("mixed", mixed, 8, 2, d, block, how, f, size, bound);
            check_one("singles", singles, 8, 2, d, block, how, f, size, bound);
        }
}

static void check_extremes(void) {
    kind capped, sunk;
    capped.cap = 30;
    sunk.sinks = 30;
    check_one("large queries", {{0, 5000, 1}, {1, 2047, 1}, {2, 1, 3}}, 24, 8, 128, 16, {}, CACHE_F16, 1e5f, 1e-5);
    check_one("large queries", {{0, 2000, 140}, {1, 0, 300}}, 24, 8, 128, 64, {}, CACHE_F16, 1e4f, 1e-5);
    check_one("large queries", {{0, 2000, 140}, {1, 0, 300}}, 6, 2, 512, 64, {}, CACHE_F16, 1e4f, 1e-5);
    check_one("large queries", {{0, 2000, 140}, {1, 0, 300}}, 24, 8, 128, 64, capped, CACHE_F16, 1e4f, 1e-5);
    check_one("large queries", {{0, 2000, 140}, {1, 0, 300}}, 16, 2, 64, 64, sunk, CACHE_F16, 1e3f, 1e-5);
    check_one("small queries", {{0, 2000, 140}, {1, 0, 300}}, 16, 2, 64, 64, sunk, CACHE_F16, 1e-20f, 1e-6);
    check_one("long past, small blocks", {{0, 20000, 130}}, 8, 1, 128, 16, {}, CACHE_F16, 1, 1e-6);
    check_one("long past, small blocks", {{0, 20000, 130}}, 4, 1, 512, 16, {}, CACHE_F16, 1, 1e-6);
    check_one("long past", {{0, 20000, 1}, {1, 9000, 2}}, 8, 1, 512, 16, {}, CACHE_F16, 1, 1e-6);
}

struct shape {
    const char *name;
    int heads, kv, d;
    kind how;
};

static std::vector<shape> shapes(void) {
    std::vector<shape> all = {
        {"plain", 32, 8, 128, {}}, {"plain", 32, 8, 64, {}},         {"plain", 16, 8, 256, {}},
        {"sinks", 64, 8, 64, {}},  {"sinks, window", 64, 8, 64, {}}, {"cap", 16, 8, 256, {}},
        {"cap", 32, 16, 128, {}},  {"chunks", 32, 8, 128, {}},       {"both ways", 12, 12, 64, {}},
        {"ALiBi", 32, 8, 128, {}}, {"plain", 32, 32, 96, {}},        {"plain", 32, 8, 192, {}},
        {"plain", 16, 2, 512, {}}};
    all[3].how.sinks = all[4].how.sinks = 1, all[4].how.window = 128;
    all[5].how.cap = all[6].how.cap = 50;
    all[7].how.chunk = 2048, all[8].how.causal = 0, all[9].how.slopes = 0.01f;
    return all;
}

/* Pairs of a query and a key that it sees, of `tokens` positions behind `depth`. */
static double pairs(const kind &how, int depth, int tokens) {
    double n = 0;
    for (int p = depth; p < depth + tokens; p++) {
        int seen = how.causal ? p + 1 : depth + tokens;
        seen = how.chunk ? std::min(seen, p % how.chunk + 1) : seen;
        n += how.window ? std::min(seen, how.window) : seen;
    }
    return n;
}

static void time_wide(const shape &s, uint32_t format, int depth, int tokens) {
    attention_case a({{0, depth, tokens}}, s.heads, s.kv, s.d, 32, s.how, format, 0, 1);
    const double us = median_us(
        [&] {
            a.wide();
            a.split(true);
        },
        10);
    printf("%-14s H=%d/%-2d D=%-3d fmt %-4u T=%-4d behind %-5d %8.1f us %4.0f TFLOP/s\n", s.name, s.heads, s.kv, s.d,
           format, tokens, depth, us, 4.0 * s.heads * s.d * pairs(s.how, depth, tokens) / us * 1e-6);
}

static void time_few(const shape &s, uint32_t format, int depth, int batch) {
    std::vector<attention_case *> layers;
    const double seen = pairs(s.how, depth - 1, 1), bytes = 2.0 * s.kv * cache_bytes(format, s.d) * depth * batch;
    std::vector<run> runs;
    for (int i = 0; i < batch; i++)
        runs.push_back({i, depth - 1, 1});
    for (int i = 0; i < (bytes > 1e9 ? 1 : bytes > 1e8 ? 2 : 8); i++)
        layers.push_back(new attention_case(runs, s.heads, s.kv, s.d, 32, s.how, format, 0, 1));
    auto launch = [&](int i) {
        attention_case &a = *layers[i % layers.size()];
        if (a.most > FEW)
            a.wide();
        a.split(true);
    };
    launch(0);
    const double us = graph_us(launch, 32, 20);
    printf("%-14s H=%d/%-2d D=%-3d fmt %-4u %d behind %-5d %8.2f us %4.0f GB/s\n", s.name, s.heads, s.kv, s.d, format,
           batch, depth, us, bytes / depth * seen / us * 1e-3);
    for (attention_case *a : layers)
        delete a;
}

static void time_all(bool plain) {
    for (const shape &s : shapes()) {
        if (plain && strcmp(s.name, "plain"))
            continue;
        for (int tokens : {512, 4096})
            time_wide(s, CACHE_F16, 0, tokens);
        time_few(s, CACHE_F16, 4096, 1);
    }
    for (uint32_t f : {CACHE_BF16, CACHE_FP8, CACHE_Q8_0}) {
        const shape s = {"plain", 32, 8, 128, {}};
        time_wide(s, f, 0, 4096);
        time_few(s, f, 16384, 1);
    }
    const shape s = {"plain", 32, 8, 128, {}};
    time_wide(s, CACHE_F16, 12288, 4096);
    for (int depth : {128, 1024, 16384, 65536})
        time_few(s, CACHE_F16, depth, 1);
    for (int batch : {16, 128})
        time_few(s, CACHE_F16, 4096, batch);
}

int main(int n, char **argv) {
    const std::string what = n > 1 ? argv[1] : "all";
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (what == "all" || what == "check") {
        check_shapes();
        check_kinds();
        check_extremes();
    }
    if (what != "check")
        time_all(what == "plain");
    printf("%d wrong\n", failures);
    return failures != 0;
}
