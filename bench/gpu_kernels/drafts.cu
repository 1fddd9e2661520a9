/* drafts.cu: checks and times attention of a sequence's draft tokens, which attention_split takes in runs, on an sm_90 GPU, alone.
 *
 * Build: nvcc -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -Icext/kernels -Icext/include -Icext/quant -Icext/gpu \
 *        -IBUILD/cext/headers -o drafts bench/gpu_kernels/drafts.cu   (BUILD: where CMake built the C libraries)
 */
#define SPLIT_KERNELS
#define RUN_LEAST 1 /* runs of any past */
#include "../../cext/cuda/attention_split.cu"
SPLIT(attention_split_128_8_f16, CACHE_F16, 128, 1, false, 2)
SPLIT(attention_split_64_8_f16, CACHE_F16, 64, 1, false, 3)
SPLIT(attention_split_128_8_q8_0, CACHE_Q8_0, 128, 1, false, 2)
#include "paged.cuh"

#include "attention_case.h"

/* Of one KV head up to 8 query heads. early: launched before the kernel ahead has ended. */
void attention_case::split(bool early) {
    const void *k = (const void *)(format == CACHE_Q8_0 ? attention_split_128_8_q8_0
                                   : d == 64            ? attention_split_64_8_f16
                                                        : attention_split_128_8_f16);
    const int shared = split_shared(d, heads / kv, 1), walkers = most <= FEW ? most : WALKERS;
    allow(k, shared);
    launch(k, {dim3(kv, walkers, most_splits(&call)), 32 * WARPS, shared, early}, call);
}

static void check_all(void) {
    const std::vector<std::vector<run>> cases = {{{0, 120, 7}, {1, 40, 1}, {2, 700, 5}, {3, 5, 2}},
                                                 {{0, 4085, 16}},
                                                 {{1, 0, 9}, {0, 63, 6}},
                                                 {{2, 511, 2}, {0, 512, 2}, {1, 1023, 3}, {3, 9000, 4}},
                                                 {{0, 700, 1}, {1, 701, 1}, {2, 702, 1}}};
    std::vector<kind> kinds(6);
    kinds[1].window = 100, kinds[2].window = 1, kinds[3].chunk = 64, kinds[4].sinks = 4;
    kinds[5].window = 300, kinds[5].sinks = 3;
    for (const std::vector<run> &runs : cases)
        for (const kind &how : kinds)
            for (int group : {1, 3, 4, 5, 8})
                for (int which = 0; which < 3; which++) {
                    const uint32_t format = which == 2 ? CACHE_Q8_0 : CACHE_F16;
                    const bool full = runs[0].length == 16; /* no place for tokens that the step does not have */
                    attention_case a(runs, 2 * group, 2, which == 1 ? 64 : 128, 32, how, format, full ? 0 : 1, 1);
                    a.split(false);
                    a.check("drafts", (which == 2 ? 2e-5 : 1e-6) * (how.window || how.chunk || how.sinks ? 4 : 1));
                }
}

/* Microseconds of a layer: so many rows of one sequence, and of as many sequences. */
static void time_rows(int depth, int rows) {
    std::vector<double> us;
    for (int apart = 0; apart < 2; apart++) {
        std::vector<run> runs;
        for (int i = 0; i < (apart ? rows : 1); i++)
            runs.push_back({i, depth, apart ? 1 : rows});
        std::vector<attention_case *> layers;
        for (int i = 0; i < 4; i++)
            layers.push_back(new attention_case(runs, 32, 8, 128, 32, {}, CACHE_F16, 0, 1));
        us.push_back(graph_us([&](int i) { layers[i % layers.size()]->split(true); }, 32, 20));
        for (attention_case *a : layers)
            delete a;
    }
    printf(
        "32 heads of 128, 8 KV heads, F16, behind %5d: %2d rows of one sequence %7.2f us, of %2d sequences %7.2f us\n",
        depth, rows, us[0], rows, us[1]);
}

int main(void) {
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    setvbuf(stdout, NULL, _IOLBF, 0);
    check_all();
    for (int depth : {128, 4096, 16384})
        for (int rows : {1, 2, 4, 8, 16})
            time_rows(depth, rows);
    printf("%d wrong\n", failures);
    return failures != 0;
}
