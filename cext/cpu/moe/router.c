/* router.c: the mixture-of-experts ops around the matrix products of experts.c. top_experts selects a token's experts;
 * expert_weights computes their weights; expert_add adds their biases;
 * expert_sum is the weighted sum of their results. One row per token.
 */
#include "cpu.h"
#include "ops/elementwise.h"

enum { CHUNK = 512 };

static cpu_split split_top(const cpu_call *c) {
    return cpu_grains(c->v[0].shape[0], 4 * (int64_t)c->v[1].width);
}

static float rank(float x) {
    return x == x ? x : -INFINITY;
}

/* Computes the scores of a row's experts, and at `worth` the scores of the groups. */
static void row_scores(const cpu_call *c, const float *x, float *score, float *worth) {
    const arg_top_experts *a = c->arg;
    int n = c->v[1].shape[1], each = n / a->groups;
    const float *bias = c->n_in == 2 ? cpu_f32(c->v + 2, 0) : NULL;
    for (int i = 0; i < n; i += LANES) {
        int left = n - i < LANES ? n - i : LANES;
        vf y = vf_load_n(x + i, left);
        if (a->sigmoid)
            y = vf_set(1) / (vf_set(1) + vf_exp(vf_set(0) - y));
        if (bias)
            y = y + vf_load_n(bias + i, left);
        vf_store_n(score + i, y, left);
    }
    for (int g = 0; g < a->groups; g++) {
        float best = -INFINITY, second = -INFINITY;
        for (int i = g * each; i < (g + 1) * each; i++) {
            float y = rank(score[i]);
            second = y > best ? best : y > second ? y : second;
            best = y > best ? y : best;
        }
        worth[g] = a->sigmoid && each > 1 ? best + second : best;
    }
}

/* Top k by insertion, in one pass over the scores; of equal ones the lower index comes first. */
static void row_top(const float *x, int n, int32_t *top, int k) {
    for (int i = 0, held = 0; i < n; i++) {
        int at = held < k ? held++ : k;
        for (; at > 0 && rank(x[i]) > rank(x[top[at - 1]]); at--)
            if (at < k)
                top[at] = top[at - 1];
        if (at < k)
            top[at] = i;
    }
}

static uint64_t scratch_top(const cpu_call *c) {
    return sizeof(float) * (2 * (uint64_t)c->v[1].shape[1] + 2 * (uint64_t)((const arg_top_experts *)c->arg)->groups);
}

/* Sets the scores of experts outside the `kept` best groups to the lowest. */
static void shut_groups(const arg_top_experts *a, float *score, const float *worth, int32_t *best, int each) {
    row_top(worth, a->groups, best, a->kept);
    for (int g = 0; g < a->groups; g++) {
        int open = 0;
        for (int i = 0; i < a->kept; i++)
            open |= best[i] == g;
        for (int i = g * each; i < (g + 1) * each && !open; i++)
            score[i] = -INFINITY;
    }
}

static void run_top(const cpu_call *c, int64_t from, int64_t to, int thread) {
    const arg_top_experts *a = c->arg;
    int n = c->v[1].shape[1];
    float *score = (float *)cpu_scratch(c, thread), *worth = score + n;
    for (; from < to; from++) {
        const float *x = cpu_f32(c->v + 1, from);
        if (c->n_in == 2 || a->groups > 1 || a->sigmoid) {
            row_scores(c, x, score, worth);
            if (a->groups > 1)
                shut_groups(a, score, worth, (int32_t *)(worth + a->groups), n / a->groups);
            x = score;
        }
        row_top(x, n, (int32_t *)cpu_row(c->v, from), c->v[0].shape[1]);
    }
}

/* The sum of e^(x - most). */
static float sum_exp(const float *x, int n, float most) {
    vf sum = vf_set(0);
    float rest[LANES];
    int i = 0;
    for (; i + LANES <= n; i += LANES)
        sum += vf_exp(vf_load(x + i) - vf_set(most));
    if (i == n)
        return vf_sum(sum);
    for (int j = 0; j < LANES; j++)
        rest[j] = i + j < n ? x[i + j] : -INFINITY;
    return vf_sum(sum + vf_exp(vf_load(rest) - vf_set(most)));
}

/* Softmax of n logits x at ids. */
static void row_softmax(const float *x, int n, const int32_t *ids, float *y, int k) {
    float most = -INFINITY, sum;
    for (int i = 0; i < n; i++)
        most = x[i] > most ? x[i] : most;
    sum = sum_exp(x, n, most);
    for (int j = 0; j < k; j++)
        y[j] = x[ids[j]] - most;
    for (int j = 0; j < k; j += LANES) {
        int left = k - j < LANES ? k - j : LANES;
        vf_store_n(y + j, vf_exp(vf_load_n(y + j, left)) / vf_set(sum), left);
    }
}

static void row_sigmoid(const float *x, const int32_t *ids, float *y, int k) {
    for (int j = 0; j < k; j++)
        y[j] = -x[ids[j]];
    for (int j = 0; j < k; j += LANES) {
        int left = k - j < LANES ? k - j : LANES;
        vf_store_n(y + j, vf_set(1) / (vf_set(1) + vf_exp(vf_load_n(y + j, left))), left);
    }
}

/* SparseMixer (Phi-3.5-MoE): each id's softmax over the experts with (best - x) / max(|x|, best) <= 0.02, best being the id's
 * logit, without the ids before it. */
static void row_rivals(const float *x, int n, const int32_t *ids, float *y, int k) {
    for (int j = 0; j < k; j++) {
        float best = x[ids[j]], left[LANES];
        vf sum = vf_set(0);
        for (int i = 0; i < n; i += LANES) {
            for (int l = 0; l < LANES; l++) {
                float s = i + l < n ? x[i + l] : -INFINITY, size = fabsf(s) > best ? fabsf(s) : best;
                left[l] = i + l >= n || (best - s) / size > 0.02f ? -INFINITY : s;
            }
            for (int before = 0; before < j; before++)
                if (ids[before] >= i && ids[before] < i + LANES)
                    left[ids[before] - i] = -INFINITY;
            sum += vf_exp(vf_load(left) - vf_set(best));
        }
        y[j] = 1 / vf_sum(sum);
    }
}

static void row_weights(const arg_expert_weights *a, const float *x, int n, const int32_t *ids, float *y, int k) {
    float chosen = 0;
    if (a->norm == 2)
        row_rivals(x, n, ids, y, k);
    else if (a->sigmoid)
        row_sigmoid(x, ids, y, k);
    else
        row_softmax(x, n, ids, y, k);
    for (int j = 0; j < k; j++)
        chosen += y[j];
    for (int j = 0; j < k; j++)
        y[j] = (a->norm == 1 ? y[j] / (chosen + 1e-20f) : y[j]) * a->scale;
}

static void run_weights(const cpu_call *c, int64_t from, int64_t to, int thread) {
    int n = c->v[1].shape[1], k = c->v[0].shape[1];
    (void)thread;
    for (; from < to; from++) {
        const int32_t *ids = (const int32_t *)cpu_row(c->v + 2, from);
        int good = 1;
        for (int j = 0; j < k; j++)
            good = good && ids[j] >= 0 && ids[j] < n;
        if (good)
            row_weights(c->arg, cpu_f32(c->v + 1, from), n, ids, cpu_f32(c->v, from), k);
        else
            cpu_fault(c);
    }
}

static int64_t chunks(const cpu_call *c) {
    return ((int64_t)c->v[0].width + CHUNK - 1) / CHUNK;
}

static cpu_split split_sum(const cpu_call *c) {
    return cpu_grains(c->v[0].shape[0] * chunks(c), (int64_t)CHUNK * c->v[2].shape[1] / 4);
}

static void run_sum(const cpu_call *c, int64_t from, int64_t to, int thread) {
    int64_t per_row = chunks(c), width = c->v[0].shape[1];
    (void)thread;
    for (; from < to; from++) {
        int64_t t = from / per_row, start = from % per_row * CHUNK, left = width - start;
        const float *y = cpu_f32(c->v + 1, t) + start, *w = cpu_f32(c->v + 2, t);
        float *out = cpu_f32(c->v, t) + start;
        int n = (int)(left < CHUNK ? left : CHUNK);
        for (int i = 0; i < n; i++)
            out[i] = w[0] * y[i];
        for (int j = 1; j < c->v[2].shape[1]; j++)
            for (int i = 0; i < n; i++)
                out[i] += w[j] * y[j * width + i];
    }
}

static void run_add(const cpu_call *c, int64_t from, int64_t to, int thread) {
    const cpu_view *b = c->v + 2;
    int k = c->v[0].shape[1], n = c->v[0].shape[2];
    (void)thread;
    for (; from < to; from++)
        for (int j = 0; j < k; j++) {
            int32_t id = ((const int32_t *)cpu_row(c->v + 3, from))[j];
            const float *x = cpu_f32(c->v + 1, from) + (int64_t)j * n, *more;
            float *y = cpu_f32(c->v, from) + (int64_t)j * n;
            if (id >= b->shape[0]) {
                cpu_fault(c);
                continue;
            }
            more = cpu_f32(b, id < 0 ? 0 : id);
            for (int i = 0; i < n; i++)
                y[i] = id < 0 ? x[i] : x[i] + more[i];
        }
}

CPU_KERNEL(top_experts) = {NULL, scratch_top, split_top, run_top};
CPU_KERNEL(expert_add) = {NULL, NULL, cpu_by_row, run_add};
CPU_KERNEL(expert_weights) = {NULL, NULL, split_top, run_weights};
CPU_KERNEL(expert_sum) = {NULL, NULL, split_sum, run_sum};
