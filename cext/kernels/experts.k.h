/* experts.k.h: mixture of experts. Routing: the top k experts of a token and their weights (one wave per token). Products with
 * the experts' weights (E, N, K): one wave per row of a token's expert. head_linear is the same product with every head's own
 * weight. Last, the weighted sum of the experts' results.
 */
#ifndef SATCHEL_EXPERTS_K_H
#define SATCHEL_EXPERTS_K_H

#include "elementwise.k.h"
#include "formats.k.h"

/* x as a sort key: NaN becomes -inf. */
FN float rank_of(float x) {
    return x == x ? x : -INFINITY;
}

/* Whether (x, i) ranks before (y, j): larger values first, of equal ones the lower index. */
FN int before(float x, int i, float y, int j) {
    return x != y ? x > y : i < j;
}

/* Router score of expert i: its logit, or with sigmoid 1 the logit's sigmoid, plus the bias if there is one. */
FN float score_of(CONSTANT gpu_call *c, DEVICE const float *x, int i) {
    float y = ((CONSTANT arg_top_experts *)c->arg)->sigmoid ? 1.0f / (1.0f + expf(-x[i])) : x[i];
    return rank_of(c->n_in == 2 ? y + ROW(const float, c->v + 2, 0)[i] : y);
}

/* Wave reduction: the best of the lanes' candidates (x, i), in all lanes. */
FN void best_lane(self m, THREAD float *x, THREAD int *i) {
    for (int o = WAVE / 2; o > 0; o /= 2) {
        float other = take_f32(m, *x, m.lane ^ o);
        int place = (int)TAKE(m, (uint32_t)*i, m.lane ^ o);
        int changes = before(other, place, *x, *i);
        *x = changes ? other : *x;
        *i = changes ? place : *i;
    }
}

/* Bit mask of the `kept` best groups of experts. Each lane scores one group: by its best expert, or with sigmoid 1 by the sum
 * of its two best.
 */
FN uint32_t open_groups(CONSTANT gpu_call *c, self m, DEVICE const float *x) {
    CONSTANT arg_top_experts *a = (CONSTANT arg_top_experts *)c->arg;
    int each = c->v[1].shape[1] / a->groups, mine = m.lane < a->groups;
    float best = -INFINITY, second = -INFINITY;
    uint32_t open = 0;
    for (int i = m.lane * each; mine && i < (m.lane + 1) * each; i++) {
        float y = score_of(c, x, i);
        second = y > best ? best : y > second ? y : second;
        best = y > best ? y : best;
    }
    best = a->sigmoid && each > 1 ? best + second : best;
    for (int j = 0; j < a->kept; j++) {
        float worth = best;
        int at = mine && !(open >> m.lane & 1) ? m.lane : WAVE;
        worth = at < WAVE ? worth : -INFINITY;
        best_lane(m, &worth, &at);
        open |= 1u << (at & 31);
    }
    return open;
}

enum { TOP_KEPT = 8 }; /* scores per lane that are computed once; a lane computes the others each time */

/* Router score of expert i; -inf if its group is not among the best. */
FN float open_score(CONSTANT gpu_call *c, DEVICE const float *x, int i, int each, uint32_t open) {
    return open >> (i / each) & 1 ? score_of(c, x, i) : -INFINITY;
}

KERNEL(top_experts, GROUP) {
    CONSTANT arg_top_experts *a = (CONSTANT arg_top_experts *)c->arg;
    int t = m.group[0] * m.waves + m.wave, n = c->v[1].shape[1], k = c->v[0].shape[1], last = -1, each = n / a->groups;
    DEVICE const float *x;
    float edge = INFINITY, own[TOP_KEPT];
    uint32_t open = 1;
    if (t >= rows_of(c, c->v))
        return;
    x = ROW(const float, c->v + 1, t);
    if (a->groups > 1)
        open = open_groups(c, m, x);
    for (int q = 0; q < TOP_KEPT; q++)
        own[q] = q * WAVE + m.lane < n ? open_score(c, x, q * WAVE + m.lane, each, open) : -INFINITY;
    for (int j = 0; j < k; j++) {
        float best = -INFINITY;
        int at = n;
        for (int q = 0; q < TOP_KEPT; q++) {
            int i = q * WAVE + m.lane;
            int better = before(edge, last, own[q], i) && before(own[q], i, best, at);
            best = better ? own[q] : best;
            at = better ? i : at;
        }
        for (int i = TOP_KEPT * WAVE + m.lane; i < n; i += WAVE) {
            float y = open_score(c, x, i, each, open);
            if (before(edge, last, y, i) && before(y, i, best, at)) {
                best = y;
                at = i;
            }
        }
        best_lane(m, &best, &at);
        if (m.lane == 0)
            ROW(int32_t, c->v, t)[j] = at;
        edge = best;
        last = at;
    }
}

/* Weight of an expert before normalization: softmax (most: the largest logit, total: the sum) or sigmoid. */
FN float expert_share(float x, float most, float total, int sigmoid) {
    return sigmoid ? 1.0f / (1.0f + expf(-x)) : expf(x - most) / total;
}

/* SparseMixer (Phi-3.5-MoE): the sum of e^(x - best), best = x[ids[j]], over the experts with
 * (best - x) / max(|x|, best) <= 0.02, without ids[0 .. j - 1]. */
FN float rivals_of(self m, DEVICE const float *x, int n, DEVICE const int32_t *ids, int j) {
    float best = x[ids[j]], total = 0;
    for (int i = m.lane; i < n; i += WAVE) {
        float size = fabsf(x[i]) > best ? fabsf(x[i]) : best;
        int out = (best - x[i]) / size > 0.02f;
        for (int before = 0; before < j; before++)
            out |= ids[before] == i;
        total += out ? 0.0f : expf(x[i] - best);
    }
    return wave_sum(m, total);
}

/* A NaN among the logits makes the softmax's sum NaN, and with it all weights. */
KERNEL(expert_weights, GROUP) {
    CONSTANT arg_expert_weights *a = (CONSTANT arg_expert_weights *)c->arg;
    int t = m.group[0] * m.waves + m.wave, n = c->v[1].shape[1], k = c->v[0].shape[1];
    DEVICE const float *x;
    DEVICE const int32_t *ids;
    float most = -INFINITY, total = 0, chosen = 0;
    if (t >= rows_of(c, c->v))
        return;
    x = ROW(const float, c->v + 1, t);
    ids = ROW(const int32_t, c->v + 2, t);
    for (int i = m.lane; i < n; i += WAVE)
        most = fmaxf(most, x[i]);
    most = wave_most(m, most);
    for (int i = m.lane; i < n; i += WAVE)
        total += expf(x[i] - most);
    total = wave_sum(m, total);
    for (int j = 0; j < k; j++) {
        if (!inside(ids[j], n)) {
            fault(c);
            return;
        }
        chosen += expert_share(x[ids[j]], most, total, a->sigmoid);
    }
    if (a->norm == 2) {
        for (int j = 0; j < k; j++) {
            float rivals = rivals_of(m, x, n, ids, j);
            if (m.lane == 0)
                ROW(float, c->v, t)[j] = a->scale / rivals;
        }
        return;
    }
    for (int j = m.lane; j < k; j += WAVE)
        ROW(float, c->v, t)
    [j] = expert_share(x[ids[j]], most, total, a->sigmoid) / (a->norm ? chosen + 1e-20f : 1.0f) * a->scale;
}

/* The input row of a token's expert j. x is (T, K), shared by a token's experts, or (T, k, K), one row for each. */
FN DEVICE const float *expert_input(CONSTANT gpu_view *x, int t, int j, int k) {
    return ROW(const float, x, t) + (width_of(x) == k ? 0 : (int64_t)j * k);
}

KERNEL(expert_linear, GROUP) {
    CONSTANT gpu_view *y = c->v, *w = c->v + 2, *ids = c->v + c->n_in;
    int t = m.group[1], j = m.group[2], k = w->shape[2], row = m.group[0] * m.waves + m.wave, id = j;
    DEVICE const float *x;
    float a, b;
    if (t >= rows_of(c, y) || row >= w->shape[1])
        return;
    if (c->mode != EXPERTS_BY_HEAD)
        id = ROW(const int32_t, ids, t)[j];
    if (id < 0) { /* the expert is on another device */
        if (m.lane == 0)
            ROW(float, y, t)[(int64_t)j * y->shape[2] + row] = 0;
        return;
    }
    if (!inside(id, w->shape[0])) {
        fault(c);
        return;
    }
    x = expert_input(c->v + 1, t, j, k);
    multiply_row(m, w->format, ROW(const char, w, id) + bytes_of(w->format, k) * row, x, 0, 1, k, &a);
    if (c->mode == EXPERTS_GATED) {
        multiply_row(m, w[1].format, ROW(const char, w + 1, id) + bytes_of(w[1].format, k) * row, x, 0, 1, k, &b);
        a = gated(a, b);
    }
    if (m.lane == 0)
        ROW(float, y, t)[(int64_t)j * y->shape[2] + row] = a;
}

KERNEL(expert_add, GROUP) {
    int64_t i = own_number(c, m);
    int t = m.group[1], n = c->v[0].shape[2], id;
    if (i < 0)
        return;
    id = ROW(const int32_t, c->v + 3, t)[i / n];
    if (id < 0)
        ROW(float, c->v, t)[i] = ROW(const float, c->v + 1, t)[i];
    else if (inside(id, c->v[2].shape[0]))
        ROW(float, c->v, t)[i] = ROW(const float, c->v + 1, t)[i] + ROW(const float, c->v + 2, id)[i % n];
    else
        fault(c);
}

/* Limited SwiGLU of a gate and an up, each plus its expert's bias. */
KERNEL(expert_gate_limited, GROUP) {
    CONSTANT arg_expert_gate_limited *a = (CONSTANT arg_expert_gate_limited *)c->arg;
    int64_t i = own_number(c, m);
    int t = m.group[1], n = c->v[0].shape[2], id;
    float gate, up;
    if (i < 0)
        return;
    id = ROW(const int32_t, c->v + 5, t)[i / n];
    if (id >= 0 && !inside(id, c->v[2].shape[0])) {
        fault(c);
        return;
    }
    gate = ROW(const float, c->v + 1, t)[i];
    up = ROW(const float, c->v + 3, t)[i];
    if (id >= 0) {
        gate += ROW(const float, c->v + 2, id)[i % n];
        up += ROW(const float, c->v + 4, id)[i % n];
    }
    ROW(float, c->v, t)[i] = gated_within(gate, up, a->limit, a->alpha);
}

KERNEL(expert_sum, GROUP) {
    int64_t i = own_number(c, m);
    int t = m.group[1];
    float sum = 0;
    if (i < 0)
        return;
    for (int j = 0; j < c->v[1].shape[1]; j++)
        sum = fmaf(ROW(const float, c->v + 2, t)[j], ROW(const float, c->v + 1, t)[j * (int64_t)c->v[1].shape[2] + i],
                   sum);
    ROW(float, c->v, t)[i] = sum;
}

#endif
