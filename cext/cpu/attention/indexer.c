/* indexer.c: index_positions, the top-k positions of its past that a token attends to: DeepSeek-V3.2's lightning indexer.
 *
 * score(s) = sum over index heads of weight * max(0, q . key_s), in float32 and in order, so a score depends on its token and
 * position alone. The k best positions are written in ascending order; the lower of two equal ones wins, and NaN is the least. A
 * token with a past of at most k positions takes them all without reading the cache. One work item per token.
 */
#include "cpu.h"
#include "kv_rows.h"

static int64_t positions(const cpu_call *c) {
    return (int64_t)c->v[6].shape[1] * c->v[3].shape[2];
}

/* Scratch: scores of all positions, a copy of them to select the k-th largest, and a key. */
static uint64_t scratch(const cpu_call *c) {
    return sizeof(float) * (2 * (uint64_t)positions(c) + (uint64_t)c->v[3].shape[3] + LANES);
}

static float dot(const float *a, const float *b, int n) {
    vf sum = vf_set(0);
    float lanes[LANES], rest = 0;
    int i = 0;
    for (; i + LANES <= n; i += LANES)
        sum = vf_fma(vf_load(a + i), vf_load(b + i), sum);
    vf_store(lanes, sum);
    for (; i < n; i++)
        rest += a[i] * b[i];
    for (int j = 0; j < LANES; j++)
        rest += lanes[j];
    return rest;
}

/* Scores of positions 0..n-1; 0 for an invalid block table. */
static int score(const cpu_call *c, int64_t token, const int32_t *blocks, int n, float *scores, float *key) {
    const cpu_view *q = c->v + 1, *k = c->v + 3;
    const float *weights = cpu_f32(c->v + 2, token), *query = cpu_f32(q, token);
    int size = k->shape[2], d = k->shape[3];
    for (int pos = 0; pos < n; pos++) {
        int32_t number = blocks[pos / size];
        float sum = 0;
        if (number < 0 || number >= k->shape[0])
            return 0;
        kv_load(k->format, cpu_row(k, number) + (uint64_t)(pos % size) * kv_bytes(k->format, d), key, d);
        for (int h = 0; h < q->shape[1]; h++) {
            float x = dot(query + (int64_t)h * d, key, d);
            sum += weights[h] * (x > 0 || x != x ? x : 0);
        }
        scores[pos] = sum == sum ? sum : -INFINITY;
    }
    return 1;
}

/* The k-th largest of x[0..n-1] by quickselect (Hoare), which permutes x. */
static float largest(float *x, int n, int k) {
    int low = 0, high = n - 1, at = k - 1;
    while (low < high) {
        float pivot = x[low + (high - low) / 2];
        int i = low, j = high;
        while (i <= j) {
            while (x[i] > pivot)
                i++;
            while (x[j] < pivot)
                j--;
            if (i <= j) {
                float t = x[i];
                x[i++] = x[j];
                x[j--] = t;
            }
        }
        if (at <= j)
            high = j;
        else if (at >= i)
            low = i;
        else
            break;
    }
    return x[at];
}

/* The k best of n > k scores, in ascending order. */
static void top_k(const float *scores, float *copy, int n, int k, int32_t *to) {
    int above = 0, found = 0;
    float border;
    memcpy(copy, scores, sizeof *copy * (size_t)n);
    border = largest(copy, n, k);
    for (int i = 0; i < n; i++)
        above += scores[i] > border;
    for (int i = 0, equal = k - above; i < n; i++)
        if (scores[i] > border || (scores[i] == border && equal-- > 0))
            to[found++] = i;
}

static void run(const cpu_call *c, int64_t from, int64_t to, int thread) {
    const cpu_view *table = c->v + 6;
    float *scores = (float *)cpu_scratch(c, thread), *copy = scores + positions(c), *key = copy + positions(c);
    int k = c->v[0].shape[1];
    for (; from < to; from++) {
        int32_t slot = cpu_i32(c->v + 4, from), pos = cpu_i32(c->v + 5, from), *y = (int32_t *)cpu_row(c->v, from);
        int good = slot >= 0 && slot < table->shape[0] && pos >= 0 && pos < positions(c);
        for (int i = 0; i < k; i++)
            y[i] = good && i <= pos ? i : -1;
        if (good && pos >= k) {
            good = score(c, from, (const int32_t *)cpu_row(table, slot), pos + 1, scores, key);
            if (good)
                top_k(scores, copy, pos + 1, k, y);
        }
        if (!good)
            cpu_fault(c);
    }
}

static cpu_split split(const cpu_call *c) {
    return (cpu_split){c->v[0].shape[0], 1};
}

CPU_KERNEL(index_positions) = {NULL, scratch, split, run};
