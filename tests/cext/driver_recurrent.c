/* driver_recurrent.c: the scan and the convolution of layers with a state, and what they leave in pages, against plain
 * definitions in doubles: a text that begins and one that goes on across ends of blocks, of which one has no page. */
#include <math.h>

#include "harness.h"

enum { PAGES = 5, BLOCK = 8, SLOTS = 2, WIDTH = 3, HEADS = 4, GROUPS = 2, KEYS = 21, SIZE = 37, TAPS = 4, TOKENS = 14 };
enum { CHANNELS = 70, STATE = HEADS * KEYS * SIZE, KEPT = (TAPS - 1) * CHANNELS };
static int32_t slots[TOKENS], positions[TOKENS];
static int32_t table[SLOTS * WIDTH] = {3, 0, 0, 4, -1, 1}; /* slot 0 has positions 0 .. 2, slot 1 then 6 .. 16 */

static void place_tokens(void) {
    for (int t = 0; t < TOKENS; t++) {
        slots[t] = t >= 3;
        positions[t] = t >= 3 ? t + 3 : t;
    }
}

/* The page that the state is left in after token t; -1: none. */
static int page_after(int t) {
    int last = t == 2 || t == TOKENS - 1;
    return last || (positions[t] + 1) % BLOCK == 0 ? table[slots[t] * WIDTH + positions[t] / BLOCK] : -1;
}

static void expect(const target *t, const char *op, int code, const float *got, const double *want, int n) {
    if (!CHECK(code == 0, "%s: %s: %d: %s", t->name, op, code, t->b->error()) || !t->computes)
        return;
    CHECK(nmse(got, want, n) <= 1e-11, "%s: %s: NMSE %g", t->name, op, nmse(got, want, n));
}

typedef struct {
    float *q, *k, *v, *g, *beta, *state;
    double *found, *pages;
} scan;

static int group_of(int head, int tiled) {
    return tiled ? head % GROUPS : head / (HEADS / GROUPS);
}

static void define_head(const scan *x, int h, int delta, int tiled) {
    double s[KEYS][SIZE];
    for (int t = 0; t < TOKENS; t++) {
        const float *k = x->k + (t * GROUPS + group_of(h, tiled)) * KEYS,
                    *q = x->q + (t * GROUPS + group_of(h, tiled)) * KEYS;
        double fade = exp(x->g[t * HEADS + h]), *y = x->found + (t * HEADS + h) * 2 * SIZE;
        for (int p = 0; p < SIZE; p++) {
            double known = 0;
            for (int n = 0; n < KEYS; n++) {
                if (t == 0 || t == 3)
                    s[n][p] = t ? x->state[4 * STATE + (h * KEYS + n) * SIZE + p] : 0;
                s[n][p] *= fade;
                known += k[n] * s[n][p];
            }
            y[SIZE + p] = x->beta[t * HEADS + h] * (x->v[(t * HEADS + h) * SIZE + p] - (delta ? known : 0));
            y[p] = 0;
            for (int n = 0; n < KEYS; n++) {
                s[n][p] += k[n] * y[SIZE + p];
                y[p] += q[n] * s[n][p];
            }
        }
        if (page_after(t) >= 0)
            memcpy(x->pages + page_after(t) * STATE + h * KEYS * SIZE, s, sizeof s);
    }
}

static scan make_scan(float fade) {
    scan x = {random_floats(TOKENS * GROUPS * KEYS, 1),
              random_floats(TOKENS * GROUPS * KEYS, 0.3f),
              random_floats(TOKENS * HEADS * SIZE, 1),
              random_floats(TOKENS * HEADS, fade),
              random_floats(TOKENS * HEADS, 1),
              random_floats(PAGES * STATE, 1),
              calloc(TOKENS * HEADS * 2 * SIZE, sizeof(double)),
              calloc(PAGES * STATE, sizeof(double))};
    for (int i = 0; i < TOKENS * HEADS; i++)
        x.g[i] = -fabsf(x.g[i]);
    for (int i = 0; i < PAGES * STATE; i++)
        x.pages[i] = x.state[i];
    return x;
}

static void test_scan(const target *t, float fade, int delta, int tiled) {
    scan x = make_scan(fade);
    float *got = calloc(TOKENS * HEADS * 2 * SIZE, sizeof(float)),
          *made = calloc(TOKENS * HEADS * 2 * SIZE, sizeof(float));
    arg_gated_scan arg = {BLOCK, delta, tiled};
    arg_scan_write write = {BLOCK, tiled};
    operand state = OPERAND(F32, x.state, PAGES, HEADS, KEYS, SIZE), k = OPERAND(F32, x.k, TOKENS, GROUPS, KEYS);
    operand out = OPERAND(F32, got, TOKENS, HEADS, 2 * SIZE), g = OPERAND(F32, x.g, TOKENS, HEADS);
    operand slot = OPERAND(I32, slots, TOKENS), pos = OPERAND(I32, positions, TOKENS),
            place = OPERAND(I32, table, SLOTS, WIDTH);
    operand in[] = {OPERAND(F32, x.q, TOKENS, GROUPS, KEYS),
                    k,
                    OPERAND(F32, x.v, TOKENS, HEADS, SIZE),
                    g,
                    OPERAND(F32, x.beta, TOKENS, HEADS),
                    state,
                    slot,
                    pos,
                    place};
    operand then[] = {state, k, OPERAND(F32, made, TOKENS, HEADS, 2 * SIZE), g, slot, pos, place};
    for (int h = 0; h < HEADS; h++)
        define_head(&x, h, delta, tiled);
    for (int i = 0; i < TOKENS * HEADS * 2 * SIZE; i++)
        made[i] = (float)x.found[i];
    expect(t, "gated_scan", run_op(t, "gated_scan", &arg, sizeof arg, &out, in, 9), got, x.found,
           TOKENS * HEADS * 2 * SIZE);
    expect(t, "scan_write", run_op(t, "scan_write", &write, sizeof write, &state, then, 7), x.state, x.pages,
           PAGES * STATE);
    positions[TOKENS - 1] = 24;
    CHECK(!t->computes || run_op(t, "gated_scan", &arg, sizeof arg, &out, in, 9) == HAL_E_INVALID, "%s: past the table",
          t->name);
    place_tokens();
    float *all[] = {x.q, x.k, x.v, x.g, x.beta, x.state, got, made};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    free(x.found);
    free(x.pages);
}

/* Input j before token t of channel c. */
static double input(const float *x, const float *kept, int t, int j, int c) {
    int start = t < 3 ? 0 : 3;
    if (t - j >= start)
        return x[(t - j) * CHANNELS + c];
    return start ? kept[4 * KEPT + (TAPS - 1 - (j - (t - start))) * CHANNELS + c] : 0;
}

static void test_conv(const target *t) {
    float *x = random_floats(TOKENS * CHANNELS, 1), *w = random_floats(CHANNELS * TAPS, 1),
          *bias = random_floats(CHANNELS, 1);
    float *kept = random_floats(PAGES * KEPT, 1), *got = calloc(TOKENS * CHANNELS, sizeof(float));
    double *want = calloc(TOKENS * CHANNELS, sizeof(double)), *pages = calloc(PAGES * KEPT, sizeof(double));
    arg_short_conv arg = {BLOCK};
    operand state = OPERAND(F32, kept, PAGES, TAPS - 1, CHANNELS), from = OPERAND(F32, x, TOKENS, CHANNELS);
    operand slot = OPERAND(I32, slots, TOKENS), pos = OPERAND(I32, positions, TOKENS),
            place = OPERAND(I32, table, SLOTS, WIDTH);
    operand out = OPERAND(F32, got, TOKENS, CHANNELS);
    operand in[] = {from, state, OPERAND(F32, w, CHANNELS, TAPS), slot, pos, place, OPERAND(F32, bias, CHANNELS)};
    operand then[] = {state, from, slot, pos, place};
    for (int i = 0; i < PAGES * KEPT; i++)
        pages[i] = kept[i];
    for (int i = 0; i < TOKENS * CHANNELS; i++) {
        int token = i / CHANNELS, c = i % CHANNELS, page = page_after(token);
        double sum = bias[c];
        for (int j = 0; j < TAPS; j++)
            sum += w[c * TAPS + TAPS - 1 - j] * input(x, kept, token, j, c);
        want[i] = sum / (1 + exp(-sum));
        for (int j = 0; page >= 0 && j < TAPS - 1; j++)
            pages[page * KEPT + (TAPS - 2 - j) * CHANNELS + c] = input(x, kept, token, j, c);
    }
    expect(t, "short_conv", run_op(t, "short_conv", &arg, sizeof arg, &out, in, 7), got, want, TOKENS * CHANNELS);
    expect(t, "conv_write", run_op(t, "conv_write", &arg, sizeof arg, &state, then, 5), kept, pages, PAGES * KEPT);
    void *all[] = {x, w, bias, kept, got, want, pages};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

void test_recurrent(const target *t) {
    place_tokens();
    for (int i = 0; i < 4; i++)
        test_scan(t, i < 2 ? 0.2f : 100, i % 2, i / 2);
    test_conv(t);
}
