/* driver_sample.c: the sample op against a plain form of its definition: everything sorted, nothing skipped. What is said
 * of stages here is said of all of them in tests/cext/test_sampling_kernels.py; this runs under the sanitizers too.
 */
#include <math.h>

#include "harness.h"

enum { V = 1200, WIDTH = 64, ROWS = 3 };

typedef struct {
    float logit;
    int id;
    int64_t weight;
} entry;

static int by_rank(const void *a, const void *b) {
    const entry *x = a, *y = b;
    return x->logit != y->logit ? (x->logit < y->logit) - (x->logit > y->logit) : x->id - y->id;
}

static double uniform(uint64_t seed, int pos) {
    uint64_t z = seed + (uint64_t)(pos + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (double)((z ^ (z >> 31)) >> 11) / 9007199254740992.0;
}

static int64_t weight_of(float below) {
    float x = below < -40 ? -40 : below, n = rintf(x * 1.44269504f), r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    float p = (float)(1.0 / 5040);
    static const double series[] = {720, 120, 24, 6, 2, 1, 1};
    for (int i = 0; i < 7; i++)
        p = p * r + (float)(1 / series[i]);
    return (int64_t)rint(ldexp((double)p, (int)n + 40));
}

static void penalize(float *x, const int32_t *ring, int pos, const hal_sampling *s) {
    int seen[V] = {0};
    for (int i = pos - s->repeat_last_n + 1 < 0 ? 0 : pos - s->repeat_last_n + 1; i <= pos; i++)
        seen[ring[i % WIDTH]]++;
    for (int i = 0; i < V; i++)
        if (seen[i]) {
            x[i] = x[i] > 0 ? x[i] / s->repeat_penalty : x[i] * s->repeat_penalty;
            x[i] = x[i] - (float)seen[i] * s->frequency_penalty - s->presence_penalty;
        }
}

/* Ranked entries weighed again; gives the sum. */
static int64_t weigh(entry *e, int n) {
    int64_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += e[i].weight = weight_of(e[i].logit - e[0].logit);
    return sum;
}

static int run_stage(int stage, entry *e, int n, const hal_sampling *s) {
    int64_t total = weigh(e, n), sum = 0;
    float best = e[0].logit;
    switch (stage) {
    case HAL_STAGE_TOP_K:
        return s->top_k > 0 && s->top_k < n ? s->top_k : n;
    case HAL_STAGE_TOP_P:
        for (int i = 0; i < n; i++)
            if ((double)(sum += e[i].weight) >= (double)s->top_p * (double)total)
                return i + 1;
        return n;
    case HAL_STAGE_TEMPERATURE:
        if (s->temperature <= 0)
            return 1;
        for (int i = 0; i < n; i++)
            e[i].logit = e[i].logit == best ? 0 : (e[i].logit - best) / s->temperature;
    }
    return n;
}

static int define(const float *logits, const int32_t *ring, int pos, const hal_sampling *s) {
    static float x[V];
    static entry e[V];
    int n = V;
    double goal;
    int64_t sum = 0;
    memcpy(x, logits, sizeof x);
    for (int i = 0; i < HAL_STAGES && s->chain[i]; i++)
        if (s->chain[i] == HAL_STAGE_PENALTIES) /* it comes first here */
            penalize(x, ring, pos, s);
    for (int i = 0; i < V; i++)
        e[i] = (entry){x[i], i, 0};
    qsort(e, V, sizeof *e, by_rank);
    for (int i = 0; i < HAL_STAGES && s->chain[i]; i++)
        n = run_stage(s->chain[i], e, n, s);
    goal = uniform(s->seed, pos) * (double)weigh(e, n);
    for (int i = 0; i < n; i++)
        if ((double)(sum += e[i].weight) > goal)
            return e[i].id;
    return e[n - 1].id;
}

static void test_params(const target *t, const hal_sampling *base, float *logits, int32_t *ring) {
    int32_t slot[ROWS] = {0, 1, 0}, pos[ROWS] = {0, 63, 30}, got[ROWS] = {-1, -1, -1};
    hal_sampling s[ROWS];
    operand out = OPERAND(I32, got, ROWS);
    operand in[] = {OPERAND(F32, logits, ROWS, V), OPERAND(I32, ring, 2, WIDTH), OPERAND(I32, slot, ROWS),
                    OPERAND(I32, pos, ROWS), OPERAND(I8, s, ROWS, (int)sizeof *s)};
    int code;
    for (int i = 0; i < ROWS; i++) {
        s[i] = *base;
        s[i].seed = random_bits();
    }
    code = run_op(t, "sample", NULL, 0, &out, in, 5);
    if (!CHECK(code == 0, "%s: sample: %d: %s", t->name, code, t->b->error()) || !t->computes)
        return;
    for (int i = 0; i < ROWS; i++) {
        int want = define(logits + i * V, ring + slot[i] * WIDTH, pos[i], s + i);
        CHECK(got[i] == want, "%s: sample row %d: %d, not %d (temperature %g, top_k %d, top_p %g)", t->name, i, got[i],
              want, (double)base->temperature, base->top_k, (double)base->top_p);
    }
}

/* A NaN, a +inf, or nothing above -inf gives no token, whatever the stages; some -inf among numbers gives one. */
static void test_poison(const target *t, float *logits, int32_t *ring) {
    static const float poison[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 9 * HAL_STAGES; i++) {
        int32_t slot = 0, pos = 3, got = -2, code;
        hal_sampling s = {.temperature = i % 3 ? 1 : 0,
                          .top_p = 0.5f,
                          .min_p = 0.1f,
                          .top_k = 40 * (i % 2),
                          .typical_p = 0.5f,
                          .top_n_sigma = 1,
                          .xtc_probability = 1,
                          .xtc_threshold = 0.05f,
                          .dynatemp_range = (float)(i % 2),
                          .dynatemp_exponent = 1,
                          .mirostat_mu = 3,
                          .repeat_penalty = 1.1f,
                          .repeat_last_n = 8,
                          .chain = {(uint8_t)(i / 9), HAL_STAGE_TEMPERATURE}};
        operand out = OPERAND(I32, &got, 1);
        operand in[] = {OPERAND(F32, logits, 1, V), OPERAND(I32, ring, 2, WIDTH), OPERAND(I32, &slot, 1),
                        OPERAND(I32, &pos, 1), OPERAND(I8, &s, 1, (int)sizeof s)};
        for (int j = 0; j < V; j++)
            logits[j] = i % 9 < 3 || j % 5 == 0 ? poison[i % 3] : random_float(2);
        code = run_op(t, "sample", NULL, 0, &out, in, 5);
        int some = i % 9 >= 3 && i % 3 == 2;
        CHECK(code == 0 && (!t->computes || (some ? got >= 0 && got < V : got == -1)), "%s: poisoned logits give %d",
              t->name, got);
    }
}

void test_sample(const target *t) {
    static const uint8_t whole[] = {HAL_STAGE_PENALTIES, HAL_STAGE_TOP_K, HAL_STAGE_TOP_P, HAL_STAGE_TEMPERATURE};
    static const uint8_t plain[] = {HAL_STAGE_TEMPERATURE, HAL_STAGE_TOP_P};
    hal_sampling options[] = {
        {.temperature = 0,
         .top_p = 1,
         .repeat_penalty = 1.5f,
         .presence_penalty = 0.3f,
         .frequency_penalty = 0.2f,
         .repeat_last_n = 16},
        {.temperature = 1, .top_p = 1, .repeat_penalty = 1},
        {.temperature = 0.8f, .top_p = 0.95f, .repeat_penalty = 1, .top_k = 40},
        {.temperature = 0.8f, .top_p = 0.5f, .repeat_penalty = 1.2f, .repeat_last_n = 64},
        {.temperature = 3,
         .top_p = 0.9f,
         .repeat_penalty = 1,
         .presence_penalty = 0.5f,
         .top_k = 1100,
         .repeat_last_n = 3},
        {.temperature = 1, .top_p = 0, .repeat_penalty = 1},
        {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .top_k = 1},
    };
    float *logits = random_floats(ROWS * V, 5);
    int32_t ring[2 * WIDTH];
    for (int i = 0; i < V; i++)
        logits[V + i] = (float)(int)logits[V + i]; /* many equal ones */
    for (int i = 0; i < 2 * WIDTH; i++)
        ring[i] = random_below(20);
    for (int round = 0; round < 8; round++)
        for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
            memset(options[i].chain, 0, sizeof options[i].chain);
            if (round % 2)
                memcpy(options[i].chain, plain, sizeof plain);
            else
                memcpy(options[i].chain, whole, sizeof whole);
            test_params(t, options + i, logits, ring);
        }
    test_poison(t, logits, ring);
    free(logits);
}
