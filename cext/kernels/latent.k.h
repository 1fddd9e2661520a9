/* latent.k.h: the forms of latent attention (MLA) beside attention.k.h, whose softmax they use: absorbed_attention and
 * expanded_attention, which share a step's tokens by the length of their runs, and sparse_attention over listed positions.
 *
 * A group computes one head of one token. expanded_attention makes no keys and values of heads: it absorbs k_b into the query,
 * attends over the latents, and takes the result through v_b, which gives the same sums in another order. So a token's bits
 * depend on its own past alone. A sparse list of a whole past gives the bits of attention over it. A token whose slot, position,
 * listed positions or blocks are out of range gets zeros and faults the run.
 */
#ifndef SATCHEL_LATENT_K_H
#define SATCHEL_LATENT_K_H

#include "attention.k.h"
#include "formats.k.h"
#include "pieces.k.h"

/* Sets the blocks and the past of token t; false if its slot or position is out of range. */
FN int set_past(CONSTANT gpu_call *c, int t, THREAD attended *a) {
    CONSTANT gpu_view *table = c->v + 6;
    int slot = i32_at(c->v + 4, t), pos = i32_at(c->v + 5, t);
    if (!inside(slot, table->shape[0]) || pos < 0 || pos / a->k->shape[2] >= table->shape[1])
        return 0;
    a->blocks = ROW(const int32_t, table, slot);
    a->from = 0;
    a->to = pos + 1;
    return 1;
}

/* Whether token t is in a run of at least `least` tokens. The threads share the search, and all get the answer. */
FN int in_long_run(CONSTANT gpu_call *c, self m, int t, int least, LOCAL int32_t *room) {
    int n = rows_of(c, c->v + 1), before = least, after = least;
    for (int i = m.thread; i < before; i += m.threads)
        if (!goes_on(c->v + 4, t - i))
            before = i; /* token t - i begins the run */
    for (int i = m.thread; i < after; i += m.threads)
        if (i + 1 >= n - t || !goes_on(c->v + 4, t + i + 1))
            after = i; /* token t + i ends it */
    before = -largest_of(m, -before, room);
    after = -largest_of(m, -after, room);
    return before >= least - after - 1;
}

/* Limits a query to the positions of its list, up to the first negative one; false if it is empty, or a position or its block is
 * out of range. The threads share the work, and all get the answer. */
FN int set_list(CONSTANT gpu_call *c, self m, int t, THREAD attended *a, LOCAL int32_t *room) {
    int size = a->k->shape[2], blocks = c->v[6].shape[1], bad = 0;
    a->list = ROW(const int32_t, c->v + 7, t);
    a->to = c->v[7].shape[1];
    for (int i = m.thread; i < a->to; i += m.threads)
        if (a->list[i] < 0)
            a->to = i;
    a->to = -largest_of(m, -a->to, room);
    for (int i = m.thread; i < a->to; i += m.threads)
        bad |= a->list[i] / size >= blocks || !inside(a->blocks[a->list[i] / size], a->k->shape[0]);
    return !largest_of(m, bad, room) && a->to > 0;
}

/* A head's query goes to local memory, where `room` for the waves' results follows it. */
FN LOCAL float *query_room(self m) {
    return (LOCAL float *)m.local + 4; /* behind the memory of largest_of, and 16-byte aligned */
}

FN LOCAL float *waves_room(self m, int d) {
    return query_room(m) + (d + 3) / 4 * 4;
}

FN void write_zeros(self m, DEVICE float *y, int n) {
    for (int i = m.thread; i < n; i += m.threads)
        y[i] = 0;
}

/* Attends with a query (T, H, D) to what `a` says: `value` columns of y (T, H * value). */
FN void attend_latents(CONSTANT gpu_call *c, self m, int t, int head, THREAD attended *a) {
    CONSTANT gpu_view *query = c->v + 1;
    int d = query->shape[2];
    LOCAL float *q = query_room(m);
    for (int i = m.thread; i < d; i += m.threads)
        q[i] = ROW(const float, query, t)[(int64_t)head * d + i];
    BARRIER(m);
    attend(m, a, q, -INFINITY, waves_room(m, d), ROW(float, c->v, t) + (int64_t)head * a->dv);
}

KERNEL(absorbed_attention, GROUP) {
    CONSTANT arg_absorbed_attention *arg = (CONSTANT arg_absorbed_attention *)c->arg;
    LOCAL int32_t *room = (LOCAL int32_t *)m.local;
    int head = m.group[0], t = m.group[1], good;
    attended a = {c->v + 2, c->v + 3};
    if (t >= rows_of(c, c->v + 1))
        return;
    a.dv = arg->value;
    a.scale = arg->scale;
    good = set_past(c, t, &a);
    if (good && !in_long_run(c, m, t, arg->least, room)) {
        good = good_blocks(m, &a, room);
        if (good) {
            attend_latents(c, m, t, head, &a);
            return;
        }
    }
    write_zeros(m, ROW(float, c->v, t) + (int64_t)head * a.dv, a.dv);
    if (!good)
        fault(c);
}

KERNEL(sparse_attention, GROUP) {
    CONSTANT arg_sparse_attention *arg = (CONSTANT arg_sparse_attention *)c->arg;
    int head = m.group[0], t = m.group[1];
    attended a = {c->v + 2, c->v + 3};
    if (t >= rows_of(c, c->v + 1))
        return;
    a.dv = arg->value;
    a.scale = arg->scale;
    if (set_past(c, t, &a) && set_list(c, m, t, &a, (LOCAL int32_t *)m.local)) {
        attend_latents(c, m, t, head, &a);
        return;
    }
    write_zeros(m, ROW(float, c->v, t) + (int64_t)head * a.dv, a.dv);
    fault(c);
}

/* Row i of a head's matrix. */
FN DEVICE const char *head_row(CONSTANT gpu_view *w, int head, int i) {
    return ROW(const char, w, head) + bytes_of(w->format, w->shape[2]) * i;
}

/* Absorbs k_b (H, rank, nope) into a head's query: `rank` numbers, behind which its RoPE part stays. A wave has a row. */
FN void absorb_query(CONSTANT gpu_call *c, self m, int t, int head, LOCAL float *q) {
    CONSTANT gpu_view *k_b = c->v + 7;
    int d = c->v[1].shape[2], rank = k_b->shape[1], nope = k_b->shape[2];
    DEVICE const float *x = ROW(const float, c->v + 1, t) + (int64_t)head * d;
    for (int i = m.wave; i < rank; i += m.waves) {
        float sum;
        multiply_row(m, k_b->format, head_row(k_b, head, i), x, 0, 1, nope, &sum);
        if (m.lane == 0)
            q[i] = sum;
    }
    for (int i = nope + m.thread; i < d; i += m.threads)
        q[rank + i - nope] = x[i];
}

/* A head's values of what its query found in the latents, by v_b (H, value, rank). */
FN void expand_found(CONSTANT gpu_call *c, self m, int head, DEVICE const float *found, DEVICE float *y) {
    CONSTANT gpu_view *v_b = c->v + 8;
    for (int i = m.wave; i < v_b->shape[1]; i += m.waves) {
        float sum;
        multiply_row(m, v_b->format, head_row(v_b, head, i), found, 0, 1, v_b->shape[2], &sum);
        if (m.lane == 0)
            y[i] = sum;
    }
}

/* Token t's row of a head. found: the group's own scratch, `rank` numbers. */
FN void expanded_row(CONSTANT gpu_call *c, self m, int t, int head, DEVICE float *found) {
    CONSTANT arg_expanded_attention *arg = (CONSTANT arg_expanded_attention *)c->arg;
    LOCAL int32_t *room = (LOCAL int32_t *)m.local;
    LOCAL float *q = query_room(m);
    int value = c->v[8].shape[1], good;
    DEVICE float *y = ROW(float, c->v, t) + (int64_t)head * value;
    attended a = {c->v + 2, c->v + 3};
    a.dv = c->v[7].shape[1];
    a.scale = arg->scale;
    good = set_past(c, t, &a);
    if (good && !in_long_run(c, m, t, arg->least, room)) {
        for (int i = m.thread; i < value; i += m.threads)
            y[i] = ROW(const float, c->v + 9, t)[(int64_t)head * value + i];
        return;
    }
    if (!good || !good_blocks(m, &a, room)) {
        write_zeros(m, y, value);
        fault(c);
        return;
    }
    absorb_query(c, m, t, head, q);
    BARRIER(m);
    attend(m, &a, q, -INFINITY, waves_room(m, a.k->shape[3]), found);
    BARRIER(m);
    expand_found(c, m, head, found, y);
}

/* A group takes every EXPANDED_ROWS-th token of a head. Between two of them its threads wait for each other in in_long_run. */
KERNEL(expanded_attention, GROUP) {
    int head = m.group[0], n = rows_of(c, c->v + 1), rank = c->v[7].shape[1];
    DEVICE float *found =
        (DEVICE float *)(uintptr_t)c->scratch + ((int64_t)m.group[1] * c->v[1].shape[1] + head) * rank;
    for (int t = m.group[1]; t < n; t += EXPANDED_ROWS)
        expanded_row(c, m, t, head, found);
}

#endif
