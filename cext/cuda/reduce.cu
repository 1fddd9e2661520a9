/* reduce.cu: the kernels of collectives, reduce_add and gather_columns; see reduce.cuh. */
#include "reduce.cuh"
#include "port.h"

static __device__ __forceinline__ void set_meeting(meeting *m, const gpu_call *c, uint32_t op) {
    m->g = (const gpu_group *)c->arg[GROUP_ARG];
    m->number = (uint32_t)((const int32_t *)c->counts)[GROUP_COUNT] + (uint32_t)c->arg[GROUP_ARG_PLACE];
    m->step = c->step;
    m->op = op;
}

static __device__ __forceinline__ matrix matrix_of(const gpu_view &v) {
    return {(uint8_t *)v.data, v.stride};
}

KERNEL(reduce_rows, GROUP_THREADS) {
    reduction r;
    (void)m;
    set_meeting(&r, c, GROUP_REDUCE);
    r.y = matrix_of(c->v[1]);
    r.residual = {NULL, 0};
    if (c->n_in > 1)
        r.residual = {(uint8_t *)c->v[2].data, c->v[2].shape[1] > 1 ? c->v[2].stride : 0};
    r.out = matrix_of(c->v[0]);
    r.width = (uint32_t)c->v[0].shape[1];
    r.n = (int64_t)rows_of(c, c->v) * r.width;
    reduce(r);
}

KERNEL(gather_shards, GROUP_THREADS) {
    const arg_gather_columns *a = (const arg_gather_columns *)c->arg;
    gathering r;
    (void)m;
    set_meeting(&r, c, GROUP_GATHER);
    r.y = matrix_of(c->v[1]);
    r.out = matrix_of(c->v[0]);
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
        volatile uint32_t *to = (volatile uint32_t *)group_place(g, q, g->rank, 0);
        for (uint32_t i = threadIdx.x; i < GROUP_PROVED; i += GROUP_THREADS)
            to[i] = GROUP_PROOF(g->rank, q, i);
    }
}
