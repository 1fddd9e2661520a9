/* quantize.c: quantize, norm_quantize and swiglu_quantize: quantizes float32 activations (T, K) to the format of the next
 * product.
 *
 * quantize and swiglu_quantize split rows into chunks of CHUNK elements (whole blocks of every format), so that threads share a
 * long row; a norm needs its whole row. The fused ops give the bits of their parts in sequence.
 */
#include "cpu.h"
#include "elementwise.h"
#include "quantize_simd.h"

enum { CHUNK = 1024 };

static const char *check_output(const cpu_view *y, const cpu_view *x) {
    if (x->format != F32 || x->ndim < 2 || !cpu_same_shape(x, y))
        return "x must be f32 (T, K) and the output of its shape";
    if (!is_activation(y->format))
        return "the output must be a8_32, a8_256, bf16x2, f16 or bf16";
    return NULL;
}

static const char *check_quantize(const cpu_call *c) {
    return c->n_in == 1 ? check_output(c->v, c->v + 1) : "it takes x";
}

static const char *check_swiglu(const cpu_call *c) {
    if (c->n_in != 2)
        return "it takes a gate and an up";
    if (c->v[2].format != F32 || !cpu_same_shape(c->v + 1, c->v + 2))
        return "gate and up must be f32 of one shape";
    return check_output(c->v, c->v + 1);
}

static const char *check_norm(const cpu_call *c) {
    const cpu_view *w = c->v + 2;
    if (c->n_in != 2)
        return "it takes x and w";
    if (c->v[1].ndim != 2 || !cpu_is(w, F32, 1) || w->stride != sizeof(float) || w->shape[0] != c->v[1].shape[1])
        return "x must be (T, D) and w f32 (D)";
    return check_output(c->v, c->v + 1);
}

static int64_t chunks(const cpu_call *c) {
    return ((int64_t)c->v[0].width + CHUNK - 1) / CHUNK;
}

static cpu_split split_chunks(const cpu_call *c) {
    return cpu_grains(c->v[0].shape[0] * chunks(c), 4 * CHUNK);
}

static cpu_split split_rows(const cpu_call *c) {
    return cpu_grains(c->v[0].shape[0], 4 * (int64_t)c->v[0].width);
}

static uint64_t scratch_norm(const cpu_call *c) {
    return sizeof(float) * c->v[0].width;
}

static inline void run_chunks(const cpu_call *c, int64_t from, int64_t to, int gated) {
    int64_t per_row = chunks(c);
    for (; from < to; from++) {
        int64_t row = from / per_row, start = from % per_row * CHUNK, left = (int64_t)c->v[0].width - start;
        int n = (int)(left < CHUNK ? left : CHUNK);
        const float *x = cpu_f32(c->v + 1, row) + start;
        float y[CHUNK];
        if (gated)
            row_swiglu(x, cpu_f32(c->v + 2, row) + start, y, n);
        quantize_row(c->v[0].format, gated ? y : x, quantize_at(c->v[0].format, cpu_row(c->v, row), start), n);
    }
}

static void run_quantize(const cpu_call *c, int64_t from, int64_t to, int thread) {
    (void)thread;
    run_chunks(c, from, to, 0);
}

static void run_swiglu(const cpu_call *c, int64_t from, int64_t to, int thread) {
    (void)thread;
    run_chunks(c, from, to, 1);
}

static void run_norm(const cpu_call *c, int64_t from, int64_t to, int thread) {
    float eps = ((const arg_norm_quantize *)c->arg)->eps, *y = (float *)cpu_scratch(c, thread);
    int n = (int)c->v[0].width;
    for (; from < to; from++) {
        row_rms_norm(cpu_f32(c->v + 1, from), cpu_f32(c->v + 2, 0), eps, y, n);
        quantize_row(c->v[0].format, y, cpu_row(c->v, from), n);
    }
}

CPU_KERNEL(quantize) = {check_quantize, NULL, split_chunks, run_quantize};
CPU_KERNEL(swiglu_quantize) = {check_swiglu, NULL, split_chunks, run_swiglu};
CPU_KERNEL(norm_quantize) = {check_norm, scratch_norm, split_rows, run_norm};
