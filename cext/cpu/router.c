/* router.c: what stands around the experts' products (experts.c): top_experts picks them, expert_weights says how much
 * each counts, expert_sum adds their results. Every row is a token of its own.
 */
#include "cpu.h"
#include "elementwise.h"

enum { CHUNK = 512 };

static const char *check_top(const cpu_call *c) {
    const cpu_view *y = c->v, *x = c->v + 1;
    int32_t k = ((const arg_top_experts *)c->arg)->k;
    if (c->n_in != 1 || !cpu_is(x, F32, 2) || !cpu_is(y, I32, 2) || x->shape[0] != y->shape[0])
        return "it takes logits f32 (T, E) and gives i32 (T, k)";
    return k == y->shape[1] && k <= x->shape[1] ? NULL : "k must be the output's width and at most the logits'";
}

static cpu_split split_top(const cpu_call *c) {
    return cpu_grains(c->v[0].shape[0], 4 * (int64_t)c->v[1].width);
}

static float rank(float x) {
    return x == x ? x : -INFINITY;
}

/* Keeps the k best in order as the logits pass by; a later one goes before what it is larger than. */
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

static void run_top(const cpu_call *c, int64_t from, int64_t to, int thread) {
    (void)thread;
    for (; from < to; from++)
        row_top(cpu_f32(c->v + 1, from), c->v[1].shape[1], (int32_t *)cpu_row(c->v, from), c->v[0].shape[1]);
}

static const char *check_weights(const cpu_call *c) {
    const cpu_view *y = c->v, *x = c->v + 1, *ids = c->v + 2;
    if (c->n_in != 2 || !cpu_is(x, F32, 2) || !cpu_is(ids, I32, 2))
        return "it takes logits f32 (T, E) and ids i32 (T, k)";
    return cpu_is(y, F32, 2) && x->shape[0] == y->shape[0] && cpu_same_shape(ids, y)
               ? NULL
               : "the output must be f32 with the shape of ids";
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

static void row_weights(const float *x, int n, const int32_t *ids, float *y, int k, int norm) {
    float most = -INFINITY, sum, chosen = 0;
    for (int i = 0; i < n; i++)
        most = x[i] > most ? x[i] : most;
    sum = sum_exp(x, n, most);
    for (int j = 0; j < k; j++)
        y[j] = x[ids[j]] - most;
    for (int j = 0; j < k; j += LANES) {
        int left = k - j < LANES ? k - j : LANES;
        vf_store_n(y + j, vf_exp(vf_load_n(y + j, left)) / vf_set(sum), left);
    }
    for (int j = 0; j < k; j++)
        chosen += y[j];
    for (int j = 0; j < k && norm; j++)
        y[j] /= chosen;
}

static void run_weights(const cpu_call *c, int64_t from, int64_t to, int thread) {
    int norm = ((const arg_expert_weights *)c->arg)->norm, n = c->v[1].shape[1], k = c->v[0].shape[1];
    (void)thread;
    for (; from < to; from++) {
        const int32_t *ids = (const int32_t *)cpu_row(c->v + 2, from);
        int good = 1;
        for (int j = 0; j < k; j++)
            good = good && ids[j] >= 0 && ids[j] < n;
        if (good)
            row_weights(cpu_f32(c->v + 1, from), n, ids, cpu_f32(c->v, from), k, norm);
        else
            cpu_fault(c);
    }
}

static const char *check_sum(const cpu_call *c) {
    const cpu_view *z = c->v, *y = c->v + 1, *w = c->v + 2;
    if (c->n_in != 2 || !cpu_is(y, F32, 3) || !cpu_is(w, F32, 2) || !cpu_is(z, F32, 2))
        return "it takes y f32 (T, k, N) and weights f32 (T, k), and gives f32 (T, N)";
    if (y->shape[0] != w->shape[0] || y->shape[1] != w->shape[1] || y->shape[0] != z->shape[0] ||
        y->shape[2] != z->shape[1])
        return "y, weights and output differ in tokens, experts or width";
    return NULL;
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

CPU_KERNEL(top_experts) = {check_top, NULL, split_top, run_top};
CPU_KERNEL(expert_weights) = {check_weights, NULL, split_top, run_weights};
CPU_KERNEL(expert_sum) = {check_sum, NULL, split_sum, run_sum};
