/* prompt.cu: checks and times the kernels for many columns (cext/cuda) on an sm_90 GPU, alone. Attention is in attention.cu.
 *
 * Build: nvcc -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -Icext/kernels -Icext/include -Icext/quant \
 *        -IBUILD/cext/headers -o prompt bench/gpu_kernels/prompt.cu   (BUILD: where CMake built the C libraries)
 * Every check draws new numbers, poisons what must not be read or written with NaN, and compares with a plain kernel in
 * float64. Times are medians of events.
 */
#include "../../cext/cuda/wide.cu"
#include "../../cext/cuda/wide_tiles.cu"
#include "../../cext/cuda/wide_tiles_fp8.cu"
#include "cases.cuh"

/* What the host needs of a format. */
struct format_shape {
    uint32_t id;
    const char *name;
    int block, bytes;
};
static const format_shape formats[] = {
#define CPU_WEIGHT(stem, id, block, act) {id, #stem, block, sizeof(block_##stem)},
#include "types.inc"
#undef CPU_WEIGHT
};

static const format_shape &shape_of(uint32_t id) {
    for (const format_shape &f : formats)
        if (f.id == id)
            return f;
    printf("no format %u\n", id);
    exit(1);
}

/* Any bytes are codes; where a half-precision scale stands (offsets by format) it becomes a small number. */
__global__ void fill_blocks(uint8_t *x, size_t blocks, uint32_t format, int size, uint32_t s) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < blocks; i += (size_t)gridDim.x * blockDim.x) {
        uint8_t *b = x + i * size;
        const float a = ldexpf(0.5f + (noise(s + 1, i) & 255) / 256.0f, -8), v = normal(s, i) * 0.05f;
        const uint16_t half = __half_as_ushort(__float2half(a));
        const double wide = v;
        const uint16_t f16 = __half_as_ushort(__float2half(v)), bf16 = __bfloat16_as_ushort(__float2bfloat16(v));
        for (int j = 0; j < size; j++)
            b[j] = (uint8_t)noise(s, i * size + j);
        switch (format) {
        case 12:
        case 13:
        case 3:
        case 7:
            memcpy(b, &half, 2), memcpy(b + 2, &half, 2);
            break;
        case 14:
            memcpy(b + 208, &half, 2);
            break;
        case 10:
            memcpy(b + 80, &half, 2), memcpy(b + 82, &half, 2);
            break;
        case 11:
            memcpy(b + 108, &half, 2);
            break;
        case 0:
            memcpy(b, &v, 4);
            break;
        case 1:
            memcpy(b, &f16, 2);
            break;
        case 28:
            memcpy(b, &wide, 8);
            break;
        case 30:
            memcpy(b, &bf16, 2);
            break;
        case 39:
            b[0] = 120 + b[0] % 8;
            break;
        default:
            memcpy(b, &half, 2);
            break;
        }
    }
}

/* --- products */

__device__ static void part_values(uint32_t format, const uint8_t *row, int i, float *x) {
    switch (format) {
#define CPU_WEIGHT(stem, id, block, act)                                                                               \
    case id: {                                                                                                         \
        PART_OF_##block(stem, (const block_##stem *)row, i, x);                                                        \
        return;                                                                                                        \
    }
#include "types.inc"
#undef CPU_WEIGHT
    }
}

__global__ void reference(const gpu_call c, double *sums, int rounded, int mode) {
    const int t = blockIdx.y, n_all = c.v[0].shape[1], k_all = c.v[1].shape[1];
    const int n = blockIdx.x * blockDim.x + threadIdx.x;
    if (n >= n_all)
        return;
    const float y = ((const float *)(c.v[0].data + t * c.v[0].stride))[n];
    if (t >= rows_of(&c, &c.v[1])) {
        if (y == y)
            atomicAdd(sums + 2, 1.0);
        return;
    }
    const float *x = (const float *)(c.v[1].data + t * c.v[1].stride);
    double got[2] = {0, 0};
    const int weights = mode == WIDE_LINEAR ? (int)c.n_in - 1 : mode == WIDE_ADD ? 1 : 2;
    int first = 0;
    for (int i = 0; i < weights; i++) {
        const int r = mode == WIDE_SWIGLU ? n : n - first;
        first += mode == WIDE_SWIGLU ? 0 : c.v[2 + i].shape[0];
        if (r < 0 || r >= c.v[2 + i].shape[0])
            continue;
        const uint8_t *row = (const uint8_t *)c.v[2 + i].data + r * c.v[2 + i].stride;
        for (int k = 0; k < k_all; k += 32) {
            float w[32];
            part_values(c.v[2 + i].format, row, k / 32, w);
            for (int j = 0; j < 32; j++) {
                const double a = rounded ? __bfloat162float(__float2bfloat16(x[k + j])) : x[k + j];
                const double b = rounded ? __bfloat162float(__float2bfloat16(w[j])) : w[j];
                got[mode == WIDE_SWIGLU ? i : 0] += a * b;
            }
        }
    }
    double ref = mode == WIDE_SWIGLU ? got[0] / (1 + exp(-got[0])) * got[1] : got[0];
    if (mode == WIDE_ADD)
        ref += ((const float *)(c.v[3].data + t * c.v[3].stride))[n];
    if (y != y)
        atomicAdd(sums + 2, 1.0);
    atomicAdd(sums, (y - ref) * (y - ref));
    atomicAdd(sums + 1, ref * ref);
}

struct part {
    uint32_t format;
    int rows;
};

struct product_case {
    gpu_call call = {};
    std::vector<memory *> held;
    int columns = 0, mode, tokens;
    memory counts{32, 0}, fault{4, 0};
    product_case(int most, int tokens, int k, const std::vector<part> &parts, int mode, int extreme)
        : mode(mode), tokens(tokens) {
        int n = 0;
        for (const part &p : parts) {
            const format_shape &f = shape_of(p.format);
            const size_t blocks = (size_t)p.rows * k / f.block;
            const uint64_t stride = (uint64_t)k / f.block * f.bytes;
            held.push_back(new memory(blocks * f.bytes + 16));
            fill_blocks<<<1024, 256, 0, stream>>>(held.back()->at, blocks, p.format, f.bytes, seed++);
            call.v[2 + n++] = view_of(held.back()->at, {p.rows, k}, stride, p.format);
            columns += mode == WIDE_SWIGLU ? (n == 1 ? p.rows : 0) : p.rows;
        }
        held.push_back(new memory((size_t)most * k * 4));
        fill_f32<<<1024, 256, 0, stream>>>((float *)held.back()->at, (size_t)most * k, seed++, 1, extreme);
        call.v[1] = view_of(held.back()->at, {most, k}, 4ull * k, 0, 0);
        held.push_back(new memory((size_t)most * columns * 4));
        call.v[0] = view_of(held.back()->at, {most, columns}, 4ull * columns, 0, 0);
        if (mode == WIDE_ADD) {
            held.push_back(new memory((size_t)most * columns * 4));
            fill_f32<<<1024, 256, 0, stream>>>((float *)held.back()->at, (size_t)most * columns, seed++, 1, 0);
            call.v[3] = view_of(held.back()->at, {most, columns}, 4ull * columns, 0, 0);
        }
        call.n_in = 1 + n + (mode == WIDE_ADD);
        call.mode = mode;
        OK(cudaMemcpyAsync(counts.at, &tokens, 4, cudaMemcpyHostToDevice, stream));
        call.counts = (uint64_t)counts.at, call.fault = (uint64_t)fault.at;
        held.push_back(new memory(tiles_scratch(&call) + tiles_scratch_fp8(&call)));
        call.scratch = (uint64_t)held.back()->at;
    }
    ~product_case() {
        OK(cudaStreamSynchronize(stream));
        for (memory *m : held)
            delete m;
    }
    void tiles(bool fp8 = false) {
        fp8 ? launch((const void *)wide_tiles_fp8, {dim3(132 * 3), 256, 0, false}, call)
            : launch((const void *)wide_tiles, {dim3(132 * 5), 256, 0, false}, call);
    }
    void multiply(bool wide, bool fp8 = false) {
        const void *kernels[4][3] = {
            {(const void *)linear_narrow, (const void *)linear_add_narrow, (const void *)linear_swiglu_narrow},
            {(const void *)linear_wide, (const void *)linear_add_wide, (const void *)linear_swiglu_wide},
            {(const void *)linear_narrow_fp8, (const void *)linear_add_narrow_fp8,
             (const void *)linear_swiglu_narrow_fp8},
            {(const void *)linear_wide_fp8, (const void *)linear_add_wide_fp8, (const void *)linear_swiglu_wide_fp8}};
        const void *kernel = kernels[2 * fp8 + wide][mode];
        const int shared = tiles_shared(wide ? 256 : 128, mode);
        allow(kernel, shared);
        launch(kernel, {dim3(132), 384, shared, false}, call);
    }
    /* Errors against the products of numbers that are not rounded, or are rounded to bf16. */
    void compare(const char *what, bool rounded, double bound) {
        memory sums(24, 0);
        std::vector<double> s(3);
        reference<<<dim3((columns + 127) / 128, call.v[1].shape[0]), 128, 0, stream>>>(call, (double *)sums.at, rounded,
                                                                                       mode);
        OK(cudaMemcpyAsync(s.data(), sums.at, 24, cudaMemcpyDeviceToHost, stream));
        OK(cudaStreamSynchronize(stream));
        report(what, s, bound);
    }
};

/* Whether wide_tiles_fp8 converts these weights, of those that a file has. */
static bool fp8_takes(const std::vector<part> &parts) {
    for (const part &p : parts)
        if (p.format != FORMAT_F16 && p.format != FORMAT_BF16)
            return false;
    return true;
}

static void check_product(const char *what, int most, int tokens, int k, const std::vector<part> &parts, int mode,
                          int extreme) {
    for (int wide = 0; wide < 2; wide++) {
        product_case p(most, tokens, k, parts, mode, extreme);
        char name[96];
        const int at = snprintf(name, sizeof name, "%s T=%d/%d K=%d N=%d %s", what, tokens, most, k, p.columns,
                                wide ? "wide" : "narrow");
        p.tiles();
        p.multiply(wide);
        p.compare(name, false, 5e-5);
        snprintf(name + at, sizeof name - at, " (rounded)");
        p.compare(name, true, 1e-9);
        if (!fp8_takes(parts))
            continue;
        snprintf(name + at, sizeof name - at, " fp8");
        p.tiles(true);
        p.multiply(wide, true);
        p.compare(name, false, mode == WIDE_SWIGLU ? 6e-3 : 2e-3);
    }
}

static void time_product(const char *what, int tokens, int k, const std::vector<part> &parts, int mode) {
    product_case p(tokens, tokens, k, parts, mode, 0);
    const int rows = mode == WIDE_SWIGLU ? 2 * p.columns : p.columns;
    const double flop = 2.0 * tokens * k * rows, tiles = median_us([&] { p.tiles(); }, 10);
    const double wide = median_us([&] { p.multiply(true); }, 10), narrow = median_us([&] { p.multiply(false); }, 10);
    printf("%-28s T=%-5d K=%-6d N=%-6d tiles %7.1f us (%4.0f GB/s of bf16)  wide %8.1f us %4.0f TFLOP/s  narrow %8.1f "
           "us %4.0f "
           "TFLOP/s\n",
           what, tokens, k, rows, tiles, 2e-3 * ((double)rows + tokens) * k / tiles, wide, flop / wide * 1e-6, narrow,
           flop / narrow * 1e-6);
    if (fp8_takes(parts)) {
        const double tiles8 = median_us([&] { p.tiles(true); }, 10),
                     wide8 = median_us([&] { p.multiply(true, true); }, 10),
                     narrow8 = median_us([&] { p.multiply(false, true); }, 10);
        printf("%-28s fp8: tiles %7.1f us  wide %8.1f us %4.0f TFLOP/s  narrow %8.1f us %4.0f TFLOP/s\n", what, tiles8,
               wide8, flop / wide8 * 1e-6, narrow8, flop / narrow8 * 1e-6);
    }
}

static void check_all(void) {
    const part q4 = {FORMAT_Q4_K, 512}, q6 = {FORMAT_Q6_K, 256};
    check_product("Q4_K", 256, 256, 1024, {{FORMAT_Q4_K, 512}}, WIDE_LINEAR, 0);
    check_product("Q4_K Q4_K Q6_K", 400, 333, 2048, {q4, {FORMAT_Q4_K, 256}, q6}, WIDE_LINEAR, 0);
    check_product("Q8_0, odd shapes", 300, 129, 96, {{FORMAT_Q8_0, 1002}}, WIDE_LINEAR, 1);
    check_product("F16 BF16 F32", 200, 200, 544, {{FORMAT_F16, 130}, {FORMAT_BF16, 30}, {FORMAT_F32, 100}}, WIDE_LINEAR,
                  1);
    check_product("BF16", 300, 257, 4096, {{FORMAT_BF16, 520}}, WIDE_LINEAR, 1);
    check_product("BF16 add", 300, 300, 14336, {{FORMAT_BF16, 256}}, WIDE_ADD, 0);
    check_product("F16 swiglu", 200, 200, 1056, {{FORMAT_F16, 600}, {FORMAT_F16, 600}}, WIDE_SWIGLU, 0);
    check_product("Q4_K add", 1500, 1400, 4096, {{FORMAT_Q4_K, 1024}}, WIDE_ADD, 1);
    check_product("Q6_K add", 130, 1, 512, {q6}, WIDE_ADD, 0);
    check_product("Q4_K swiglu", 600, 577, 1024, {{FORMAT_Q4_K, 1400}, {FORMAT_Q4_K, 1400}}, WIDE_SWIGLU, 0);
    check_product("Q8_0 Q6_K swiglu, odd", 260, 257, 512, {{FORMAT_Q8_0, 602}, {FORMAT_Q6_K, 602}}, WIDE_SWIGLU, 0);
    for (uint32_t id : {2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 20, 23, 28, 39}) {
        char name[32];
        snprintf(name, sizeof name, "%s all", shape_of(id).name);
        check_product(name, 150, 140, 1280, {{id, 264}}, WIDE_LINEAR, 0);
    }
}

static void time_products(void) {
    for (int t : {4096, 1024, 512, 256}) {
        time_product("8b qkv", t, 4096, {{FORMAT_Q4_K, 4096}, {FORMAT_Q4_K, 1024}, {FORMAT_Q6_K, 1024}}, WIDE_LINEAR);
        time_product("8b o", t, 4096, {{FORMAT_Q4_K, 4096}}, WIDE_ADD);
        time_product("8b gate, up", t, 4096, {{FORMAT_Q4_K, 14336}, {FORMAT_Q4_K, 14336}}, WIDE_SWIGLU);
        time_product("8b down", t, 14336, {{FORMAT_Q6_K, 4096}}, WIDE_ADD);
    }
    for (int t : {4096, 512}) {
        time_product("1b qkv", t, 2048, {{FORMAT_Q4_K, 2048}, {FORMAT_Q4_K, 512}, {FORMAT_Q6_K, 512}}, WIDE_LINEAR);
        time_product("1b o", t, 2048, {{FORMAT_Q4_K, 2048}}, WIDE_ADD);
        time_product("1b gate, up", t, 2048, {{FORMAT_Q4_K, 8192}, {FORMAT_Q4_K, 8192}}, WIDE_SWIGLU);
        time_product("1b down", t, 8192, {{FORMAT_Q4_K, 2048}}, WIDE_ADD);
    }
    for (int t : {4096, 512}) { /* those of an 8B, as Q4_K_M has them above */
        time_product("8b qkv, bf16", t, 4096, {{FORMAT_BF16, 6144}}, WIDE_LINEAR);
        time_product("8b o, bf16", t, 4096, {{FORMAT_BF16, 4096}}, WIDE_ADD);
        time_product("8b gate, up, bf16", t, 4096, {{FORMAT_BF16, 14336}, {FORMAT_BF16, 14336}}, WIDE_SWIGLU);
        time_product("8b down, bf16", t, 14336, {{FORMAT_BF16, 4096}}, WIDE_ADD);
    }
    time_product("square, bf16", 8192, 8192, {{FORMAT_BF16, 8192}}, WIDE_LINEAR);
}

int main(int n, char **argv) {
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    setvbuf(stdout, NULL, _IOLBF, 0);
    check_all();
    if (n < 2 || std::string(argv[1]) != "check")
        time_products();
    printf("%d wrong\n", failures);
    return failures != 0;
}
