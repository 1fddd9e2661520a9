/* rows.k.h: one group per output row: get_rows dequantizes a row of a weight, get_rows_part one of a part of it, gather_rows copies a row of an activation; an index
 * out of range gives a row of zeros and faults the run. gather: numbers of a table.
 */
#ifndef SATCHEL_ROWS_K_H
#define SATCHEL_ROWS_K_H

#include "elementwise.k.h"
#include "formats.k.h"

KERNEL(get_rows, GROUP) {
    CONSTANT gpu_view *y = c->v, *w = c->v + 1;
    int row = m.group[0], k = w->shape[1], id;
    if (row >= rows_of(c, y))
        return;
    id = i32_at(c->v + 2, row);
    if (inside(id, w->shape[0])) {
        unpack_row(m, w->format, ROW(const char, w, id), ROW(float, y, row), k);
        return;
    }
    for (int i = m.thread; i < k; i += m.threads)
        ROW(float, y, row)[i] = 0;
    fault(c);
}

/* Rows of a part of a table, whose first row is id `first`; zeros for the ids of others. */
KERNEL(get_rows_part, GROUP) {
    CONSTANT gpu_view *y = c->v, *w = c->v + 1;
    int row = m.group[0], k = w->shape[1];
    int64_t id;
    if (row >= rows_of(c, y))
        return;
    id = (int64_t)i32_at(c->v + 2, row) - ((CONSTANT arg_get_rows_part *)c->arg)->first;
    if (inside(id, w->shape[0])) {
        unpack_row(m, w->format, ROW(const char, w, id), ROW(float, y, row), k);
        return;
    }
    for (int i = m.thread; i < k; i += m.threads)
        ROW(float, y, row)[i] = 0;
    if (i32_at(c->v + 2, row) < 0)
        fault(c);
}

FN int aligned4(CONSTANT gpu_view *v) {
    return (v->data | v->stride) % 4 == 0;
}

#define COPY(type)                                                                                                     \
    for (int64_t i = m.thread; i < bytes / (int64_t)sizeof(type); i += m.threads)                                      \
        ROW(type, y, row)[i] = good ? ROW(const type, x, from)[i] : (type)0;

KERNEL(gather_rows, GROUP) {
    CONSTANT gpu_view *y = c->v, *x = c->v + 1;
    int row = m.group[0], from, good;
    int64_t bytes = bytes_of(x->format, width_of(x));
    if (row >= rows_of(c, y))
        return;
    from = i32_at(c->v + 2, row);
    good = inside(from, x->shape[0]);
    if (!good)
        fault(c);
    if (bytes % 4 == 0 && aligned4(x) && aligned4(y)) {
        COPY(uint32_t)
    } else {
        COPY(uint8_t)
    }
}
#undef COPY

/* Numbers of four bytes, by ids of a row: a thread has one. */
KERNEL(gather, GROUP) {
    int64_t i = own_number(c, m);
    int t = m.group[1], id;
    if (i < 0)
        return;
    id = ROW(const int32_t, c->v + 1, t)[i];
    if (inside(id, c->v[2].shape[0]))
        ROW(uint32_t, c->v, t)[i] = ROW(const uint32_t, c->v + 2, 0)[id];
    else
        fault(c);
}

#endif
