/* short_conv.k.h: short_conv, the causal depthwise convolution with K taps of x (T, C), one thread per output element; and
 * conv_write, which writes its state (pages, K - 1, C), the last K - 1 inputs: one thread per channel of a piece.
 */
#ifndef SATCHEL_SHORT_CONV_K_H
#define SATCHEL_SHORT_CONV_K_H

#include "elementwise.k.h"
#include "pieces.k.h"

/* The inputs of one channel up to token t. */
typedef struct {
    CONSTANT gpu_view *x;
    int64_t channel;
    int t, near;                /* near: tokens before t that the step holds */
    int kept;                   /* K - 1, the rows of a page */
    DEVICE const float *before; /* the state before the piece; NULL: zeros */
} heard;

/* Number of tokens of t's piece before t, at most `most`. */
FN int tokens_near(CONSTANT gpu_view *slots, int t, int most) {
    int n = 0;
    while (n < most && goes_on(slots, t - n))
        n++;
    return n;
}

/* Locates the inputs before token t; 0 if an index is out of range. */
FN int hear(CONSTANT gpu_view *slots, CONSTANT gpu_view *state, int block, THREAD heard *h) {
    int page = PAGE_GONE;
    h->kept = state->shape[1];
    h->near = tokens_near(slots, h->t, h->kept);
    h->before = NULL;
    if (h->near < h->kept)
        page = page_before(slots, state, h->t - h->near, block);
    if (page >= 0)
        h->before = ROW(const float, state, page) + h->channel;
    return page != PAGE_OUTSIDE &&
           state_page(slots, state, i32_at(slots, h->t), i32_at(slots + 1, h->t), block) != PAGE_OUTSIDE;
}

/* The input `back` <= kept tokens before t. */
FN float heard_at(THREAD const heard *h, int back) {
    if (back <= h->near)
        return ROW(const float, h->x, h->t - back)[h->channel];
    return h->before ? h->before[(int64_t)(h->kept + h->near - back) * h->x->shape[1]] : 0.0f;
}

KERNEL(short_conv, GROUP) {
    CONSTANT gpu_view *w = c->v + 3;
    heard h = {c->v + 1, own_number(c, m), m.group[1]};
    DEVICE const float *taps;
    float y = 0;
    if (h.channel < 0)
        return;
    if (!hear(c->v + 4, c->v + 2, ((CONSTANT arg_short_conv *)c->arg)->block, &h)) {
        fault(c);
        return;
    }
    taps = ROW(const float, w, h.channel);
    for (int j = 0; j < w->shape[1]; j++)
        y = fmaf(taps[j], heard_at(&h, w->shape[1] - 1 - j), y);
    if (c->n_in == 7)
        y = y + *ROW(const float, c->v + 7, h.channel);
    ROW(float, c->v, h.t)[h.channel] = y / (1.0f + expf(-y));
}

/* Writes the states of a piece from its last token back. Only its first state may share the page that the piece starts from,
 * and there each element is read before it is written. */
KERNEL(conv_write, GROUP) {
    CONSTANT gpu_view *state = c->v, *slots = c->v + 3;
    int block = ((CONSTANT arg_conv_write *)c->arg)->block, page, last = 1;
    heard h = {c->v + 2, (int64_t)m.group[0] * m.threads + m.thread, m.group[1]};
    int n = rows_of(c, h.x);
    if (h.channel >= h.x->shape[1] || h.t >= n || (h.t + 1 < n && goes_on(slots, h.t + 1)))
        return;
    for (int on = 1; on; h.t--, last = 0) {
        on = goes_on(slots, h.t);
        page = page_after(slots, state, h.t, last, block);
        if (page == PAGE_OUTSIDE || (page >= 0 && !hear(slots, state, block, &h))) {
            fault(c);
            return;
        }
        for (int j = 0; page >= 0 && j < state->shape[1]; j++)
            ROW(float, state, page)[(int64_t)j * h.x->shape[1] + h.channel] = heard_at(&h, state->shape[1] - 1 - j);
    }
}

#endif
