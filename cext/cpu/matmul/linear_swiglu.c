/* linear_swiglu.c: silu(x @ gate.T) * (x @ up.T) of x (T, K) and two weights (N, K), in float32 or quantized for the next
 * product.
 *
 * An item is a panel of gate and the same panel of up; the thread's scratch holds their results. To quantize, results are
 * collected in shared scratch until a chunk of CHUNK rows (whole blocks of every format) is complete; the thread that completes
 * it quantizes it. So items stay small, and the results are still in a cache when they are quantized. The bits are those of
 * linear, swiglu and quantize in sequence.
 */
#include "ops/elementwise.h"
#include "ops/quantize_simd.h"
#include "weight.h"

enum { CHUNK = 256, CHUNK_PANELS = CHUNK / PANEL_ROWS };
/* Floats from token to token of a chunk. The padding avoids multiples of 1024 bytes, which conflict in few cache sets. */
enum { PITCH = CHUNK + 16 };

static const char *check(const cpu_call *c) {
    return c->v->format == F32 ? check_weights(c, 2) : "the output must be f32";
}

static const char *check_quantized(const cpu_call *c) {
    if (!is_activation(c->v[0].format))
        return "the output must be a8_32, a8_256, bf16x2, f16 or bf16";
    if (c->v[0].shape[1] > CHUNK * CPU_COUNTERS)
        return "the weights have too many rows";
    return check_weights(c, 2);
}

static cpu_split split(const cpu_call *c) {
    int64_t panels = panels_of(c->v + 2);
    return (cpu_split){panels, panels_a_grain(c->v + 2, 2, c->v[0].shape[0], panels)};
}

/* Panels of a weight per call of the product: few enough that their results stay in the cache. */
static int64_t panels_a_step(const cpu_call *c) {
    return c->v[0].shape[0] >= MANY_COLUMNS ? PANELS_FOR_MANY : PRODUCT_PANELS;
}

/* Most floats of one weight's results in a thread's scratch. */
static uint64_t results(const cpu_call *c) {
    return (uint64_t)PANEL_ROWS * PRODUCT_PANELS * (uint64_t)c->v[0].shape[0];
}

static uint64_t scratch(const cpu_call *c) {
    return scratch_product(c->v + 1) + 2 * sizeof(float) * results(c) + scratch_panels(c->v + 2, 2, PRODUCT_PANELS);
}

/* Computes panels first .. first + n - 1 for all tokens, to y[token * pitch + row - first row]. */
static void run_step(const cpu_call *c, int64_t first, int n, float *y, int64_t pitch, int thread) {
    uint8_t *base = cpu_scratch(c, thread);
    float *gate = (float *)(base + scratch_product(c->v + 1)), *up = gate + results(c);
    uint8_t *packed = (uint8_t *)(up + results(c));
    int64_t rows = (int64_t)n * PANEL_ROWS, left = c->v[0].shape[1] - first * PANEL_ROWS;
    if (c->v[0].shape[0] == 0) /* a step without output rows */
        return;
    multiply_panels(c, c->v + 2, first, n, gate, rows, base, packed);
    multiply_panels(c, c->v + 3, first, n, up, rows, base, packed);
    for (int64_t t = 0; t < c->v[0].shape[0]; t++)
        row_swiglu(gate + rows * t, up + rows * t, y + pitch * t, (int)(rows < left ? rows : left));
}

static void run_float(const cpu_call *c, int64_t from, int64_t to, int thread) {
    int64_t most = panels_a_step(c), pitch = (int64_t)(c->v[0].stride / sizeof(float));
    for (int64_t n; from < to; from += n) {
        n = to - from < most ? to - from : most;
        run_step(c, from, (int)n, cpu_f32(c->v, 0) + from * PANEL_ROWS, pitch, thread);
    }
}

/* A chunk's results (T, CHUNK) in shared scratch. */
static float *chunk_at(const cpu_call *c, int64_t chunk) {
    return (float *)(c->shared + CPU_COUNTERS * sizeof(atomic_int)) + PITCH * c->v[0].shape[0] * chunk;
}

static uint64_t shared(const cpu_call *c) {
    uint64_t chunks = (c->v[0].width + CHUNK - 1) / CHUNK;
    return CPU_COUNTERS * sizeof(atomic_int) + sizeof(float) * PITCH * (uint64_t)c->v[0].shape[0] * chunks;
}

static void quantize_chunk(const cpu_call *c, int64_t chunk) {
    const cpu_view *y = c->v;
    int64_t row = chunk * CHUNK, left = y->shape[1] - row;
    const float *x = chunk_at(c, chunk);
    for (int64_t t = 0; t < y->shape[0]; t++, x += PITCH)
        quantize_row(y->format, x, quantize_at(y->format, cpu_row(y, t), row), (int)(left < CHUNK ? left : CHUNK));
}

/* Counts `n` more finished panels of a chunk. The last ones quantize it and reset its counter. */
static void count_panels(const cpu_call *c, int64_t chunk, int64_t n) {
    atomic_int *counter = (atomic_int *)c->shared + chunk;
    int64_t all = panels_of(c->v + 2) - chunk * CHUNK_PANELS;
    all = all < CHUNK_PANELS ? all : CHUNK_PANELS;
    if (atomic_fetch_add_explicit(counter, (int)n, memory_order_acq_rel) + n < all)
        return;
    atomic_store_explicit(counter, 0, memory_order_relaxed);
    quantize_chunk(c, chunk);
}

static void run_quantized(const cpu_call *c, int64_t from, int64_t to, int thread) {
    int64_t most = panels_a_step(c);
    for (int64_t n; from < to; from += n) {
        int64_t end = (from / CHUNK_PANELS + 1) * CHUNK_PANELS;
        n = to < end ? to - from : end - from;
        n = n < most ? n : most;
        run_step(c, from, (int)n, chunk_at(c, from / CHUNK_PANELS) + from % CHUNK_PANELS * PANEL_ROWS, PITCH, thread);
        count_panels(c, from / CHUNK_PANELS, n);
    }
}

CPU_KERNEL(linear_swiglu) = {check, scratch, split, run_float, .takes_packed = 1};
CPU_KERNEL(linear_swiglu_quantize) = {check_quantized, scratch,           split,
                                      run_quantized,   .takes_packed = 1, .shared = shared};
