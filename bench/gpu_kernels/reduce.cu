/* reduce.cu: checks and times all-reduces between the GPUs of one host: the kernels of cext/cuda/reduce.cuh, and NCCL beside them.
 *
 * nvcc -std=c++17 -O3 -arch=sm_90a -Icext/cuda -Icext/kernels -o reduce bench/gpu_kernels/reduce.cu -ldl
 * reduce GPUS [check|time|steps] [libnccl.so.2]
 *
 * One process, a thread for each GPU. A check draws new numbers for each of many messages, whose sizes change, and compares every bit
 * with the sum in the order of ranks that the receiver computes itself; one lets a member stay away. Times are those of graphs of
 * RUNS all-reduces, one behind the other, REPLAYS graphs queued without waiting: events around them, of the member that began last, for
 * one all-reduce, and the median of SERIES. The kernels are launched early (programmatic dependent launch), as the library does. NCCL
 * is queued without graphs, eight at a time, so that its small messages are bound by the host.
 */
#include <cuda_bf16.h>
#include <algorithm>
#include <dlfcn.h>
#include <pthread.h>
#include <thread>
#include <vector>

#include "reduce.cuh"
#include "bench.cuh"

enum { MOST = 8, RUNS = 32, REPLAYS = 8, SERIES = 5 };
enum { SMALL, ONE_SHOT, TWO_SHOTS, PARTS_ONE_SHOT, PARTS_TWO_SHOTS, NCCL };
static const int64_t LARGEST = 16 << 20; /* numbers of a message: 64 MiB of float32 */
static const int64_t PLACE = 8 * LARGEST, FLAGS = 4 * (LARGEST / GROUP_PART), PARTS_PLACE = FLAGS + 2 * LARGEST;

typedef struct {
    int algorithm, wire, each, groups;
} variant;

struct member {
    gpu_group *group; /* on the device */
    uint8_t *inbox, *parts;
    float *y, *residual, *out;
    uint32_t *base, *wrong;
    gpu_group_counts *counts;
    cudaStream_t stream;
    cudaEvent_t begin, end;
    void *comm;
};

static int n_gpus;
static member members[MOST];
static uint32_t *broken;
static gpu_group_fault *faults;
static pthread_barrier_t meet;

template <int ALGORITHM, int WIRE, int EACH>
__global__ void __launch_bounds__(GROUP_THREADS)
    reduce_kernel(const gpu_group *g, const uint32_t *base, uint32_t i, const float *y, const float *r, float *out,
                  int64_t n, int64_t width, int repeats) {
    asm volatile("griddepcontrol.wait;\n\tgriddepcontrol.launch_dependents;" ::: "memory");
    reduction m;
    m.g = g, m.number = *base + i, m.step = i, m.op = GROUP_REDUCE;
    m.y = {(uint8_t *)y, 4 * (uint64_t)width}, m.residual = {(uint8_t *)r, repeats ? 0 : 4 * (uint64_t)width};
    m.out = {(uint8_t *)out, 4 * (uint64_t)width}, m.n = n, m.width = (uint32_t)width;
    if (ALGORITHM == SMALL)
        small_message<WIRE>(m);
    else if (ALGORITHM == ONE_SHOT)
        one_shot<WIRE, EACH>(m);
    else if (ALGORITHM == PARTS_ONE_SHOT)
        parts::one_shot(m);
    else if (ALGORITHM == PARTS_TWO_SHOTS)
        parts::two_shots(m);
    else
        two_shots<WIRE, EACH>(m);
}

__global__ void add_base(uint32_t *base, uint32_t n) {
    *base += n;
}

static __device__ float drawn(uint32_t rank, uint32_t number, int64_t i) {
    return __fmul_rn((float)((int)(noise(number * 16 + rank, i) >> 8) - (1 << 23)), 1e-6f); /* no fused addition */
}

__global__ void draw(float *y, uint32_t rank, uint32_t number, int64_t n) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x)
        y[i] = drawn(rank, number, i);
}

static __device__ float rounded(float x, int wire) {
    return wire == WIRE_BF16 ? __bfloat162float(__float2bfloat16_rn(x)) : x;
}

__global__ void compare(const float *out, int members, uint32_t number, int64_t n, int64_t width, int wire, int twice,
                        uint32_t *wrong) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        float sum = 0;
        for (int q = 0; q < members; q++)
            sum = q ? sum + rounded(drawn(q, number, i), wire) : rounded(drawn(q, number, i), wire);
        if (twice)
            sum = rounded(sum, wire);
        sum += drawn(15, number, width == n ? i : i % width);
        if (__float_as_uint(sum) != __float_as_uint(out[i]))
            atomicAdd(wrong, 1u);
    }
}

/* --- NCCL, by its documented C interface */

static int (*nccl_init)(void **, int, const int *);
static int (*nccl_all_reduce)(const void *, void *, size_t, int, int, void *, cudaStream_t);
static int (*nccl_version)(int *);
enum { NCCL_FLOAT = 7, NCCL_BF16 = 9, NCCL_SUM = 0 };

static int open_nccl(const char *path) {
    void *library, *comms[MOST];
    int version = 0, devices[MOST];
    setenv("NCCL_NVLS_ENABLE", "0", 1);
    if (!(library = dlopen(path, RTLD_NOW | RTLD_LOCAL))) {
        printf("NCCL: %s\n", dlerror());
        return 0;
    }
    *(void **)&nccl_init = dlsym(library, "ncclCommInitAll");
    *(void **)&nccl_all_reduce = dlsym(library, "ncclAllReduce");
    *(void **)&nccl_version = dlsym(library, "ncclGetVersion");
    for (int i = 0; i < n_gpus; i++)
        devices[i] = i;
    if (!nccl_init || !nccl_all_reduce || nccl_init(comms, n_gpus, devices)) {
        printf("NCCL: it does not start\n");
        return 0;
    }
    for (int i = 0; i < n_gpus; i++)
        members[i].comm = comms[i];
    nccl_version(&version);
    printf("NCCL %d\n", version);
    return 1;
}

/* --- launches */

template <int A, int W, int E> static void *kernel_of(void) {
    return (void *)reduce_kernel<A, W, E>;
}

static void *find_kernel(const variant &v) {
    if (v.algorithm == SMALL)
        return v.wire == WIRE_F32 ? kernel_of<SMALL, WIRE_F32, 1>() : kernel_of<SMALL, WIRE_BF16, 1>();
    if (v.algorithm == PARTS_ONE_SHOT)
        return kernel_of<PARTS_ONE_SHOT, WIRE_BF16, 4>();
    if (v.algorithm == PARTS_TWO_SHOTS)
        return kernel_of<PARTS_TWO_SHOTS, WIRE_BF16, 4>();
    if (v.algorithm == ONE_SHOT)
        return v.wire == WIRE_F32
                   ? (v.each == 4 ? kernel_of<ONE_SHOT, WIRE_F32, 4>() : kernel_of<ONE_SHOT, WIRE_F32, 8>())
                   : (v.each == 4 ? kernel_of<ONE_SHOT, WIRE_BF16, 4>() : kernel_of<ONE_SHOT, WIRE_BF16, 8>());
    return v.wire == WIRE_F32
               ? (v.each == 4 ? kernel_of<TWO_SHOTS, WIRE_F32, 4>() : kernel_of<TWO_SHOTS, WIRE_F32, 8>())
               : (v.each == 4 ? kernel_of<TWO_SHOTS, WIRE_BF16, 4>() : kernel_of<TWO_SHOTS, WIRE_BF16, 8>());
}

/* Numbers of a group's chunk. */
static int64_t chunk_of(const variant &v) {
    return v.algorithm >= PARTS_ONE_SHOT ? GROUP_PART : (v.wire == WIRE_F32 ? 2 : 4) * v.each * GROUP_THREADS;
}

static int groups_of(const variant &v, int64_t n) {
    const int64_t need = (n + chunk_of(v) - 1) / chunk_of(v);
    return (int)std::max<int64_t>(1, v.algorithm == SMALL ? need : std::min<int64_t>(need, v.groups));
}

static void start(member &m, const variant &v, uint32_t i, int64_t n, int64_t width, int repeats, bool early) {
    if (v.algorithm == NCCL) {
        if (nccl_all_reduce(m.y, m.out, n, v.wire == WIRE_F32 ? NCCL_FLOAT : NCCL_BF16, NCCL_SUM, m.comm, m.stream)) {
            printf("ncclAllReduce failed\n");
            exit(1);
        }
        return;
    }
    cudaLaunchAttribute with[1];
    cudaLaunchConfig_t config = {};
    const gpu_group *g = m.group;
    const uint32_t *base = m.base;
    const float *y = m.y, *r = m.residual;
    float *out = m.out;
    void *arguments[] = {&g, &base, &i, &y, &r, &out, &n, &width, &repeats};
    with[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    with[0].val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = groups_of(v, n);
    config.blockDim = GROUP_THREADS;
    config.stream = m.stream;
    config.attrs = with;
    config.numAttrs = early;
    OK(cudaLaunchKernelExC(&config, find_kernel(v), arguments));
}

/* Runs f(rank) in a thread for each GPU. */
template <typename F> static void on_all(F f) {
    std::vector<std::thread> threads;
    for (int i = 0; i < n_gpus; i++)
        threads.emplace_back([=] {
            OK(cudaSetDevice(i));
            f(i);
        });
    for (auto &t : threads)
        t.join();
}

static bool is_broken(void) {
    if (!*(volatile uint32_t *)broken)
        return false;
    for (int i = 0; i < n_gpus; i++)
        if (faults[i].step)
            printf("member %d: member %u did not come to number %u\n", i, faults[i].missing, faults[i].number);
    return true;
}

/* --- a group */

static void make_group(void) {
    OK(cudaHostAlloc(&broken, 4096, cudaHostAllocPortable | cudaHostAllocMapped));
    memset(broken, 0, 4096);
    faults = (gpu_group_fault *)(broken + 64);
    for (int i = 0; i < n_gpus; i++) {
        member &m = members[i];
        OK(cudaSetDevice(i));
        for (int j = 0; j < n_gpus; j++)
            if (j != i)
                OK(cudaDeviceEnablePeerAccess(j, 0));
        OK(cudaMalloc(&m.inbox, PLACE * GROUP_SLOTS * n_gpus));
        OK(cudaMemset(m.inbox, 0, PLACE * GROUP_SLOTS * n_gpus));
        OK(cudaMalloc(&m.parts, PARTS_PLACE * GROUP_SLOTS * n_gpus));
        OK(cudaMemset(m.parts, 0, PARTS_PLACE * GROUP_SLOTS * n_gpus));
        OK(cudaMalloc(&m.y, 4 * LARGEST));
        OK(cudaMalloc(&m.residual, 4 * LARGEST));
        OK(cudaMalloc(&m.out, 4 * LARGEST));
        OK(cudaMalloc(&m.base, 8));
        m.wrong = m.base + 1;
        OK(cudaMemset(m.base, 0, 8));
        OK(cudaMalloc(&m.counts, sizeof *m.counts));
        OK(cudaMalloc(&m.group, sizeof(gpu_group)));
        OK(cudaStreamCreateWithFlags(&m.stream, cudaStreamNonBlocking));
        OK(cudaEventCreate(&m.begin));
        OK(cudaEventCreate(&m.end));
        draw<<<512, 256>>>(m.y, i, 1, LARGEST);
        draw<<<512, 256>>>(m.residual, 15, 1, LARGEST);
        OK(cudaDeviceSynchronize());
    }
    for (int i = 0; i < n_gpus; i++) {
        gpu_group g = {};
        g.rank = i, g.members = n_gpus, g.timeout_ns = 20000000000;
        g.place = PLACE, g.parts_place = PARTS_PLACE, g.parts_flags = FLAGS;
        g.broken = (uint64_t)broken, g.fault = (uint64_t)(faults + i);
        g.counts = (uint64_t)members[i].counts;
        for (int j = 0; j < n_gpus; j++)
            g.inbox[j] = (uint64_t)members[j].inbox, g.parts[j] = (uint64_t)members[j].parts;
        OK(cudaSetDevice(i));
        OK(cudaMemcpy(members[i].group, &g, sizeof g, cudaMemcpyHostToDevice));
        OK(cudaDeviceSynchronize());
    }
}

/* --- checks */

static uint32_t drawn_host(uint32_t i) {
    return (i * 2654435761u) >> 7;
}

static void check(void) {
    enum { VARIANTS = 11 };
    static const variant variants[VARIANTS] = {
        {SMALL, 0, 1, 0},          {SMALL, 1, 1, 0},           {ONE_SHOT, 0, 4, 264},       {ONE_SHOT, 1, 8, 32},
        {ONE_SHOT, 1, 4, 264},     {TWO_SHOTS, 0, 4, 132},     {TWO_SHOTS, 1, 4, 32},       {TWO_SHOTS, 1, 8, 264},
        {PARTS_ONE_SHOT, 1, 4, 8}, {PARTS_TWO_SHOTS, 1, 4, 8}, {PARTS_TWO_SHOTS, 1, 4, 264}};
    uint32_t number = 0;
    for (int round = 0; round < 400; round++) {
        const variant v = variants[(round * 7 + round / VARIANTS) % VARIANTS];
        const bool twice = v.algorithm == TWO_SHOTS || v.algorithm == PARTS_TWO_SHOTS;
        int64_t n = (1 + drawn_host((uint32_t)round) % (round % 5 ? 4000 : 100000)) * 8, width = n;
        if (twice)
            n = width = std::max<int64_t>(n, n_gpus * chunk_of(v));
        if (round % 3 == 0)
            width = 8, n = n / 8 * 8;
        number++;
        on_all([=](int rank) {
            member &m = members[rank];
            draw<<<256, 256, 0, m.stream>>>(m.y, rank, number, n);
            draw<<<256, 256, 0, m.stream>>>(m.residual, 15, number, width);
            OK(cudaMemsetAsync(m.out, 0xFF, 4 * n, m.stream));
            add_base<<<1, 1, 0, m.stream>>>(m.base, 1);
            start(m, v, 0, n, width, width != n, true);
            compare<<<256, 256, 0, m.stream>>>(m.out, n_gpus, number, n, width, v.wire, twice, m.wrong);
            OK(cudaStreamSynchronize(m.stream));
        });
        for (int i = 0; i < n_gpus; i++) {
            uint32_t wrong;
            OK(cudaSetDevice(i));
            OK(cudaMemcpy(&wrong, members[i].wrong, 4, cudaMemcpyDeviceToHost));
            if (wrong || is_broken()) {
                printf("FAIL round %d algorithm %d wire %d each %d n %lld: %u wrong on GPU %d\n", round, v.algorithm,
                       v.wire, v.each, (long long)n, wrong, i);
                failures++;
                return;
            }
        }
    }
    printf("check: 400 messages, all bits equal to the sum in the order of ranks on %d GPUs\n", n_gpus);
}

/* A member stays away: the others leave within the timeout, and so does every later kernel. */
static void check_missing(void) {
    const uint64_t timeout = 500000000;
    for (int i = 0; i < n_gpus; i++) {
        OK(cudaSetDevice(i));
        OK(cudaMemcpy((uint8_t *)members[i].group + offsetof(gpu_group, timeout_ns), &timeout, sizeof timeout,
                      cudaMemcpyHostToDevice));
    }
    on_all([=](int rank) {
        member &m = members[rank];
        cudaEvent_t middle;
        float first, later;
        OK(cudaEventCreate(&middle));
        if (rank == n_gpus - 1)
            return;
        add_base<<<1, 1, 0, m.stream>>>(m.base, 1);
        OK(cudaEventRecord(m.begin, m.stream));
        start(m, {SMALL, 0, 1, 264}, 0, 4096, 4096, 0, true);
        OK(cudaEventRecord(middle, m.stream));
        for (int i = 1; i < 100; i++)
            start(m, {i % 2 ? ONE_SHOT : SMALL, 0, 4, 264}, i, 4096, 4096, 0, true);
        OK(cudaEventRecord(m.end, m.stream));
        OK(cudaStreamSynchronize(m.stream));
        OK(cudaEventElapsedTime(&first, m.begin, middle));
        OK(cudaEventElapsedTime(&later, middle, m.end));
        if (rank == 0)
            printf("missing: member 0 left after %.1f ms (timeout 500), 99 more left after %.2f ms\n", first, later);
    });
    if (!is_broken() || faults[0].missing != (uint32_t)n_gpus - 1)
        failures++, printf("FAIL: the fault was not told\n");
}

/* --- times */

static double median_us(const variant &v, int64_t n, bool early) {
    double each[MOST][SERIES] = {}, all[SERIES];
    const int runs = v.algorithm == NCCL || n > (1 << 21) ? 8 : RUNS;
    on_all([&](int rank) {
        member &m = members[rank];
        cudaGraph_t graph = NULL;
        cudaGraphExec_t exec = NULL;
        if (v.algorithm != NCCL) {
            OK(cudaStreamBeginCapture(m.stream, cudaStreamCaptureModeThreadLocal));
            for (int i = 0; i < runs; i++)
                start(m, v, (uint32_t)i + 1, n, 4096, 0, early);
            add_base<<<1, 1, 0, m.stream>>>(m.base, (uint32_t)runs);
            OK(cudaStreamEndCapture(m.stream, &graph));
            OK(cudaGraphInstantiateWithFlags(&exec, graph, 0));
            OK(cudaGraphUpload(exec, m.stream));
        }
        OK(cudaStreamSynchronize(m.stream));
        for (int s = -1; s < SERIES; s++) {
            float ms;
            pthread_barrier_wait(&meet);
            for (int i = -1; i < REPLAYS; i++) {
                if (i == 0)
                    OK(cudaEventRecord(m.begin, m.stream));
                if (exec)
                    OK(cudaGraphLaunch(exec, m.stream));
                for (int j = 0; !exec && j < runs; j++)
                    start(m, v, 0, n, 4096, 0, false);
            }
            OK(cudaEventRecord(m.end, m.stream));
            OK(cudaEventSynchronize(m.end));
            OK(cudaEventElapsedTime(&ms, m.begin, m.end));
            if (s >= 0)
                each[rank][s] = 1000.0 * ms / (runs * REPLAYS);
        }
        if (exec)
            OK(cudaGraphExecDestroy(exec));
        if (graph)
            OK(cudaGraphDestroy(graph));
    });
    if (is_broken())
        exit(1);
    for (int s = 0; s < SERIES; s++) {
        all[s] = each[0][s];
        for (int i = 1; i < n_gpus; i++)
            all[s] = std::min(all[s], each[i][s]);
    }
    std::sort(all, all + SERIES);
    return all[SERIES / 2];
}

static void time_all(bool nccl) {
    fflush(stdout);
    printf("us for an all-reduce on %d GPUs; float32 KB | small f32, bf16 | f32 without early launch | one shot f32, "
           "bf16 | "
           "two shots f32, bf16 (least of words each and groups) | parts in one shot, two (groups) | NCCL f32, bf16\n",
           n_gpus);
    for (int64_t n = 4096; n <= LARGEST; n *= n < (1 << 20) ? 2 : 4) {
        printf("%7lld |", (long long)n / 256);
        for (int wire = 0; wire < 2; wire++)
            printf(n <= 1 << 18 ? " %6.2f" : "      -", n <= 1 << 18 ? median_us({SMALL, wire, 1, 0}, n, true) : 0.0);
        printf(n <= 1 << 18 ? " | %6.2f" : " |      -", n <= 1 << 18 ? median_us({SMALL, 0, 1, 0}, n, false) : 0.0);
        for (int algorithm = ONE_SHOT; algorithm <= TWO_SHOTS; algorithm++) {
            printf(" |");
            for (int wire = 0; wire < 2; wire++) {
                variant best = {};
                double least = 1e30;
                for (int each : {4, 8})
                    for (int groups : {132, 264, 528}) {
                        const variant v = {algorithm, wire, each, groups};
                        if (groups > 132 && groups_of(v, n) <= groups / 2)
                            continue;
                        double us = median_us(v, n, true);
                        if (us < least)
                            least = us, best = v;
                    }
                printf(" %7.2f (%d x %d)", least, best.each, groups_of(best, n));
            }
        }
        printf(" |");
        for (int algorithm = PARTS_ONE_SHOT; algorithm <= PARTS_TWO_SHOTS; algorithm++) {
            int best = 0;
            double least = 1e30;
            for (int groups : {66, 132, 264, 528}) {
                const variant v = {algorithm, WIRE_BF16, 4, groups};
                double us = n < n_gpus * GROUP_PART || (groups > 66 && groups_of(v, n) <= groups / 2)
                                ? 1e30
                                : median_us(v, n, true);
                if (us < least)
                    least = us, best = groups_of(v, n);
            }
            printf(best ? " %7.2f (%d)" : "       -", best ? least : 0.0, best);
        }
        if (nccl)
            printf(" | %7.2f %7.2f", median_us({NCCL, WIRE_F32, 0, 0}, n, false),
                   median_us({NCCL, WIRE_BF16, 0, 0}, n, false));
        printf("\n");
        fflush(stdout);
    }
}

/* As the library runs steps: a graph of one all-reduce, its number sent before it, and four steps queued at most. */
static void time_steps(void) {
    static uint32_t *numbers[MOST];
    printf("us a step on %d GPUs, by a graph each; rows of 4096 | float32, bf16: mean of 200, of 200 more\n", n_gpus);
    for (int i = 0; i < n_gpus; i++)
        OK(cudaHostAlloc(&numbers[i], 4096, cudaHostAllocPortable));
    for (int rows : {1, 64, 256, 512, 1024, 4096}) {
        printf("%6d |", rows);
        for (int wire = 0; wire < 2; wire++) {
            const int64_t n = 4096 * (int64_t)rows;
            const variant v = {n <= 264 * GROUP_THREADS * (wire ? 4 : 2) ? SMALL : ONE_SHOT, wire, 4, 264};
            double us[2][MOST];
            uint32_t base[MOST];
            on_all([&](int rank) {
                member &m = members[rank];
                cudaGraph_t graph;
                cudaGraphExec_t exec;
                cudaEvent_t taken[4];
                for (auto &e : taken)
                    OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
                OK(cudaMemcpy(base + rank, m.base, 4, cudaMemcpyDeviceToHost));
                OK(cudaStreamBeginCapture(m.stream, cudaStreamCaptureModeThreadLocal));
                start(m, v, 0, n, 4096, 0, true);
                OK(cudaStreamEndCapture(m.stream, &graph));
                OK(cudaGraphInstantiateWithFlags(&exec, graph, 0));
                OK(cudaGraphUpload(exec, m.stream));
                for (int s = 0; s < 2; s++) {
                    float ms;
                    pthread_barrier_wait(&meet);
                    OK(cudaEventRecord(m.begin, m.stream));
                    for (int i = 0; i < 200; i++) {
                        OK(cudaEventSynchronize(taken[i % 4]));
                        numbers[rank][i % 4] = ++base[rank];
                        OK(cudaMemcpyAsync(m.base, numbers[rank] + i % 4, 4, cudaMemcpyHostToDevice, m.stream));
                        OK(cudaEventRecord(taken[i % 4], m.stream));
                        OK(cudaGraphLaunch(exec, m.stream));
                    }
                    OK(cudaEventRecord(m.end, m.stream));
                    OK(cudaEventSynchronize(m.end));
                    OK(cudaEventElapsedTime(&ms, m.begin, m.end));
                    us[s][rank] = 1000.0 * ms / 200;
                }
            });
            printf(" %8.1f %8.1f", us[0][0], us[1][0]);
        }
        printf("\n");
        fflush(stdout);
    }
}

int main(int argc, char **argv) {
    int there = 0, nccl = 0;
    setenv("CUDA_MODULE_LOADING", "EAGER", 1); /* a kernel that is loaded late may wait for one that waits for it */
    OK(cudaGetDeviceCount(&there));
    n_gpus = argc > 1 ? atoi(argv[1]) : 2;
    if (n_gpus < 2 || n_gpus > there || n_gpus > MOST) {
        printf("%d GPUs are here; %d are asked for\n", there, n_gpus);
        return 1;
    }
    pthread_barrier_init(&meet, NULL, n_gpus);
    make_group();
    if (argc <= 2 || !strcmp(argv[2], "check"))
        check();
    fflush(stdout);
    if (argc > 3)
        nccl = open_nccl(argv[3]);
    if (argc > 2 && !strcmp(argv[2], "steps"))
        time_steps();
    else if (argc <= 2 || strcmp(argv[2], "check"))
        time_all(nccl);
    check_missing();
    printf(failures ? "%d failures\n" : "all right\n", failures);
    return failures != 0;
}
