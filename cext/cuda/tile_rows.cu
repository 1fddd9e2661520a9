/* tile_rows.cu: get_rows and get_rows_part (mode 1) of a packed weight. One group per row. */
#include "tile_values.cuh"

#include "hal.h"

extern "C" __global__ void __launch_bounds__(256) get_rows_packed(const __grid_constant__ gpu_call c) {
    int row = blockIdx.x, width = c.v[1].shape[1], chunks = (width + CHUNK - 1) / CHUNK;
    if (row >= rows_now(c, c.v[0]))
        return;
    const int id = *(const int32_t *)(c.v[2].data + row * c.v[2].stride);
    const int64_t own = (int64_t)id - (c.mode ? ((const arg_get_rows_part *)c.arg)->first : 0);
    const bool here = own >= 0 && own < c.v[1].shape[0], good = c.mode ? id >= 0 : here;
    float *out = (float *)(c.v[0].data + row * c.v[0].stride);
    if (!good && threadIdx.x == 0)
        atomicCAS((unsigned int *)c.fault, 0u, c.step + 1);
    for (int k = 8 * threadIdx.x; k < width; k += 8 * 256) {
        float v[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        if (here)
            tile_eight_of(c.v[1].format, (const char *)c.v[1].data, chunks, (int)own, k, v);
        for (int i = 0; i < 8; i++)
            out[k + i] = v[i];
    }
}
