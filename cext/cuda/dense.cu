/* dense.cu: products of F16 and BF16 weights, in the file's layout, with up to four columns. They are memory-bound, so plain
 * multiply-adds suffice. A wave computes two rows at a time (of gate and up one each); the start of its first two is loaded
 * before the previous kernel ends. Activations are in shared memory in float32. A sum's order depends on K alone.
 */
#include "dense.cuh"
#include "geglu.cuh"

enum { DEEP = 4 }; /* outstanding 16-byte loads per row and lane */

__device__ __forceinline__ float square_of(float4 v) {
    return v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
}

__device__ __forceinline__ float4 times(float4 a, float4 b) {
    return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
}

/* Leaves a wave's sum of squares. */
__device__ __forceinline__ void dense_leave(float sum, float *squares) {
    for (int far = 16; far; far /= 2)
        sum += __shfl_xor_sync(~0u, sum, far);
    if (threadIdx.x % 32 == 0)
        squares[threadIdx.x / 32] = sum;
}

/* A norm's factor, of the waves' sums of squares. */
__device__ __forceinline__ float dense_scale(const gpu_call &c, const float *squares) {
    float sum = 0.0f;
    for (int w = 0; w < DENSE_WAVES; w++)
        sum += squares[w];
    return rsqrtf(sum / (float)c.v[1].shape[1] + __uint_as_float((uint32_t)c.arg[0]));
}

/* Column t after its post-norm, h = residual + rms_norm(x, post), to shared memory, by the first group to the output too. */
__device__ __forceinline__ void dense_post(const gpu_call &c, float *x, int t) {
    __shared__ float squares[DENSE_WAVES];
    const gpu_view *r = c.v + c.n_in;
    const float4 *from = (const float4 *)(c.v[1].data + t * c.v[1].stride);
    const float4 *residual = (const float4 *)(r->data + t * r->stride), *post = (const float4 *)r[-1].data;
    float4 *out = (float4 *)((float *)(c.v[0].data + t * c.v[0].stride) + product_columns(&c, PRODUCT_POST));
    int words = c.v[1].shape[1] / 4;
    float sum = 0.0f, scale;
    for (int k = threadIdx.x; k < words; k += DENSE_WAVES * 32)
        sum += square_of(from[k]);
    dense_leave(sum, squares);
    __syncthreads();
    scale = dense_scale(c, squares);
    for (int k = threadIdx.x; k < words; k += DENSE_WAVES * 32) {
        float4 v = times(from[k], post[k]), add = residual[k];
        v = make_float4(add.x + v.x * scale, add.y + v.y * scale, add.z + v.z * scale, add.w + v.w * scale);
        ((float4 *)x)[k] = v;
        if (blockIdx.x == 0)
            out[k] = v;
    }
    __syncthreads(); /* the next column's sums take the place of these */
}

/* Loads all columns to shared memory, times the norm's weights if there is a norm; scale: the norm's factor of each column. */
__device__ __forceinline__ void dense_activations(const gpu_call &c, float *x, int columns, float *scale) {
    __shared__ float squares[GEMV_COLUMNS][DENSE_WAVES];
    int width = c.v[1].shape[1];
    bool post = c.mode & PRODUCT_POST;
    const float4 *norm = c.mode & PRODUCT_NORM ? (const float4 *)c.v[product_last(&c, c.mode) + 1].data : nullptr;
    for (int t = 0; t < columns; t++) {
        float4 *to = (float4 *)(x + t * width);
        const float4 *from = post ? to : (const float4 *)(c.v[1].data + t * c.v[1].stride);
        float sum = 0.0f;
        if (post)
            dense_post(c, x + t * width, t);
        for (int k = threadIdx.x; k < width / 4; k += DENSE_WAVES * 32) {
            float4 v = from[k];
            sum += square_of(v);
            to[k] = norm ? times(v, norm[k]) : v;
        }
        if (norm)
            dense_leave(sum, squares[t]);
    }
    __syncthreads();
#pragma unroll
    for (int t = 0; t < GEMV_COLUMNS; t++)
        scale[t] = norm && t < columns ? dense_scale(c, squares[t]) : 1.0f;
}

template <class AS> __device__ __forceinline__ void dense(const gpu_call &c) {
    extern __shared__ __align__(128) char shared[];
    float *x = (float *)shared;
    int wave = threadIdx.x / 32, lane = threadIdx.x % 32, width = c.v[1].shape[1], n = product_columns(&c, c.mode);
    int pairs = c.mode & PRODUCT_GATED ? n : (n + 1) / 2, steps = (width + 256 * DEEP - 1) / (256 * DEEP);
    int i = wave * (int)gridDim.x + (int)blockIdx.x;
    uint4 v[2][DEEP];
    auto load = [&](const dense_rows &p, int step) {
#pragma unroll
        for (int d = 0; d < DEEP; d++) {
            int k = (step * DEEP + d) * 256 + 8 * lane;
            for (int r = 0; r < 2; r++)
                v[r][d] = k < width ? __ldcs((const uint4 *)(p.row[r] + 2 * (int64_t)k)) : make_uint4(0, 0, 0, 0);
        }
    };
    dense_rows p = {};
    if (i < pairs) {
        p = dense_pair(c, i);
        load(p, 0);
    }
    launch_next();
    wait_before();
    int columns = rows_now(c, c.v[0]);
    float scale[GEMV_COLUMNS];
    dense_activations(c, x, columns, scale);
    for (; i < pairs; i += DENSE_WAVES * (int)gridDim.x) {
        float acc[2][GEMV_COLUMNS] = {};
        dense_rows now = p;
        int next = i + DENSE_WAVES * (int)gridDim.x;
        for (int step = 0; step < steps; step++) {
            uint4 w[2][DEEP];
#pragma unroll
            for (int d = 0; d < DEEP; d++)
                w[0][d] = v[0][d], w[1][d] = v[1][d];
            if (step + 1 < steps) {
                load(p, step + 1);
            } else if (next < pairs) {
                p = dense_pair(c, next);
                load(p, 0);
            }
#pragma unroll
            for (int d = 0; d < DEEP; d++) {
                int k = (step * DEEP + d) * 256 + 8 * lane;
                if (k >= width)
                    continue;
                for (int t = 0; t < GEMV_COLUMNS && t < columns; t++) {
                    float4 a = *(const float4 *)(x + t * width + k), b = *(const float4 *)(x + t * width + k + 4);
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        float2 q0 = AS::two(w[r][d].x), q1 = AS::two(w[r][d].y), q2 = AS::two(w[r][d].z),
                               q3 = AS::two(w[r][d].w);
                        float y = t == 0 ? acc[r][0] : t == 1 ? acc[r][1] : t == 2 ? acc[r][2] : acc[r][3];
                        y = fmaf(q0.x, a.x, y), y = fmaf(q0.y, a.y, y), y = fmaf(q1.x, a.z, y), y = fmaf(q1.y, a.w, y);
                        y = fmaf(q2.x, b.x, y), y = fmaf(q2.y, b.y, y), y = fmaf(q3.x, b.z, y), y = fmaf(q3.y, b.w, y);
                        if (t == 0)
                            acc[r][0] = y;
                        if (t == 1)
                            acc[r][1] = y;
                        if (t == 2)
                            acc[r][2] = y;
                        if (t == 3)
                            acc[r][3] = y;
                    }
                }
            }
        }
#pragma unroll
        for (int t = 0; t < GEMV_COLUMNS; t++) {
            if (t >= columns)
                break;
            for (int far = 16; far; far /= 2)
                for (int r = 0; r < 2; r++)
                    acc[r][t] += __shfl_xor_sync(~0u, acc[r][t], far);
            acc[0][t] *= scale[t], acc[1][t] *= scale[t];
            float *out = (float *)(c.v[0].data + t * c.v[0].stride);
            if (c.mode & PRODUCT_GATED) {
                if (lane == 0)
                    out[now.column] = c.mode & PRODUCT_GELU ? geglu_of(c, acc[0][t], acc[1][t])
                                                            : acc[0][t] / (1.0f + __expf(-acc[0][t])) * acc[1][t];
            } else if (lane < 2 && now.column + lane < n) {
                float y = lane ? acc[1][t] : acc[0][t];
                if (c.mode & PRODUCT_ADD)
                    y += ((const float *)(c.v[c.n_in].data + t * c.v[c.n_in].stride))[now.column + lane];
                out[now.column + lane] = y;
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(DENSE_WAVES * 32, 1) dense_f16(const __grid_constant__ gpu_call c) {
    dense<as_f16>(c);
}
extern "C" __global__ void __launch_bounds__(DENSE_WAVES * 32, 1) dense_bf16(const __grid_constant__ gpu_call c) {
    dense<as_bf16>(c);
}
