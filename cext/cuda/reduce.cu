/* reduce.cu: the kernels of collectives, reduce_add and gather_columns; see reduce.cuh. A vendor's library may add up long messages:
 * round_rows writes what it reads, and finish_rows reads the sum.
 */
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

static __device__ __forceinline__ void set_reduction(reduction *r, const gpu_call *c) {
    set_meeting(r, c, GROUP_REDUCE);
    r->y = matrix_of(c->v[1]);
    r->residual = {NULL, 0};
    if (c->n_in > 1)
        r->residual = {(uint8_t *)c->v[2].data, c->v[2].shape[1] > 1 ? c->v[2].stride : 0};
    r->out = matrix_of(c->v[0]);
    r->width = (uint32_t)c->v[0].shape[1];
    r->n = (int64_t)rows_of(c, c->v) * r->width;
}

KERNEL(reduce_rows, GROUP_THREADS) {
    reduction r;
    (void)m;
    set_reduction(&r, c);
    reduce(r);
}

/* What the library adds up: y as bfloat16. */
KERNEL(round_rows, GROUP_THREADS) {
    typedef numbers<WIRE_BF16> four;
    const int64_t first = blockIdx.x * (int64_t)GROUP_THREADS + threadIdx.x;
    reduction r;
    (void)m;
    set_reduction(&r, c);
    begin_sum(r);
    for (int64_t word = first; word < r.n / four::COUNT; word += (int64_t)gridDim.x * GROUP_THREADS)
        ((payload *)r.g->rounded)[word] = own_of<WIRE_BF16>(r, word).packed();
}

/* The library's sum, with the residual. */
KERNEL(finish_rows, GROUP_THREADS) {
    typedef numbers<WIRE_BF16> four;
    const int64_t first = blockIdx.x * (int64_t)GROUP_THREADS + threadIdx.x;
    reduction r;
    (void)m;
    set_reduction(&r, c);
    end_sum(r);
    for (int64_t word = first; word < r.n / four::COUNT; word += (int64_t)gridDim.x * GROUP_THREADS)
        finish(r, word, four(((const payload *)r.g->rounded)[word]));
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
