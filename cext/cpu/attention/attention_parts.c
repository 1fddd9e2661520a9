/* attention_parts.c: attention to a cache of which each rank of a group has some blocks (context parallelism). Block b of the pool
 * is block b / ranks of the cache of rank b % ranks.
 *
 * attention_parts gives the softmax states over this rank's blocks: a row of the output has the heads' sums of weighted values,
 * then their largest scores, then their sums of weights. A work item is a token and a KV head; it takes LANES positions of a
 * block at a time, for all query heads that share them, by online softmax. Blocks come in the order of positions, so a state
 * depends on the token's position and table alone. merge_parts scales a rank's sums by what all ranks' weights add up to.
 */
#include "cpu.h"
#include "kv_rows.h"
#include "softmax.h"

#define LOG2_E 1.44269504f

typedef struct {
    const cpu_call *c;
    const arg_attention_parts *a;
    const cpu_view *q, *k, *v;
    int heads, group, block, d, dv, joint;
    float *keys, *values; /* LANES rows each; one memory where values are part of keys */
} parts;

static parts parts_of(const cpu_call *c) {
    const arg_attention_parts *a = c->arg;
    parts p = {.c = c, .a = a, .q = c->v + 1, .k = c->v + 2, .v = c->v + 3};
    p.heads = p.q->shape[1];
    p.group = p.heads / p.k->shape[1];
    p.block = p.k->shape[2];
    p.d = p.k->shape[3];
    p.dv = a->value ? a->value : p.v->shape[3];
    p.joint = a->value > 0;
    return p;
}

static cpu_split split_parts(const cpu_call *c) {
    return (cpu_split){(int64_t)c->v[1].shape[0] * c->v[2].shape[1], 1};
}

static uint64_t scratch_parts(const cpu_call *c) {
    return sizeof(float) * LANES * ((uint64_t)c->v[2].shape[3] + (uint64_t)c->v[3].shape[3]);
}

static float dot(const float *a, const float *b, int n) {
    vf sum = vf_set(0);
    float rest = 0;
    int i = 0;
    for (; i + LANES <= n; i += LANES)
        sum = vf_fma(vf_load(a + i), vf_load(b + i), sum);
    for (; i < n; i++)
        rest += a[i] * b[i];
    return vf_sum(sum) + rest;
}

static float capped(float score, float cap) {
    float all[LANES] = {score / cap};
    vf_store(all, vf_tanh(vf_load(all)));
    return all[0] * cap;
}

/* e^(x - most); 1 where they are equal, infinities included. */
static vf weights_of(vf x, float most) {
    float all[LANES], same[LANES];
    vf_store(same, x);
    vf_store(all, softmax_power((x - vf_set(most)) * vf_set(LOG2_E)));
    for (int i = 0; i < LANES; i++)
        all[i] = same[i] == most ? 1 : all[i];
    return vf_load(all);
}

static float weight_of(float x, float most) {
    float all[LANES];
    vf_store(all, weights_of(vf_set(x), most));
    return all[0];
}

/* Adds n positions, whose keys and values are loaded, to a head's state. away: distance of the first one to the query. */
static void add_positions(const parts *p, int64_t t, int head, int n, int away) {
    float *y = cpu_f32(p->c->v, t), *sums = y + (int64_t)head * p->dv;
    float *most = y + (int64_t)p->heads * p->dv + head, *total = most + p->heads;
    const float *q = cpu_f32(p->q, t) + (int64_t)head * p->d;
    float slope = p->a->alibi ? cpu_f32(p->c->v + 7, 0)[head] : 0, scores[LANES], w[LANES], top = *most, keep;
    for (int j = 0; j < LANES; j++)
        scores[j] = -INFINITY;
    for (int j = 0; j < n; j++) {
        float score = dot(q, p->keys + (int64_t)j * p->d, p->d) * p->a->scale;
        score = p->a->cap > 0 ? capped(score, p->a->cap) : score;
        scores[j] = p->a->alibi ? score - slope * (float)(away - j) : score;
        top = scores[j] > top ? scores[j] : top;
    }
    keep = weight_of(*most, top);
    vf_store(w, weights_of(vf_load(scores), top));
    *most = top;
    *total *= keep;
    for (int j = 0; j < n; j++)
        *total += w[j];
    for (int i = 0; i < p->dv; i++) {
        float sum = sums[i] * keep;
        for (int j = 0; j < n; j++)
            sum += w[j] * p->values[(int64_t)j * (p->joint ? p->d : p->dv) + i];
        sums[i] = sum;
    }
}

static void load(const cpu_view *cache, int32_t number, int kv_head, int at, int n, float *to) {
    int d = cache->shape[3];
    const uint8_t *from = cpu_row(cache, number) +
                          kv_bytes(cache->format, d) * ((uint64_t)kv_head * (uint64_t)cache->shape[2] + (uint64_t)at);
    kv_load(cache->format, from, to, n * d);
}

/* The row of the block table that a token attends to; NULL where an index is out of range. */
static const int32_t *blocks_of(const parts *p, int64_t t) {
    const cpu_view *slot = p->c->v + 4, *table = p->c->v + 6;
    int32_t s = cpu_i32(slot, t), pos = cpu_i32(slot + 1, t);
    const int32_t *blocks;
    if (s < 0 || s >= table->shape[0] || pos < 0 || pos / p->block >= table->shape[1])
        return NULL;
    blocks = (const int32_t *)cpu_row(table, s);
    for (int i = 0; i <= pos / p->block; i++)
        if (blocks[i] < 0 || (blocks[i] % p->a->ranks == p->a->rank && blocks[i] / p->a->ranks >= p->k->shape[0]))
            return NULL;
    return blocks;
}

static void attend(const parts *p, int64_t t, int kv_head) {
    const int32_t *blocks = blocks_of(p, t);
    int pos = cpu_i32(p->c->v + 5, t), first = kv_head * p->group;
    float *y = cpu_f32(p->c->v, t), *most = y + (int64_t)p->heads * p->dv;
    memset(y + (int64_t)first * p->dv, 0, sizeof(float) * (size_t)p->group * (size_t)p->dv);
    for (int h = first; h < first + p->group; h++) {
        most[h] = -INFINITY;
        most[p->heads + h] = 0;
    }
    if (!blocks) {
        cpu_fault(p->c);
        return;
    }
    for (int i = 0; i <= pos / p->block; i++) {
        int32_t number = blocks[i] / p->a->ranks;
        if (blocks[i] % p->a->ranks != p->a->rank)
            continue;
        for (int at = 0, n; at < p->block && i * p->block + at <= pos; at += n) {
            int away = pos - i * p->block - at;
            n = p->block - at < LANES ? p->block - at : LANES;
            n = away + 1 < n ? away + 1 : n;
            load(p->k, number, kv_head, at, n, p->keys);
            if (!p->joint)
                load(p->v, number, kv_head, at, n, p->values);
            for (int h = first; h < first + p->group; h++)
                add_positions(p, t, h, n, away);
        }
    }
}

static void run_parts(const cpu_call *c, int64_t from, int64_t to, int thread) {
    parts p = parts_of(c);
    p.keys = (float *)cpu_scratch(c, thread);
    p.values = p.joint ? p.keys : p.keys + (int64_t)LANES * p.d;
    for (; from < to; from++)
        attend(&p, from / p.k->shape[1], (int)(from % p.k->shape[1]));
}

CPU_KERNEL(attention_parts) = {NULL, scratch_parts, split_parts, run_parts};

/* What a head's sums are multiplied with: this rank's weight over the sum of all weights; 0 where no position was seen. */
static float share_of(const float *stats, int ranks, int heads, int head, int rank, const float *sinks) {
    float most = sinks ? sinks[head] : -INFINITY, total = 0, mine = 0;
    for (int r = 0; r < ranks; r++) {
        const float *one = stats + (int64_t)2 * heads * r + head;
        most = one[heads] != 0 && one[0] > most ? one[0] : most;
    }
    if (sinks)
        total = weight_of(sinks[head], most);
    for (int r = 0; r < ranks; r++) {
        const float *one = stats + (int64_t)2 * heads * r + head;
        float weight = one[heads] != 0 ? weight_of(one[0], most) : 0;
        total += weight * one[heads];
        mine = r == rank ? weight : mine;
    }
    return total != 0 ? mine / total : 0;
}

static void run_merge(const cpu_call *c, int64_t from, int64_t to, int thread) {
    const arg_merge_parts *a = c->arg;
    int ranks = c->v[2].shape[1] / (2 * a->heads), width = c->v[0].shape[1] / a->heads;
    const float *sinks = c->n_in == 3 ? cpu_f32(c->v + 3, 0) : NULL;
    (void)thread;
    for (; from < to; from++)
        for (int h = 0; h < a->heads; h++) {
            float share = share_of(cpu_f32(c->v + 2, from), ranks, a->heads, h, a->rank, sinks);
            const float *x = cpu_f32(c->v + 1, from) + (int64_t)h * width;
            float *y = cpu_f32(c->v, from) + (int64_t)h * width;
            for (int i = 0; i < width; i++)
                y[i] = x[i] * share;
        }
}

CPU_KERNEL(merge_parts) = {NULL, NULL, cpu_by_row, run_merge};
