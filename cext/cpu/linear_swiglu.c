/* linear_swiglu.c: silu(x @ gate.T) * (x @ up.T) of x (T, K) and two weights (N, K), in float32 or quantized for the product
 * that follows.
 *
 * An item is a panel of the gate and the same panel of up. Their results lie in the thread's scratch and leave it as one
 * number each. To be quantized, they wait in the memory that all threads share until CHUNK rows are there, whole blocks of
 * every format; the last one's thread quantizes the chunk. So items stay small, and the numbers are still in a cache
 * when they are read again. The bits are those of linear, swiglu and quantize.
 */
#include "elementwise.h"
#include "quantize_simd.h"
#include "weight.h"

enum { CHUNK = 256, CHUNK_PANELS = CHUNK / PANEL_ROWS };
/* Floats from one token to the next of a chunk: rows at multiples of 1024 bytes would fall into few sets of a cache. */
enum { PITCH = CHUNK + 16 };

static const char *check(const cpu_call *c) {
    const cpu_view *y = c->v, *x = c->v + 1, *gate = c->v + 2, *up = c->v + 3;
    const char *fault;
    if (c->n_in != 3)
        return "it takes x, a gate and an up";
    if (x->ndim != 2 || y->ndim != 2 || x->shape[0] != y->shape[0])
        return "x must be (T, K) and the output (T, N)";
    if ((fault = check_weight(c, gate)) || (fault = check_weight(c, up)))
        return fault;
    return gate->shape[0] == up->shape[0] && gate->shape[0] == y->shape[1] ? NULL
                                                                            : "gate and up must be (N, K) and the output (T, N)";
}

static const char *check_float(const cpu_call *c) {
    return c->v[0].format == F32 ? check(c) : "the output must be f32";
}

static const char *check_quantized(const cpu_call *c) {
    if (!is_activation(c->v[0].format))
        return "the output must be a8_32, a8_256, bf16x2, f16 or bf16";
    if (c->v[0].shape[1] > CHUNK * CPU_COUNTERS)
        return "the weights have more rows than can be counted";
    return check(c);
}

static cpu_split split(const cpu_call *c) {
    return (cpu_split){panels_of(c->v + 2), panels_a_grain(c->v + 2, 2, c->v[0].shape[0])};
}

/* Panels of a weight that are met at once: their results stay near. */
static int64_t panels_a_step(const cpu_call *c) {
    return c->v[0].shape[0] >= MANY_COLUMNS ? PANELS_FOR_MANY : PRODUCT_PANELS;
}

/* Numbers of one weight's results in a thread's scratch, at most. */
static uint64_t results(const cpu_call *c) {
    return (uint64_t)PANEL_ROWS * PRODUCT_PANELS * (uint64_t)c->v[0].shape[0];
}

static uint64_t scratch(const cpu_call *c) {
    return scratch_product(c->v + 1) + 2 * sizeof(float) * results(c) + scratch_panels(c->v + 2, 2, PRODUCT_PANELS);
}

/* Rows of panels first .. first + n - 1, for all tokens, to y[token * pitch + row - first row]. */
static void run_step(const cpu_call *c, int64_t first, int n, float *y, int64_t pitch, int thread) {
    uint8_t *base = cpu_scratch(c, thread);
    float *gate = (float *)(base + scratch_product(c->v + 1)), *up = gate + results(c);
    uint8_t *packed = (uint8_t *)(up + results(c));
    int64_t rows = (int64_t)n * PANEL_ROWS, left = c->v[0].shape[1] - first * PANEL_ROWS;
    if (c->v[0].shape[0] == 0) /* a step that picks no row */
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

/* Where a chunk's numbers wait: (T, CHUNK), one chunk after the other. */
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

/* `n` more panels of a chunk are there; the last ones end it and leave its counter as it was. */
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

CPU_KERNEL(linear_swiglu) = {check_float, scratch, split, run_float, .takes_packed = 1};
CPU_KERNEL(linear_swiglu_quantize) = {check_quantized, scratch, split, run_quantized, .takes_packed = 1, .shared = shared};
