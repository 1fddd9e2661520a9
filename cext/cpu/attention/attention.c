/* attention.c: the op attention: q (T, H, D) over paged caches (blocks, KV, block, D). attention_run.h computes it. */
#include "attention_run.h"

static setup setup_attention(const cpu_call *c) {
    const arg_attention *a = c->arg;
    return setup_of(c, a, c->n_in);
}

ATTENTION_KERNEL(attention, NULL, 0);
