/* rows.c: get_rows dequantizes rows of a weight in any format; gather_rows copies rows of an activation unchanged. Both check
 * the row indices: an index out of range gives a row of zeros and faults the run.
 */
#include <string.h>

#include "cpu.h"
#include "formats.h"
#include "weights/unpack.h"

#define CPU_WEIGHT(stem, id, block, act)                                                                               \
    static void unpack_##stem(const uint8_t *from, float *to, int64_t n) {                                             \
        for (int64_t i = 0; i < n / (block); i++)                                                                      \
            stem##_unpack((const block_##stem *)from + i, to + (block) * i);                                           \
    }
#include "types.inc"
#undef CPU_WEIGHT

cpu_unpack *CPU_NAME(cpu_unpack_find)(uint32_t format) {
    switch (format) {
#define CPU_WEIGHT(stem, id, block, act)                                                                               \
    case id:                                                                                                           \
        return unpack_##stem;
#include "types.inc"
#undef CPU_WEIGHT
    }
    return NULL;
}

static const char *check_get(const cpu_call *c) {
    const cpu_view *y = c->v, *w = c->v + 1, *ids = c->v + 2;
    if (c->n_in != 2)
        return "it takes a weight and ids";
    if (w->ndim != 2 || !cpu_unpack_of(c->set, w->format) || (w->packed && !panel_format_find(w->format)))
        return "the weight must be (V, D) in a format that can be unpacked";
    if (!cpu_is(ids, I32, 1) || !cpu_is(y, F32, 2) || y->shape[0] != ids->shape[0] || y->shape[1] != w->shape[1])
        return "ids must be i32 (T) and the output f32 (T, D)";
    return NULL;
}

/* Row `id` in the file's layout: in place, or unpacked from its panel. */
static const uint8_t *row_of(const cpu_view *w, int32_t id, uint8_t *to) {
    return w->packed ? packed_row(w, w->data, w->shape[1], id, to) : cpu_row(w, id);
}

static uint64_t scratch_get(const cpu_call *c) {
    return sizeof(double) * (uint64_t)c->v[1].shape[1]; /* a row of any format */
}

static void run_get(const cpu_call *c, int64_t from, int64_t to, int thread) {
    const cpu_view *y = c->v, *w = c->v + 1;
    cpu_unpack *unpack = cpu_unpack_of(c->set, w->format);
    for (; from < to; from++) {
        int32_t id = cpu_i32(c->v + 2, from);
        if (id >= 0 && id < w->shape[0]) {
            unpack(row_of(w, id, cpu_scratch(c, thread)), cpu_f32(y, from), w->shape[1]);
            continue;
        }
        memset(cpu_row(y, from), 0, sizeof(float) * y->width);
        cpu_fault(c);
    }
}

static const char *check_gather(const cpu_call *c) {
    const cpu_view *y = c->v, *x = c->v + 1, *rows = c->v + 2;
    if (c->n_in != 2)
        return "it takes x and rows";
    if (!cpu_is(rows, I32, 1) || rows->shape[0] != y->shape[0])
        return "rows must be i32 and as many as the output's";
    if (x->format != y->format || x->ndim != y->ndim || memcmp(x->shape + 1, y->shape + 1, 3 * sizeof(int32_t)) != 0)
        return "x and output must have rows of one shape and format";
    return NULL;
}

static void run_gather(const cpu_call *c, int64_t from, int64_t to, int thread) {
    const cpu_view *y = c->v, *x = c->v + 1;
    const block_format *f = block_format_find(x->format);
    uint64_t bytes = x->width / f->block * f->bytes;
    (void)thread;
    for (; from < to; from++) {
        int32_t row = cpu_i32(c->v + 2, from);
        if (row >= 0 && row < x->shape[0])
            memmove(cpu_row(y, from), cpu_row(x, row), bytes);
        else {
            memset(cpu_row(y, from), 0, bytes);
            cpu_fault(c);
        }
    }
}

CPU_KERNEL(get_rows) = {check_get, scratch_get, cpu_by_row, run_get, .takes_packed = 1};
static const char *check_numbers(const cpu_call *c) {
    const cpu_view *y = c->v, *ids = c->v + 1, *table = c->v + 2;
    if (c->n_in != 2 || !cpu_is(ids, I32, 2) || !cpu_same_shape(y, ids))
        return "it takes ids i32 (T, k) and a table, and gives (T, k)";
    if (y->format != table->format || (y->format != I32 && y->format != F32))
        return "table and output must both be i32, or both f32";
    return table->ndim == 1 && table->stride == sizeof(int32_t) ? NULL : "the table must be (N)";
}

static void run_numbers(const cpu_call *c, int64_t from, int64_t to, int thread) {
    const uint32_t *table = (const uint32_t *)cpu_row(c->v + 2, 0);
    int k = c->v[0].shape[1], n = c->v[2].shape[0];
    (void)thread;
    for (; from < to; from++) {
        const int32_t *ids = (const int32_t *)cpu_row(c->v + 1, from);
        uint32_t *y = (uint32_t *)cpu_row(c->v, from);
        for (int i = 0; i < k; i++) {
            if (ids[i] < 0 || ids[i] >= n)
                cpu_fault(c);
            else
                y[i] = table[ids[i]];
        }
    }
}

CPU_KERNEL(gather) = {check_numbers, NULL, cpu_by_row, run_numbers};
CPU_KERNEL(gather_rows) = {check_gather, NULL, cpu_by_row, run_gather};
