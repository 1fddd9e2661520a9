/* kv.c: kv_write and rope_kv_write write keys or values to the paged cache (blocks, H, block, D), in any format of kv_rows.h;
 * rope_kv_write applies RoPE first. kv_write_part writes the tokens of the blocks that this rank of a group has (context
 * parallelism).
 *
 * Token t goes to row pos[t] % block of block table[slot[t]][pos[t] / block]. Slot, position and block are checked; a token
 * with one out of range is not written and faults the run.
 */
#include "cpu.h"
#include "kv_rows.h"
#include "rope.h"

static cpu_split split(const cpu_call *c) {
    return cpu_grains(c->v[2].shape[0], (int64_t)c->v[2].width);
}

/* Address of the first head of token t in the cache; NULL, and a fault of the run, if an index is out of range. Of ranks that
 * share the pool's blocks (part NULL: there are none), NULL where another one has the block. */
static uint8_t *place_of(const cpu_call *c, const cpu_view *slots, int64_t t, const arg_kv_write_part *part) {
    const cpu_view *cache = c->v, *table = slots + 2;
    int32_t slot = cpu_i32(slots, t), pos = cpu_i32(slots + 1, t), size = cache->shape[2], block = -1;
    if (slot >= 0 && slot < table->shape[0] && pos >= 0 && pos / size < table->shape[1])
        block = ((const int32_t *)cpu_row(table, slot))[pos / size];
    if (part && block >= 0) {
        if (block % part->ranks != part->rank)
            return NULL;
        block /= part->ranks;
    }
    if (block < 0 || block >= cache->shape[0]) {
        cpu_fault(c);
        return NULL;
    }
    return cpu_row(cache, block) + kv_bytes(cache->format, cache->shape[3]) * (uint64_t)(pos % size);
}

/* rotated: scratch of one head for rope_kv_write; NULL: no RoPE. */
static inline void write_token(const cpu_call *c, int64_t t, float *rotated, const arg_kv_write_part *part) {
    const cpu_view *cache = c->v;
    const float *x = cpu_f32(c->v + 2, t);
    uint8_t *to = place_of(c, c->v + (rotated ? 4 : 3), t, part);
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
        write_token(c, from, NULL, NULL);
}

static void run_write_part(const cpu_call *c, int64_t from, int64_t to, int thread) {
    (void)thread;
    for (; from < to; from++)
        write_token(c, from, NULL, c->arg);
}

static uint64_t scratch_rope_write(const cpu_call *c) {
    return sizeof(float) * (uint64_t)c->v[0].shape[3];
}

static void run_rope_write(const cpu_call *c, int64_t from, int64_t to, int thread) {
    for (; from < to; from++)
        write_token(c, from, (float *)cpu_scratch(c, thread), NULL);
}

CPU_KERNEL(kv_write) = {NULL, NULL, split, run_write};
CPU_KERNEL(kv_write_part) = {NULL, NULL, split, run_write_part};
CPU_KERNEL(rope_kv_write) = {NULL, scratch_rope_write, split, run_rope_write};
