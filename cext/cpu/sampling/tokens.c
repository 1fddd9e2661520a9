/* tokens.c: tokens_put and tokens_get on the token table (S, W), int32: one row per slot, a ring buffer over positions. Both
 * ops run on one thread.
 */
#include "cpu.h"

/* The table entry of a slot and position; NULL, and a fault, if they are out of range. */
static int32_t *word(const cpu_call *c, const cpu_view *table, int32_t slot, int64_t pos) {
    if (slot >= 0 && slot < table->shape[0] && pos >= 0)
        return (int32_t *)cpu_row(table, slot) + pos % table->shape[1];
    cpu_fault(c);
    return NULL;
}

static void run_put(const cpu_call *c, int64_t from, int64_t to, int thread) {
    int shift = ((const arg_tokens_put *)c->arg)->shift;
    (void)from, (void)to, (void)thread;
    for (int64_t t = 0; t < c->v[2].shape[0]; t++) {
        int32_t id = cpu_i32(c->v + 2, t), *to;
        if (id < 0)
            continue;
        if ((to = word(c, c->v, cpu_i32(c->v + 3, t), (int64_t)cpu_i32(c->v + 4, t) + shift)))
            *to = id;
    }
}

static void run_get(const cpu_call *c, int64_t from, int64_t to, int thread) {
    (void)from, (void)to, (void)thread;
    for (int64_t t = 0; t < c->v[0].shape[0]; t++) {
        const int32_t *from = word(c, c->v + 1, cpu_i32(c->v + 2, t), cpu_i32(c->v + 3, t));
        *(int32_t *)cpu_row(c->v, t) = from ? *from : 0;
    }
}

CPU_KERNEL(tokens_put) = {NULL, NULL, NULL, run_put};
CPU_KERNEL(tokens_get) = {NULL, NULL, NULL, run_get};
