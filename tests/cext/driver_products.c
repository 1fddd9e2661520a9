/* driver_products.c: products of every weight format at the extremes, packed and not, against the plain product of the
 * format's header, row by row: bit for bit, whatever the kernel set and however many columns pass together.
 */
#include <math.h>

#include "formats.h"
#include "harness.h"
#include "simd/simd.h"

enum { ROWS = 21, COLUMNS = 33, LONG = 8192 };

typedef struct {
    const char *name;
    uint32_t id, act;
    float (*dot)(const void *w, const void *a, int blocks);
    void (*unpack)(const uint8_t *w, float *to, int blocks);
} weight;

#define PLAIN(stem, function)                                                                                          \
    static float plain_##stem(const void *w, const void *a, int blocks) {                                              \
        return function(w, a, blocks);                                                                                 \
    }
#define bf16x2_PLAIN(stem) PLAIN(stem, stem##_dot_f32) /* which not every kernel set multiplies: these meet f32 */
#define f32_PLAIN(stem) PLAIN(stem, stem##_dot)
#define a8_32_PLAIN(stem) PLAIN(stem, stem##_dot)
#define a8_256_PLAIN(stem) PLAIN(stem, stem##_dot)
#define CPU_WEIGHT(stem, id, block, act)                                                                               \
    act##_PLAIN(stem) static void unpack_##stem(const uint8_t *w, float *to, int blocks) {                             \
        for (int i = 0; i < blocks; i++)                                                                               \
            stem##_unpack((const block_##stem *)(const void *)w + i, to + (block) * i);                                \
    }
#include "types.inc"
#undef CPU_WEIGHT

enum { ACT_f32 = F32, ACT_bf16x2 = F32, ACT_a8_32 = A8_32, ACT_a8_256 = A8_256 };
static const weight weights[] = {
#define CPU_WEIGHT(stem, id, block, act) {#stem, id, ACT_##act, plain_##stem, unpack_##stem},
#include "types.inc"
#undef CPU_WEIGHT
};

/* What fills weights and activations. code: the byte of all codes and group scales, or -1: random; scale: the bits of d
 * and its minimum, with random ones where `loose` has them; x: every activation's code, or 0: random. */
typedef struct {
    const char *name;
    int code, x;
    uint16_t scale, loose;
} filling;

static const filling fillings[] = {
    {"random", -1, 0, 0x2000, 0x87FF},
    {"largest codes", 0xFF, 127, 0x3C00, 0},
    {"largest codes by the least", 0xFF, -127, 0x3C00, 0},
    {"least codes", 0x00, 127, 0x3C00, 0x8000},
    {"least signed codes", 0x80, -127, 0x3C00, 0},
    {"scales of zero", -1, 0, 0, 0x8000},
    {"subnormal scales", -1, 0, 0, 0x83FF},
    {"the largest scale below zero", -1, 127, 0xFBFF, 0},
    {"largest signed codes", 0x77, 127, 0x3C00, 0},
    {"large codes under their largest scales", 0x7F, -127, 0x3C00, 0},
};
enum { FILLINGS = sizeof fillings / sizeof *fillings };

static void fill_weights(const weight *w, const filling *f, int64_t n, uint8_t *p) {
    uint64_t block = (uint64_t)format_block(w->id), bytes = format_bytes(w->id, block);
    for (uint64_t i = 0; i < format_bytes(w->id, (uint64_t)n); i++)
        p[i] = (uint8_t)(f->code < 0 ? (int)(random_bits() >> 56) : f->code);
    for (int64_t i = 0; i < n / (int64_t)block; i++, p += bytes) {
        uint16_t scale[2] = {f->scale ^ (random_bits() & f->loose), f->scale ^ (random_bits() & f->loose)};
        float x = random_float(3);
        if (w->id == F32)
            memcpy(p, &x, 4);
        else if (w->id == BF16)
            memcpy(p, (uint16_t[]){f32_to_bf16(x)}, 2);
        else
            set_scales(w->id, p, scale[0], scale[1]);
    }
}

static void fill_a8_32(const filling *f, int64_t n, block_a8_32 *a) {
    for (; n > 0; n -= 32, a++) {
        memset(a, 0, sizeof *a);
        a->d = random_float(0.1f);
        for (int i = 0; i < 32; i++) {
            a->qs[i] = (int8_t)(f->x ? f->x : random_below(255) - 127);
            a->sum += a->qs[i];
        }
    }
}

static void fill_a8_256(const filling *f, int64_t n, block_a8_256 *a) {
    for (; n > 0; n -= 256, a++) {
        memset(a, 0, sizeof *a);
        a->d = random_float(0.1f);
        for (int i = 0; i < 256; i++) {
            a->qs[i] = (int8_t)(f->x ? f->x : random_below(255) - 127);
            a->sums[i / 16] = (int16_t)(a->sums[i / 16] + a->qs[i]);
            a->sums32[i / 32] = (int16_t)(a->sums32[i / 32] + a->qs[i]);
        }
    }
}

static void fill_columns(const weight *w, const filling *f, int64_t n, void *a) {
    if (w->act == A8_32)
        fill_a8_32(f, n, a);
    else if (w->act == A8_256)
        fill_a8_256(f, n, a);
    else
        for (int64_t i = 0; i < n; i++)
            ((float *)a)[i] = random_float(2);
}

/* Equal bits, or both not a number. Float sums need not be fused in a set without that instruction. */
static int same(const target *t, const weight *w, const float *got, const float *want, int n) {
    double wide[COLUMNS * ROWS];
    for (int i = 0; i < n; i++)
        wide[i] = want[i];
    if (w->act == F32 && strstr(t->name, "scalar"))
        return nmse(got, wide, n) < 1e-11;
    for (int i = 0; i < n; i++)
        if (memcmp(got + i, want + i, sizeof *got) && !(isnan(got[i]) && isnan(want[i])))
            return 0;
    return 1;
}

static void check_columns(const target *t, const weight *w, const filling *f, int k, int n, operand *in,
                          const float *want) {
    float got[COLUMNS * ROWS];
    operand out = OPERAND(F32, got, n, ROWS);
    in[0].shape[0] = n;
    for (int packed = 0; packed < 2; packed++) {
        int code;
        memset(got, 0, sizeof got);
        in[1].packed = packed;
        code = run_op(t, "linear", NULL, 0, &out, in, 2);
        CHECK(code == 0 && same(t, w, got, want, n * ROWS), "%s: %s%s, %s, k %d, %d columns: %d: %s", t->name, w->name,
              packed ? " packed" : "", f->name, k, n, code, code ? t->b->error() : "not the plain product");
    }
}

/* `columns`: how many pass together, up to a 0. */
static void test_filling(const target *t, const weight *w, const filling *f, int k, const int *columns) {
    uint64_t row = format_bytes(w->id, (uint64_t)k), column = format_bytes(w->act, (uint64_t)k);
    uint8_t *p = malloc(ROWS * row), *a = malloc(COLUMNS * column);
    float want[COLUMNS * ROWS];
    operand in[] = {OPERAND(w->act, a, COLUMNS, k), OPERAND(w->id, p, ROWS, k)};
    int most = 0;
    for (const int *n = columns; *n; n++)
        most = *n > most ? *n : most;
    fill_weights(w, f, (int64_t)ROWS * k, p);
    fill_columns(w, f, (int64_t)most * k, a);
    for (int c = 0; c < most; c++)
        for (int r = 0; r < ROWS; r++)
            want[ROWS * c + r] = w->dot(p + row * (uint64_t)r, a + column * (uint64_t)c, k / format_block(w->id));
    for (; *columns; columns++)
        check_columns(t, w, f, k, *columns, in, want);
    free(p), free(a);
}

/* A row of decoded numbers by a column: runs of 64 first. */
static float run_sum(const float *w, const float *x, int k) {
    float sum = 0;
    for (int from = 0; from < k; from += 64) {
        float run = 0;
        for (int i = from; i < k && i < from + 64; i++)
            run = fmaf(w[i], x[i], run);
        sum += run;
    }
    return sum;
}

/* Weights as they decode with activations of 16 and of 32 bits. */
static void test_expanded(const target *t, const weight *w, const filling *f, int k) {
    static const int columns[] = {1, 2, 3, 4, 6, 8, 9, COLUMNS};
    uint64_t row = format_bytes(w->id, (uint64_t)k);
    uint8_t *p = malloc(ROWS * row);
    float *numbers = malloc(sizeof(float) * ROWS * (size_t)k), *x = random_floats(COLUMNS * k, 2), want[COLUMNS * ROWS];
    uint16_t *halves = malloc(2 * COLUMNS * (size_t)k);
    operand by_f32[] = {OPERAND(F32, x, COLUMNS, k), OPERAND(w->id, p, ROWS, k)};
    operand by_bf16[] = {OPERAND(BF16, halves, COLUMNS, k), OPERAND(w->id, p, ROWS, k)};
    weight as_f32 = {w->name, w->id, F32, NULL, NULL};
    fill_weights(w, f, (int64_t)ROWS * k, p);
    w->unpack(p, numbers, ROWS * k / format_block(w->id));
    for (int i = 0; i < COLUMNS * k; i++) {
        halves[i] = f32_to_bf16(x[i]);
        x[i] = bf16_to_f32(halves[i]);
    }
    for (int i = 0; i < COLUMNS * ROWS; i++)
        want[i] = run_sum(numbers + k * (i % ROWS), x + k * (i / ROWS), k);
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        check_columns(t, &as_f32, f, k, columns[i], by_f32, want);
        check_columns(t, &as_f32, f, k, columns[i], by_bf16, want);
    }
    free(p), free(numbers), free(x), free(halves);
}

/* Any bits, and sums that lie next to the middle between two floats, subnormal ones too. */
static void random_sum(int kind, float *a, float *b, float *c) {
    *a = f32_from_bits((uint32_t)random_bits()), *b = f32_from_bits((uint32_t)random_bits());
    *c = f32_from_bits((uint32_t)random_bits());
    if (kind == 0)
        return;
    *a = 1 + random_float(0x1p-10f), *b = (1 + random_float(0x1p-12f)) * 0x1p-24f;
    *c = (float)(1 + 2 * random_below(1 << 22)) * 0x1p-23f;
    if (kind > 1)
        *b *= 0x1p-30f, *a *= 0x1p-34f, *c *= 0x1p-64f;
    if (kind > 2)
        *b *= -0x1p-62f, *c *= 0x1p-62f;
}

/* 0: the C library's fmaf rounds subnormal results twice, as musl's does, and is no reference for them. This sum lies next to the
 * middle between its nearest float, which is c, and the one below. */
static int fmaf_rounds_once(void) {
    volatile float a = 0x1.fffd44p-35f, b = -0x1.00015ep-116f, c = 0x1.962748p-128f;
    return fmaf(a, b, c) == c;
}

void test_fused(int sums) {
    int wrong = 0, kinds = fmaf_rounds_once() ? 4 : 2;
    for (int i = 0; i < sums; i++) {
        float a[LANES], b[LANES], c[LANES], got[LANES];
        for (int j = 0; j < LANES; j++)
            random_sum(i % kinds, a + j, b + j, c + j);
        vf_store(got, vf_fused(vf_load(a), vf_load(b), vf_load(c)));
        for (int j = 0; j < LANES; j++) {
            float want = fmaf(a[j], b[j], c[j]);
            wrong += memcmp(got + j, &want, sizeof want) && !(isnan(got[j]) && isnan(want));
        }
    }
    CHECK(wrong == 0, "vf_fused: %d sums are not fmaf's", wrong);
}

void test_products(const target *t, int floats, int brief) {
    static const int every[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, COLUMNS, 0};
    static const int some[] = {1, 6, COLUMNS, 0}, few[] = {1, 4, 0};
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++) {
        const weight *w = weights + i;
        int block = format_block(w->id) > 2 ? format_block(w->id) : 32;
        if (floats && w->act != F32)
            continue;
        for (int f = 0; f < (w->act == F32 ? 1 : FILLINGS); f++) {
            test_filling(t, w, fillings + f, block, f ? some : every);
            test_filling(t, w, fillings + f, 3 * block, some);
        }
        test_filling(t, w, fillings, 9 * block, some); /* eight blocks and one */
        test_filling(t, w, fillings, LONG, brief ? few : some);
        test_filling(t, w, fillings + 1, LONG, few);
        for (int f = 0; f < FILLINGS && block > 2 && format_block(w->id) > 2; f += 3) {
            test_expanded(t, w, fillings + f, block);
            test_expanded(t, w, fillings + f, 256 + block);
        }
        if (w->id == F16)
            test_filling(t, w, fillings + 6, 96, some);
    }
}
