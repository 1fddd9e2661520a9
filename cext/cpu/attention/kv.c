/* kv.c: kv_write and rope_kv_write write keys or values to the paged cache (blocks, H, block, D), in any format of kv_rows.h;
 * rope_kv_write applies RoPE first.
 *
 * Token t goes to row pos[t] % block of block table[slot[t]][pos[t] / block]. Slot, position and block are checked; a token
 * with one out of range is not written and faults the run.
 */
#include "cpu.h"
#include "kv_rows.h"
#include "rope.h"

/* slot: the input slot; pos and table follow it. */
static const char *check_cache(const cpu_call *c, const cpu_view *slot) {
    const cpu_view *cache = c->v, *x = c->v + 2, *table = slot + 2;
    if (cache->ndim != 4 || !kv_bytes(cache->format, KV_BLOCK))
        return "the cache must be " KV_FORMATS " (blocks, H, block, D)";
    if (cache->data != c->v[1].data || !cpu_same_shape(cache, c->v + 1) || cache->format != c->v[1].format)
        return "the output must be the cache itself";
    if (!cpu_is(x, F32, 3) || x->shape[1] != cache->shape[1] || x->shape[2] != cache->shape[3])
        return "x must be f32 (T, H, D) with the cache's H and D";
    for (int i = 0; i < 2; i++)
        if (!cpu_is(slot + i, I32, 1) || slot[i].shape[0] != x->shape[0])
            return "slot and pos must be i32 (T)";
    return cpu_is(table, I32, 2) ? NULL : "table must be i32 (S, B)";
}

static const char *check_write(const cpu_call *c) {
    return c->n_in == 5 ? check_cache(c, c->v + 3) : "it takes cache, x, slot, pos and table";
}

static const char *check_rope_write(const cpu_call *c) {
    const char *fault = c->n_in == 6 ? check_cache(c, c->v + 4) : "it takes cache, x, cos_sin, slot, pos and table";
    return fault ? fault : check_cos_sin(c->v + 2, c->v + 3, ((const arg_rope_kv_write *)c->arg)->style);
}

static cpu_split split(const cpu_call *c) {
    return cpu_grains(c->v[2].shape[0], (int64_t)c->v[2].width);
}

/* Address of the first head of token t in the cache; NULL, and a fault of the run, if an index is out of range. */
static uint8_t *place_of(const cpu_call *c, const cpu_view *slots, int64_t t) {
    const cpu_view *cache = c->v, *table = slots + 2;
    int32_t slot = cpu_i32(slots, t), pos = cpu_i32(slots + 1, t), size = cache->shape[2], block = -1;
    if (slot >= 0 && slot < table->shape[0] && pos >= 0 && pos / size < table->shape[1])
        block = ((const int32_t *)cpu_row(table, slot))[pos / size];
    if (block < 0 || block >= cache->shape[0]) {
        cpu_fault(c);
        return NULL;
    }
    return cpu_row(cache, block) + kv_bytes(cache->format, cache->shape[3]) * (uint64_t)(pos % size);
}

/* rotated: scratch of one head for rope_kv_write; NULL: no RoPE. */
static inline void write_token(const cpu_call *c, int64_t t, float *rotated) {
    const cpu_view *cache = c->v;
    const float *x = cpu_f32(c->v + 2, t);
    uint8_t *to = place_of(c, c->v + (rotated ? 4 : 3), t);
    int heads = cache->shape[1], d = cache->shape[3];
    uint64_t head_bytes = kv_bytes(cache->format, d) * (uint64_t)cache->shape[2];
    for (int h = 0; to && h < heads; h++, x += d, to += head_bytes) {
        if (rotated)
            rope_head(((const arg_rope_kv_write *)c->arg)->style, x, rotated, d, cpu_f32(c->v + 3, t),
                      c->v[3].shape[1]);
        kv_store(cache->format, rotated ? rotated : x, to, d);
    }
}

static void run_write(const cpu_call *c, int64_t from, int64_t to, int thread) {
    (void)thread;
    for (; from < to; from++)
        write_token(c, from, NULL);
}

static uint64_t scratch_rope_write(const cpu_call *c) {
    return sizeof(float) * (uint64_t)c->v[0].shape[3];
}

static void run_rope_write(const cpu_call *c, int64_t from, int64_t to, int thread) {
    for (; from < to; from++)
        write_token(c, from, (float *)cpu_scratch(c, thread));
}

CPU_KERNEL(kv_write) = {check_write, NULL, split, run_write};
CPU_KERNEL(rope_kv_write) = {check_rope_write, scratch_rope_write, split, run_rope_write};
