/* experts.cu: checks the products of mixtures of experts on a GPU and times each of their kernels.
 *
 * gcc -c -Icext/gpu -Icext/kernels -Icext/include -Icext/quant -IBUILD/cext/headers cext/cuda/experts.c cext/kernels/table.c
 * nvcc -std=c++17 -O3 -arch=sm_90a -Icext/gpu -Icext/kernels -Icext/include -Icext/quant -IBUILD/cext/headers -o experts \
 *      bench/gpu_kernels/experts.cu experts.o table.o      (BUILD: where CMake built the C libraries)
 * experts BUILD/cext/cuda [check|small|race|time|brief] [80|86|89]     (a device that the GPU passes for)
 *
 * Kernels are those of the library, by its own tables: a way is the first entry whose kernel has the way's name. A check draws
 * weights, activations and ids, poisons the output and scratch with NaN, and compares each number with a product in float64,
 * within a bound of the length of its terms; a second run must give the same bits. `small` checks few pairs, for
 * compute-sanitizer, and `race` three formats of them, for its racecheck (--kernel-name kns=expert_ leaves out the bench's own
 * kernels). Times are medians of graphs' replays, in which copies of the weights of more than the second-level cache take turns;
 * `brief` has fewer of them.
 */
#include <random>

extern "C" {
#include "kernel.h"
#include "../../cext/kernels/modes.h"
extern const gpu_kernel cuda_expert_kernels[];
}
#include "../../cext/cuda/expert_warp.h"
#include "blocks.cuh"
#include "entries.cuh"

struct sums {
    double error, square;
    uint32_t wrong, unwritten;
};

/* Compares output (pair, row), a thread each, of every step-th pair; gate and up: the file's bytes. */
template <class B, int COLUMNS>
__global__ void reference(const gpu_call c, const B *gate, const B *up, int now, int step, sums *out) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x, rows = c.v[0].shape[2], k = c.v[2].shape[2];
    const int each = c.v[0].shape[1], pair = blockIdx.y * step, t = pair / each, j = pair % each,
              experts = c.v[2].shape[0];
    if (row >= rows)
        return;
    const float y = ((const float *)(c.v[0].data + t * c.v[0].stride))[(int64_t)j * rows + row];
    const int id = ((const int32_t *)(c.v[c.n_in].data + t * c.v[c.n_in].stride))[j];
    if (t >= now || id < 0 || id >= experts) {
        if (t >= now ? y == y : y != 0)
            atomicAdd(&out->wrong, 1u);
        return;
    }
    const float *x = (const float *)(c.v[1].data + t * c.v[1].stride) +
                     (c.v[1].shape[1] * c.v[1].shape[2] != k ? (int64_t)j * k : 0);
    double sum[2] = {0, 0}, length[2] = {0, 0};
    for (int m = 0; m < (up ? 2 : 1); m++) {
        const B *w = (m ? up : gate) + ((int64_t)id * rows + row) * (k / COLUMNS);
        for (int b = 0; b < k / COLUMNS; b++) {
            float v[COLUMNS];
            unpack_any(w + b, v);
            for (int i = 0; i < COLUMNS; i++) {
                const double term = (double)v[i] * x[b * COLUMNS + i];
                sum[m] += term, length[m] += term * term;
            }
        }
    }
    double want = sum[0], bound = sqrt(length[0]);
    if (up) {
        const double silu = sum[0] / (1 + exp(-sum[0]));
        want = silu * sum[1], bound = 1.1 * bound * fabs(sum[1]) + (fabs(silu) + 1.1 * 0.02 * bound) * sqrt(length[1]);
    }
    if (!(y == y))
        atomicAdd(&out->unwritten, 1u);
    else if (fabs(y - want) > 0.02 * bound + 1e-6)
        atomicAdd(&out->wrong, 1u);
    atomicAdd(&out->error, (y - want) * (y - want));
    atomicAdd(&out->square, want * want);
}

/* --- calls */

/* The first entry of the op whose last kernel's name begins with `way` and which can compute the call. */
static bool choose(const char *op, const char *way, gpu_call &c, entry &out) {
    for (const gpu_kernel *k = cuda_expert_kernels; k->op; k++) {
        int last = 0;
        while (last + 1 < GPU_LAUNCHES && k->launch[last + 1].kernel)
            last++;
        if (strcmp(k->op, op) || strncmp(k->launch[last].kernel, way, strlen(way)) ||
            (k->able ? k->able : k->check)(&c, &traits))
            continue;
        for (const format &f : formats)
            if (k->format_of > 0 && f.number == (int)(c.v[k->format_of].format & 0xFFFFFF))
                return out.find(k, c, f.name);
    }
    return false;
}

enum routing { EVEN, SKEWED, ONE_EXPERT, SOME_ELSEWHERE, OUT_OF_RANGE };

/* k different experts for each token. */
static std::vector<int32_t> route(int tokens, int experts, int used, routing how, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<int32_t> ids((size_t)tokens * used);
    std::vector<double> chance(experts), key(experts);
    std::vector<int> order(experts);
    for (int e = 0; e < experts; e++)
        chance[e] = how == SKEWED ? 1.0 / (1 + e) : how == ONE_EXPERT && e == experts / 2 ? 1e12 : 1;
    for (int t = 0; t < tokens; t++) {
        for (int e = 0; e < experts; e++)
            order[e] = e, key[e] = -log((random() + 1.0) / 4294967297.0) / chance[e];
        std::partial_sort(order.begin(), order.begin() + used, order.end(),
                          [&](int a, int b) { return key[a] < key[b]; });
        for (int j = 0; j < used; j++)
            ids[(size_t)t * used + j] = (how == SOME_ELSEWHERE && random() % 3 == 0)  ? -1
                                        : (how == OUT_OF_RANGE && random() % 50 == 0) ? experts + 3
                                                                                      : order[j];
    }
    return ids;
}

struct shape {
    int experts, used, rows, k, tokens, now;
    bool gated, own; /* own: an input row for each pair */
    routing how;
    const char *format, *second; /* of the up; the same: NULL */
    float outliers;
};

/* A call with its memory; `copies` of the weights are behind each other. */
struct problem {
    shape s;
    memory x, y, ids, counts, fault;
    memory *file[2] = {nullptr, nullptr}, *packed[2] = {nullptr, nullptr};
    uint64_t bytes[2] = {0, 0};
    gpu_call c = {};
    problem(const shape &s_, int copies, uint32_t seed)
        : s(s_), x((size_t)s.tokens * (s.own ? s.used : 1) * s.k * 4), y((size_t)s.tokens * s.used * s.rows * 4),
          ids((size_t)s.tokens * s.used * 4), counts(64), fault(4) {
        fill_floats<<<512, 256, 0, stream>>>((float *)x.at, x.size / 4, seed, s.outliers);
        OK(cudaMemsetAsync(fault.at, 0, 4, stream));
        OK(cudaMemcpyAsync(counts.at, &s.now, 4, cudaMemcpyHostToDevice, stream));
        std::vector<int32_t> chosen = route(s.tokens, s.experts, s.used, s.how, seed);
        OK(cudaMemcpyAsync(ids.at, chosen.data(), ids.size, cudaMemcpyHostToDevice, stream));
        OK(cudaStreamSynchronize(stream));
        c.counts = (uint64_t)counts.at, c.fault = (uint64_t)fault.at, c.step = 6;
        c.v[0] = view_of(y.at, {s.tokens, s.used, s.rows}, (uint64_t)s.used * s.rows * 4, 0, 0);
        c.v[1] = s.own ? view_of(x.at, {s.tokens, s.used, s.k}, (uint64_t)s.used * s.k * 4, 0, 0)
                       : view_of(x.at, {s.tokens, s.k, 1}, (uint64_t)s.k * 4, 0, 0);
        for (int m = 0; m < (s.gated ? 2 : 1); m++) {
            const format &f = format_named(m && s.second ? s.second : s.format);
            const int64_t all = (int64_t)copies * s.experts, blocks = all * s.rows * (s.k / f.columns);
            const uint64_t stride = (uint64_t)((s.rows + 15) / 16) * ((s.k + 255) / 256) * f.chunk;
            file[m] = new memory(blocks * f.block), packed[m] = new memory(all * stride);
            fill_blocks<<<2048, 128, 0, stream>>>(file[m]->at, blocks, f.block, f.number, seed + 77 + m);
            gpu_call p = {};
            p.v[0].data = (uint64_t)packed[m]->at, p.v[1].data = (uint64_t)file[m]->at;
            p.v[0].shape[0] = (int)all, p.v[0].shape[1] = s.rows, p.v[0].shape[2] = s.k;
            f.pack<<<1056, 256, 0, stream>>>(p);
            OK(cudaGetLastError());
            bytes[m] = s.experts * stride;
            c.v[2 + m] = view_of(packed[m]->at, {s.experts, s.rows, s.k}, stride, (uint32_t)f.number | PACKED_FLAG);
        }
        c.n_in = s.gated ? 4 : 3;
        c.v[c.n_in] = view_of(ids.at, {s.tokens, s.used, 1}, (uint64_t)s.used * 4, HAL_FORMAT_I32, 0);
    }
    ~problem() {
        for (int m = 0; m < 2; m++)
            delete file[m], delete packed[m];
    }
    const char *op() const {
        return s.gated ? "expert_swiglu" : "expert_linear";
    }
};

/* --- checks */

static void check(const shape &s, const char *way, uint32_t seed) {
    problem p(s, 1, seed);
    entry e;
    memory result(sizeof(sums));
    if (!choose(p.op(), way, p.c, e)) {
        if (!s.second)
            printf("%s %s: no kernel WRONG\n", way, s.format), failures++;
        return;
    }
    memory scratch(e.scratch);
    p.c.scratch = (uint64_t)scratch.at;
    std::vector<uint8_t> first(p.y.size), second(p.y.size);
    for (std::vector<uint8_t> *bits : {&first, &second}) {
        scratch.poison(), p.y.poison();
        start(e, p.c);
        OK(cudaMemcpyAsync(bits->data(), p.y.at, p.y.size, cudaMemcpyDeviceToHost, stream));
    }
    OK(cudaMemsetAsync(result.at, 0, result.size, stream));
    const int step = 1 + s.tokens * s.used / 3001;
    const dim3 grid((s.rows + 127) / 128, (s.tokens * s.used + step - 1) / step);
    for (const format &f : formats) {
        if (strcmp(f.name, s.format) || (s.second && strcmp(s.second, s.format)))
            continue;
#define REFERENCE(f_)                                                                                                  \
    if (f.number == tile_##f_::FORMAT)                                                                                 \
        reference<block_##f_, packer<tile_##f_>::COLUMNS><<<grid, 128, 0, stream>>>(                                   \
            p.c, (const block_##f_ *)p.file[0]->at, (const block_##f_ *)(s.gated ? p.file[1]->at : nullptr), s.now,    \
            step, (sums *)result.at);
        TILE_FORMATS(REFERENCE)
    }
    sums got;
    uint32_t fault;
    OK(cudaMemcpyAsync(&got, result.at, sizeof got, cudaMemcpyDeviceToHost, stream));
    OK(cudaMemcpyAsync(&fault, p.fault.at, 4, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    const double nmse = got.square > 0 ? got.error / got.square : 0;
    const bool same = first == second, faulted = s.how == OUT_OF_RANGE ? fault == 7 : fault == 0;
    const bool bad = !(nmse <= 5e-5) || got.wrong || got.unwritten || !same || !faulted;
    failures += bad;
    static const char *names[] = {"even", "skewed", "one", "elsewhere", "outside"};
    printf("%-17s %-6s %3d/%d x %4d x %4d T %4d/%-4d %-9s%s%s out %-4g NMSE %.1e wrong %u missing %u%s%s %s\n", way,
           s.format, s.used, s.experts, s.rows, s.k, s.now, s.tokens, names[s.how], s.gated ? " gated" : "",
           s.own ? " own" : "", s.outliers, nmse, got.wrong, got.unwritten, same ? "" : " other bits",
           faulted ? "" : " fault word", bad ? "WRONG" : "ok");
    fflush(stdout);
}

static const char *WAYS[] = {"experts_few", "experts_many", "expert_tiles_32", "expert_tiles_128"};

static void check_all(bool small, bool race) {
    uint32_t seed = 1;
    for (int way = 2; way < 4; way++) {
        for (const format &f : formats) {
            if (race && f.number != 12 && f.number != 14 && f.number != 8)
                continue;
            check({5, 2, 48, 512, 40, 40, true, false, SKEWED, f.name, nullptr, 0}, WAYS[way], seed++);
            if (small && f.number != 12)
                continue;
            check({5, 2, 272, 256, 70, 66, false, true, ONE_EXPERT, f.name, nullptr, 0}, WAYS[way], seed++);
            check({7, 3, 520, 768, 150, 150, false, false, SOME_ELSEWHERE, f.name, nullptr, 0}, WAYS[way], seed++);
        }
        if (small)
            continue;
        for (int t : {1, 2, 3, 9, 17, 33, 100, 129, 300, 1000}) {
            check({128, 8, 768, 2048, t, t, true, false, EVEN, "q4_k", nullptr, 0}, WAYS[way], seed++);
            check({64, 6, 1408, 2048, t, t - t / 3, true, false, SKEWED, "q4_k", nullptr, 30}, WAYS[way], seed++);
            check({128, 8, 2048, 768, t, t, false, true, SKEWED, "q6_k", nullptr, 0}, WAYS[way], seed++);
        }
        check({64, 6, 2048, 1408, 200, 200, false, true, ONE_EXPERT, "q8_0", nullptr, 0}, WAYS[way], seed++);
        check({64, 6, 2048, 1408, 77, 77, false, true, OUT_OF_RANGE, "q5_0", nullptr, 300}, WAYS[way], seed++);
        check({1000, 4, 100, 352, 500, 500, true, false, SOME_ELSEWHERE, "q5_0", nullptr, 0}, WAYS[way], seed++);
        check({3, 2, 64, 256, 10, 0, true, false, EVEN, "q4_k", nullptr, 0}, WAYS[way], seed++);
        check({128, 8, 768, 2048, 4096, 4096, true, false, SKEWED, "q4_k", nullptr, 0}, WAYS[way], seed++);
        check({128, 8, 2048, 768, 4096, 4096, false, true, EVEN, "q4_k", nullptr, 0}, WAYS[way], seed++);
    }
}

/* Whether a pair's bits in expert_tiles_128 hang on how many pairs its expert has. */
static void compare_bits() {
    std::vector<float> rows[2];
    for (int i = 0; i < 2; i++) {
        problem p({4, 1, 512, 2048, 100, i ? 100 : 20, false, false, EVEN, "q4_k", nullptr, 0}, 1, 5);
        std::vector<int32_t> ids(100, 2);
        OK(cudaMemcpy(p.ids.at, ids.data(), 400, cudaMemcpyHostToDevice));
        entry e;
        if (!choose(p.op(), WAYS[3], p.c, e))
            return;
        memory scratch(e.scratch);
        p.c.scratch = (uint64_t)scratch.at;
        start(e, p.c);
        rows[i].resize(20 * 512);
        OK(cudaMemcpyAsync(rows[i].data(), p.y.at, 20 * 512 * 4, cudaMemcpyDeviceToHost, stream));
        OK(cudaStreamSynchronize(stream));
    }
    int other = 0;
    for (size_t i = 0; i < rows[0].size(); i++)
        other += memcmp(&rows[0][i], &rows[1][i], 4) != 0;
    printf("sums by warps and by warpgroups: %d of %zu have other bits\n", other, rows[0].size());
}

/* --- times */

/* Microseconds of the call, or of one launch of it, the copies in turn. */
static double time_of(problem &p, const entry &e, int copies, int only = -1) {
    const uint64_t at[2] = {p.c.v[2].data, p.c.v[3].data};
    const double us = graph_us(
        [&](int i) {
            for (int m = 0; m < (p.s.gated ? 2 : 1); m++)
                p.c.v[2 + m].data = at[m] + i % copies * p.bytes[m];
            start(e, p.c, only);
        },
        std::max(copies, 6), 7);
    p.c.v[2].data = at[0], p.c.v[3].data = at[1];
    return us;
}

/* The same kernel in `groups` groups of so many warps on a multiprocessor; false: there is no room. */
static bool regroup(entry &e, const gpu_call &c, int most, int warps, int groups) {
    const int limit = groups == 1 ? traits.shared : (traits.shared + 1024) / groups - 1024;
    const int bytes = expert_warp_room_of(most, 0, warps, packed_bytes(c.v[2].format), limit).bytes;
    gpu_grid &g = e.grids.back();
    if (bytes > limit)
        return false;
    g.groups[0] = (uint32_t)(traits.units * groups), g.threads = 32 * warps, g.shared = (uint32_t)bytes;
    return true;
}

static bool brief;

static void time_shape(const char *title, int experts, int used, int rows, int k, bool gated, const char *format,
                       routing how) {
    printf("%s %s %s\n", title, format, how == EVEN ? "even" : "skewed");
    for (int tokens : {1, 4, 16, 64, 128, 512, 4096}) {
        if (brief && tokens < 512 && tokens != 64)
            continue;
        const int copies = 2; /* each is more than the second-level cache */
        problem p({experts, used, rows, k, tokens, tokens, gated, !gated, how, format, nullptr, 0}, copies, 3);
        std::vector<int32_t> ids = route(tokens, experts, used, how, 3);
        std::sort(ids.begin(), ids.end());
        const int64_t touched = std::unique(ids.begin(), ids.end()) - ids.begin();
        const double pairs = (double)tokens * used, flops = 2 * pairs * rows * k * (gated ? 2 : 1),
                     bytes = (double)touched / experts * (p.bytes[0] + p.bytes[1]);
        printf("  T %4d experts %3d floor %6.1f |", tokens, (int)touched, std::max(bytes / 4.3e6, flops / 800e6));
        for (int way = brief ? 2 : 0; way < 4; way++) {
            entry e;
            if (!choose(p.op(), WAYS[way], p.c, e)) {
                printf("        -");
                continue;
            }
            memory scratch(e.scratch);
            p.c.scratch = (uint64_t)scratch.at;
            const double us = time_of(p, e, copies);
            printf(" %8.1f", us);
            if (e.functions.size() > 1)
                printf(" (list %5.1f, %4.0f GB/s %3.0f T)", time_of(p, e, copies, 0), bytes / us * 1e-3,
                       flops / us * 1e-6);
            for (int groups = 0; groups < 4 && traits.lowered && way > 1; groups++) {
                const int warps = groups ? (int)EXPERT_WARPS_FEW : (int)EXPERT_WARPS, each = groups ? groups : 1;
                if (regroup(e, p.c, way == 2 ? 32 : 64, warps, each))
                    printf(" %dx%d %.1f", warps, each, time_of(p, e, copies));
            }
        }
        printf("\n");
        fflush(stdout);
    }
}

int main(int count, char **args) {
    const std::string folder = count > 1 ? args[1] : ".", what = count > 2 ? args[2] : "";
    const int arch = count > 3 ? atoi(args[3]) : 0;
    if (arch)
        WAYS[2] = "expert_warp_32", WAYS[3] = "expert_warp_64";
    open_libraries(folder, {"experts", arch ? "expert_warp" : "expert_tiles"}, arch);
    if (what != "time" && what != "brief") {
        check_all(what == "small" || what == "race", what == "race");
        compare_bits();
    }
    if (what != "check" && what != "small" && what != "race") {
        printf("microseconds: few, many, tiles of 32, tiles of %s; WxN: N groups of W warps\n", arch ? "64" : "128");
        brief = what == "brief";
        for (routing how : {EVEN, SKEWED}) {
            if (brief && how == SKEWED)
                break;
            time_shape("30B-A3B gate and up", 128, 8, 768, 2048, true, "q4_k", how);
            time_shape("30B-A3B down", 128, 8, 2048, 768, false, "q4_k", how);
            time_shape("30B-A3B down", 128, 8, 2048, 768, false, "q6_k", how);
            if (brief && !arch)
                continue;
            time_shape("V2-Lite gate and up", 64, 6, 1408, 2048, true, "q4_k", how);
            time_shape("V2-Lite down", 64, 6, 2048, 1408, false, "q8_0", how);
        }
    }
    printf(failures ? "%d WRONG\n" : "all right\n", failures);
    return failures != 0;
}
