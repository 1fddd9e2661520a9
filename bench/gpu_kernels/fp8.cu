/* fp8.cu: checks the products of FP8 weights on a GPU and times them beside the kernels that would take them otherwise.
 *
 * gcc -c -Icext/gpu -Icext/kernels -Icext/include -Icext/quant -IBUILD/cext/headers cext/cuda/{fp8,products,prompt}.c cext/kernels/table.c
 * nvcc -std=c++17 -O3 -arch=sm_90 -Icext/gpu -Icext/kernels -Icext/include -Icext/quant -IBUILD/cext/headers -o fp8 \
 *      bench/gpu_kernels/fp8.cu fp8.o products.o prompt.o table.o      (BUILD: where CMake built the C libraries)
 * fp8 BUILD/cext/cuda [check|time]
 *
 * Kernels are those of the library, chosen by its own tables. Every check draws new numbers, poisons the output and scratch with NaN
 * and compares with a product in float64; a second run must give the same bits. Times are medians of events; weights and activations
 * of the smaller shapes take turns among copies, so that they do not stay in the second-level cache.
 */
extern "C" {
#include "kernel.h"
extern const gpu_kernel cuda_fp8_kernels[], cuda_prompt_kernels[], gpu_portable_kernels[];
}
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include "entries.cuh"

/* outliers: some columns of a token are `outliers` times as large, others tiny or zero. */
__global__ void fill_x(float *x, size_t n, int k, uint32_t s, float outliers) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        uint32_t z = noise(s + 7, i % k);
        x[i] = normal(s, i) * (outliers > 0 ? (z % 499 == 0  ? outliers
                                               : z % 97 == 1 ? 1e-5f
                                               : z % 97 == 2 ? 0.0f
                                                             : 1.0f)
                                            : 1.0f);
    }
}

__global__ void fill_w(uint8_t *w, size_t blocks, int e5m2, uint32_t s) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < blocks; i += (size_t)gridDim.x * blockDim.x) {
        float d = ldexpf(0.5f + (noise(s + 1, i) & 255) / 256.0f, e5m2 ? -6 : -12);
        memcpy(w + i * 132, &d, 4);
        for (int j = 0; j < 128; j++) { /* near a normal distribution, as checkpoints are */
            float v = normal(s, i * 128 + j) * (e5m2 ? 1.0f : 100.0f);
            uint32_t b = __float_as_uint(v);
            int e = (int)(b >> 23 & 255) - 127 + (e5m2 ? 15 : 7),
                q = e5m2 ? e * 4 + (b >> 21 & 3) : e * 8 + (b >> 20 & 7);
            w[i * 132 + 4 + j] = (uint8_t)((b >> 31) << 7 | (e < 0 ? noise(s, i * 128 + j) & 7 : q > 126 ? 126 : q));
        }
    }
}

__device__ static float value_of(const gpu_view &v, int64_t r, int k) {
    const uint8_t *b = (const uint8_t *)v.data + r * v.stride + k / 128 * 132;
    float d;
    memcpy(&d, b, 4);
    return d * __half2float(__half(__nv_cvt_fp8_to_halfraw(b[4 + k % 128], v.format == 2001 ? __NV_E4M3 : __NV_E5M2)));
}

/* sums: of squared errors, of squared references, of outputs that should not or should have been written, and of bf16's errors. A
 * warp makes an output. */
__global__ void reference(const gpu_call c, double *sums, int gated, int add, int now) {
    const int n = blockIdx.x * 8 + threadIdx.x / 32, t = blockIdx.y, lane = threadIdx.x % 32, k_all = c.v[1].shape[1];
    if (n >= c.v[0].shape[1])
        return;
    const float y = ((const float *)(c.v[0].data + t * c.v[0].stride))[n];
    if (t >= now) {
        if (lane == 0 && y == y)
            atomicAdd(sums + 2, 1.0);
        return;
    }
    const float *x = (const float *)(c.v[1].data + t * c.v[1].stride);
    double got[2] = {0, 0}, rounded[2] = {0, 0};
    for (int side = 0; side <= gated; side++) {
        int which = 2 + side, r = n;
        while (!gated && r >= c.v[which].shape[0])
            r -= c.v[which++].shape[0];
        for (int k = lane; k < k_all; k += 32) {
            const float w = value_of(c.v[which], r, k);
            got[side] += (double)w * x[k];
            rounded[side] += (double)__uint_as_float(((__float_as_uint(w) + 0x8000u) & 0xFFFF0000u)) *
                             __uint_as_float(((__float_as_uint(x[k]) + 0x8000u) & 0xFFFF0000u));
        }
        for (int far = 16; far; far /= 2) {
            got[side] += __shfl_xor_sync(~0u, got[side], far);
            rounded[side] += __shfl_xor_sync(~0u, rounded[side], far);
        }
    }
    double want = got[0], bf16 = rounded[0];
    if (gated)
        want = want / (1 + exp(-want)) * got[1], bf16 = bf16 / (1 + exp(-bf16)) * rounded[1];
    if (add) {
        const double more = ((const float *)(c.v[3].data + t * c.v[3].stride))[n];
        want += more, bf16 += more;
    }
    if (lane)
        return;
    if (!(y == y))
        atomicAdd(sums + 2, 1.0);
    else
        atomicAdd(sums, (y - want) * (y - want));
    atomicAdd(sums + 1, want * want);
    atomicAdd(sums + 3, (bf16 - want) * (bf16 - want));
}

/* --- calls */

static bool choose(const gpu_kernel *table, const char *op, gpu_call &c, entry &out) {
    for (const gpu_kernel *k = table; k->op; k++)
        if (!strcmp(k->op, op) && k->format_of <= (int)c.n_in && !k->check(&c, &traits)) {
            const bool found =
                out.find(k, c, k->format_of > 0 && c.v[k->format_of].format != 2001 ? "f8_e5m2" : "f8_e4m3");
            failures += !found;
            return found;
        }
    return false;
}

/* --- checks */

struct product {
    const char *op;
    std::vector<int> rows;
    int k, tokens, now;
    uint32_t format;
    float outliers;
};

static void check(const product &p, uint32_t flags, uint32_t seed) {
    const bool gated = !strcmp(p.op, "linear_swiglu"), add = !strcmp(p.op, "linear_add");
    int n = 0;
    for (int r : p.rows)
        n += r;
    n = gated ? p.rows[0] : n;
    memory x((size_t)p.tokens * p.k * 4), y((size_t)p.tokens * n * 4), more((size_t)p.tokens * n * 4), sums(32),
        counts(64);
    std::vector<memory *> w;
    gpu_call c = {};
    c.counts = (uint64_t)counts.at, c.flags = flags;
    c.v[c.n_in++] = view_of(y.at, {p.tokens, n}, 4 * (uint64_t)n, 0, 0);
    c.v[c.n_in++] = view_of(x.at, {p.tokens, p.k}, 4 * (uint64_t)p.k, 0, 0);
    const uint64_t stride = (uint64_t)p.k / 128 * 132;
    for (int r : p.rows) {
        w.push_back(new memory(r * stride));
        fill_w<<<512, 256, 0, stream>>>(w.back()->at, r * stride / 132, p.format == 2002, seed + c.n_in);
        c.v[c.n_in++] = view_of(w.back()->at, {r, p.k}, stride, p.format);
    }
    if (add)
        c.v[c.n_in++] = view_of(more.at, {p.tokens, n}, 4 * (uint64_t)n, 0, 0);
    c.n_in--;
    fill_x<<<512, 256, 0, stream>>>((float *)x.at, (size_t)p.tokens * p.k, p.k, seed + 50, p.outliers);
    fill_x<<<512, 256, 0, stream>>>((float *)more.at, (size_t)p.tokens * n, n, seed + 60, 0);
    OK(cudaMemcpyAsync(counts.at, &p.now, 4, cudaMemcpyHostToDevice, stream));
    entry e;
    traits.flags = flags;
    if (!choose(cuda_fp8_kernels, p.op, c, e)) {
        printf("%s K %d tokens %d: no kernel WRONG\n", p.op, p.k, p.tokens), failures++;
        return;
    }
    memory scratch(e.scratch);
    c.scratch = (uint64_t)scratch.at;
    start(e, c);
    std::vector<uint8_t> first(y.size), second(y.size);
    OK(cudaMemcpyAsync(first.data(), y.at, y.size, cudaMemcpyDeviceToHost, stream));
    scratch.poison(), y.poison();
    start(e, c);
    OK(cudaMemcpyAsync(second.data(), y.at, y.size, cudaMemcpyDeviceToHost, stream));
    OK(cudaMemsetAsync(sums.at, 0, 32, stream));
    reference<<<dim3((n + 7) / 8, p.tokens), 256, 0, stream>>>(c, (double *)sums.at, gated, add, p.now);
    double got[4];
    OK(cudaMemcpyAsync(got, sums.at, 32, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    const double nmse = p.now ? got[0] / got[1] : 0, bound = flags & 1 ? 3e-3 : 5e-6;
    const bool same = first == second, bad = !(nmse <= bound) || got[2] != 0 || !same;
    failures += bad;
    printf("%-13s N %-6d K %-5d T %4d/%-4d %d out %-5g %-16s", p.op, n, p.k, p.now, p.tokens, (int)p.format, p.outliers,
           e.name.substr(e.name.find('+') + 1).c_str());
    printf(" groups %u threads %u cluster %u NMSE %.1e (bf16 %.1e) wrong writes %g%s %s\n", e.grids[1].groups[0],
           e.grids[1].threads, e.grids[1].cluster, nmse, got[3] / got[1], got[2], same ? "" : " other bits",
           bad ? "WRONG" : "ok");
    fflush(stdout);
    for (memory *m : w)
        delete m;
}

static void check_all() {
    uint32_t seed = 1;
    for (uint32_t flags = 0; flags < 2; flags++) {
        for (int t : {1, 2, 8, 9, 16, 17, 32, 40, 64, 100, 128, 129, 300})
            check({"linear", {256}, 1024, t, t, 2001, 0}, flags, seed += 100);
        for (int t : {1, 16, 20, 64, 128, 200}) {
            check({"linear", {100, 28, 7}, 640, t, t > 2 ? t - 2 : t, 2002, 30}, flags, seed += 100);
            check({"linear_add", {4096}, 4096, t, t, 2001, 0}, flags, seed += 100);
            check({"linear_swiglu", {1000, 1000}, 1408, t, t, 2001, 0}, flags, seed += 100);
            check({"linear", {4096, 1024, 1024}, 4096, t, t, 2001, 1000}, flags, seed += 100);
        }
        check({"linear_add", {512}, 14336, 128, 128, 2001, 0}, flags, seed += 100);
        check({"linear", {130}, 128, 128, 0, 2001, 0}, flags, seed += 100);
        check({"linear", {1024}, 14336, 500, 500, 2001, 100}, flags, seed += 100);
    }
}

/* --- times */

static void time_one(const char *op, std::vector<int> rows, int k, int tokens) {
    const bool gated = !strcmp(op, "linear_swiglu"), add = !strcmp(op, "linear_add");
    int n = 0;
    for (int r : rows)
        n += r;
    const uint64_t stride = (uint64_t)k / 128 * 132, bytes = n * stride;
    const int copies = (int)std::max<uint64_t>(1, (200ull << 20) / bytes + 1), out = gated ? rows[0] : n;
    memory x((size_t)tokens * k * 4), y((size_t)tokens * out * 4), more((size_t)tokens * out * 4), w(bytes * copies),
        counts(64);
    fill_w<<<2048, 256, 0, stream>>>(w.at, bytes * copies / 132, 0, 3);
    fill_x<<<512, 256, 0, stream>>>((float *)x.at, (size_t)tokens * k, k, 4, 0);
    fill_x<<<512, 256, 0, stream>>>((float *)more.at, (size_t)tokens * out, k, 5, 0);
    printf("%-14s N %-6d K %-6d T %-5d", op, n, k, tokens);
    for (int way = 0; way < 4; way++) {
        gpu_call c = {};
        entry e;
        traits.flags = c.flags = way == 1;
        c.v[c.n_in++] = view_of(y.at, {tokens, out}, 4 * (uint64_t)out, 0);
        c.v[c.n_in++] = view_of(x.at, {tokens, k}, 4 * (uint64_t)k, 0);
        const uint32_t first = c.n_in;
        for (int r : rows)
            c.v[c.n_in++] = view_of(nullptr, {r, k}, stride, 2001);
        const uint32_t last = c.n_in;
        if (add)
            c.v[c.n_in++] = view_of(more.at, {tokens, out}, 4 * (uint64_t)out, 0);
        c.n_in--;
        for (uint32_t i = first; i < last; i++)
            c.v[i].data = (uint64_t)w.at;
        const gpu_kernel *table = way < 2 ? cuda_fp8_kernels : way == 2 ? cuda_prompt_kernels : gpu_portable_kernels;
        if ((way == 3 && tokens > 16) || !choose(table, op, c, e)) {
            printf("        -");
            continue;
        }
        memory scratch(e.scratch);
        c.scratch = (uint64_t)scratch.at;
        int turn = 0;
        const double us = median_us(
                              [&] {
                                  for (int i = 0; i < 8; i++, turn++) {
                                      uint64_t at = (uint64_t)w.at + turn % copies * bytes;
                                      for (uint32_t j = first; j < last; j++)
                                          c.v[j].data = at, at += c.v[j].shape[0] * stride;
                                      start(e, c);
                                  }
                              },
                              tokens > 1000 ? 5 : 21) /
                          8;
        const double flops = 2.0 * n * k * tokens / us * 1e-6;
        printf("  %8.1f", us);
        if (way < 2)
            printf(" (%4.0f GB/s %4.0f T)", bytes / us * 1e-3, flops);
    }
    printf("\n");
    fflush(stdout);
}

int main(int count, char **args) {
    const std::string folder = count > 1 ? args[1] : ".", what = count > 2 ? args[2] : "";
    open_libraries(folder, {"fp8", "fp8_wide", "wide", "wide_tiles", "portable"});
    if (what != "time")
        check_all();
    if (what != "check") {
        printf("microseconds: FP8 in two halves, FP8 (--precision fast), bf16 tiles, portable kernels; with what makes "
               "the activations\n");
        for (int tokens : {1, 8, 16, 32, 64, 128, 256, 512, 1024, 4096}) {
            time_one("linear", {4096, 1024, 1024}, 4096, tokens);
            time_one("linear_add", {4096}, 4096, tokens);
            time_one("linear_swiglu", {14336, 14336}, 4096, tokens);
            time_one("linear_add", {4096}, 14336, tokens);
        }
    }
    printf(failures ? "%d WRONG\n" : "all right\n", failures);
    return failures != 0;
}
