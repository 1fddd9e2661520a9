/* attention.c: the checks of the op attention: q (T, H, D) over paged caches (blocks, KV, block, D). attention_run.h computes
 * it. */
#include "attention_run.h"

static setup setup_attention(const cpu_call *c) {
    const arg_attention *a = c->arg;
    return setup_of(c, a, c->n_in);
}

static const char *check_cache(const cpu_view *k, const cpu_view *v, const cpu_view *q, const cpu_view *table) {
    if (k->ndim != 4 || v->ndim != 4 || memcmp(k->shape, v->shape, 3 * sizeof(int32_t)) != 0)
        return "k and v must be caches (blocks, KV, block, D)";
    if (!kv_bytes(k->format, KV_BLOCK) || !kv_bytes(v->format, KV_BLOCK))
        return "the caches must be " KV_FORMATS;
    if ((int64_t)table->shape[1] * k->shape[2] > INT32_MAX / 2)
        return "the table holds more positions than 32 bits can count";
    if (k->shape[3] != q->shape[2] || q->shape[1] % k->shape[1])
        return "q must have the keys' D, and a multiple of KV heads";
    return NULL;
}

static const char *check_kind(const cpu_call *c) {
    const cpu_view *q = c->v + 1, *k = c->v + 2, *v = c->v + 3;
    const arg_attention *a = c->arg;
    if (a->window < 0 || a->chunk < 0 || a->value < 0 || !(a->cap >= 0))
        return "window, cap, chunk and value must not be negative";
    if (a->value && (k->format != v->format || !cpu_same_shape(k, v) || a->value > k->shape[3]))
        return "with value > 0, v must be the same cache as k, and at least `value` wide";
    for (const cpu_view *x = c->v + 7; x <= c->v + c->n_in; x++)
        if (!cpu_is(x, F32, 1) || x->shape[0] != q->shape[1] || x->stride != sizeof(float))
            return "sinks and slopes must be f32 (H)";
    return !a->causal && a->chunk ? "chunks must be causal" : NULL;
}

static const char *check_attention(const cpu_call *c) {
    const cpu_view *y = c->v, *q = c->v + 1, *v = c->v + 3;
    const arg_attention *a = c->arg;
    int32_t value = a->value;
    const char *fault;
    if (a->alibi < 0 || a->alibi > 1 || (c->n_in - a->alibi != 6 && c->n_in - a->alibi != 7))
        return "it takes q, k, v, slot, pos and table, may take sinks, and with alibi 1 slopes";
    if (!cpu_is(q, F32, 3))
        return "q must be f32 (T, H, D)";
    for (int i = 4; i < 6; i++)
        if (!cpu_is(c->v + i, I32, 1) || c->v[i].shape[0] != q->shape[0])
            return "slot and pos must be i32 (T)";
    if (!cpu_is(c->v + 6, I32, 2))
        return "table must be i32 (S, B)";
    if (!cpu_is(y, F32, 2) || y->shape[0] != q->shape[0] ||
        y->shape[1] != (int64_t)q->shape[1] * (value ? value : v->shape[3]))
        return "the output must be f32 (T, H * D)";
    fault = check_cache(c->v + 2, v, q, c->v + 6);
    return fault ? fault : check_kind(c);
}

ATTENTION_KERNEL(attention, 0);
