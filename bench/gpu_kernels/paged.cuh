/* paged.cuh: what the benches of attention share: rows of a paged cache of every format, runs of tokens of its slots, and where a
 * format's kernel stands in a list. The kernels, which know the formats, are included before it.
 */
#include "cases.cuh"

__device__ static double cache_value(const uint8_t *row, uint32_t format, int i) {
    if (format == CACHE_F16)
        return __half2float(((const __half *)row)[i]);
    if (format == CACHE_BF16)
        return __bfloat162float(((const __nv_bfloat16 *)row)[i]);
    if (format == CACHE_FP8) {
        const int b = row[i], e = b >> 3 & 15;
        const float m = e ? ldexpf(1 + (b & 7) / 8.0f, e - 7) : ldexpf((b & 7) / 8.0f, -6);
        return b & 128 ? -m : m;
    }
    const uint8_t *block = row + i / 32 * (format == CACHE_Q8_0 ? 34 : 18);
    __half d;
    memcpy(&d, block, 2);
    if (format == CACHE_Q8_0)
        return __half2float(d) * (int8_t)block[2 + i % 32];
    const int q = block[2 + i % 16];
    return __half2float(d) * ((i % 32 < 16 ? q & 15 : q >> 4) - 8);
}

static __host__ __device__ int cache_bytes(uint32_t format, int d) {
    return format == CACHE_F16 || format == CACHE_BF16 ? 2 * d
           : format == CACHE_FP8                       ? d
                                                       : d / 32 * (format == CACHE_Q8_0 ? 34 : 18);
}

/* Positions below `used` of each slot get numbers; all else keeps its NaN. */
__global__ void fill_cache(uint8_t *cache, const int32_t *table, int width, const int32_t *used, int heads, int block,
                           int d, uint32_t format, uint32_t s) {
    const int slot = blockIdx.y, bytes = cache_bytes(format, d);
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < (int64_t)used[slot] * heads;
         i += (int64_t)gridDim.x * blockDim.x) {
        const int pos = (int)(i / heads), h = (int)(i % heads);
        uint8_t *row = cache + (((int64_t)table[slot * width + pos / block] * heads + h) * block + pos % block) * bytes;
        const uint64_t at = ((uint64_t)slot << 40) + i * d;
        for (int j = 0; j < d; j++) {
            const float x = normal(s, at + j);
            if (format == CACHE_F16)
                ((__half *)row)[j] = __float2half(x);
            else if (format == CACHE_BF16)
                ((__nv_bfloat16 *)row)[j] = __float2bfloat16(x);
            else if (format == CACHE_FP8)
                row[j] = (uint8_t)(noise(s, at + j) & 0xBF);
            else {
                const int size = format == CACHE_Q8_0 ? 34 : 18;
                const __half scale = __float2half(format == CACHE_Q8_0 ? 0.015f : 0.25f);
                if (j % 32 == 0)
                    memcpy(row + j / 32 * size, &scale, 2);
                if (j % 32 < size - 2)
                    row[j / 32 * size + 2 + j % 32] = (uint8_t)noise(s, at + j);
            }
        }
    }
}

struct run {
    int slot, pos, length;
};

/* Slots and positions of the runs' tokens, how many positions of each slot are in use, and a block table in random order. */
struct paged_runs {
    std::vector<int32_t> slot, pos, used, table;
    int slots = 0, width, blocks;
    paged_runs(const std::vector<run> &runs, int block, bool in_order) {
        int longest = 0;
        for (const run &r : runs) {
            for (int i = 0; i < r.length; i++)
                slot.push_back(r.slot), pos.push_back(r.pos + i);
            slots = std::max(slots, r.slot + 1);
            longest = std::max(longest, r.pos + r.length);
        }
        used.resize(slots);
        for (const run &r : runs)
            used[r.slot] = std::max(used[r.slot], r.pos + r.length);
        width = (longest + block - 1) / block + 1, blocks = slots * width + 3;
        std::vector<int32_t> order(blocks);
        for (int i = 0; i < blocks; i++)
            order[i] = i;
        srand(seed);
        for (int i = blocks - 1; i > 0 && !in_order; i--)
            std::swap(order[i], order[rand() % (i + 1)]);
        table.assign(order.begin(), order.begin() + slots * width);
    }
};

typedef void (*kernel)(const gpu_call);
#define FORMATS_OF(prefix) {prefix##_f16, prefix##_bf16, prefix##_fp8, prefix##_q8_0, prefix##_q4_0}
static int format_place(uint32_t f) {
    return f == CACHE_F16 ? 0 : f == CACHE_BF16 ? 1 : f == CACHE_FP8 ? 2 : f == CACHE_Q8_0 ? 3 : 4;
}
