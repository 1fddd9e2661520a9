/* reduce.cu: the kernels of collectives, reduce_add and gather_columns; see reduce.cuh. */
#include "reduce.cuh"
#include "port.h"

static __device__ __forceinline__ void set_meeting(meeting *m, const gpu_call *c, uint32_t op) {
    m->g = (const gpu_group *)c->arg[GROUP_ARG];
    m->number = (uint32_t)((const int32_t *)c->counts)[GROUP_COUNT] + (uint32_t)c->arg[GROUP_ARG_PLACE];
    m->step = c->step;
    m->op = op;
}

KERNEL(reduce_rows, GROUP_THREADS) {
    reduction r;
    (void)m;
    set_meeting(&r, c, GROUP_REDUCE);
    r.y = (const float *)c->v[1].data;
    r.residual = c->n_in > 1 ? (const float *)c->v[2].data : NULL;
    r.out = (float *)c->v[0].data;
    r.n = (int64_t)rows_of(c, c->v) * c->v[0].shape[1];
    r.period = c->v[2].shape[1] > 1 ? r.n : c->v[2].shape[0];
    reduce(r);
}

KERNEL(gather_shards, GROUP_THREADS) {
    const arg_gather_columns *a = (const arg_gather_columns *)c->arg;
    gathering r;
    (void)m;
    set_meeting(&r, c, GROUP_GATHER);
    r.y = (const float *)c->v[1].data;
    r.out = (float *)c->v[0].data;
    r.rows = rows_of(c, c->v);
    r.width = c->v[1].shape[1];
    r.start = a->start;
    r.total = a->total;
    gather(r);
}

/* Writes words into the inboxes of all others, which join() reads there. */
KERNEL(prove_reach, GROUP_THREADS) {
    const gpu_group *g = (const gpu_group *)c->arg[GROUP_ARG];
    (void)m;
    for (uint32_t k = 1; k < g->members; k++) {
        const uint32_t q = next_member(g, k);
        volatile uint32_t *to = (volatile uint32_t *)place_of(g, q, g->rank, 0);
        for (uint32_t i = threadIdx.x; i < GROUP_PROVED; i += GROUP_THREADS)
            to[i] = GROUP_PROOF(g->rank, q, i);
    }
}
