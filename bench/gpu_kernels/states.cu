/* states.cu: checks and times the kernels of layers with a recurrent state (cext/cuda/states.cu) on an sm_90 GPU, alone.
 *
 * Build: nvcc -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -Icext/kernels -Icext/include -Icext/quant -Icext/gpu \
 *        -IBUILD/cext/headers -o states bench/gpu_kernels/states.cu   (BUILD: where CMake built the C libraries)
 * `states check` compares outputs and states with a plain kernel in float64: new numbers each time, NaN wherever nothing must be
 * read or written; `states small` does so with few tokens, for compute-sanitizer, and `states race` with fewer still, for its
 * racecheck (--kernel-name kns=scan_ leaves out the plain kernels, which take longest). `states time` prints microseconds, medians of
 * graphs of launches over several layers' states.
 */
#include "../../cext/cuda/states.cu"
#include "cases.cuh"

struct piece {
    int slot, pos, length;
};

struct shape {
    int heads, groups, keys, width, delta;
};

enum { I32_FORMAT = 26, GONE = -1, BLOCK_TABLE = 256 };

/* The state of one column of a head through a piece, in float64; a thread's state is its own column of `s`. */
__global__ void reference(const gpu_call c, const piece *pieces, double *s, double *outputs, double *states) {
    const scan_call x(c);
    const piece p = pieces[blockIdx.y];
    const int head = blockIdx.x, column = threadIdx.x, group = x.group_of(head);
    int t = 0;
    for (int i = 0; i < (int)blockIdx.y; i++)
        t += pieces[i].length;
    s += ((uint64_t)(blockIdx.y * gridDim.x + head) * x.width + column) * x.keys;
    const int before = p.pos ? state_page(x.slots, x.state, p.slot, p.pos - 1, x.block) : GONE;
    for (int n = 0; n < x.keys; n++)
        s[n] = before < 0 ? 0 : (double)x.page_at(before, head)[(int64_t)n * x.width + column];
    for (const int end = t + p.length; t < end; t++) {
        const float *k = ROW(const float, x.k, t) + group * x.keys, *q = ROW(const float, x.q, t) + group * x.keys;
        const double fade = exp((double)ROW(const float, x.g, t)[head]);
        double found = 0, out = 0;
        for (int n = 0; n < x.keys; n++)
            s[n] *= fade, found += k[n] * s[n];
        const double v = ROW(const float, x.v, t)[head * x.width + column];
        const double u = ROW(const float, x.beta, t)[head] * (v - (x.delta ? found : 0));
        for (int n = 0; n < x.keys; n++)
            s[n] += k[n] * u, out += q[n] * s[n];
        outputs[((uint64_t)t * x.heads + head) * x.width + column] = out;
        const int page = page_after(x.slots, x.state, t, t + 1 == end, x.block);
        for (int n = 0; page >= 0 && n < x.keys; n++)
            states[((uint64_t)page * x.heads + head) * x.keys * x.width + (uint64_t)n * x.width + column] = s[n];
    }
}

/* sums: squares of errors, squares of the reference, faults: NaN where a number is due, a number where NaN must have stayed. */
__global__ void compare(const float *found, const double *wanted, size_t n, double *sums) {
    double error = 0, size = 0, faults = 0;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        const double x = found[i], y = wanted[i];
        if ((x == x) != (y == y))
            faults++;
        else if (x == x)
            error += (x - y) * (x - y), size += y * y;
    }
    atomicAdd(sums, error), atomicAdd(sums + 1, size), atomicAdd(sums + 2, faults);
}

__global__ void widen(const float *from, double *to, size_t n) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        to[i] = from[i];
}

/* Numbers of a scan. kind 0: usual; 1: keys nearly in one direction and no decay; 2: decays to nothing. Keys have length 1. */
__global__ void fill_case(const gpu_call c, int kind, uint32_t s) {
    const scan_call x(c);
    const int t = blockIdx.x;
    if (t >= x.tokens)
        return;
    for (int g = threadIdx.x; g < x.groups; g += blockDim.x) {
        float *k = ROW(float, x.k, t) + g * x.keys, sum = 0;
        for (int n = 0; n < x.keys; n++) {
            k[n] = normal(s + 1, ((uint64_t)t * x.groups + g) * x.keys + n) * (kind == 1 ? 0.3f : 1) + (kind == 1);
            sum += k[n] * k[n];
        }
        for (int n = 0; n < x.keys; n++)
            k[n] /= sqrtf(sum);
    }
    for (int h = threadIdx.x; h < x.heads; h += blockDim.x) {
        const uint64_t i = (uint64_t)t * x.heads + h;
        ROW(float, x.g, t)[h] = -fabsf(normal(s + 2, i)) * (kind == 1 ? 0 : kind == 2 ? 300 : 0.05f);
        ROW(float, x.beta, t)[h] = noise(s + 3, i) * 2.3283064e-10f;
    }
}

struct states_case {
    gpu_call call = {};
    std::vector<memory *> held;
    std::vector<piece> pieces;
    shape of;
    int tokens = 0, most, pages = 0;

    uint8_t *hold(size_t n, int fill = 0xFF) {
        held.push_back(new memory(n, fill));
        return held.back()->at;
    }
    template <class T> T *hold(const std::vector<T> &from) {
        T *at = (T *)hold(from.size() * sizeof(T));
        OK(cudaMemcpy(at, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
        return at;
    }
    float *numbers(size_t n, float size) {
        float *at = (float *)hold(4 * n);
        fill_f32<<<1024, 256, 0, stream>>>(at, n, seed++, size, 0);
        return at;
    }
    /* every: of so many blocks one has a page, beside those that begin and end a piece. */
    states_case(const std::vector<piece> &pieces, shape of, int block, int every, int more, int kind, int tiled = 0)
        : pieces(pieces), of(of) {
        int slots = 0;
        for (const piece &p : pieces)
            tokens += p.length, slots = std::max(slots, p.slot + 1);
        most = tokens + more;
        std::vector<int32_t> slot(most, 1 << 30), pos(most, -5), table((size_t)slots * BLOCK_TABLE, GONE);
        int t = 0;
        for (const piece &p : pieces) {
            auto give = [&](int at) {
                int32_t &entry = table[(size_t)p.slot * BLOCK_TABLE + at / block];
                entry = entry == GONE ? pages++ : entry;
            };
            if (p.pos)
                give(p.pos - 1);
            give(p.pos + p.length - 1);
            for (int i = 0; i < p.length; i++, t++) {
                slot[t] = p.slot, pos[t] = p.pos + i;
                if ((p.pos + i + 1) % block == 0 && (p.pos + i) / block % every == 0)
                    give(p.pos + i);
            }
        }
        const int H = of.heads, G = of.groups, N = of.keys, P = of.width;
        call.v[0] = view_of(hold(4ull * most * H * P), {most, H, P}, 4ull * H * P, 0, 0);
        call.v[1] = view_of(numbers((size_t)most * G * N, 1), {most, G, N}, 4ull * G * N, 0, 0);
        call.v[2] = view_of(hold(4ull * most * G * N), {most, G, N}, 4ull * G * N, 0, 0);
        call.v[3] = view_of(numbers((size_t)most * H * P, 1), {most, H, P}, 4ull * H * P, 0, 0);
        call.v[4] = view_of(hold(4ull * most * H), {most, H}, 4ull * H, 0, 0);
        call.v[5] = view_of(hold(4ull * most * H), {most, H}, 4ull * H, 0, 0);
        call.v[6] = view_of(numbers((size_t)pages * H * N * P, 0.3f), {pages, H, N, P}, 4ull * H * N * P, 0);
        call.v[7] = view_of(hold(slot), {most}, 4, I32_FORMAT, 0);
        call.v[8] = view_of(hold(pos), {most}, 4, I32_FORMAT, 0);
        call.v[9] = view_of(hold(table), {slots, BLOCK_TABLE}, 4 * BLOCK_TABLE, I32_FORMAT);
        const arg_gated_scan_write a = {block, of.delta, tiled};
        memcpy(call.arg, &a, sizeof a);
        call.n_in = 9;
        call.counts = (uint64_t)hold(std::vector<int32_t>{tokens}), call.fault = (uint64_t)hold(4, 0);
        call.scratch = (uint64_t)hold(4 * state_scratch_of(&call, of.delta).all);
        OK(cudaDeviceSynchronize());
        fill_case<<<most, 64, 0, stream>>>(call, kind, seed);
        seed += 8;
        OK(cudaStreamSynchronize(stream));
    }
    ~states_case() {
        OK(cudaStreamSynchronize(stream));
        for (memory *m : held)
            delete m;
    }
    void launch(int only = -1) {
        const int slices = state_slices(&call.v[6]), each = of.heads / of.groups, columns = of.heads * slices;
        if (most <= STATE_FEW || of.keys > STATE_KEYS) {
            ::launch(of.keys > STATE_KEYS ? (const void *)scan_each_wide : (const void *)scan_each,
                     {dim3(columns, most), TOKEN_THREADS, 0, true}, call);
            return;
        }
        const void *chunks = of.delta ? (const void *)scan_chunks_delta : (const void *)scan_chunks;
        allow((const void *)scan_matrices, MATRIX_SHARED);
        allow(chunks, CHUNK_SHARED);
        if (only < 0 || only == 0)
            ::launch((const void *)scan_short,
                     {dim3(columns, std::min(most, (int)TOKEN_STARTS)), TOKEN_THREADS, 0, true}, call);
        if (only < 0 || only == 1)
            ::launch((const void *)scan_matrices,
                     {dim3(of.groups * ((each + 1) / 2), (most + STATE_CHUNK - 1) / STATE_CHUNK), MATRIX_THREADS,
                      MATRIX_SHARED, true},
                     call);
        if (only < 0 || only == 2)
            ::launch(chunks, {dim3(columns), CHUNK_THREADS, CHUNK_SHARED, true}, call);
    }
    /* bound: of the NMSE of outputs and of states. */
    void check(const char *what, double bound) {
        const size_t n = (size_t)most * of.heads * of.width, m = (size_t)pages * of.heads * of.keys * of.width;
        memory s(8ull * pieces.size() * of.heads * of.width * of.keys), outputs(8 * n), states(8 * m), sums(48, 0);
        std::vector<double> found(6);
        int bad = 0;
        piece *list = hold(pieces);
        widen<<<1024, 256, 0, stream>>>((const float *)call.v[6].data, (double *)states.at, m);
        reference<<<dim3(of.heads, pieces.size()), of.width, 0, stream>>>(call, list, (double *)s.at,
                                                                          (double *)outputs.at, (double *)states.at);
        launch();
        compare<<<1024, 256, 0, stream>>>((const float *)call.v[0].data, (double *)outputs.at, n, (double *)sums.at);
        compare<<<1024, 256, 0, stream>>>((const float *)call.v[6].data, (double *)states.at, m, (double *)sums.at + 3);
        OK(cudaMemcpyAsync(found.data(), sums.at, 48, cudaMemcpyDeviceToHost, stream));
        OK(cudaMemcpyAsync(&bad, (void *)call.fault, 4, cudaMemcpyDeviceToHost, stream));
        OK(cudaStreamSynchronize(stream));
        found[2] += bad;
        for (int i = 0; i < 2; i++) {
            char name[96];
            snprintf(name, sizeof name, "%s %s T=%d %dx%dx%dx%d %s", what, of.delta ? "delta" : "scan", tokens,
                     of.heads, of.groups, of.keys, of.width, i ? "state" : "outputs");
            report(name, {found[3 * i], found[3 * i + 1], found[3 * i + 2]}, bound);
        }
        fflush(stdout);
    }
};

static void check_all(bool small, bool race) {
    for (int delta = 0; delta < 2; delta++) {
        auto one = [&](const char *what, std::vector<piece> pieces, shape of, int block, int every, int more, int kind,
                       double bound) {
            of.delta = delta;
            states_case(pieces, of, block, every, more, kind, seed & 1).check(what, bound);
        };
        const double exact = 1e-10, rounded = 1e-5;
        if (race) { /* each kernel, and more chunks than stages, which begin at a piece, at a page, and in between */
            one("few", {{0, 5, 1}, {1, 0, 3}}, {2, 1, 64, 36}, 8, 1, 2, 0, exact);
            one("wide", {{0, 5, 1}, {2, 8, 2}}, {2, 1, 200, 36}, 8, 1, 3, 0, exact);
            one("mixed", {{0, 5, 1}, {1, 3, 150}}, {2, 1, 64, 36}, 32, 1, 5, 0, rounded);
            continue;
        }
        one("one", {{0, 5, 1}}, {4, 2, 128, 128}, 16, 1, 0, 0, exact);
        one("few", {{0, 5, 1}, {1, 0, 20}, {2, 8, 3}}, {4, 2, 64, 36}, 8, 1, 2, 0, exact);
        one("wide", {{0, 5, 1}, {2, 8, 30}}, {2, 1, 200, 36}, 8, 1, 3, 0, exact);
        one("prompt", {{0, 0, 150}}, {2, 2, 128, 32}, 32, 4, 3, 0, rounded);
        one("mixed", {{0, 5, 1}, {1, 3, 150}, {2, 64, 16}, {3, 63, 15}, {4, 0, 70}}, {4, 2, 64, 40}, 8, 3, 5, 0,
            rounded);
        if (small)
            continue;
        one("odd", {{1, 3, 190}}, {3, 1, 8, 4}, 16, 1, 0, 0, rounded);
        one("one way", {{1, 0, 700}}, {4, 2, 128, 128}, 32, 3, 0, 1, rounded);
        one("forgotten", {{1, 3, 300}}, {4, 2, 128, 64}, 32, 1, 0, 2, rounded);
        one("long", {{0, 1000, 4000}}, {8, 4, 128, 128}, 32, 1000, 96, 0, rounded);
        one("many", {{7, 9, 1}, {0, 100, 900}, {1, 0, 31}, {2, 77, 1}, {3, 78, 1}, {4, 0, 1000}, {5, 31, 2}},
            {8, 8, 128, 64}, 32, 5, 50, 0, rounded);
    }
    printf(failures ? "%d FAILED\n" : "all right\n", failures);
}

/* One prompt after 32 positions, or one token of each of so many sequences. */
static void time_one(const char *name, shape of, int tokens, bool prompt) {
    std::vector<states_case *> cases;
    std::vector<piece> pieces;
    if (prompt)
        pieces.push_back({0, 32, tokens});
    else
        for (int i = 0; i < tokens; i++)
            pieces.push_back({i, 40, 1});
    const double bytes = 2.0 * (prompt ? 1 : tokens) * of.heads * of.keys * of.width * 4;
    const int layers = std::max(1, std::min(40, (int)(200e6 / bytes) + 1));
    for (int i = 0; i < (prompt ? 2 : layers); i++)
        cases.push_back(new states_case(pieces, of, 32, 1000, 0, 0));
    const int n = (int)cases.size();
    for (int i = 0; i < n; i++)
        cases[i]->launch();
    printf("%-14s %dx%dx%dx%d %-7s %5d %9.2f us", name, of.heads, of.groups, of.keys, of.width,
           prompt ? "prompt" : "decode", tokens, graph_us([&](int i) { cases[i % n]->launch(); }, 40, 11));
    if (prompt && tokens > STATE_FEW)
        for (int i = 0; i < 3; i++)
            printf("  %8.2f", graph_us([&](int j) { cases[j % n]->launch(i); }, 40, 11));
    else
        printf("  %5.2f TB/s", bytes / graph_us([&](int i) { cases[i % n]->launch(); }, 40, 11) / 1e6);
    printf("\n");
    fflush(stdout);
    for (states_case *a : cases)
        delete a;
}

int main(int n, char **words) {
    OK(cudaStreamCreate(&stream));
    const std::string what = n > 1 ? words[1] : "check";
    if (what != "time") {
        check_all(what == "small", what == "race");
        return failures != 0;
    }
    for (int count : {1, 4, 16, 64, 128}) {
        time_one("Qwen3-Next-80B", {32, 16, 128, 128, 1}, count, false);
        time_one("Mamba-2 2.7B", {80, 1, 128, 64, 0}, count, false);
    }
    for (int tokens : {64, 128, 512, 4096}) {
        time_one("Qwen3-Next-80B", {32, 16, 128, 128, 1}, tokens, true);
        time_one("Mamba-2 2.7B", {80, 1, 128, 64, 0}, tokens, true);
    }
}
