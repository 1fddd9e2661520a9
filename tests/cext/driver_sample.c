/* driver_sample.c: the sample op against a plain form of its definition: everything sorted, nothing skipped. What is said
 * of stages here is said of all of them in tests/cext/test_sampling_kernels.py; this runs under the sanitizers too.
 */
#include <math.h>

#include "harness.h"

#define STAGE_NUMBERS_ALONE
#include "../../cext/kernels/sample_stages.k.h"

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

/* numbers: repeat, presence and frequency penalty, repeat_last_n. */
static void penalize(float *x, const int32_t *ring, int pos, const float *numbers) {
    int seen[V] = {0}, first = pos - (int)numbers[3] + 1;
    for (int i = first < 0 ? 0 : first; i <= pos; i++)
        seen[ring[i % WIDTH]]++;
    for (int i = 0; i < V; i++)
        if (seen[i]) {
            x[i] = x[i] > 0 ? x[i] / numbers[0] : x[i] * numbers[0];
            x[i] = x[i] - (float)seen[i] * numbers[2] - numbers[1];
        }
}

/* Ranked entries weighed again; gives the sum. */
static int64_t weigh(entry *e, int n) {
    int64_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += e[i].weight = weight_of(e[i].logit - e[0].logit);
    return sum;
}

static int run_stage(hal_stage s, entry *e, int n) {
    int64_t total = weigh(e, n), sum = 0;
    float best = e[0].logit, number = s.numbers[0];
    switch (s.stage) {
    case STAGE_top_k:
        return number > 0 && (int)number < n ? (int)number : n;
    case STAGE_top_p:
        for (int i = 0; i < n; i++)
            if ((double)(sum += e[i].weight) >= (double)number * (double)total)
                return i + 1;
        return n;
    case STAGE_temperature:
        if (number <= 0)
            return 1;
        for (int i = 0; i < n; i++)
            e[i].logit = e[i].logit == best ? 0 : (e[i].logit - best) / number;
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
    if (s->chain[0].stage == STAGE_penalties) /* they come first here */
        penalize(x, ring, pos, s->chain[0].numbers);
    for (int i = 0; i < V; i++)
        e[i] = (entry){x[i], i, 0};
    qsort(e, V, sizeof *e, by_rank);
    for (int i = 0; i < HAL_STAGES && s->chain[i].stage; i++)
        n = run_stage(s->chain[i], e, n);
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
        CHECK(got[i] == want, "%s: sample row %d: %d, not %d (stage %d %g, stage %d %g, ...)", t->name, i, got[i], want,
              s->chain[0].stage, (double)s->chain[0].numbers[0], s->chain[1].stage, (double)s->chain[1].numbers[0]);
    }
}

/* A NaN, a +inf, or nothing above -inf gives no token, whatever the stages; some -inf among numbers gives one. */
static void test_poison(const target *t, float *logits, int32_t *ring) {
    static const float poison[] = {NAN, INFINITY, -INFINITY};
    static const float numbers[N_STAGES][HAL_STAGE_NUMBERS] = {[STAGE_penalties] = {1.1f, 0, 0, 8},
                                                               [STAGE_top_n_sigma] = {1},
                                                               [STAGE_typical] = {0.5f},
                                                               [STAGE_top_p] = {0.5f},
                                                               [STAGE_min_p] = {0.1f},
                                                               [STAGE_xtc] = {1, 0.05f}};
    for (int i = 0; i < 9 * N_STAGES; i++) {
        int32_t slot = 0, pos = 3, got = -2, code;
        float temperature = i % 3 ? 1 : 0, range = (float)(i % 2);
        hal_sampling s = {.mirostat_mu = 3, .chain = {{i / 9}, {STAGE_temperature, {temperature, range, 1}}}};
        operand out = OPERAND(I32, &got, 1);
        operand in[] = {OPERAND(F32, logits, 1, V), OPERAND(I32, ring, 2, WIDTH), OPERAND(I32, &slot, 1),
                        OPERAND(I32, &pos, 1), OPERAND(I8, &s, 1, (int)sizeof s)};
        memcpy(s.chain[0].numbers, numbers[i / 9], sizeof numbers[0]);
        if (i / 9 == STAGE_temperature)
            s.chain[0] = s.chain[1];
        else if (i / 9 == STAGE_top_k)
            s.chain[0].numbers[0] = (float)(40 * (i % 2));
        for (int j = 0; j < V; j++)
            logits[j] = i % 9 < 3 || j % 5 == 0 ? poison[i % 3] : random_float(2);
        code = run_op(t, "sample", NULL, 0, &out, in, 5);
        int some = i % 9 >= 3 && i % 3 == 2;
        CHECK(code == 0 && (!t->computes || (some ? got >= 0 && got < V : got == -1)), "%s: poisoned logits give %d",
              t->name, got);
    }
}

/* Penalties, top_k, top_p and temperature; odd rounds: temperature and top_p alone. */
static hal_sampling chain_of(const hal_stage *given, int round) {
    hal_sampling s = {0};
    if (round % 2) {
        s.chain[0] = given[3];
        s.chain[1] = given[2];
    } else
        memcpy(s.chain, given, 4 * sizeof *given);
    return s;
}

void test_sample(const target *t) {
#define CHAIN(temperature, top_p, top_k, ...)                                                                          \
    {                                                                                                                  \
        {STAGE_penalties, {__VA_ARGS__}}, {STAGE_top_k, {top_k}}, {STAGE_top_p, {top_p}}, {                            \
            STAGE_temperature, {                                                                                       \
                temperature                                                                                            \
            }                                                                                                          \
        }                                                                                                              \
    }
    static const hal_stage options[][4] = {
        CHAIN(0, 1, 0, 1.5f, 0.3f, 0.2f, 16),
        CHAIN(1, 1, 0, 1),
        CHAIN(0.8f, 0.95f, 40, 1),
        CHAIN(0.8f, 0.5f, 0, 1.2f, 0, 0, 64),
        CHAIN(3, 0.9f, 1100, 1, 0.5f, 0, 3),
        CHAIN(1, 0, 0, 1),
        CHAIN(1, 1, 1, 1),
    };
#undef CHAIN
    float *logits = random_floats(ROWS * V, 5);
    int32_t ring[2 * WIDTH];
    for (int i = 0; i < V; i++)
        logits[V + i] = (float)(int)logits[V + i]; /* many equal ones */
    for (int i = 0; i < 2 * WIDTH; i++)
        ring[i] = random_below(20);
    for (int round = 0; round < 8; round++)
        for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
            hal_sampling s = chain_of(options[i], round);
            test_params(t, &s, logits, ring);
        }
    test_poison(t, logits, ring);
    free(logits);
}
