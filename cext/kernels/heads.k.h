/* heads.k.h: take and concat: slices and concatenates heads (T, H, D) along D. A thread copies one element; a group's elements
 * are of one row. */
#ifndef SATCHEL_HEADS_K_H
#define SATCHEL_HEADS_K_H

#include "elementwise.k.h"

KERNEL(take, GROUP) {
    CONSTANT arg_take *a = (CONSTANT arg_take *)c->arg;
    int64_t i = own_number(c, m);
    int d = c->v[1].shape[2];
    if (i >= 0)
        ROW(float, c->v, m.group[1])
    [i] = ROW(const float, c->v + 1, m.group[1])[i / a->size * d + a->start + i % a->size];
}

/* The second operand may have one head, which all heads share. */
KERNEL(concat, GROUP) {
    int64_t i = own_number(c, m);
    int a = c->v[1].shape[2], b = c->v[2].shape[2], row = m.group[1], head, at;
    if (i < 0)
        return;
    head = (int)(i / (a + b));
    at = (int)(i % (a + b));
    ROW(float, c->v, row)
    [i] = at < a ? ROW(const float, c->v + 1, row)[(int64_t)head * a + at]
                 : ROW(const float, c->v + 2, row)[(c->v[2].shape[1] == 1 ? 0 : (int64_t)head * b) + at - a];
}

#endif
