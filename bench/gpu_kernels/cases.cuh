/* cases.cuh: what the benches of whole kernels share: memory that is poisoned with NaN, random inputs, launches, times (medians of
 * events), and the report of a check. The kernels are included before it.
 */
#ifndef SATCHEL_BENCH_CASES_CUH
#define SATCHEL_BENCH_CASES_CUH

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "bench.cuh"

static cudaStream_t stream;
static uint32_t seed = 1;

struct memory {
    uint8_t *at = nullptr;
    size_t size;
    explicit memory(size_t n, int fill = 0xFF) : size(n ? n : 1) {
        OK(cudaMalloc(&at, size));
        poison(fill);
        OK(cudaStreamSynchronize(stream));
    }
    memory(const memory &) = delete;
    ~memory() {
        cudaFree(at);
    }
    void poison(int fill = 0xFF) {
        OK(cudaMemsetAsync(at, fill, size, stream));
    }
};

__global__ void fill_f32(float *x, size_t n, uint32_t s, float scale, int extreme) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        uint32_t z = noise(s + 7, i);
        x[i] = normal(s, i) * scale;
        if (extreme)
            x[i] *= z % 64 == 0 ? 1e4f : z % 64 == 1 ? 1e-6f : z % 64 == 2 ? 0.0f : 1.0f;
    }
}

static gpu_view view_of(const void *data, std::vector<int> shape, uint64_t stride, uint32_t format, int count = -1) {
    gpu_view v = {(uint64_t)data, stride, {1, 1, 1, 1}, count, format};
    for (size_t i = 0; i < shape.size(); i++)
        v.shape[i] = shape[i];
    return v;
}

struct launch_shape {
    dim3 grid;
    int threads, shared;
    bool early;
    int cluster = 0;
};

static void launch(const void *kernel, const launch_shape &s, gpu_call &call) {
    cudaLaunchConfig_t config = {s.grid, dim3(s.threads), (size_t)s.shared, stream};
    cudaLaunchAttribute a[2];
    int n = 0;
    if (s.early)
        a[n].id = cudaLaunchAttributeProgrammaticStreamSerialization,
        a[n++].val.programmaticStreamSerializationAllowed = 1;
    if (s.cluster)
        a[n].id = cudaLaunchAttributeClusterDimension, a[n++].val.clusterDim = {(unsigned)s.cluster, 1, 1};
    config.attrs = a, config.numAttrs = n;
    void *args[] = {&call};
    OK(cudaLaunchKernelExC(&config, kernel, args));
}

static void allow(const void *kernel, int shared) {
    OK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
}

static double median_us(const std::function<void()> &f, int times) {
    std::vector<float> all;
    cudaEvent_t a, b;
    OK(cudaEventCreate(&a));
    OK(cudaEventCreate(&b));
    f();
    for (int i = 0; i < times; i++) {
        float ms;
        OK(cudaEventRecord(a, stream));
        f();
        OK(cudaEventRecord(b, stream));
        OK(cudaEventSynchronize(b));
        OK(cudaEventElapsedTime(&ms, a, b));
        all.push_back(ms * 1000);
    }
    std::sort(all.begin(), all.end());
    return all[all.size() / 2];
}

/* Microseconds of f(i), the median of replays of a graph of `each` of them. */
static double graph_us(const std::function<void(int)> &f, int each, int times) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    OK(cudaStreamSynchronize(stream));
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < each; i++)
        f(i);
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    const double us = median_us([&] { OK(cudaGraphLaunch(exec, stream)); }, times) / each;
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    return us;
}

/* Sums of squares of errors and of the reference, and the largest error of a row relative to its reference. */
static void report(const char *what, const std::vector<double> &sums, double bound) {
    const double nmse = sums[0] / std::max(sums[1], 1e-300);
    const bool bad = !(nmse <= bound) || sums[2] != 0;
    failures += bad;
    printf("%-64s NMSE %.1e  unwritten or touched %d %s\n", what, nmse, (int)sums[2], bad ? "WRONG" : "ok");
}

#endif
