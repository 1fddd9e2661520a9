/* hadamard.c: rotates the heads of float32 x (T, H, D) by the Walsh-Hadamard matrix, in blocks of n, the largest power of
 * two that divides D: log2(n) levels of sums and differences, then the factor 1 / sqrt(n). It is its own inverse.
 *
 * Levels within a vector swap its lanes and add them with alternating signs; the others pair whole vectors.
 */
#include <math.h>

#include "cpu.h"
#include "simd/simd.h"

/* Swaps lanes i and i ^ h; h is a power of two below LANES. */
static inline vf swapped(vf x, int h) {
#if LANES == 16
    return h == 1   ? _mm512_permute_ps(x, 0xB1)
           : h == 2 ? _mm512_permute_ps(x, 0x4E)
           : h == 4 ? _mm512_shuffle_f32x4(x, x, 0xB1)
                    : _mm512_shuffle_f32x4(x, x, 0x4E);
#elif LANES == 8
    return h == 1 ? _mm256_permute_ps(x, 0xB1) : h == 2 ? _mm256_permute_ps(x, 0x4E) : _mm256_permute2f128_ps(x, x, 1);
#else
    return h == 1 ? (vf){x[1], x[0], x[3], x[2]} : (vf){x[2], x[3], x[0], x[1]};
#endif
}

/* The levels within one vector. */
static inline vf rotate_vector(vf x) {
    float sign[LANES];
    for (int h = 1; h < LANES; h *= 2) {
        for (int i = 0; i < LANES; i++)
            sign[i] = i & h ? -1.0f : 1.0f;
        x = vf_fma(vf_load(sign), x, swapped(x, h));
    }
    return x;
}

static void rotate_few(float *x, int n) {
    for (int h = 1; h < n; h *= 2)
        for (int i = 0; i < n; i++)
            if (!(i & h)) {
                float a = x[i], b = x[i + h];
                x[i] = a + b;
                x[i + h] = a - b;
            }
}

/* Transforms n elements in place; the levels within vectors come last, with the factor. */
static void rotate(float *x, int n) {
    vf factor = vf_set(1.0f / sqrtf((float)n));
    if (n < LANES) {
        rotate_few(x, n);
        for (int i = 0; i < n; i++)
            x[i] *= 1.0f / sqrtf((float)n);
        return;
    }
    for (int h = LANES; h < n; h *= 2)
        for (int i = 0; i < n; i += 2 * h)
            for (int j = i; j < i + h; j += LANES) {
                vf a = vf_load(x + j), b = vf_load(x + j + h);
                vf_store(x + j, a + b);
                vf_store(x + j + h, a - b);
            }
    for (int i = 0; i < n; i += LANES)
        vf_store(x + i, rotate_vector(vf_load(x + i)) * factor);
}

static void run(const cpu_call *c, int64_t from, int64_t to, int thread) {
    int d = c->v[0].shape[2], n = d & -d;
    (void)thread;
    for (; from < to; from++) {
        float *y = cpu_f32(c->v, from);
        memmove(y, cpu_f32(c->v + 1, from), sizeof(float) * c->v[0].width);
        for (uint64_t i = 0; i < c->v[0].width; i += (uint64_t)n)
            rotate(y + i, n);
    }
}

CPU_KERNEL(hadamard) = {NULL, NULL, cpu_by_row, run};
