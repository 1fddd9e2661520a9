/* columns.cu: checks and times products of 2 to 64 columns, and of prompts, on a GPU that passes for one of 8.0, 8.6 or 8.9: every kernel
 * of the table that can compute a call, beside each other.
 *
 * gcc -c -Icext/gpu -Icext/kernels -Icext/include -Icext/quant -IBUILD/cext/headers cext/cuda/columns.c cext/cuda/products.c \
 *     cext/cuda/prompt.c cext/kernels/table.c
 * nvcc -std=c++17 -O3 -arch=sm_90a -Icext/gpu -Icext/kernels -Icext/include -Icext/quant -IBUILD/cext/headers -o columns \
 *      bench/gpu_kernels/columns.cu columns.o products.o prompt.o table.o      (BUILD: where CMake built the C libraries)
 * columns BUILD/cext/cuda [check|time|prompt] [80|86|89] [KERNEL]      (only kernels with this in their names)
 *
 * A check compares each number with a product in float64 of the file's blocks, within an NMSE of 5e-5, and the second run's bits with the
 * first's; output and scratch are poisoned with NaN before. Times are medians of seven replays of a graph, in which copies of the weights of
 * more than the second-level cache take turns. `prompt` gives TFLOP/s of products of 128, 512 and 4,096 tokens, two operations a multiply-add,
 * with the conversion of the activations.
 */
extern "C" {
#include "kernel.h"
#include "../../cext/kernels/modes.h"
extern const gpu_kernel cuda_warp_kernels[];
}
#include "blocks.cuh"
#include "entries.cuh"

enum { BF16 = 30, F16 = 1 };

struct shape {
    const char *name, *op, *format;
    int rows, k;
};

static bool gated(const shape &s) {
    return !strcmp(s.op, "linear_swiglu");
}

__global__ void fill_16(uint16_t *to, int64_t n, bool halves, uint32_t seed) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        const float x = 0.02f * normal(seed, i);
        to[i] = halves ? __half_as_ushort(__float2half(x)) : __bfloat16_as_ushort(__float2bfloat16(x));
    }
}

__device__ void unpack_16(const uint16_t *w, bool halves, float *out) {
    *out = halves ? __half2float(__ushort_as_half(*w)) : __bfloat162float(__ushort_as_bfloat16(*w));
}

/* error and square of output (token, row), a thread each. NUMBERS: of a block. */
template <class B, int NUMBERS>
__global__ void compare(const gpu_call c, const B *gate, const B *up, bool halves, double *sums) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x, token = blockIdx.y, rows = c.v[0].shape[1],
              k = c.v[1].shape[1];
    if (row >= rows)
        return;
    const float *x = (const float *)(c.v[1].data + token * c.v[1].stride);
    double sum[2] = {0, 0};
    for (int m = 0; m < (up ? 2 : 1); m++)
        for (int b = 0; b < k / NUMBERS; b++) {
            float v[NUMBERS];
            const B *block = (m ? up : gate) + (int64_t)row * (k / NUMBERS) + b;
            if constexpr (NUMBERS == 1)
                unpack_16(block, halves, v);
            else
                unpack_any(block, v);
            for (int i = 0; i < NUMBERS; i++)
                sum[m] += (double)v[i] * x[b * NUMBERS + i];
        }
    const double want = up ? sum[0] / (1 + exp(-sum[0])) * sum[1] : sum[0],
                 y = ((const float *)(c.v[0].data + token * c.v[0].stride))[row];
    atomicAdd(sums, y == y ? (y - want) * (y - want) : 1e300);
    atomicAdd(sums + 1, want * want);
}

/* A call with its memory; `copies` of the weights are behind each other. */
struct problem {
    shape s;
    memory x, y, fault;
    memory *file[2] = {nullptr, nullptr}, *packed[2] = {nullptr, nullptr};
    uint64_t bytes = 0; /* of a copy of one weight */
    int number;
    gpu_call c = {};
    problem(const shape &s_, int tokens, int copies, float outliers)
        : s(s_), x((size_t)tokens * s.k * 4), y((size_t)tokens * s.rows * 4), fault(4, 0) {
        const bool dense = !strcmp(s.format, "f16") || !strcmp(s.format, "bf16");
        fill_floats<<<512, 256, 0, stream>>>((float *)x.at, x.size / 4, 5, outliers);
        c.fault = (uint64_t)fault.at;
        c.v[0] = view_of(y.at, {tokens, s.rows}, (uint64_t)s.rows * 4, 0);
        c.v[1] = view_of(x.at, {tokens, s.k}, (uint64_t)s.k * 4, 0);
        c.n_in = gated(s) ? 3 : 2;
        number = dense ? (!strcmp(s.format, "f16") ? F16 : BF16) : format_named(s.format).number;
        for (int m = 0; m < (int)c.n_in - 1; m++) {
            if (dense) {
                bytes = (uint64_t)s.rows * s.k * 2;
                file[m] = new memory(copies * bytes);
                fill_16<<<2048, 256, 0, stream>>>((uint16_t *)file[m]->at, copies * bytes / 2, number == F16, 70 + m);
                c.v[2 + m] = view_of(file[m]->at, {s.rows, s.k}, (uint64_t)s.k * 2, (uint32_t)number);
                continue;
            }
            const format &f = format_named(s.format);
            const int64_t blocks = (int64_t)copies * s.rows * (s.k / f.columns);
            bytes = (uint64_t)((s.rows + 15) / 16) * ((s.k + 255) / 256) * f.chunk;
            file[m] = new memory(blocks * f.block), packed[m] = new memory(copies * bytes);
            fill_blocks<<<2048, 128, 0, stream>>>(file[m]->at, blocks, f.block, f.number, 77 + m);
            gpu_call p = {};
            p.v[0].data = (uint64_t)packed[m]->at, p.v[1].data = (uint64_t)file[m]->at;
            p.v[0].shape[0] = copies, p.v[0].shape[1] = s.rows, p.v[0].shape[2] = s.k;
            f.pack<<<1056, 256, 0, stream>>>(p);
            OK(cudaGetLastError());
            c.v[2 + m] =
                view_of(packed[m]->at, {s.rows, s.k}, bytes / ((s.rows + 15) / 16), (uint32_t)number | PACKED_FLAG);
        }
    }
    ~problem() {
        for (int m = 0; m < 2; m++)
            delete file[m], delete packed[m];
    }
};

static std::string wanted;

/* Calls use(entry) for every wanted kernel that can compute the call. */
static void each_kernel(problem &p, const std::function<void(entry &)> &use) {
    for (const gpu_kernel *k = cuda_warp_kernels; k->op; k++) {
        entry e;
        if (!strcmp(k->op, p.s.op) && !(k->able ? k->able : k->check)(&p.c, &traits) && e.find(k, p.c, p.s.format) &&
            e.name.find(wanted) != std::string::npos) {
            memory scratch(e.scratch), counters(k->counters ? k->counters : 4, 0);
            p.c.scratch = (uint64_t)scratch.at, p.c.counters = (uint64_t)counters.at;
            scratch.poison(), p.y.poison();
            use(e);
            OK(cudaStreamSynchronize(stream));
        }
    }
}

static void check(const shape &s, int tokens, float outliers) {
    problem p(s, tokens, 1, outliers);
    memory sums(16);
    each_kernel(p, [&](entry &e) {
        std::vector<uint8_t> first(p.y.size), second(p.y.size);
        double got[2];
        for (std::vector<uint8_t> *bits : {&first, &second}) {
            p.y.poison();
            start(e, p.c);
            OK(cudaMemcpyAsync(bits->data(), p.y.at, p.y.size, cudaMemcpyDeviceToHost, stream));
        }
        sums.poison(0);
        const dim3 grid((s.rows + 127) / 128, tokens);
        for (const format &f : formats) {
#define COMPARE(f_)                                                                                                    \
    if (f.number == p.number && f.number == tile_##f_::FORMAT)                                                         \
        compare<block_##f_, packer<tile_##f_>::COLUMNS><<<grid, 128, 0, stream>>>(                                     \
            p.c, (const block_##f_ *)p.file[0]->at, (const block_##f_ *)(gated(s) ? p.file[1]->at : nullptr), false,   \
            (double *)sums.at);
            TILE_FORMATS(COMPARE)
        }
        if (p.number == F16 || p.number == BF16)
            compare<uint16_t, 1><<<grid, 128, 0, stream>>>(p.c, (const uint16_t *)p.file[0]->at,
                                                           (const uint16_t *)(gated(s) ? p.file[1]->at : nullptr),
                                                           p.number == F16, (double *)sums.at);
        OK(cudaMemcpyAsync(got, sums.at, 16, cudaMemcpyDeviceToHost, stream));
        OK(cudaStreamSynchronize(stream));
        const bool bad = !(got[0] <= 5e-5 * got[1]) || first != second;
        failures += bad;
        printf("%-44s %-14s %-6s %5d x %5d T %2d out %-3g NMSE %.1e%s %s\n", e.name.c_str(), s.op, s.format, s.rows,
               s.k, tokens, outliers, got[0] / got[1], first == second ? "" : " other bits", bad ? "WRONG" : "ok");
    });
    fflush(stdout);
}

/* Of its second kernel, without "columns_". */
static std::string short_name(const entry &e) {
    return e.name.substr(e.name.find('+') + 9);
}

static void time_shape(const shape &s) {
    for (int tokens : {8, 16, 32, 64}) {
        const uint64_t once = (uint64_t)s.rows * s.k * (gated(s) ? 2 : 1) / 2;
        const int copies = (int)(300000000 / once) + 1;
        problem p(s, tokens, copies, 0);
        const uint64_t all = p.bytes * (gated(s) ? 2 : 1);
        printf("%-10s %-5s T %2d floor %5.1f |", s.name, s.format, tokens, (double)all / 4.38e6);
        each_kernel(p, [&](entry &e) {
            const uint64_t at[2] = {p.c.v[2].data, p.c.v[3].data};
            for (int only : {-1, 1}) { /* both launches, and the second alone */
                const double us = graph_us(
                    [&](int i) {
                        for (int m = 0; m < (gated(s) ? 2 : 1); m++)
                            p.c.v[2 + m].data = at[m] + i % copies * p.bytes;
                        start(e, p.c, only);
                    },
                    std::max(copies, 12), 7);
                printf(only < 0 ? " %s %.1f" : " (%.1f)", short_name(e).c_str(), us);
            }
            printf(" %ux%u", e.grids[1].groups[0], e.grids[1].groups[1]);
            p.c.v[2].data = at[0], p.c.v[3].data = at[1];
        });
        printf("\n");
        fflush(stdout);
    }
}

static void time_prompt(const shape &s, int tokens) {
    const int copies = tokens > 512 ? 2 : (int)(300000000 / ((uint64_t)s.rows * s.k / 2)) + 1;
    problem p(s, tokens, copies, 0);
    printf("%5d x %5d %-5s T %4d |", s.rows, s.k, s.format, tokens);
    each_kernel(p, [&](entry &e) {
        const std::string name = short_name(e);
        if (name.substr(0, 6) != "shared" && name != "int8" && name != "warp_64_2")
            return;
        const uint64_t at = p.c.v[2].data;
        const double us = graph_us(
            [&](int i) {
                p.c.v[2].data = at + i % copies * p.bytes;
                start(e, p.c);
            },
            std::max(copies, 4), 7);
        p.c.v[2].data = at;
        printf(" %s %.0f (%.1f us, %u x %u)", name.c_str(), 2e-6 * tokens * s.rows * s.k / us, us, e.grids[1].groups[0],
               e.grids[1].groups[1]);
    });
    printf("\n");
    fflush(stdout);
}

int main(int count, char **args) {
    const std::string folder = count > 1 ? args[1] : ".", what = count > 2 ? args[2] : "";
    open_libraries(folder, {"columns_warp", "columns_chunk", "columns_shared", "columns_int8", "columns_dense"},
                   count > 3 ? atoi(args[3]) : 80);
    wanted = count > 4 ? args[4] : "";
    if (what == "prompt") {
        for (const char *f : {"q4_k", "q6_k", "q8_0"})
            for (int tokens : {128, 512, 4096}) {
                time_prompt({"", "linear", f, 28672, 4096}, tokens);
                time_prompt({"", "linear", f, 4096, 14336}, tokens);
            }
        return 0;
    }
    if (what != "time") {
        for (const char *f :
             {"q4_k", "q5_k", "q6_k", "q8_0", "q4_0", "q5_0", "iq4_nl", "iq4_xs", "mxfp4", "i8_g128", "f16", "bf16"})
            for (int tokens : {5, 8, 13, 32, 50})
                for (const char *op : {"linear", "linear_swiglu"}) {
                    check(
                        {
                            "",
                            op,
                            f,
                            130,
                            768,
                        },
                        tokens, 0);
                    check({"", op, f, 4096, 1024}, tokens, 300);
                }
        for (const char *f : {"q4_k", "q6_k", "q8_0"})
            for (int tokens : {65, 300})
                check({"", "linear", f, 4096, 4096}, tokens, 300);
        check({"", "linear", "q4_k", 4096, 14336}, 16, 0);
        check({"", "linear", "bf16", 4096, 14336}, 16, 0);
        check({"", "linear", "f16", 100, 1000}, 64, 0);
    }
    if (what != "check")
        for (const char *f : {"q4_k", "q6_k", "bf16"}) {
            time_shape({"QKV", "linear", f, 6144, 4096});
            time_shape({"output", "linear", f, 4096, 4096});
            time_shape({"gate, up", "linear_swiglu", f, 14336, 4096});
            time_shape({"down", "linear", f, 4096, 14336});
        }
    printf(failures ? "%d WRONG\n" : "all right\n", failures);
    return failures != 0;
}
