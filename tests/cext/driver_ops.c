/* driver_ops.c: each op once or more against a plain definition in doubles, on random and extreme numbers. */
#include <math.h>

#include "formats.h"
#include "harness.h"

/* Compares a float result with its definition; frees neither. */
static void expect(const target *t, const char *what, int code, const float *got, const double *want, int n,
                   double bound) {
    if (!CHECK(code == 0, "%s: %s: %d: %s", t->name, what, code, t->b->error()) || !t->computes)
        return;
    CHECK(nmse(got, want, n) <= bound, "%s: %s: NMSE %g", t->name, what, nmse(got, want, n));
}

static void expect_bytes(const target *t, const char *what, int code, const void *got, const void *want, size_t n) {
    if (!CHECK(code == 0, "%s: %s: %d: %s", t->name, what, code, t->b->error()) || !t->computes)
        return;
    CHECK(memcmp(got, want, n) == 0, "%s: %s: not equal bit for bit", t->name, what);
}

/* --- products and rows, for each weight format */

typedef struct {
    const char *name;
    uint32_t id, act;
    void (*unpack)(const uint8_t *, float *, int n);
    void (*quantize)(const float *, uint8_t *, int n);
} weight;

#define QUANTIZE(stem, block)                                                                                          \
    static void quantize_##stem(const float *x, uint8_t *out, int n) {                                                 \
        stem##_quantize(x, (block_##stem *)(void *)out, n / (block));                                                  \
    }
QUANTIZE(f16, 1)
QUANTIZE(bf16, 1)
QUANTIZE(a8_32, 32)
QUANTIZE(a8_256, 256)
QUANTIZE(bf16x2, 32)
static void quantize_f32(const float *x, uint8_t *out, int n) {
    memcpy(out, x, sizeof(float) * (size_t)n);
}
#define UNPACK(stem, block)                                                                                            \
    static inline void unpack_##stem(const uint8_t *in, float *x, int n) {                                             \
        for (int i = 0; i < n / (block); i++)                                                                          \
            stem##_unpack((const block_##stem *)(const void *)in + i, x + (block) * i);                                \
    }
#define CPU_WEIGHT(stem, id, block, act) UNPACK(stem, block)
#define CPU_ONLY_ACT(stem, id, block) UNPACK(stem, block)
#include "types.inc"
#undef CPU_WEIGHT
#undef CPU_ONLY_ACT
enum { ID_f32 = F32, ID_a8_32 = A8_32, ID_a8_256 = A8_256, ID_bf16x2 = BF16X2 };
static const weight weights[] = {
#define CPU_WEIGHT(stem, id, block, act) {#stem, id, ID_##act, unpack_##stem, quantize_##act},
#include "types.inc"
#undef CPU_WEIGHT
};

static void unpack_act(uint32_t act, const uint8_t *in, float *x, int n) {
    void (*unpack)(const uint8_t *, float *, int) = act == A8_32    ? unpack_a8_32
                                                    : act == A8_256 ? unpack_a8_256
                                                    : act == BF16X2 ? unpack_bf16x2
                                                                    : unpack_f32;
    unpack(in, x, n);
}

/* Random weights: numbers for the float formats, else every code under scales below one. */
static uint8_t *random_weights(const weight *w, int n) {
    uint64_t bytes = format_bytes(w->id, (uint64_t)n), block = format_bytes(w->id, (uint64_t)format_block(w->id));
    uint8_t *p = malloc(bytes);
    float *x = random_floats(n, 1);
    for (uint64_t i = 0; i < bytes; i++)
        p[i] = (uint8_t)random_bits();
    for (uint64_t i = 0; i < bytes; i += block)
        set_scales(w->id, p + i, (uint16_t)(random_bits() & 0xAFFF), (uint16_t)(random_bits() & 0xAFFF));
    if (w->id == F32)
        quantize_f32(x, p, n);
    else if (w->id == F16)
        quantize_f16(x, p, n);
    else if (w->id == BF16)
        quantize_bf16(x, p, n);
    free(x);
    return p;
}

static void define_linear(const weight *w, const uint8_t *p, uint32_t act, const uint8_t *a, int t, int n, int k,
                          double *want) {
    float *x = malloc(sizeof(float) * (size_t)(t * k)), *y = malloc(sizeof(float) * (size_t)(n * k));
    unpack_act(act, a, x, t * k);
    w->unpack(p, y, n * k);
    for (int i = 0; i < t; i++)
        for (int j = 0; j < n; j++) {
            double sum = 0;
            for (int l = 0; l < k; l++)
                sum += (double)x[i * k + l] * y[j * k + l];
            want[i * n + j] = sum;
        }
    free(x);
    free(y);
}

/* f16 and bf16 weights meet f32 here: not every kernel set has a product of theirs with bf16x2. */
static void test_product(const target *t, const weight *w, int tokens, int n, int k) {
    uint32_t act = w->act == BF16X2 ? F32 : w->act;
    float *x = random_floats(tokens * k, 3), *got = calloc((size_t)(tokens * n), 4),
          *add = random_floats(tokens * n, 1);
    double *want = malloc(sizeof(double) * (size_t)(tokens * n));
    uint8_t *p = random_weights(w, n * k), *a = malloc(format_bytes(act, (uint64_t)(tokens * k)));
    operand out = OPERAND(F32, got, tokens, n);
    operand in[] = {OPERAND(act, a, tokens, k), OPERAND(w->id, p, n, k), OPERAND(F32, add, tokens, n)};
    (act == F32 ? quantize_f32 : w->quantize)(x, a, tokens * k);
    define_linear(w, p, act, a, tokens, n, k, want);
    expect(t, w->name, run_op(t, "linear", NULL, 0, &out, in, 2), got, want, tokens * n, 1e-10);
    for (int i = 0; i < tokens * n; i++)
        want[i] += add[i];
    expect(t, w->name, run_op(t, "linear_add", NULL, 0, &out, in, 3), got, want, tokens * n, 1e-10);
    free(x), free(got), free(add), free(want), free(p), free(a);
}

static void test_rows(const target *t, const weight *w) {
    enum { V = 5, D = 256 };
    float got[3 * D] = {0}, want[V * D];
    int32_t ids[] = {4, 0, 4};
    uint8_t *p = random_weights(w, V * D);
    operand out = OPERAND(F32, got, 3, D), in[] = {OPERAND(w->id, p, V, D), OPERAND(I32, ids, 3)};
    w->unpack(p, want, V * D);
    memcpy(want + D, want, sizeof(float) * D);
    memcpy(want, want + 4 * D, sizeof(float) * D);
    memcpy(want + 2 * D, want + 4 * D, sizeof(float) * D);
    expect_bytes(t, w->name, run_op(t, "get_rows", NULL, 0, &out, in, 2), got, want, sizeof got);
    free(p);
}

/* --- norms, gates, quantizers */

static void test_quantizers(const target *t, const weight *w) {
    enum { ROWS = 6, K = 768 };
    float *x = random_floats(ROWS * K, 4), *ones = random_floats(K, 1);
    uint64_t bytes = format_bytes(w->act, ROWS * K);
    uint8_t *got = calloc(1, bytes), *want = calloc(1, bytes);
    arg_norm_quantize eps = {1e-5f};
    operand out = OPERAND(w->act, got, ROWS, K), in[] = {OPERAND(F32, x, ROWS, K), OPERAND(F32, ones, K)};
    for (int i = 0; i < K; i++) {
        x[i] = 0;
        x[K + i] *= 1e-38f;
        x[2 * K + i] *= 1e30f;
        x[3 * K + i] = (float)(i % 255 - 127) / 2;
    }
    x[4 * K] = INFINITY, x[4 * K + 300] = NAN;
    w->quantize(x, want, ROWS * K);
    expect_bytes(t, w->name, run_op(t, "quantize", NULL, 0, &out, in, 1), got, want, bytes);
    CHECK(run_op(t, "norm_quantize", &eps, sizeof eps, &out, in, 2) == 0, "%s: norm_quantize", t->name);
    in[1] = in[0];
    CHECK(run_op(t, "swiglu_quantize", NULL, 0, &out, in, 2) == 0, "%s: swiglu_quantize", t->name);
    free(x), free(ones), free(got), free(want);
}

static void test_norm(const target *t, int rows, int heads, int d) {
    int n = rows * heads * d;
    float *x = random_floats(n, 2), *w = random_floats(d, 1), *got = calloc((size_t)n, 4);
    double *want = malloc(sizeof(double) * (size_t)n);
    arg_rms_norm eps = {1e-6f};
    operand out = OPERAND(F32, got, rows, heads, d), in[] = {OPERAND(F32, x, rows, heads, d), OPERAND(F32, w, d)};
    for (int r = 0; r < rows * heads; r++) {
        double sum = 0;
        for (int i = 0; i < d; i++)
            sum += (double)x[r * d + i] * x[r * d + i];
        for (int i = 0; i < d; i++)
            want[r * d + i] = x[r * d + i] / sqrt(sum / d + eps.eps) * w[i];
    }
    expect(t, "rms_norm", run_op(t, "rms_norm", &eps, sizeof eps, &out, in, 2), got, want, n, 1e-12);
    free(x), free(w), free(got), free(want);
}

static void test_pairs(const target *t, int rows, int d) {
    int n = rows * d;
    float *a = random_floats(n, 20), *b = random_floats(n, 2), *got = calloc((size_t)n, 4);
    double *want = malloc(sizeof(double) * (size_t)n);
    operand out = OPERAND(F32, got, rows, d), in[] = {OPERAND(F32, a, rows, d), OPERAND(F32, b, rows, d)};
    for (int i = 0; i < n; i++)
        want[i] = a[i] / (1 + exp(-(double)a[i])) * b[i];
    expect(t, "swiglu", run_op(t, "swiglu", NULL, 0, &out, in, 2), got, want, n, 1e-12);
    for (int i = 0; i < n; i++)
        want[i] = (double)a[i] + b[i];
    expect(t, "add", run_op(t, "add", NULL, 0, &out, in, 2), got, want, n, 1e-13);
    in[1] = OPERAND(F32, b, d);
    for (int i = 0; i < n; i++)
        want[i] = (double)a[i] * b[i % d];
    expect(t, "mul", run_op(t, "mul", NULL, 0, &out, in, 2), got, want, n, 1e-13);
    free(a), free(b), free(got), free(want);
}

/* --- positions, cache, attention */

static void test_rope(const target *t, int style) {
    enum { ROWS = 3, HEADS = 2, D = 40, ROT = 32 };
    float *x = random_floats(ROWS * HEADS * D, 1), got[ROWS * HEADS * D] = {0}, freq[ROT / 2], cos_sin[ROWS * ROT];
    double want[ROWS * HEADS * D];
    int32_t pos[] = {0, 5, 3000};
    arg_rope_table scale = {0.5f};
    arg_rope arg = {style};
    operand out = OPERAND(F32, got, ROWS, HEADS, D);
    operand made = OPERAND(F32, cos_sin, ROWS, ROT), in[] = {OPERAND(F32, x, ROWS, HEADS, D), made};
    operand from[] = {OPERAND(I32, pos, ROWS), OPERAND(F32, freq, ROT / 2)};
    for (int i = 0; i < ROT / 2; i++)
        freq[i] = powf(10000, -2.0f * (float)i / ROT);
    for (int r = 0; r < ROWS * HEADS; r++) {
        for (int i = 0; i < D; i++)
            want[r * D + i] = x[r * D + i];
        for (int i = 0; i < ROT / 2; i++) {
            double angle = (float)pos[r / HEADS] * freq[i], c = cos(angle) * 0.5, s = sin(angle) * 0.5;
            int a = r * D + (style ? i : 2 * i), b = r * D + (style ? i + ROT / 2 : 2 * i + 1);
            want[a] = x[a] * c - x[b] * s;
            want[b] = x[a] * s + x[b] * c;
        }
    }
    CHECK(run_op(t, "rope_table", &scale, sizeof scale, &made, from, 2) == 0, "%s: rope_table", t->name);
    expect(t, "rope", run_op(t, "rope", &arg, sizeof arg, &out, in, 2), got, want, ROWS * HEADS * D, 1e-12);
    free(x);
}

/* Units in the last place between a result and its definition in double. */
static double ulps(float got, double want) {
    float next = nextafterf(fabsf((float)want), INFINITY);
    return fabs(got - want) / ((double)next - fabs((float)want));
}

/* Folds a result's bits into a hash (FNV-1a). */
static uint64_t folded(uint64_t hash, float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (hash ^ bits) * 0x100000001B3ull;
}

/* sin, cos, e^x and ln(1 + x) have the bits of `hash` on every system and with every kernel set. Positions up to 2^30, numbers of
 * every exponent. */
static void test_functions(const target *t) {
    enum { N = 4096 };
    static float angles[2 * N], freq[N], x[N], soft[N];
    const uint64_t hash = 0xACDC6BC4E7820AB3ull;
    uint64_t got = 0xCBF29CE484222325ull;
    double worst = 0;
    int32_t pos[1];
    arg_rope_table scale = {1};
    for (int turn = 0; turn < 31; turn++) {
        operand out = OPERAND(F32, angles, 1, 2 * N), in[] = {OPERAND(I32, pos, 1), OPERAND(F32, freq, N)};
        operand y = OPERAND(F32, soft, 1, N), from[] = {OPERAND(F32, x, 1, N)};
        pos[0] = (int32_t)((1u << turn) - 1);
        for (uint32_t i = 0; i < N; i++) {
            uint32_t bits = (i * 0x9E3779B9u + (uint32_t)turn * 0x85EBCA6Bu) ^ i << 7;
            freq[i] = (float)(i + 1) / N;
            memcpy(x + i, &bits, sizeof bits);
            if (!isfinite(x[i]))
                x[i] = (float)i;
        }
        if (!CHECK(run_op(t, "rope_table", &scale, sizeof scale, &out, in, 2) == 0, "%s: rope_table", t->name) ||
            !CHECK(run_op(t, "softplus", NULL, 0, &y, from, 1) == 0, "%s: softplus", t->name))
            return;
        for (int i = 0; i < N && t->computes; i++) {
            double angle = (float)pos[0] * freq[i], whole = fmax(x[i], 0) + log1p(exp(-fabs(x[i])));
            worst = fmax(worst, fmax(ulps(angles[i], cos(angle)), ulps(angles[N + i], sin(angle))));
            /* A float of e^-|x| may be a subnormal number, so it is a little off what is not rounded. */
            worst = fmax(worst, fabs(soft[i] - whole) < 1e-44 ? 0 : ulps(soft[i], whole));
            got = folded(folded(folded(got, angles[i]), angles[N + i]), soft[i]);
        }
    }
    CHECK(!t->computes || worst < 1.6, "%s: functions: %g units in the last place", t->name, worst);
    CHECK(!t->computes || got == hash, "%s: functions: the bits %#llx are not everyone's", t->name,
          (unsigned long long)got);
}

enum { BLOCKS = 7, KV = 2, BLOCK = 8, HD = 24, HEADS = 6, SLOTS = 2, WIDTH = 3 };
static int32_t table[SLOTS * WIDTH] = {6, 2, 0, 1, 5, 3};

static void test_kv(const target *t) {
    enum { N = BLOCKS * KV * BLOCK * HD };
    float *x = random_floats(4 * KV * HD, 2);
    uint16_t cache[N] = {0}, want[N] = {0};
    int32_t slot[] = {0, 1, 1, 0}, pos[] = {0, 9, 10, 23};
    operand out = OPERAND(F16, cache, BLOCKS, KV, BLOCK, HD);
    operand in[] = {out, OPERAND(F32, x, 4, KV, HD), OPERAND(I32, slot, 4), OPERAND(I32, pos, 4),
                    OPERAND(I32, table, SLOTS, WIDTH)};
    for (int i = 0; i < 4 * KV * HD; i++) {
        int row = i / (KV * HD), h = i / HD % KV, block = table[slot[row] * WIDTH + pos[row] / BLOCK];
        want[((block * KV + h) * BLOCK + pos[row] % BLOCK) * HD + i % HD] = f32_to_f16(x[i]);
    }
    expect_bytes(t, "kv_write", run_op(t, "kv_write", NULL, 0, &out, in, 5), cache, want, sizeof cache);
    slot[1] = 2;
    CHECK(!t->computes || run_op(t, "kv_write", NULL, 0, &out, in, 5) == HAL_E_INVALID, "%s: slot 2 of 2", t->name);
    free(x);
}

static void define_attention(const float *q, const float *k, const float *v, int slot, int pos, int window,
                             double *out) {
    for (int h = 0; h < HEADS; h++) {
        double p[WIDTH * BLOCK], total = 0, most = -INFINITY;
        int from = window && pos + 1 > window ? pos + 1 - window : 0;
        const float *key[WIDTH * BLOCK], *value[WIDTH * BLOCK];
        for (int j = from; j <= pos; j++) {
            int at = ((table[slot * WIDTH + j / BLOCK] * KV + h / (HEADS / KV)) * BLOCK + j % BLOCK) * HD;
            key[j] = k + at, value[j] = v + at, p[j] = 0;
            for (int i = 0; i < HD; i++)
                p[j] += (double)q[h * HD + i] * key[j][i] * 0.2f;
            most = p[j] > most ? p[j] : most;
        }
        for (int j = from; j <= pos; j++)
            total += p[j] = exp(p[j] - most);
        for (int i = 0; i < HD; i++) {
            out[h * HD + i] = 0;
            for (int j = from; j <= pos; j++)
                out[h * HD + i] += p[j] / total * value[j][i];
        }
    }
}

static void test_attention(const target *t, int window) {
    enum { N = BLOCKS * KV * BLOCK * HD, ROWS = 5, OUT = ROWS * HEADS * HD };
    float *q = random_floats(OUT, 4), *k = random_floats(N, 2), *v = random_floats(N, 2), got[OUT] = {0};
    double want[OUT];
    int32_t slot[] = {1, 0, 0, 0, 1}, pos[] = {23, 6, 7, 8, 0};
    arg_attention arg = {.scale = 0.2f, .window = window, .causal = 1};
    operand out = OPERAND(F32, got, ROWS, HEADS * HD);
    operand in[] = {OPERAND(F32, q, ROWS, HEADS, HD),
                    OPERAND(F32, k, BLOCKS, KV, BLOCK, HD),
                    OPERAND(F32, v, BLOCKS, KV, BLOCK, HD),
                    OPERAND(I32, slot, ROWS),
                    OPERAND(I32, pos, ROWS),
                    OPERAND(I32, table, SLOTS, WIDTH)};
    for (int r = 0; r < ROWS; r++)
        define_attention(q + r * HEADS * HD, k, v, slot[r], pos[r], window, want + r * HEADS * HD);
    expect(t, "attention", run_op(t, "attention", &arg, sizeof arg, &out, in, 6), got, want, OUT, 1e-12);
    table[1] = BLOCKS;
    CHECK(!t->computes || run_op(t, "attention", &arg, sizeof arg, &out, in, 6) == HAL_E_INVALID,
          "%s: a block past the end", t->name);
    table[1] = 2;
    pos[0] = INT32_MAX; /* what follows it is no number */
    CHECK(!t->computes || run_op(t, "attention", &arg, sizeof arg, &out, in, 6) == HAL_E_INVALID,
          "%s: a position past the table's end", t->name);
    free(q), free(k), free(v);
}

static void test_tokens(const target *t) {
    int32_t ring[2 * 4] = {1, 2, 3, 4, 5, 6, 7, 8}, want[] = {1, 2, 3, 9, 8, 6, 7, 8}, got[3] = {0}, read[] = {9, 1, 8};
    int32_t ids[] = {9, -1, 8}, slot[] = {0, 1, 1}, pos[] = {2, 0, 3}, at[] = {3, 4, 4};
    arg_tokens_put arg = {1};
    operand table = OPERAND(I32, ring, 2, 4), out = OPERAND(I32, got, 3);
    operand in[] = {table, OPERAND(I32, ids, 3), OPERAND(I32, slot, 3), OPERAND(I32, pos, 3)};
    expect_bytes(t, "tokens_put", run_op(t, "tokens_put", &arg, sizeof arg, &table, in, 4), ring, want, sizeof want);
    int32_t slots[] = {0, 0, 1};
    operand from[] = {OPERAND(I32, want, 2, 4), OPERAND(I32, slots, 3), OPERAND(I32, at, 3)};
    expect_bytes(t, "tokens_get", run_op(t, "tokens_get", NULL, 0, &out, from, 3), got, read, sizeof got);
    int32_t rows[] = {1, 0};
    operand picked = OPERAND(I32, got, 2, 1), source[] = {OPERAND(I32, ids, 3, 1), OPERAND(I32, rows, 2)};
    int32_t two[] = {-1, 9};
    expect_bytes(t, "gather_rows", run_op(t, "gather_rows", NULL, 0, &picked, source, 2), got, two, sizeof two);
}

void test_ops(const target *t) {
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++) {
        test_product(t, weights + i, 1, 21, 256);
        test_product(t, weights + i, 15, 70, 512);
        test_rows(t, weights + i);
        if (weights[i].act != F32)
            test_quantizers(t, weights + i);
        if (format_block(weights[i].id) == 1)
            test_product(t, weights + i, 3, 5, 78); /* no whole vector at the end of a row */
    }
    test_norm(t, 1, 1, 512);
    test_norm(t, 4, 3, 77);
    test_pairs(t, 7, 77);
    test_pairs(t, 40, 512);
    for (int i = 0; i < 2; i++) {
        test_rope(t, i);
        test_attention(t, 5 * i);
    }
    test_functions(t);
    test_kv(t);
    test_tokens(t);
}
