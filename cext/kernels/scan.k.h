/* scan.k.h: gated_scan and scan_write (selective scan, gated delta rule) over states (pages, H, N, P).
 *
 * A group holds SCAN_COLUMNS columns of one head's state (N, P) and loops over the tokens of a piece. A column has SCAN_LANES
 * lanes of one wave; lane r holds rows r, r + 8 and so on in local memory of its own. A sum over the rows is 8 partial sums,
 * added in a tree, for any wave width. Each token is computed by the same operations in the same order whatever the step holds,
 * so any split of a prompt gives the same bits. Both kernels update the state by the same operations.
 */
#ifndef SATCHEL_SCAN_K_H
#define SATCHEL_SCAN_K_H

#include "modes.h"
#include "pieces.k.h"

typedef struct {
    CONSTANT gpu_view *state, *slots;
    LOCAL float *s;               /* the lane's rows, SCAN_LANES apart */
    int block, t;                 /* t: the current token */
    int head, group, column, row; /* group: the head's group of keys; row: the lane's first row */
    int rows, keys, width, mine;  /* rows of this lane; N; P; mine: the column is below P */
} scanned;

/* Floats from column to column in local memory, padded so that the lanes of a wave use different banks. */
FN int scan_pitch(int keys) {
    return (keys + 31) / 32 * 32 + SCAN_LANES;
}

/* Sets up a thread's head, column and rows for keys k; 0: the group's token does not start a piece, so the group has no
 * work. */
FN int scan_begin(CONSTANT gpu_call *c, self m, CONSTANT gpu_view *k, int block, int tiled, THREAD scanned *a) {
    int per = (a->state->shape[3] + SCAN_COLUMNS - 1) / SCAN_COLUMNS, groups = k->shape[1],
        column = m.thread / SCAN_LANES;
    a->block = block;
    a->t = m.group[1];
    a->head = m.group[0] / per;
    a->group = tiled ? a->head % groups : a->head / (a->state->shape[1] / groups);
    a->column = m.group[0] % per * SCAN_COLUMNS + column;
    a->row = m.thread % SCAN_LANES;
    a->keys = a->state->shape[2];
    a->width = a->state->shape[3];
    a->rows = (a->keys - a->row + SCAN_LANES - 1) / SCAN_LANES;
    a->mine = a->column < a->width;
    a->s = (LOCAL float *)m.local + column * scan_pitch(a->keys) + a->row;
    return a->t < rows_of(c, k) && !goes_on(a->slots, a->t);
}

/* The lane's element i in a page. */
FN DEVICE float *scan_at(THREAD const scanned *a, int page, int i) {
    return ROW(float, a->state, page) + ((int64_t)a->head * a->keys + i * SCAN_LANES + a->row) * a->width + a->column;
}

/* Loads the lane's rows from the page that the piece starts from, zeros at position 0; 0 if the page is out of range. */
FN int scan_load(THREAD scanned *a) {
    int page = page_before(a->slots, a->state, a->t, a->block);
    for (int i = 0; i < a->rows; i++)
        a->s[i * SCAN_LANES] = page >= 0 && a->mine ? *scan_at(a, page, i) : 0.0f;
    return page != PAGE_OUTSIDE;
}

/* Advances to the next token of the piece; 0 if there is none. */
FN int scan_next(CONSTANT gpu_call *c, CONSTANT gpu_view *k, THREAD scanned *a) {
    return a->t + 1 < rows_of(c, k) && goes_on(a->slots, a->t + 1) ? ++a->t : 0;
}

/* The lane's first element of a token's keys or queries; its others are SCAN_LANES apart. */
FN DEVICE const float *scan_keys(THREAD const scanned *a, CONSTANT gpu_view *k) {
    return ROW(const float, k, a->t) + (int64_t)a->group * a->keys + a->row;
}

/* Sum over the lanes of a column, in all of them. */
FN float scan_sum(self m, float x) {
    for (int o = SCAN_LANES / 2; o > 0; o /= 2)
        x += take_f32(m, x, m.lane ^ o);
    return x;
}

FN float scan_find(self m, THREAD const scanned *a, DEVICE const float *k) {
    float sum = 0;
    for (int i = 0; i < a->rows; i++)
        sum = fmaf(k[i * SCAN_LANES], a->s[i * SCAN_LANES], sum);
    return scan_sum(m, sum);
}

/* State update of the lane's rows: decay, then the key times u. */
FN void scan_add(THREAD const scanned *a, DEVICE const float *k, float fade, float u) {
    for (int i = 0; i < a->rows; i++)
        a->s[i * SCAN_LANES] = fmaf(k[i * SCAN_LANES], u, a->s[i * SCAN_LANES] * fade);
}

KERNEL(gated_scan, SCAN_LANES *SCAN_COLUMNS) {
    CONSTANT arg_gated_scan *arg = (CONSTANT arg_gated_scan *)c->arg;
    scanned a = {c->v + 6, c->v + 7};
    int page = PAGE_OUTSIDE;
    if (!scan_begin(c, m, c->v + 2, arg->block, arg->tiled, &a))
        return;
    for (int on = scan_load(&a); on; on = scan_next(c, c->v + 2, &a)) {
        DEVICE const float *k = scan_keys(&a, c->v + 2);
        DEVICE float *y = ROW(float, c->v, a.t) + (int64_t)a.head * 2 * a.width + a.column;
        float fade = expf(ROW(const float, c->v + 4, a.t)[a.head]), beta = ROW(const float, c->v + 5, a.t)[a.head];
        float u = a.mine ? ROW(const float, c->v + 3, a.t)[(int64_t)a.head * a.width + a.column] : 0.0f, found;
        page = state_page(a.slots, a.state, i32_at(a.slots, a.t), i32_at(a.slots + 1, a.t), a.block);
        if (page == PAGE_OUTSIDE)
            break;
        if (arg->delta)
            u = u - fade * scan_find(m, &a, k);
        u = beta * u;
        scan_add(&a, k, fade, u);
        found = scan_find(m, &a, scan_keys(&a, c->v + 1));
        if (a.mine && a.row == 0) {
            y[0] = found;
            y[a.width] = u;
        }
    }
    if (page == PAGE_OUTSIDE)
        fault(c);
}

KERNEL(scan_write, SCAN_LANES *SCAN_COLUMNS) {
    CONSTANT arg_scan_write *arg = (CONSTANT arg_scan_write *)c->arg;
    CONSTANT gpu_view *k = c->v + 2;
    scanned a = {c->v, c->v + 5};
    int n = rows_of(c, k), page = PAGE_OUTSIDE;
    if (!scan_begin(c, m, k, arg->block, arg->tiled, &a))
        return;
    for (int on = scan_load(&a); on; on = scan_next(c, k, &a)) {
        float fade = expf(ROW(const float, c->v + 4, a.t)[a.head]);
        float u = a.mine ? ROW(const float, c->v + 3, a.t)[((int64_t)2 * a.head + 1) * a.width + a.column] : 0.0f;
        page = page_after(a.slots, a.state, a.t, a.t + 1 == n || !goes_on(a.slots, a.t + 1), a.block);
        if (page == PAGE_OUTSIDE)
            break;
        scan_add(&a, scan_keys(&a, k), fade, u);
        for (int i = 0; page >= 0 && a.mine && i < a.rows; i++)
            *scan_at(&a, page, i) = a.s[i * SCAN_LANES];
    }
    if (page == PAGE_OUTSIDE)
        fault(c);
}

#endif
