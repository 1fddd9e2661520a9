/* driver_search.c: the quantizer's searches give the same bits on every instruction set, compiler and processor: a digest of their
 * results is the one that is written here. tests/quant/native/test_library.py compares them with their definitions.
 */
#include "harness.h"

#include <math.h>

#include "search.h"
#include "search_hash.h"

const search_loops *search_entry(uint64_t hash, const char *set);

enum { BLOCKS = 11, NUMBERS = BLOCKS * 256, MOST = 1 << 16 };
static const uint64_t DIGEST = 0x37dc2c7f72f54466u;

static uint64_t state, digest;

/* A number from -1 to 1, of a linear congruential generator. */
static float drawn(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(state >> 32) * 0x1p-31f;
}

static void add(const void *p, size_t size) {
    const uint8_t *bytes = p;
    for (size_t i = 0; i < size; i++)
        digest = (digest ^ bytes[i]) * 1099511628211u; /* FNV-1a */
}

static void add_floats(const float *p, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        float x = p[i] + 0.0f; /* zeros have one sign */
        if (x != x)
            add("nan", 3);
        else
            add(&x, sizeof x);
    }
}

static void add_doubles(const double *p, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        double x = p[i] + 0.0;
        if (x != x)
            add("nan", 3);
        else
            add(&x, sizeof x);
    }
}

static float x[NUMBERS], share[2 * 256], tries[25], f[8][MOST];
static double values[NUMBERS], weights[NUMBERS], scales[64], table[512], d[2][NUMBERS], steps[BLOCKS * 64];
static uint8_t bytes[3][NUMBERS];
static int8_t units[BLOCKS * 16];

/* Blocks of many sizes, one of zeros, one of tiny and one of huge numbers, one with an infinity. */
static void fill(void) {
    state = 1;
    for (int i = 0; i < NUMBERS; i++) {
        int block = i / 256;
        x[i] = drawn() * drawn() * (block == 1 ? 0.0f : block == 2 ? 1e-40f : block == 3 ? 3e38f : 0.1f);
        values[i] = x[i];
        weights[i] = 1.5 + drawn();
    }
    x[5 * 256 + 77] = INFINITY;
    for (int i = 0; i < 512; i++)
        share[i] = 1.125f + drawn(), table[i] = (i - 256) / 8 * 0.5;
    for (int i = 0; i < 25; i++)
        tries[i] = (float)(i - 12) / 10;
    for (int i = 0; i < 64; i++)
        scales[i] = i - 32;
    for (int i = 0; i < BLOCKS * 64; i++)
        steps[i] = (i % 64 - 32) * 0.001;
}

static const search_f32 *floats(float *p, int64_t a, int64_t b, int64_t c) {
    static search_f32 arrays[16];
    static int next;
    search_f32 *one = &arrays[next++ % 16];
    *one = (search_f32){p, {a, b, c, 1}};
    return one;
}

static const search_f64 *doubles(double *p, int64_t a, int64_t b, int64_t c) {
    static search_f64 arrays[16];
    static int next;
    search_f64 *one = &arrays[next++ % 16];
    *one = (search_f64){p, {a, b, c, 1}};
    return one;
}

static const search_u8 *octets(int which) {
    static search_u8 arrays[3];
    arrays[which] = (search_u8){bytes[which], {NUMBERS, 1, 1, 1}};
    return &arrays[which];
}

static const search_f32 *tries_about(float about) {
    for (int i = 0; i < 25; i++)
        f[7][i] = about + tries[i];
    return floats(f[7], 25, 1, 1);
}

static void scale_searches(const search_loops *s, const search_f32 *given, int64_t rows) {
    const search_f64 *first = doubles(d[0], NUMBERS, 1, 1), *second = doubles(d[1], NUMBERS, 1, 1);
    const search_i8 own = {units, {BLOCKS, 16, 1, 1}};
    const search_f32 by_32 = given ? (search_f32){given->at, {rows * 8, 32, 1, 1}} : (search_f32){0};
    const search_f32 *share_32 = given ? &by_32 : NULL, *blocks = floats(x, BLOCKS, 256, 1);
    CHECK(s->symmetric(floats(x, BLOCKS * 8, 32, 1), share_32, 8, tries_about(-8), first, octets(0)) == 0, "symmetric");
    add(bytes[0], NUMBERS), add_doubles(d[0], BLOCKS * 8);
    CHECK(s->affine(floats(x, BLOCKS * 8, 32, 1), share_32, 15, tries_about(15), first, second, octets(0)) == 0,
          "affine");
    add(bytes[0], NUMBERS), add_doubles(d[0], BLOCKS * 8), add_doubles(d[1], BLOCKS * 8);
    CHECK(s->affine_super(blocks, given, 15, tries_about(15), 2, first, second, octets(1), octets(2), octets(0)) == 0,
          "super");
    add(bytes[0], NUMBERS), add(bytes[1], BLOCKS * 8), add(bytes[2], BLOCKS * 8), add_doubles(d[0], BLOCKS);
    CHECK(s->affine_low(blocks, given, tries_about(3), 3, first, second, octets(1), octets(2), octets(0)) == 0,
          "affine_low");
    add(bytes[0], NUMBERS), add(bytes[1], BLOCKS * 16), add(bytes[2], BLOCKS * 16), add_doubles(d[1], BLOCKS);
    CHECK(s->symmetric_super(blocks, given, 32, tries_about(-32), 2, first, &own, octets(0)) == 0, "symmetric_super");
    add(bytes[0], NUMBERS), add(units, sizeof units), add_doubles(d[0], BLOCKS);
    CHECK(s->symmetric_low(blocks, given, tries_about(-4), 3, first, &own, octets(0)) == 0, "symmetric_low");
    add(bytes[0], NUMBERS), add(units, sizeof units), add_doubles(d[0], BLOCKS);
}

static void tables(const search_loops *s) {
    const search_f64 *nearest = doubles(table, 512, 1, 1);
    memset(d, 0, sizeof d);
    s->table_scales(doubles(values, NUMBERS / 32, 32, 1), doubles(weights, NUMBERS / 32, 32, 1),
                    doubles(scales, 64, 1, 1), nearest, doubles(d[0], NUMBERS / 32, 1, 1));
    add_doubles(d[0], NUMBERS / 32);
    s->table_choices(doubles(values, BLOCKS, 8, 32), doubles(weights, BLOCKS, 8, 32), doubles(steps, BLOCKS, 64, 1),
                     nearest, doubles(d[0], BLOCKS, 8, 1), doubles(d[1], BLOCKS, 1, 1));
    add_doubles(d[0], BLOCKS * 8), add_doubles(d[1], BLOCKS);
    s->table_fit(doubles(values, BLOCKS, 8, 32), doubles(weights, BLOCKS, 8, 32), doubles(steps, BLOCKS, 1, 1),
                 doubles(d[0], BLOCKS, 8, 1), nearest, doubles(d[1], BLOCKS, 1, 1));
    add_doubles(d[1], BLOCKS);
}

static void grids(const search_loops *s) {
    enum { VECTORS = 9, POINTS = 61, STEPS = 19 };
    search_u8 odd = {bytes[0], {VECTORS, 1, 1, 1}};
    for (int i = 0; i < MOST; i++)
        f[0][i] = drawn(), f[1][i] = 1.5f + drawn();
    for (int i = 0; i < VECTORS; i++)
        bytes[0][i] = i % 2;
    s->signed_terms(floats(f[0], VECTORS, 8, 1), floats(f[1], VECTORS, 8, 1), floats(f[1] + 512, 8, POINTS, 1), &odd,
                    floats(f[2], VECTORS, 2, POINTS), floats(f[3], VECTORS, 2, POINTS));
    add_floats(f[2], VECTORS * 2 * POINTS), add_floats(f[3], VECTORS * 2 * POINTS);
    s->shifted_terms(floats(f[0], VECTORS, 8, 1), floats(f[1], VECTORS, 8, 1), floats(f[1] + 512, 8, POINTS, 1), 0.125,
                     floats(f[2], VECTORS, 2, POINTS), floats(f[3], VECTORS, 2, POINTS));
    add_floats(f[2], VECTORS * 2 * POINTS), add_floats(f[3], VECTORS * 2 * POINTS);
    s->nearest(floats(f[2], VECTORS, POINTS, 1), floats(f[3], VECTORS, POINTS, 1), floats(f[1], VECTORS, STEPS, 1),
               floats(f[4], VECTORS, STEPS, 1));
    s->minima(floats(f[2], VECTORS, POINTS, 1), floats(f[3], VECTORS, POINTS, 1), floats(f[1], VECTORS, STEPS, 1),
              floats(f[5], VECTORS, STEPS, 1));
    add_floats(f[4], VECTORS * STEPS), add_floats(f[5], VECTORS * STEPS);
}

static void gptq(const search_loops *s) {
    enum { COLUMNS = 7, ROWS = 131, ALL = COLUMNS * ROWS };
    const search_f32 *matrix = floats(f[1], COLUMNS, COLUMNS, 1), *step = floats(f[1] + 512, COLUMNS, ROWS, 1);
    const search_f32 *base = floats(f[1] + 4096, COLUMNS, ROWS, 1), *w = floats(f[0], COLUMNS, ROWS, 1);
    memcpy(f[2], f[0] + 8192, sizeof(float) * ALL), memset(f[3], 0, sizeof f[3]), memset(f[4], 0, sizeof f[4]);
    s->feed_run(floats(f[2], COLUMNS, ROWS, 1), w, floats(f[3], COLUMNS, ROWS, 1), floats(f[4], COLUMNS, ROWS, 1),
                matrix, step, base, -8, 7);
    add_floats(f[3], ALL), add_floats(f[4], ALL);
    s->move_run(floats(f[2], COLUMNS, ROWS, 1), w, floats(f[3], COLUMNS, ROWS, 1), floats(f[4], COLUMNS, ROWS, 1),
                matrix, step, base, -8, 7);
    add_floats(f[2], ALL), add_floats(f[3], ALL), add_floats(f[4], ALL);
    s->dots(floats(f[2], COLUMNS, ROWS, 1), floats(f[3], COLUMNS, ROWS, 1), floats(f[5], ROWS, 1, 1));
    add_floats(f[5], ROWS);
}

void test_searches(const char *set) {
    const search_loops *s = search_entry(SEARCH_HASH, set);
    if (!s)
        return;
    fill();
    digest = 14695981039346656037u;
    scale_searches(s, NULL, 1);
    scale_searches(s, floats(share, 2, 256, 1), 2);
    tables(s);
    grids(s);
    gptq(s);
    CHECK(digest == DIGEST, "searches on %s: digest %#llx, expected %#llx", set, (unsigned long long)digest,
          (unsigned long long)DIGEST);
    printf("searches on %s: done\n", set);
}
