/* steps.cu: what lies between the kernels of two decoding steps, by how a step gets its block and how many steps a graph has.
 *
 * A step is a chain of kernels that do nothing for some microseconds, launched early as a plan's are. Its block differs from step to
 * step; its last kernel leaves a token that hangs on the block and on the token before, so a block that comes late or twice is seen.
 * The host launches one graph ahead of the one whose tokens it waits for, as the engine does.
 *
 * nvcc -std=c++17 -O3 -arch=sm_90a -o steps bench/gpu_kernels/steps.cu
 * steps [kernels of a step] [microseconds of a kernel]
 */
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <vector>

#include <cuda_runtime.h>

#include "bench.cuh"

enum { BLOCK = 4096 /* bytes of a step block */, SLOTS = 64 /* of blocks and tokens */, STEPS = 512, THREADS = 256 };

struct call {
    const uint4 *host; /* the step's block in mapped memory; null: it has been copied */
    uint4 *block;      /* on the device */
    uint32_t *last,
        *token; /* the token before, on the device; where the host reads this one, null where it is copied */
    uint64_t nanoseconds;
    int first, ends;
};

static __device__ uint64_t now(void) {
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

static __global__ void __launch_bounds__(THREADS) piece(const call c) {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
    if (c.first && c.host && blockIdx.x == 0) { /* volatile: the host writes another block there later */
        const volatile uint32_t *from = (const volatile uint32_t *)c.host;
        for (int i = threadIdx.x; i < BLOCK / 4; i += THREADS)
            ((uint32_t *)c.block)[i] = from[i];
    }
    const long long begin = clock64();
    while (clock64() - begin < (long long)(c.nanoseconds * 7 / 4)) /* at 1.75 GHz */
        ;
    if (c.ends && blockIdx.x == 0 && threadIdx.x == 0) {
        *c.last = *c.last * 31 + ((const volatile uint32_t *)c.block)[BLOCK / 4 - 1];
        if (c.token) {
            *(volatile uint32_t *)c.token = *c.last;
            __threadfence_system();
        }
    }
}

struct bench {
    int kernels, nanoseconds;
    uint8_t *blocks, *blocks_there; /* pinned, SLOTS of them; the same as the device sees them */
    uint32_t *tokens, *tokens_there, *last;
    uint4 *block;
    cudaStream_t stream;

    bench(int k, int ns) : kernels(k), nanoseconds(ns) {
        OK(cudaHostAlloc(&blocks, (size_t)SLOTS * BLOCK, cudaHostAllocMapped));
        OK(cudaHostAlloc(&tokens, SLOTS * 4, cudaHostAllocMapped));
        OK(cudaHostGetDevicePointer(&blocks_there, blocks, 0));
        OK(cudaHostGetDevicePointer(&tokens_there, tokens, 0));
        OK(cudaMalloc(&block, BLOCK));
        OK(cudaMalloc(&last, 4));
        OK(cudaStreamCreate(&stream));
    }

    void launch(const call &c) {
        cudaLaunchConfig_t config = {};
        cudaLaunchAttribute a = {cudaLaunchAttributeProgrammaticStreamSerialization};
        a.val.programmaticStreamSerializationAllowed = 1;
        config.gridDim = dim3(132), config.blockDim = dim3(THREADS), config.stream = stream, config.attrs = &a;
        config.numAttrs = 1;
        OK(cudaLaunchKernelEx(&config, piece, c));
    }

    /* A graph of `steps` steps, of which the first has slot `slot` of blocks and tokens. mapped: kernels read and write them. */
    cudaGraphExec_t graph(int steps, int slot, bool mapped) {
        cudaGraph_t g;
        cudaGraphExec_t e;
        OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        for (int s = 0; s < steps; s++) {
            for (int i = 0; i < kernels; i++) {
                call c = {};
                c.host = mapped ? (const uint4 *)(blocks_there + (size_t)(slot + s) * BLOCK) : nullptr;
                c.block = block, c.last = last, c.token = mapped ? tokens_there + slot + s : nullptr;
                c.nanoseconds = nanoseconds, c.first = i == 0, c.ends = i + 1 == kernels;
                launch(c);
            }
            if (!mapped)
                OK(cudaMemcpyAsync(tokens + slot + s, last, 4, cudaMemcpyDeviceToHost, stream));
        }
        OK(cudaStreamEndCapture(stream, &g));
        OK(cudaGraphInstantiate(&e, g, 0));
        OK(cudaGraphDestroy(g));
        OK(cudaGraphUpload(e, stream));
        return e;
    }

    /* Microseconds a step, of `steps` steps a graph. */
    double run(int steps, bool mapped) {
        std::vector<cudaGraphExec_t> graphs;
        cudaEvent_t done[2];
        uint32_t wanted = 0;
        int wrong = 0;
        for (int slot = 0; slot < 2 * steps; slot += steps) /* two graphs take turns */
            graphs.push_back(graph(steps, slot, mapped));
        for (cudaEvent_t &e : done)
            OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
        double best = 1e9;
        for (int round = 0; round < 7; round++) {
            OK(cudaMemset(last, 0, 4));
            OK(cudaDeviceSynchronize());
            wanted = 0;
            const auto begin = std::chrono::steady_clock::now();
            for (int i = 0; i <= STEPS / steps; i++) {
                const int turn = i % 2;
                if (i < STEPS / steps) {
                    for (int s = 0; s < steps; s++)
                        ((uint32_t *)(blocks + (size_t)(turn * steps + s + 1) * BLOCK))[-1] =
                            (uint32_t)(i * steps + s + 1);
                    if (!mapped)
                        OK(cudaMemcpyAsync(block, blocks + (size_t)turn * BLOCK, BLOCK, cudaMemcpyHostToDevice,
                                           stream));
                    OK(cudaGraphLaunch(graphs[turn], stream));
                    OK(cudaEventRecord(done[turn], stream));
                }
                if (i == 0)
                    continue;
                OK(cudaEventSynchronize(done[1 - turn]));
                for (int s = 0; s < steps; s++) {
                    wanted = wanted * 31 + (uint32_t)((i - 1) * steps + s + 1);
                    wrong += ((volatile uint32_t *)tokens)[(1 - turn) * steps + s] != wanted;
                }
            }
            const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
            best = std::min(best, took.count() / STEPS);
        }
        if (wrong)
            printf("%d tokens are wrong\n", wrong), failures++;
        for (cudaGraphExec_t g : graphs)
            OK(cudaGraphExecDestroy(g));
        return best;
    }
};

int main(int argc, char **argv) {
    const int kernels = argc > 1 ? atoi(argv[1]) : 160, us = argc > 2 ? atoi(argv[2]) : 3;
    bench b(kernels, us * 1000);
    printf("%d kernels of %d us a step; microseconds a step, the best of 7 times %d\n", kernels, us, STEPS);
    const double copied = b.run(1, false);
    printf("block copied, a graph a step: %.1f\n", copied);
    for (int steps : {1, 2, 4, 8}) {
        const double t = b.run(steps, true);
        printf("block read by the first kernel, %d steps a graph: %.1f, %.1f less\n", steps, t, copied - t);
    }
    return failures != 0;
}
