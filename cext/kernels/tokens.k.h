/* tokens.k.h: tokens_put and tokens_get on the token table (S, W): one row per slot, a ring buffer over positions. One group,
 * one thread per token. */
#ifndef SATCHEL_TOKENS_K_H
#define SATCHEL_TOKENS_K_H

#include "port.h"

/* The table entry of a slot and position; NULL, and a fault, if they are out of range. */
FN DEVICE int32_t *token_word(CONSTANT gpu_call *c, CONSTANT gpu_view *table, int slot, int64_t pos) {
    if (inside(slot, table->shape[0]) && pos >= 0)
        return ROW(int32_t, table, slot) + pos % table->shape[1];
    fault(c);
    return NULL;
}

KERNEL(tokens_put, GROUP) {
    int shift = ((CONSTANT arg_tokens_put *)c->arg)->shift, n = rows_of(c, c->v + 2);
    for (int t = m.thread; t < n; t += m.threads) {
        int id = i32_at(c->v + 2, t);
        DEVICE int32_t *to =
            id < 0 ? NULL : token_word(c, c->v, i32_at(c->v + 3, t), (int64_t)i32_at(c->v + 4, t) + shift);
        if (to)
            *to = id;
    }
}

KERNEL(tokens_get, GROUP) {
    int n = rows_of(c, c->v);
    for (int t = m.thread; t < n; t += m.threads) {
        DEVICE const int32_t *from = token_word(c, c->v + 1, i32_at(c->v + 2, t), i32_at(c->v + 3, t));
        *ROW(int32_t, c->v, t) = from ? *from : 0;
    }
}

#endif
