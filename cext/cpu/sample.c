/* sample.c: one token per row of logits (R, V), as runtime/sampling.py defines it: penalties, top-k, top-p, min-p,
 * temperature, draw. Candidates stand in order of falling logit, equal ones by rising id; sums are float64 in that order.
 *
 * Each thread's scratch holds, for V numbers: the penalized logits, two lists of (key, id) for the sort, the history of
 * W tokens and the candidates' weights. Which tokens a slot has seen comes from a state, so ids there are checked.
 */
#include <math.h>
#include <string.h>

#include "cpu.h"

typedef struct {
    uint32_t key; /* orders as the logit does, largest logit first */
    int32_t id;
} candidate;

/* The parts of a thread's scratch. */
typedef struct {
    double *weight;
    candidate *list, *other;
    float *logits;
    candidate *history;
} scratch_parts;

enum { HEAP = 1024, DIGIT = 11, DIGITS = 1 << DIGIT };

static const char *check(const cpu_call *c) {
    const cpu_view *y = c->v, *logits = c->v + 1, *ring = c->v + 2, *params = c->v + 5;
    const cpu_format *f;
    if (c->n_in != 5)
        return "it takes logits, ring, slot, pos and params";
    if (!cpu_is(logits, F32, 2) || !cpu_is(y, I32, 1) || y->shape[0] != logits->shape[0])
        return "logits must be f32 (R, V) and the output i32 (R)";
    if (!cpu_is(ring, I32, 2))
        return "the ring must be i32 (S, W)";
    for (int i = 3; i < 5; i++)
        if (!cpu_is(c->v + i, I32, 1) || c->v[i].shape[0] != y->shape[0])
            return "slot and pos must be i32 (R)";
    f = cpu_format_find(params->format);
    if (params->shape[0] != y->shape[0] || params->width / f->block * f->bytes != sizeof(hal_sampling))
        return "params must be one hal_sampling per row";
    return NULL;
}

static scratch_parts parts_of(const cpu_call *c, uint8_t *base) {
    int64_t v = c->v[1].shape[1], w = c->v[2].shape[1];
    scratch_parts p;
    p.weight = (double *)(void *)base;
    p.list = (candidate *)(void *)(p.weight + v);
    p.other = p.list + v;
    p.history = p.other + v;
    p.logits = (float *)(void *)(p.history + 2 * w);
    return p;
}

static uint64_t scratch(const cpu_call *c) {
    uint64_t v = (uint64_t)c->v[1].shape[1], w = (uint64_t)c->v[2].shape[1];
    return v * (sizeof(double) + 2 * sizeof(candidate) + sizeof(float)) + 2 * w * sizeof(candidate);
}

static cpu_split split(const cpu_call *c) {
    return (cpu_split){c->v[0].shape[0], 1};
}

/* splitmix64's finisher (Steele et al., OOPSLA 2014) over (seed, position): a number in [0, 1). */
static double uniform(uint64_t seed, int32_t pos) {
    uint64_t z = seed + ((uint64_t)pos + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

/* A number that rises as x falls; -0 and 0 are equal, a NaN comes last. */
static uint32_t key_of(float x) {
    uint32_t bits;
    x += 0.0f;
    memcpy(&bits, &x, sizeof bits);
    if (x != x)
        return UINT32_MAX;
    return bits >> 31 ? bits : ~bits & 0x7FFFFFFFu;
}

/* Sorts n candidates by key, keeping the order of equal ones; three passes of 11 bits. The result may lie in `other`. */
static candidate *sort(candidate *list, candidate *other, int64_t n) {
    for (int shift = 0; shift < 32; shift += DIGIT) {
        uint32_t start[DIGITS] = {0}, sum = 0;
        candidate *swap = list;
        for (int64_t i = 0; i < n; i++)
            start[list[i].key >> shift & (DIGITS - 1)]++;
        for (int d = 0; d < DIGITS; d++) {
            uint32_t count = start[d];
            start[d] = sum;
            sum += count;
        }
        for (int64_t i = 0; i < n; i++)
            other[start[list[i].key >> shift & (DIGITS - 1)]++] = list[i];
        list = other;
        other = swap;
    }
    return list;
}

static int after(candidate a, candidate b) {
    return a.key != b.key ? a.key > b.key : a.id > b.id;
}

/* Lets the last-ranked of a heap (parents rank after their children) sink into its place. */
static void sink(candidate *heap, int64_t n, int64_t at) {
    candidate x = heap[at];
    for (int64_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && after(heap[child + 1], heap[child]))
            child++;
        if (!after(heap[child], x))
            break;
        heap[at] = heap[child];
    }
    heap[at] = x;
}

/* The k first-ranked of n logits, in order, in list[0 .. k - 1]. */
static void select_top(const float *logits, int64_t n, candidate *list, int64_t k) {
    for (int64_t i = 0; i < k; i++)
        list[i] = (candidate){key_of(logits[i]), (int32_t)i};
    for (int64_t i = k / 2; i-- > 0;)
        sink(list, k, i);
    for (int64_t i = k; i < n; i++) {
        uint32_t key = key_of(logits[i]);
        if (key >= list[0].key) /* ids rise, so an equal key ranks after */
            continue;
        list[0] = (candidate){key, (int32_t)i};
        sink(list, k, 0);
    }
    for (int64_t i = k; i-- > 1;) {
        candidate last = list[0];
        list[0] = list[i];
        list[i] = last;
        sink(list, i, 0);
    }
}

/* The history's tokens as candidates, sorted by id. Returns how many, or -1 where the slot or a token is out of range. */
static int64_t read_history(const cpu_call *c, int64_t row, int32_t last_n, scratch_parts *p) {
    const cpu_view *ring = c->v + 2;
    int32_t slot = cpu_i32(c->v + 3, row), pos = cpu_i32(c->v + 4, row);
    int64_t n = (int64_t)pos + 1 < last_n ? (int64_t)pos + 1 : last_n, width = ring->shape[1];
    if (slot < 0 || slot >= ring->shape[0] || pos < 0)
        return -1;
    n = n < 0 ? 0 : n;
    n = n > width ? width : n; /* what is further back has been overwritten */
    for (int64_t i = 0; i < n; i++) {
        int32_t token = ((const int32_t *)cpu_row(ring, slot))[(pos - i) % width];
        if (token < 0 || token >= c->v[1].shape[1])
            return -1;
        p->history[i] = (candidate){(uint32_t)token, token};
    }
    p->history = sort(p->history, p->history + width, n);
    return n;
}

/* Penalized logits of one row: the input itself where no penalty is on. NULL: a bad index. */
static const float *penalize(const cpu_call *c, int64_t row, const hal_sampling *s, scratch_parts *p) {
    const float *in = cpu_f32(c->v + 1, row);
    int64_t n, same;
    if (s->repeat_penalty == 1 && s->presence_penalty == 0 && s->frequency_penalty == 0)
        return in;
    if ((n = read_history(c, row, s->repeat_last_n, p)) < 0)
        return NULL;
    memcpy(p->logits, in, sizeof(float) * (size_t)c->v[1].shape[1]);
    for (int64_t i = 0; i < n; i += same) {
        float *x = p->logits + p->history[i].id;
        for (same = 1; i + same < n && p->history[i + same].id == p->history[i].id; same++)
            continue;
        *x = *x > 0 ? *x / s->repeat_penalty : *x * s->repeat_penalty;
        *x = *x - (float)same * s->frequency_penalty - s->presence_penalty;
    }
    return p->logits;
}

/* The first of the largest; a NaN counts as largest, as numpy has it. */
static int32_t most_likely(const float *x, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 0; i < n; i++) {
        if (x[i] != x[i])
            return (int32_t)i;
        if (x[i] > x[best])
            best = i;
    }
    return (int32_t)best;
}

/* weight[i] = e^((x_i - x_0) / by), and their running sums in `total`, which may be weight itself; returns the last. */
static double weigh(const float *logits, const candidate *list, int64_t n, float by, double *weight) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += weight[i] = (double)expf((logits[list[i].id] - logits[list[0].id]) / by);
    return sum;
}

/* How many candidates top-p and min-p leave. */
static int64_t cut(const hal_sampling *s, const double *weight, double total, int64_t n) {
    double sum = 0, goal = (double)s->top_p * total;
    int64_t kept = n;
    if (s->top_p < 1)
        for (kept = 0; kept < n; kept++)
            if ((sum += weight[kept]) >= goal) {
                kept++;
                break;
            }
    if (s->min_p > 0)
        for (int64_t i = 0; i < kept; i++)
            if (weight[i] < (double)s->min_p)
                kept = i;
    return kept > 1 ? kept : 1;
}

static int32_t draw(const float *logits, int64_t n, const hal_sampling *s, int32_t pos, const scratch_parts *p) {
    candidate *list = p->list;
    int64_t kept = s->top_k > 0 && s->top_k < n ? s->top_k : n, i;
    double sum = 0, goal;
    if (kept < n && kept <= HEAP)
        select_top(logits, n, list, kept);
    else {
        for (i = 0; i < n; i++)
            list[i] = (candidate){key_of(logits[i]), (int32_t)i};
        list = sort(list, p->other, n);
    }
    if (s->top_p < 1 || s->min_p > 0)
        kept = cut(s, p->weight, weigh(logits, list, kept, 1, p->weight), kept);
    goal = uniform(s->seed, pos) * weigh(logits, list, kept, s->temperature, p->weight);
    for (i = 0; i < kept - 1; i++)
        if ((sum += p->weight[i]) > goal)
            break;
    return list[i].id;
}

static void run_row(const cpu_call *c, int64_t row, uint8_t *base) {
    scratch_parts p = parts_of(c, base);
    int64_t n = c->v[1].shape[1];
    hal_sampling s;
    const float *logits;
    int32_t *out = (int32_t *)cpu_row(c->v, row);
    memcpy(&s, cpu_row(c->v + 5, row), sizeof s);
    if (!(logits = penalize(c, row, &s, &p))) {
        cpu_fault(c);
        *out = 0;
        return;
    }
    *out = s.temperature > 0 ? draw(logits, n, &s, cpu_i32(c->v + 4, row), &p) : most_likely(logits, n);
}

static void run(const cpu_call *c, int64_t from, int64_t to, int thread) {
    for (; from < to; from++)
        run_row(c, from, cpu_scratch(c, thread));
}

CPU_KERNEL(sample) = {check, scratch, split, run};
