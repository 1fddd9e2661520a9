/* rows.c: get_rows dequantizes rows of a weight in any format, and get_rows_part those of a table that others share; gather_rows copies rows of an activation unchanged. Both check
 * the row indices: an index out of range gives a row of zeros and faults the run.
 */
#include <string.h>

#include "weights/points_once.h"
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
    return cpu_unpack_of(c->set, c->v[1].format) ? NULL : "the weight must have a format that can be unpacked";
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

/* Rows of ids outside of this part of the table are zeros. */
static void run_get_part(const cpu_call *c, int64_t from, int64_t to, int thread) {
    const cpu_view *y = c->v, *w = c->v + 1;
    int64_t first = ((const arg_get_rows_part *)c->arg)->first;
    cpu_unpack *unpack = cpu_unpack_of(c->set, w->format);
    for (; from < to; from++) {
        int32_t id = cpu_i32(c->v + 2, from);
        if (id >= first && id - first < w->shape[0])
            unpack(row_of(w, (int32_t)(id - first), cpu_scratch(c, thread)), cpu_f32(y, from), w->shape[1]);
        else
            memset(cpu_row(y, from), 0, sizeof(float) * y->width);
        if (id < 0)
            cpu_fault(c);
    }
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
CPU_KERNEL(get_rows_part) = {check_get, scratch_get, cpu_by_row, run_get_part, .takes_packed = 1};
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

CPU_KERNEL(gather) = {NULL, NULL, cpu_by_row, run_numbers};
CPU_KERNEL(gather_rows) = {NULL, NULL, cpu_by_row, run_gather};
