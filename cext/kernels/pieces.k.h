/* pieces.k.h: where the states of recurrent layers lie (runtime/ops/recurrent.py). A state is (pages, ...), found by the block
 * table as keys are; a piece is a slot's tokens, which stand in the step one after the other, and goes on from the page of the
 * position before its first token. `slots` is the input slot, behind which are pos and table. A token that points outside
 * faults the run.
 */
#ifndef SATCHEL_PIECES_K_H
#define SATCHEL_PIECES_K_H

#include "port.h"

enum { PAGE_GONE = -1, PAGE_OUTSIDE = -2 };

/* The number of the page of a slot's position. */
FN int state_page(CONSTANT gpu_view *slots, CONSTANT gpu_view *state, int slot, int pos, int block) {
    CONSTANT gpu_view *table = slots + 2;
    int page;
    if (!inside(slot, table->shape[0]) || pos < 0 || pos / block >= table->shape[1])
        return PAGE_OUTSIDE;
    page = ROW(const int32_t, table, slot)[pos / block];
    return page < PAGE_GONE || page >= state->shape[0] ? PAGE_OUTSIDE : page;
}

/* Whether token t goes on from the one before it. */
FN int goes_on(CONSTANT gpu_view *slots, int t) {
    return t > 0 && i32_at(slots, t) == i32_at(slots, t - 1) &&
           (int64_t)i32_at(slots + 1, t) == (int64_t)i32_at(slots + 1, t - 1) + 1;
}

/* The page that token t, the first of a piece, goes on from; PAGE_GONE: none, a text begins. */
FN int page_before(CONSTANT gpu_view *slots, CONSTANT gpu_view *state, int t, int block) {
    int page, pos = i32_at(slots + 1, t);
    if (pos <= 0)
        return pos == 0 ? PAGE_GONE : PAGE_OUTSIDE;
    page = state_page(slots, state, i32_at(slots, t), pos - 1, block);
    return page == PAGE_GONE ? PAGE_OUTSIDE : page;
}

/* Where the state after token t is left; PAGE_GONE: nowhere. last: it ends its piece. */
FN int page_after(CONSTANT gpu_view *slots, CONSTANT gpu_view *state, int t, int last, int block) {
    int pos = i32_at(slots + 1, t), page = state_page(slots, state, i32_at(slots, t), pos, block);
    if (page == PAGE_GONE && last)
        return PAGE_OUTSIDE;
    return page == PAGE_OUTSIDE || last || (pos + 1) % block == 0 ? page : PAGE_GONE;
}

#endif
