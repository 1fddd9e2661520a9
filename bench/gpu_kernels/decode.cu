/* decode.cu: checks the kernels over packed weights against a plain product, then times the products of a model's token.
 *
 * nvcc -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -Icext/kernels -Icext/include -Icext/quant \
 *      -IBUILD/cext/headers -o decode bench/gpu_kernels/decode.cu   (BUILD: where CMake built the C libraries)
 * decode check | decode small | decode token [format columns...] | decode columns [least columns of columns.cu]
 * decode alone ... | decode pair ... | decode split ...: the same with 2 to 4 columns by that kind of gemv.cu's kernels, where it takes them
 * decode prefetch: products of one column that bring the next one's first megabytes to the second-level cache
 * decode half check | decode half token | decode half cuts: columns_half.cu, beside columns.cu
 */
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

#include "../../cext/cuda/tile_pack.cu"
/* Each wave's share of the first bytes of the next product's first two weights, for the second-level cache. */
#define GEMV_ASKED_ALL(c)                                                                                              \
    prefetch_share(c.arg[2], c.config);                                                                                \
    prefetch_share(c.arg[3], c.unused);
static __device__ __forceinline__ void prefetch_share(uint64_t at, uint32_t bytes) {
    const uint32_t waves = gridDim.x * (blockDim.x / 32), wave = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    const uint32_t share = (bytes / waves + 15) / 16 * 16, from = wave * share;
    if (from < bytes)
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(at + from),
                     "r"(min(share, bytes - from) / 16 * 16)
                     : "memory");
}
#include "../../cext/cuda/gemv.cu"
#include "../../cext/cuda/batch.cu"
#include "../../cext/cuda/columns.cu"
#include "columns_half.cuh"
#include "../../cext/cuda/dense.cu"
#include "bench.cuh"
namespace rows { /* its hal.h, which has no include guard, is the second here */
#include "../../cext/cuda/tile_rows.cu"
}

typedef void (*kernel)(const gpu_call);
static int units = 132, columns_from = 5;
static columns_cut forced;
static int kind_asked = -1; /* a gemv_kind for 2 to 4 columns; -1: as products.c chooses */
static bool halves;         /* columns_half.cu computes what it can */

struct format {
    const char *name;
    int number, columns, block, chunk, most;
    kernel pack, gemv, pair, split;
};
#define FORMAT_ROW(f)                                                                                                  \
    {#f,                                                                                                               \
     tile_##f::FORMAT,                                                                                                 \
     packer<tile_##f>::COLUMNS,                                                                                        \
     packer<tile_##f>::BLOCK,                                                                                          \
     tile_##f::BYTES,                                                                                                  \
     tile_##f::BYTES,                                                                                                  \
     pack_##f,                                                                                                         \
     gemv_##f,                                                                                                         \
     gemv_pair_##f,                                                                                                    \
     gemv_split_##f},
static const format formats[] = {TILE_FORMATS(FORMAT_ROW)};
static const format dense_formats[] = {{"f16", 1, 1, 2, 0, 0, nullptr, dense_f16, nullptr, nullptr},
                                       {"bf16", 30, 1, 2, 0, 0, nullptr, dense_bf16, nullptr, nullptr}};
static const format &format_named(const char *name) {
    for (const format &f : formats)
        if (!strcmp(f.name, name))
            return f;
    for (const format &f : dense_formats)
        if (!strcmp(f.name, name))
            return f;
    printf("no format %s\n", name);
    exit(1);
}

__device__ uint32_t noise(uint64_t i) {
    i = (i + 0x9E3779B97F4A7C15ull) * 0xBF58476D1CE4E5B9ull;
    i = (i ^ (i >> 27)) * 0x94D049BB133111EBull;
    return (uint32_t)(i >> 29);
}

/* Random blocks whose scales are sane, or (wild) any finite halves. */
__global__ void fill_blocks(uint8_t *to, int64_t blocks, int bytes, int number, uint64_t seed, int wild) {
    for (int64_t b = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; b < blocks; b += (int64_t)gridDim.x * blockDim.x) {
        uint8_t *p = to + b * bytes;
        if (bytes == 2) { /* f16 or bf16 */
            float x = ((noise(seed + b) >> 8) * (1.0f / 8388608.0f) - 1.0f) * 0.03f;
            *(uint16_t *)p = number == 1 ? f32_to_f16(x) : f32_to_bf16(x);
            continue;
        }
        for (int i = 0; i < bytes; i++)
            p[i] = (uint8_t)(noise(seed + b * 4096 + i) >> 3);
        int at[2] = {number == 14 ? 208 : 0, number == 12 || number == 13 ? 2 : -1};
        if (number == 39) {
            p[0] = wild ? 90 + p[0] % 64 : 118 + p[0] % 4;
            continue;
        }
        if (number == 2003) { /* its scale is a float */
            uint32_t r = noise(seed + b * 4096 + 3000);
            float d = 3e-4f * (0.5f + (r >> 8) * (1.0f / 16777216.0f));
            d = wild ? ldexpf(r & 1 ? -d : d, (int)(r >> 24) % 40 - 20) : d;
            memcpy(p, &d, 4);
            continue;
        }
        for (int k = 0; k < 2; k++) {
            if (at[k] < 0)
                continue;
            uint32_t r = noise(seed + b * 4096 + 3000 + k);
            float base = number == 12 || number == 13   ? (k ? 7e-4f : 1e-4f)
                         : number == 14 || number == 23 ? 2e-5f
                         : number == 8                  ? 3e-4f
                                                        : 4e-3f;
            __half h = __float2half(base * (0.5f + (r >> 8) * (1.0f / 16777216.0f)));
            uint16_t bits = wild ? (uint16_t)((r & 0x83FF) | ((r >> 11) % 24) << 10) : *(uint16_t *)&h;
            p[at[k]] = bits & 255, p[at[k] + 1] = bits >> 8;
        }
    }
}

__global__ void fill_floats(float *to, int64_t n, uint64_t seed, float scale, int outliers) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        float u = 0;
        for (int k = 0; k < 6; k++)
            u += (noise(seed + i * 8 + k) >> 8) * (1.0f / 16777216.0f);
        to[i] = (u - 3.0f) * 1.41f * scale * (outliers && noise(seed + i * 8 + 7) % 997 == 0 ? 300.0f : 1.0f);
    }
}

template <class B> __device__ void unpack_any(const B *, float *);
#define UNPACK(f)                                                                                                      \
    template <> __device__ void unpack_any(const block_##f *b, float *out) {                                           \
        f##_unpack(b, out);                                                                                            \
    }
TILE_FORMATS(UNPACK)
template <> __device__ void unpack_any(const block_f16 *b, float *out) {
    f16_unpack(b, out);
}
template <> __device__ void unpack_any(const block_bf16 *b, float *out) {
    bf16_unpack(b, out);
}

/* out = (norm(x) w^T)[t][n] in float64 */
template <class B, int COLUMNS>
__global__ void plain(const B *w, const float *x, int64_t x_stride, const float *norm, double scale_eps, double *out,
                      int rows, int k, int columns) {
    int row = blockIdx.x * blockDim.x + threadIdx.x, t = blockIdx.y;
    if (row >= rows)
        return;
    float v[COLUMNS];
    double sum = 0, squares = 0;
    const float *a = x + t * x_stride;
    for (int b = 0; b < k / COLUMNS; b++) {
        unpack_any(w + (int64_t)row * (k / COLUMNS) + b, v);
        for (int i = 0; i < COLUMNS; i++) {
            float y = a[b * COLUMNS + i];
            sum += (double)v[i] * y * (norm ? norm[b * COLUMNS + i] : 1.0f);
            squares += (double)y * y;
        }
    }
    out[(int64_t)t * rows + row] = norm ? sum / sqrt(squares / k + scale_eps) : sum;
}

static void plain_product(const format &f, const void *w, const float *x, int64_t stride, const float *norm,
                          double *out, int rows, int k, int columns) {
    dim3 grid((rows + 63) / 64, columns);
#define PLAIN(f_)                                                                                                      \
    if (f.number == tile_##f_::FORMAT)                                                                                 \
        plain<block_##f_, packer<tile_##f_>::COLUMNS>                                                                  \
            <<<grid, 64>>>((const block_##f_ *)w, x, stride, norm, 1e-5, out, rows, k, columns);
    TILE_FORMATS(PLAIN)
    if (f.number == 1)
        plain<block_f16, 1><<<grid, 64>>>((const block_f16 *)w, x, stride, norm, 1e-5, out, rows, k, columns);
    if (f.number == 30)
        plain<block_bf16, 1><<<grid, 64>>>((const block_bf16 *)w, x, stride, norm, 1e-5, out, rows, k, columns);
    OK(cudaGetLastError());
}

static void *take(size_t bytes) {
    void *p;
    OK(cudaMalloc(&p, bytes));
    return p;
}

static void launch(kernel k, dim3 grid, int threads, int shared, const gpu_call &c, cudaStream_t s, bool pdl,
                   int cluster = 1) {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute a[2] = {{cudaLaunchAttributeClusterDimension},
                                {cudaLaunchAttributeProgrammaticStreamSerialization}};
    a[0].val.clusterDim.x = cluster, a[0].val.clusterDim.y = a[0].val.clusterDim.z = 1;
    a[1].val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = grid, config.blockDim = dim3(threads), config.dynamicSmemBytes = shared, config.stream = s;
    config.attrs = a, config.numAttrs = pdl ? 2 : 1;
    OK(cudaFuncSetAttribute((const void *)k, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    OK(cudaFuncSetAttribute((const void *)k, cudaFuncAttributePreferredSharedMemoryCarveout, 100));
    OK(cudaLaunchKernelEx(&config, k, c));
}

struct weight {
    const format *f;
    int rows, k;
    void *file, *packed;
    size_t bytes;
};

static size_t packed_bytes(const format &f, int rows, int k) {
    return (size_t)((rows + 15) / 16) * ((k + 255) / 256) * f.chunk;
}

static weight make_weight(const format &f, int rows, int k, uint64_t seed, bool wild, bool keep, void *file = nullptr) {
    weight w = {&f, rows, k, nullptr, nullptr, packed_bytes(f, rows, k)};
    int64_t blocks = (int64_t)rows * (k / f.columns);
    if (!f.chunk) { /* stays in the file's order */
        w.bytes = (size_t)blocks * f.block, w.file = w.packed = take(w.bytes);
        fill_blocks<<<1056, 128>>>((uint8_t *)w.file, blocks, f.block, f.number, seed * 1000003, wild);
        return w;
    }
    w.file = file ? file : take(blocks * f.block);
    w.packed = take(w.bytes);
    fill_blocks<<<1056, 128>>>((uint8_t *)w.file, blocks, f.block, f.number, seed * 1000003, wild);
    gpu_call c = {};
    c.v[0].data = (uint64_t)w.packed, c.v[0].shape[0] = 1, c.v[0].shape[1] = rows, c.v[0].shape[2] = k;
    c.v[1].data = (uint64_t)w.file;
    f.pack<<<1056, 256>>>(c);
    OK(cudaGetLastError());
    if (!keep && !file)
        OK(cudaFree(w.file));
    return w;
}

static gpu_view view(const void *p, int rows, int columns, size_t stride, uint32_t fmt) {
    gpu_view v = {};
    v.data = (uint64_t)p, v.stride = stride, v.shape[0] = rows, v.shape[1] = columns, v.shape[2] = v.shape[3] = 1,
    v.count = -1, v.format = fmt;
    return v;
}

struct planned {
    kernel k;
    dim3 grid;
    int threads, shared;
    gpu_call c;
    size_t bytes;
    int cluster; /* groups of a cluster of gemv; 0: none */
    int batch;   /* sets of 16 columns that batch.cu takes at once; 0: gemv */
    columns_cut cut;
    int half; /* warps of columns_half.cu that multiply; 0: another kernel's */
};

static bool half_takes(const std::vector<weight> &ws, int columns) {
    for (const weight &w : ws)
        if (w.f->number != tile_q4_k::FORMAT && w.f->number != tile_q5_k::FORMAT && w.f->number != tile_q6_k::FORMAT)
            return false;
    return halves && columns <= HALF_MOST;
}

/* Gives a product of columns_half.cu another partition; false: it does not fit. */
static bool half_recut(planned &p, int teams, int parts, int warps) {
    int gated = p.c.mode & GATED ? 1 : 0, columns = half_columns(p.c.v[0].shape[0]);
    if (teams <= gated || parts > packed_chunks(&p.c.v[1]))
        return false;
    half_cut h = {{teams, parts, (columns_all_blocks(&p.c) + (teams >> gated) - 1) / (teams >> gated)}, warps};
    if (!half_fits(&p.c, h))
        return false;
    p.cut = h.cut, p.half = warps, p.threads = half_threads(warps, teams);
    p.k = columns == 8 ? columns_half_8 : columns_half_16;
    p.shared = half_room_of(columns, half_chunks(&p.c, parts), warps, teams, columns_bytes(&p.c)).bytes;
    return true;
}

/* Gives a product to clusters of groups that split K; false: they do not take it. tiles: of a gated product pairs of them. */
static bool split(planned &p, kernel k, int chunk_bytes, int tiles) {
    const int columns = p.c.v[0].shape[0], chunks = packed_chunks(&p.c.v[1]), gated = p.c.mode & GATED ? 1 : 0;
    if (kind_asked != SPLIT && p.shared <= 227 * 1024 && chunks * columns < GEMV_SPLIT_LEAST)
        return false;
    for (int parts = 2; parts <= GEMV_SPLIT_MOST && parts <= chunks; parts *= 2) {
        const int slots = columns_slots(parts, units) / parts, clusters = tiles < slots ? tiles : slots;
        const gemv_plan plan = gemv_split_plan(parts, chunk_bytes, columns, chunks);
        const int bytes = gemv_split_bytes(&plan, parts, (tiles + clusters - 1) / clusters << gated, columns);
        if (bytes > 227 * 1024)
            continue;
        p.k = k, p.cluster = parts, p.grid = dim3(clusters * parts), p.shared = bytes;
        return true;
    }
    return false;
}

/* Gives a product of two to four columns to clusters of groups, as products.c does, or as was asked. */
static void cluster(planned &p, const format &f, bool same, const gemv_plan &alone, int chunk_bytes, int tiles) {
    if (kind_asked != ALONE && kind_asked != PAIR && split(p, same ? f.split : gemv_split_mixed, chunk_bytes, tiles))
        return;
    if (kind_asked == ALONE || kind_asked == SPLIT || gemv_pair_bytes(&alone) > 227 * 1024)
        return;
    p.k = same ? f.pair : gemv_pair_mixed, p.cluster = 2, p.shared = gemv_pair_bytes(&alone);
    p.grid.x += p.grid.x % 2;
}

/* linear of several weights; mode: ADD, GATED, NORM */
static planned plan(const std::vector<weight> &ws, int mode, const float *x, const float *norm, const float *residual,
                    float *out, int columns) {
    planned p = {};
    int rows = 0, tiles = 0, n = 0, stage = 0;
    bool same = true;
    gpu_call &c = p.c;
    for (const weight &w : ws) {
        rows += mode & GATED ? 0 : w.rows;
        tiles += (w.rows + 15) / 16;
        same &= w.f == ws[0].f;
        p.bytes += w.bytes;
    }
    if (mode & GATED)
        rows = ws[0].rows, tiles /= 2;
    int k = ws[0].k;
    c.mode = mode;
    float eps = 1e-5f;
    memcpy(&c.arg[0], &eps, 4);
    c.v[n++] = view(out, columns, rows, (size_t)rows * 4, 0);
    c.v[n++] = view(x, columns, k, (size_t)k * 4, 0);
    for (const weight &w : ws)
        c.v[n++] = w.f->chunk ? view(w.packed, w.rows, w.k, 0, w.f->number | 1u << 24)
                              : view(w.packed, w.rows, w.k, (size_t)w.k * 2, w.f->number);
    if (mode & ADD)
        c.v[n++] = view(residual, columns, rows, (size_t)rows * 4, 0);
    if (mode & NORM)
        c.v[n++] = view(norm, k, 1, 4, 0);
    c.n_in = n - 1;
    p.k = same ? ws[0].f->gemv : gemv_mixed;
    for (const weight &w : ws)
        stage = w.f->chunk > stage ? w.f->chunk : stage;
    p.grid = dim3(tiles < units ? tiles : units);
    const gemv_plan gemv = gemv_plan_of(GEMV_WAVES, 1, stage, columns, (k + 255) / 256);
    p.shared = gemv.bytes;
    p.threads = WAVES * 32;
    if (ws[0].f->chunk && columns > 1 && columns <= GEMV_COLUMNS)
        cluster(p, *ws[0].f, same, gemv, stage, tiles);
    if (!ws[0].f->chunk && columns <= GEMV_COLUMNS) {
        int pairs = mode & GATED ? rows : (rows + 1) / 2;
        p.grid = dim3(pairs < units ? pairs : units);
        p.shared = 4 * columns * k;
        return p;
    }
    if (columns > GEMV_COLUMNS || columns >= columns_from || p.shared > 227 * 1024) {
        static void *scratch;
        if (!scratch)
            scratch = take(1ull << 30);
        c.scratch = (uint64_t)scratch;
        if (columns >= columns_from && columns <= COLUMNS_MOST) {
            static const kernel packed[] = {columns_8, columns_16, columns_32, columns_64, columns_128};
            static const kernel dense[] = {columns_dense_8, columns_dense_16, columns_dense_32, columns_dense_64,
                                           columns_dense_128};
            const half_cut h = half_takes(ws, columns) ? half_cut_of(&c, units) : half_cut{};
            if (half_recut(p, h.cut.teams, h.cut.parts ? h.cut.parts : 1, h.warps))
                return p;
            const kernel *kernels = columns_dense(&c) ? dense : packed;
            int kind = columns_kind(columns);
            stage = columns_bytes(&c);
            p.cut = forced.teams ? forced : columns_cut_of(&c, units);
            if (forced.teams) {
                int blocks = 0, gated = mode & GATED ? 1 : 0;
                for (const weight &w : ws)
                    blocks += gated && &w != &ws[0] ? 0 : (w.rows + 63) / 64;
                p.cut.groups = (blocks + (p.cut.teams >> gated) - 1) / (p.cut.teams >> gated);
            }
            p.k = kernels[kind], p.threads = 128 * p.cut.teams + COLUMNS_FETCHERS;
            p.shared = columns_room_of(8 << kind, p.cut.teams, p.cut.parts, stage).bytes;
            return p;
        }
        if (batch_scratch(&c) > 1ull << 30)
            printf("scratch is too small\n"), exit(1);
        p.batch = batch_shape_of(&c).sets;
        p.k = p.batch == 1 ? batch_16 : batch_64;
        p.shared = BATCH_SHARED(p.batch);
    }
    return p;
}

static void run(const planned &p, cudaStream_t st, bool pdl) {
    if (p.cut.teams) {
        int parts = p.c.mode & NORM ? 1 : (packed_chunks(&p.c.v[1]) + 15) / 16;
        launch(p.half ? columns_half_convert : columns_convert, dim3(parts, p.c.v[0].shape[0]), 256, 0, p.c, st, pdl);
        launch(p.k, dim3(p.cut.groups * p.cut.parts), p.threads, p.shared, p.c, st, pdl, p.cut.parts);
        return;
    }
    if (!p.batch) {
        launch(p.k, p.grid, p.threads, p.shared, p.c, st, pdl, p.cluster ? p.cluster : 1);
        return;
    }
    batch_shape s = batch_shape_of(&p.c);
    int columns = p.c.v[0].shape[0];
    launch(batch_convert, dim3((packed_chunks(&p.c.v[1]) + 7) / 8, s.columns), 256, 0, p.c, st, false);
    launch(p.k, dim3((s.tiles + 3) / 4, s.parts, (columns + 16 * p.batch - 1) / (16 * p.batch)), BATCH_THREADS(p.batch),
           p.shared, p.c, st, false);
    launch(batch_finish, dim3((s.tiles + 15) / 16, columns), 256, 0, p.c, st, false);
}

static void check(const std::vector<weight> &ws, int mode, int columns, float scale, const char *what) {
    int k = ws[0].k, rows = 0;
    for (const weight &w : ws)
        rows += w.rows;
    int out_rows = mode & GATED ? ws[0].rows : rows;
    float *x = (float *)take((size_t)columns * k * 4), *norm = (float *)take(k * 4),
          *r = (float *)take((size_t)columns * out_rows * 4), *out = (float *)take((size_t)columns * out_rows * 4 + 64);
    double *ref = (double *)take((size_t)columns * rows * 8);
    fill_floats<<<64, 256>>>(x, (int64_t)columns * k, 77 + k, scale, 1);
    fill_floats<<<64, 256>>>(norm, k, 99, 1.0f, 0);
    fill_floats<<<64, 256>>>(r, (int64_t)columns * out_rows, 55, scale, 0);
    OK(cudaMemset(out, 0xFF, (size_t)columns * out_rows * 4 + 64));
    planned p = plan(ws, mode, x, norm, r, out, columns);
    run(p, 0, false);
    OK(cudaDeviceSynchronize());
    std::vector<float> got((size_t)columns * out_rows + 16), again(got.size()), hr((size_t)columns * out_rows);
    OK(cudaMemcpy(got.data(), out, got.size() * 4, cudaMemcpyDeviceToHost));
    run(p, 0, false);
    OK(cudaMemcpy(again.data(), out, got.size() * 4, cudaMemcpyDeviceToHost));
    OK(cudaMemcpy(hr.data(), r, hr.size() * 4, cudaMemcpyDeviceToHost));
    double *at = ref;
    for (const weight &w : ws) {
        plain_product(*w.f, w.file, x, k, mode & NORM ? norm : nullptr, at, w.rows, k, columns);
        at += (size_t)columns * w.rows;
    }
    std::vector<double> h((size_t)columns * rows);
    OK(cudaMemcpy(h.data(), ref, h.size() * 8, cudaMemcpyDeviceToHost));
    double err = 0, norm2 = 0, worst = 0;
    int bad = 0;
    for (int t = 0; t < columns; t++)
        for (int i = 0; i < out_rows; i++) {
            double y;
            if (mode & GATED) {
                double g = h[(size_t)t * ws[0].rows + i],
                       u = h[(size_t)columns * ws[0].rows + (size_t)t * ws[1].rows + i];
                y = g / (1 + exp(-g)) * u;
            } else {
                int j = i;
                size_t base = 0, wi = 0;
                while (j >= ws[wi].rows)
                    j -= ws[wi].rows, base += (size_t)columns * ws[wi].rows, wi++;
                y = h[base + (size_t)t * ws[wi].rows + j];
            }
            if (mode & ADD)
                y += hr[(size_t)t * out_rows + i];
            double g = got[(size_t)t * out_rows + i], e = g - y;
            if (!(fabs(g) < 1e38) && fabs(y) < 3e38)
                bad++;
            else if (fabs(y) < 3e38)
                err += e * e, norm2 += y * y, worst = fabs(e) > worst ? fabs(e) : worst;
        }
    double nmse = norm2 > 0 ? err / norm2 : err;
    bool ok = nmse < (p.half        ? 1e-6
                      : p.cut.teams ? 3e-5
                                    : 1e-5) &&
              !bad && !memcmp(got.data(), again.data(), got.size() * 4) &&
              memcmp(&got[(size_t)columns * out_rows], "\xFF\xFF\xFF\xFF", 4) == 0;
    failures += !ok;
    if (!ok || strstr(what, "2048x") || strstr(what, " 2048"))
        printf("  %-44s %s nmse %.2e worst %.2e of rms %.2e, bad %d\n", what, ok ? "ok  " : "FAIL", nmse, worst,
               sqrt(norm2 / (columns * out_rows)), bad);
    cudaFree(x), cudaFree(norm), cudaFree(r), cudaFree(out), cudaFree(ref);
}

static void check_rows(const weight &w, const char *what) {
    int ids[4] = {0, w.rows - 1, w.rows / 2, w.rows}; /* the last is none */
    int *d = (int *)take(16);
    uint32_t *fault = (uint32_t *)take(4), h_fault;
    float *out = (float *)take((size_t)4 * w.k * 4), *unit = (float *)take(w.k * 4);
    OK(cudaMemcpy(d, ids, 16, cudaMemcpyHostToDevice));
    OK(cudaMemset(fault, 0, 4));
    gpu_call c = {};
    c.fault = (uint64_t)fault, c.step = 6, c.n_in = 2;
    c.v[0] = view(out, 4, w.k, (size_t)w.k * 4, 0), c.v[1] = view(w.packed, w.rows, w.k, 0, w.f->number | 1u << 24),
    c.v[2] = view(d, 4, 1, 4, 26);
    rows::get_rows_packed<<<4, 256>>>(c);
    OK(cudaDeviceSynchronize());
    std::vector<float> got((size_t)4 * w.k), zero(w.k);
    OK(cudaMemcpy(got.data(), out, got.size() * 4, cudaMemcpyDeviceToHost));
    OK(cudaMemcpy(&h_fault, fault, 4, cudaMemcpyDeviceToHost));
    double *ref = (double *)take((size_t)w.rows * 8), worst = 0;
    std::vector<double> h(w.rows);
    for (int k = 0; k < w.k; k += w.k / 5 + 3) { /* a product with a unit vector is a column */
        zero.assign(w.k, 0.0f), zero[k] = 1.0f;
        OK(cudaMemcpy(unit, zero.data(), w.k * 4, cudaMemcpyHostToDevice));
        plain_product(*w.f, w.file, unit, w.k, nullptr, ref, w.rows, w.k, 1);
        OK(cudaMemcpy(h.data(), ref, w.rows * 8, cudaMemcpyDeviceToHost));
        for (int i = 0; i < 3; i++) {
            double e = fabs(got[(size_t)i * w.k + k] - h[ids[i]]) / (fabs(h[ids[i]]) + 1e-9);
            worst = e > worst ? e : worst;
        }
    }
    bool ok = worst < 1e-4 && h_fault == 7 && got[(size_t)3 * w.k] == 0.0f && got[(size_t)4 * w.k - 1] == 0.0f;
    failures += !ok;
    if (!ok)
        printf("  rows of %-36s FAIL worst %.2e fault %u\n", what, worst, h_fault);
    cudaFree(d), cudaFree(fault), cudaFree(out), cudaFree(unit), cudaFree(ref);
}

static void check_all() {
    char what[128];
    struct {
        int rows, k, columns;
    } shapes[] = {{1000, 2048, 1}, {33, 256, 4}, {512, 8192, 3},   {1, 512, 2},    {2048, 4096, 4},  {5000, 14336, 1},
                  {40, 896, 4},    {16, 96, 2},  {2048, 2048, 16}, {300, 4096, 5}, {1030, 1536, 70}, {16, 256, 130}};
    for (const format &f : formats) {
        for (auto &s : shapes) {
            if (s.k % f.columns)
                continue;
            for (int wild = 0; wild < 2; wild++) {
                weight a = make_weight(f, s.rows, s.k, s.k + f.number, wild, true),
                       b = make_weight(f, s.rows, s.k, 5 + s.k + f.number, wild, true);
                snprintf(what, sizeof what, "%s %dx%d, %d columns%s", f.name, s.rows, s.k, s.columns,
                         wild ? ", wild scales" : "");
                check({a}, 0, s.columns, 1.0f, what);
                check({a, b}, 0, s.columns, 1e-20f, what);
                check({a}, ADD, s.columns, 100.0f, what);
                if (!wild) {
                    check({a, b}, GATED, s.columns, 0.05f, what);
                    if (s.columns <= 4)
                        check({a, b}, NORM, s.columns, 3.0f, what), check({a, b}, GATED | NORM, s.columns, 0.05f, what);
                    check_rows(a, what);
                }
                cudaFree(a.file), cudaFree(a.packed), cudaFree(b.file), cudaFree(b.packed);
            }
        }
    }
    for (const format &f : dense_formats)
        for (int columns : {1, 2, 3, 4, 5, 11, 24, 50, 99}) {
            weight a = make_weight(f, 2048, 2048, 8, false, true), b = make_weight(f, 33, 2048, 9, false, true),
                   d = make_weight(f, 33, 2048, 10, false, true), e = make_weight(f, 7, 200, 11, false, true);
            snprintf(what, sizeof what, "%s 2048x2048, %d columns", f.name, columns);
            check({a}, ADD, columns, 1.0f, what);
            check({b, a, d}, 0, columns, 1e10f, what);
            check({b, d}, GATED, columns, 0.1f, what);
            check({e, e, e}, 0, columns, 1.0f, what);
        }
    weight a = make_weight(format_named("q4_k"), 2048, 2048, 1, false, true),
           b = make_weight(format_named("q6_k"), 500, 2048, 2, false, true),
           d = make_weight(format_named("q8_0"), 77, 2048, 3, false, true);
    check({a, b, d}, 0, 1, 1.0f, "mixed q4_k q6_k q8_0 2048");
    check({b, a, d}, NORM, 3, 1.0f, "mixed q6_k q4_k q8_0 2048");
    check({b, a, d}, 0, 33, 1.0f, "mixed q6_k q4_k q8_0 2048, 33 columns");
    printf("check: %d failures\n", failures);
}

/* columns_half.cu's formats: few and many chunks, rows that no tile fills, tokens that fill no eight. */
static void check_half() {
    static const int shapes[][2] = {{2048, 2048}, {33, 256}, {1000, 14336}, {6144, 4096}, {300, 768}};
    char what[128];
    halves = true;
    for (const format &f : formats)
        for (int columns : {5, 8, 9, 16})
            for (auto &s : shapes)
                for (int wild = 0; wild < 2 && f.number >= 12 && f.number <= 14; wild++) {
                    weight a = make_weight(f, s[0], s[1], s[1] + f.number, wild, true),
                           b = make_weight(f, s[0], s[1], 5 + s[1] + f.number, wild, true);
                    snprintf(what, sizeof what, "half %s %dx%d, %d columns%s", f.name, s[0], s[1], columns,
                             wild ? ", wild scales" : "");
                    check({a}, 0, columns, 1.0f, what);
                    check({a, b}, 0, columns, 1e-20f, what);
                    check({a}, ADD, columns, 100.0f, what);
                    if (!wild)
                        check({a, b}, NORM, columns, 3.0f, what), check({a, b}, GATED | NORM, columns, 0.05f, what);
                    cudaFree(a.file), cudaFree(a.packed), cudaFree(b.file), cudaFree(b.packed);
                }
    weight a = make_weight(format_named("q4_k"), 2048, 2048, 1, false, true),
           b = make_weight(format_named("q6_k"), 500, 2048, 2, false, true);
    for (int columns : {7, 15})
        check({b, a, b}, 0, columns, 1.0f, "half, mixed q6_k q4_k q6_k 2048");
    printf("half check: %d failures\n", failures);
}

#include "decode_token.h"

/* Asks for the kind of this name; false: it is none. */
static bool kind_named(const char *name) {
    static const char *const kinds[] = {"alone", "pair", "split"};
    for (int i = ALONE; i <= SPLIT; i++)
        if (!strcmp(name, kinds[i]))
            kind_asked = i;
    return kind_asked >= 0;
}

int main(int argc, char **argv) {
    OK(cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, 0));
    if (argc > 1 && kind_named(argv[1]))
        argc--, argv++;
    const char *what = argc > 1 ? argv[1] : "check";
    if (!strcmp(what, "small")) { /* for a checker of memory: every kernel once */
        for (const format &f : formats)
            for (int columns : {1, 3, 9, 21}) {
                weight a = make_weight(f, 40, 512, 5, false, true), b = make_weight(f, 40, 512, 6, false, true);
                check({a, b}, 0, columns, 1.0f, f.name), check({a}, ADD, columns, 1.0f, f.name),
                    check({a, b}, GATED, columns, 0.05f, f.name), check_rows(a, f.name);
            }
        printf("small: %d failures\n", failures);
        return failures != 0;
    }
    if (!strcmp(what, "check")) {
        check_all();
        return failures != 0;
    }
    if (!strcmp(what, "columns")) {
        columns_from = argc > 2 ? atoi(argv[2]) : 5;
        for (int n : {8, 16, 32, 64, 128})
            token(l1, "q4_k_m", n, 0, false), token(l8, "q4_k_m", n, 0, false), token(l1, "bf16", n, 0, false),
                token(l8, "bf16", n, 0, false);
        return 0;
    }
    if (!strcmp(what, "prefetch")) {
        for (const shape *s : {&l8, &l1})
            for (const char *kind : {"q4_k_m", "q8_0"})
                prefetched(*s, kind);
        return 0;
    }
    if (!strcmp(what, "half")) {
        const char *which = argc > 2 ? argv[2] : "check";
        if (!strcmp(which, "check")) {
            check_half();
            return failures != 0;
        }
        for (int n : {8, 16})
            compare(l8, n, !strcmp(which, "cuts"));
        compare(l1, 16, false);
        return 0;
    }
    if (argc > 2) {
        for (int i = 3; i < argc; i++)
            token(l1, argv[2], atoi(argv[i]), 0, false), token(l8, argv[2], atoi(argv[i]), 0, false);
        return 0;
    }
    token(l1, "q4_k_m", 1, 0, false);
    token(l1, "q4_k_m", 1, 1, false);
    token(l1, "q4_k_m", 4, 0, false);
    token(l1, "q4_k_m", 16, 0, false);
    token(l1, "q4_k_m", 64, 0, false);
    token(l1, "q8_0", 1, 0, false);
    token(l8, "q4_k_m", 1, 0, false);
    token(l8, "q4_k_m", 1, 1, false);
    token(l8, "q4_k_m", 4, 0, false);
    token(l8, "q4_k_m", 16, 0, false);
    token(l8, "q4_k_m", 64, 0, false);
    token(l8, "q4_k_m", 128, 0, false);
    token(l8, "q8_0", 1, 0, false);
    token(l1, "bf16", 1, 0, false);
    token(l1, "bf16", 4, 0, false);
    token(l8, "bf16", 1, 0, false);
}
