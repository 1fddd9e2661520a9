/* tile_rows.cu: get_rows of a packed weight. One group per row. */
#include "tile_values.cuh"

extern "C" __global__ void __launch_bounds__(256) get_rows_packed(const __grid_constant__ gpu_call c) {
    int row = blockIdx.x, width = c.v[1].shape[1], chunks = (width + CHUNK - 1) / CHUNK;
    if (row >= rows_now(c, c.v[0]))
        return;
    int id = *(const int32_t *)(c.v[2].data + row * c.v[2].stride);
    bool good = id >= 0 && id < c.v[1].shape[0];
    float *out = (float *)(c.v[0].data + row * c.v[0].stride);
    if (!good && threadIdx.x == 0)
        atomicCAS((unsigned int *)c.fault, 0u, c.step + 1);
    for (int k = 8 * threadIdx.x; k < width; k += 8 * 256) {
        float v[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        if (good)
            tile_eight_of(c.v[1].format, (const char *)c.v[1].data, chunks, id, k, v);
        for (int i = 0; i < 8; i++)
            out[k + i] = v[i];
    }
}
