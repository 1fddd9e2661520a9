/* kv.c: writing keys or values into the paged cache (blocks, H, block, D), in any of the formats of kv_rows.h.
 *
 * Token t of slot[t] at pos[t] goes to block table[slot[t]][pos[t] / block], place pos[t] % block. All three numbers
 * come from the engine and are checked; a token that points outside is not written and faults the run.
 */
#include "cpu.h"
#include "kv_rows.h"

static const char *check(const cpu_call *c) {
    const cpu_view *cache = c->v, *x = c->v + 2, *table = c->v + 5;
    if (c->n_in != 5)
        return "it takes cache, x, slot, pos and table";
    if (cache->ndim != 4 || !kv_bytes(cache->format, KV_BLOCK))
        return "the cache must be f32, f16, bf16, q8_0 or q4_0 (blocks, H, block, D)";
    if (cache->data != c->v[1].data || !cpu_same_shape(cache, c->v + 1) || cache->format != c->v[1].format)
        return "the output must be the cache itself";
    if (!cpu_is(x, F32, 3) || x->shape[1] != cache->shape[1] || x->shape[2] != cache->shape[3])
        return "x must be f32 (T, H, D) with the cache's H and D";
    for (int i = 3; i < 5; i++)
        if (!cpu_is(c->v + i, I32, 1) || c->v[i].shape[0] != x->shape[0])
            return "slot and pos must be i32 (T)";
    return cpu_is(table, I32, 2) ? NULL : "table must be i32 (S, B)";
}

static cpu_split split(const cpu_call *c) {
    return cpu_grains(c->v[2].shape[0], (int64_t)c->v[2].width);
}

static void write_token(const cpu_call *c, int64_t t) {
    const cpu_view *cache = c->v, *x = c->v + 2, *table = c->v + 5;
    int32_t slot = cpu_i32(c->v + 3, t), pos = cpu_i32(c->v + 4, t), block;
    int heads = cache->shape[1], size = cache->shape[2], d = cache->shape[3];
    if (slot < 0 || slot >= table->shape[0] || pos < 0 || pos / size >= table->shape[1]) {
        cpu_fault(c);
        return;
    }
    block = ((const int32_t *)cpu_row(table, slot))[pos / size];
    if (block < 0 || block >= cache->shape[0]) {
        cpu_fault(c);
        return;
    }
    for (int h = 0; h < heads; h++) {
        uint64_t row = (uint64_t)h * (uint64_t)size + (uint64_t)(pos % size);
        kv_store(cache->format, cpu_f32(x, t) + (int64_t)h * d, cpu_row(cache, block) + row * kv_bytes(cache->format, d), d);
    }
}

static void run(const cpu_call *c, int64_t from, int64_t to, int thread) {
    (void)thread;
    for (; from < to; from++)
        write_token(c, from);
}

CPU_KERNEL(kv_write) = {check, NULL, split, run};
