/* small.cu: the ops between matrix products in a step of few tokens, which are launch-bound. The kernels use programmatic
 * dependent launch: they load weights, then wait for the previous kernel.
 */
#include "port.h"
#include "small.h"
#include "tile.cuh"

/* Sum over all threads of the group; the order depends on their number alone. */
static __device__ __forceinline__ float sum_of_group(float x) {
    __shared__ float room[32];
    float sum = 0;
    for (int o = 16; o > 0; o /= 2)
        x += __shfl_xor_sync(0xFFFFFFFFu, x, o);
    if (threadIdx.x % 32 == 0)
        room[threadIdx.x / 32] = x;
    __syncthreads();
    for (int i = 0; i < (int)blockDim.x / 32; i++)
        sum += room[i];
    return sum;
}

/* One group per row of x, which stays in registers, four adjacent elements per load. */
extern "C" __global__ void __launch_bounds__(1024) rms_norm_rows(const __grid_constant__ gpu_call c) {
    const int d = c.v[2].shape[0];
    const float4 *w = (const float4 *)c.v[2].data, *from, *r = NULL; /* r: the residual of rms_norm_add */
    float4 scale[NORM_PARTS], x[NORM_PARTS], *to;
    float sum = 0;
#pragma unroll
    for (int i = 0, at = threadIdx.x; i < NORM_PARTS; i++, at += blockDim.x)
        if (at < d / 4)
            scale[i] = w[at];
    wait_before();
    launch_next();
    if ((int)blockIdx.y >= rows_of(&c, c.v))
        return;
    from = (const float4 *)(ROW(const float, c.v + 1, blockIdx.y) + (int64_t)blockIdx.x * d);
    to = (float4 *)(ROW(float, c.v, blockIdx.y) + (int64_t)blockIdx.x * d);
    if (c.n_in == 3)
        r = (const float4 *)(ROW(const float, c.v + 3, blockIdx.y) + (int64_t)blockIdx.x * d);
#pragma unroll
    for (int i = 0, at = threadIdx.x; i < NORM_PARTS; i++, at += blockDim.x)
        if (at < d / 4) {
            x[i] = from[at];
            sum += x[i].x * x[i].x + x[i].y * x[i].y + x[i].z * x[i].z + x[i].w * x[i].w;
        }
    sum = sqrtf(sum_of_group(sum) / (float)d + ((const arg_rms_norm *)c.arg)->eps);
#pragma unroll
    for (int i = 0, at = threadIdx.x; i < NORM_PARTS; i++, at += blockDim.x)
        if (at < d / 4) {
            float4 y = make_float4(x[i].x / sum * scale[i].x, x[i].y / sum * scale[i].y, x[i].z / sum * scale[i].z,
                                   x[i].w / sum * scale[i].w);
            if (r) {
                const float4 more = r[at];
                y = make_float4(y.x + more.x, y.y + more.y, y.z + more.z, y.w + more.w);
            }
            to[at] = y;
        }
}

/* A product with F32 weights (a router's): one wave per row, whose first weights are loaded before the previous kernel ends and
 * serve all tokens that the group takes in turn. A sum's order depends on K alone. */
extern "C" __global__ void __launch_bounds__(32 * LINEAR_WAVES) linear_f32_rows(const __grid_constant__ gpu_call c) {
    const int row = blockIdx.x * LINEAR_WAVES + threadIdx.x / 32, lane = threadIdx.x % 32, n = c.v[2].shape[1] / 4;
    const bool mine = row < c.v[0].shape[1];
    int which = 2, of = mine ? row : 0;
    while (of >= c.v[which].shape[0])
        of -= c.v[which++].shape[0];
    const float4 *w = (const float4 *)(c.v[which].data + of * c.v[which].stride), *x;
    float4 a[LINEAR_DEEP];
#pragma unroll
    for (int i = 0; i < LINEAR_DEEP; i++)
        if (32 * i + lane < n)
            a[i] = w[32 * i + lane];
    wait_before();
    launch_next();
    const int tokens = mine ? rows_of(&c, c.v) : 0;
    for (int t = blockIdx.y; t < tokens; t += gridDim.y) {
        float sum = 0;
        x = ROW(const float4, c.v + 1, t);
#pragma unroll
        for (int i = 0; i < LINEAR_DEEP; i++)
            if (lane + 32 * i < n) {
                const float4 b = x[lane + 32 * i];
                sum = fmaf(a[i].w, b.w, fmaf(a[i].z, b.z, fmaf(a[i].y, b.y, fmaf(a[i].x, b.x, sum))));
            }
        for (int i = lane + 32 * LINEAR_DEEP; i < n; i += 32) {
            const float4 b = x[i], e = w[i];
            sum = fmaf(e.w, b.w, fmaf(e.z, b.z, fmaf(e.y, b.y, fmaf(e.x, b.x, sum))));
        }
        for (int o = 16; o > 0; o /= 2)
            sum += __shfl_xor_sync(0xFFFFFFFFu, sum, o);
        if (lane == 0)
            ROW(float, c.v, t)[row] = sum;
    }
}

/* norm_linear with F32 weights (a router's), as linear_f32_rows: each group normalizes its token while its weights arrive. The
 * norm's factor multiplies the sums. */
extern "C" __global__ void __launch_bounds__(32 * LINEAR_WAVES)
    norm_linear_f32_rows(const __grid_constant__ gpu_call c) {
    extern __shared__ float4 y[];
    const int row = blockIdx.x * LINEAR_WAVES + threadIdx.x / 32, lane = threadIdx.x % 32, n = c.v[2].shape[1] / 4;
    const bool mine = row < c.v[0].shape[1];
    const float4 *w = (const float4 *)(c.v[2].data + (mine ? row : 0) * c.v[2].stride);
    const float4 *norm = (const float4 *)c.v[3].data, *x;
    float4 a[LINEAR_DEEP], scale[NORM_PARTS];
    float sum = 0, squares = 0;
#pragma unroll
    for (int i = 0; i < LINEAR_DEEP; i++)
        if (32 * i + lane < n)
            a[i] = w[32 * i + lane];
#pragma unroll
    for (int i = 0; i < NORM_PARTS; i++)
        if (i * 32 * LINEAR_WAVES + (int)threadIdx.x < n)
            scale[i] = norm[i * 32 * LINEAR_WAVES + threadIdx.x];
    wait_before();
    launch_next();
    if ((int)blockIdx.y >= rows_of(&c, c.v))
        return;
    x = ROW(const float4, c.v + 1, blockIdx.y);
    for (int first = threadIdx.x; first < n; first += NORM_PARTS * 32 * LINEAR_WAVES) {
        float4 b[NORM_PARTS];
#pragma unroll
        for (int i = 0; i < NORM_PARTS; i++) {
            const int at = first + i * 32 * LINEAR_WAVES;
            if (at < n)
                b[i] = x[at];
            if (at < n && first != (int)threadIdx.x)
                scale[i] = norm[at];
        }
#pragma unroll
        for (int i = 0; i < NORM_PARTS; i++) {
            const int at = first + i * 32 * LINEAR_WAVES;
            if (at < n) {
                squares += b[i].x * b[i].x + b[i].y * b[i].y + b[i].z * b[i].z + b[i].w * b[i].w;
                y[at] = make_float4(b[i].x * scale[i].x, b[i].y * scale[i].y, b[i].z * scale[i].z, b[i].w * scale[i].w);
            }
        }
    }
    squares = sqrtf(sum_of_group(squares) / (float)(4 * n) + ((const arg_norm_linear *)c.arg)->eps);
    for (int first = lane; first < n; first += 32 * LINEAR_DEEP) {
#pragma unroll
        for (int i = 0; i < LINEAR_DEEP; i++)
            if (first + 32 * i < n) {
                if (first != lane)
                    a[i] = w[first + 32 * i];
                const float4 b = y[first + 32 * i];
                sum = fmaf(a[i].w, b.w, fmaf(a[i].z, b.z, fmaf(a[i].y, b.y, fmaf(a[i].x, b.x, sum))));
            }
    }
    for (int o = 16; o > 0; o /= 2)
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, o);
    if (lane == 0 && mine)
        ROW(float, c.v, blockIdx.y)[row] = sum / squares;
}
