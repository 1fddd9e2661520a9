/* blocks.cuh: the packed formats for benches of whole products: random blocks as a file has them, the kernels that pack them, and a block's
 * numbers.
 */
#include "../../cext/cuda/tile_pack.cu"
#include "cases.cuh"

struct format {
    const char *name;
    int number, columns, block, chunk;
    void (*pack)(const gpu_call);
};
#define FORMAT_ROW(f)                                                                                                  \
    {#f, tile_##f::FORMAT, packer<tile_##f>::COLUMNS, packer<tile_##f>::BLOCK, tile_##f::BYTES, pack_##f},
static const format formats[] = {TILE_FORMATS(FORMAT_ROW)};

static const format &format_named(const char *name) {
    for (const format &f : formats)
        if (!strcmp(f.name, name))
            return f;
    printf("no format %s\n", name);
    exit(1);
}

/* Random blocks whose scales are of the size that checkpoints have. */
__global__ void fill_blocks(uint8_t *to, int64_t blocks, int bytes, int number, uint32_t seed) {
    for (int64_t b = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; b < blocks; b += (int64_t)gridDim.x * blockDim.x) {
        uint8_t *p = to + b * bytes;
        for (int i = 0; i < bytes; i++)
            p[i] = (uint8_t)(noise(seed, b * 4096 + i) >> 3);
        const int k_like = number == 12 || number == 13, at[2] = {number == 14 ? 208 : 0, k_like ? 2 : -1};
        if (number == 39) {
            p[0] = 118 + p[0] % 4;
            continue;
        }
        if (number == 2003) { /* I8_G128: a float */
            const float d = 3e-4f * (0.5f + noise(seed, b * 4096 + 3000) * 2.3283064e-10f);
            memcpy(p, &d, 4);
            continue;
        }
        for (int k = 0; k < 2 && at[k] >= 0; k++) {
            const float base = k_like                         ? (k ? 7e-4f : 1e-4f)
                               : number == 14 || number == 23 ? 2e-5f
                               : number == 8                  ? 3e-4f
                                                              : 4e-3f;
            const __half h = __float2half(base * (0.5f + noise(seed, b * 4096 + 3000 + k) * 2.3283064e-10f));
            memcpy(p + at[k], &h, 2);
        }
    }
}

__global__ void fill_floats(float *to, int64_t n, uint32_t seed, float outliers) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x)
        to[i] = normal(seed, i) * (outliers > 0 && noise(seed + 9, i) % 499 == 0 ? outliers : 1.0f);
}

template <class B> __device__ void unpack_any(const B *, float *);
#define UNPACK(f)                                                                                                      \
    template <> __device__ void unpack_any(const block_##f *b, float *out) {                                           \
        f##_unpack(b, out);                                                                                            \
    }
TILE_FORMATS(UNPACK)
