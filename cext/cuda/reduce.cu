/* reduce.cu: the kernels of collectives: reduce_add and gather_columns, see reduce.cuh, and those of sequence parallelism, see
 * sequence_parallel.cuh. A vendor's library may add up long messages: round_rows writes what it reads, and finish_rows reads the sum. Sums of
 * tiles that products pushed are tile_push.cuh's.
 */
#include "reduce.cuh"
#include "sequence_parallel.cuh"
#include "tile_push.cuh"
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

/* rows: the view of all rows, own: of this member's. */
static __device__ __forceinline__ void set_divided(divided *d, const gpu_call *c, uint32_t op, const gpu_view &rows,
                                                   const gpu_view &own) {
    set_meeting(d, c, op);
    d->rows = matrix_of(rows);
    d->own = matrix_of(own);
    d->tokens = rows_of(c, &rows);
    d->width = (uint32_t)rows.shape[1];
    d->each = d->width < GROUP_PART ? (int32_t)(GROUP_PART / d->width) : 1;
    come(*d);
}

static __device__ __forceinline__ bool is_exact(const gpu_group *g) {
    return g->parts_least == UINT64_MAX;
}

KERNEL(scatter_rows, GROUP_THREADS) {
    scattering r;
    (void)m;
    set_divided(&r, c, GROUP_SCATTER, c->v[1], c->v[0]);
    r.residual = {NULL, 0};
    r.whole = 0;
    if (c->n_in > 1) {
        r.residual = matrix_of(c->v[2]);
        r.whole = c->v[2].count == c->v[1].count;
    }
    if (is_exact(r.g))
        scatter_sums<WIRE_F32>(r);
    else
        scatter_sums<WIRE_BF16>(r);
}

KERNEL(gather_own, GROUP_THREADS) {
    const arg_all_gather *a = (const arg_all_gather *)c->arg;
    divided r;
    (void)m;
    set_divided(&r, c, GROUP_ALL_GATHER, c->v[0], c->v[1]);
    if (!a->rounds || is_exact(r.g))
        gather_chunks<WIRE_F32>(r, plain_rows<WIRE_F32>());
    else
        gather_chunks<WIRE_BF16>(r, plain_rows<WIRE_BF16>());
}

template <int MOST> static __device__ __forceinline__ void gather_normed(const gpu_call *c) {
    const arg_norm_all_gather *a = (const arg_norm_all_gather *)c->arg;
    const float *w = (const float *)c->v[2].data;
    divided r;
    set_divided(&r, c, GROUP_ALL_GATHER, c->v[0], c->v[1]);
    if (!a->rounds || is_exact(r.g))
        gather_chunks<WIRE_F32>(r, normed_rows<WIRE_F32, MOST>{w, a->eps});
    else
        gather_chunks<WIRE_BF16>(r, normed_rows<WIRE_BF16, MOST>{w, a->eps});
}

/* By the eighths of a row that a thread has. */
#define GATHER_NORMED(MOST)                                                                                            \
    KERNEL(gather_normed_##MOST, GROUP_THREADS) {                                                                      \
        (void)m;                                                                                                       \
        gather_normed<MOST>(c);                                                                                        \
    }
GATHER_NORMED(2)
GATHER_NORMED(4)
GATHER_NORMED(8)

/* Whether a piece of one member, or of all others (from: the number of members), has come; all lanes get the same answer. False: the
 * group is broken. */
static __device__ __forceinline__ bool piece_came(const meeting &r, const tile_sum &s, int64_t piece, uint32_t from) {
    const uint32_t q = threadIdx.x % 32;
    const uint64_t began = counts_time() ? now_ns() : 0;
    bool came = true;
    if (q < s.g->members && q != s.g->rank && (from == s.g->members || from == q)) {
        volatile uint32_t *at = piece_flag(s, s.g->rank, q, piece);
        group_wait w = {0, 0};
        while (came && *at != s.number)
            came = still_waits(r, &w, q);
        __threadfence_system(); /* what the flag stands for is read after it */
    }
    came = __all_sync(~0u, came);
    add_waited(r, began);
    return came;
}

/* Stores two numbers side by side of a row, with the residual. */
static __device__ __forceinline__ void end_two(const reduction &r, int row, int column, float2 sum) {
    if (r.residual.at) {
        const float2 more = *(const float2 *)((const float *)(r.residual.at + row * r.residual.stride) + column);
        sum = make_float2(sum.x + more.x, sum.y + more.y);
    }
    *(float2 *)((float *)(r.out.at + row * r.out.stride) + column) = sum;
}

/* The sum of a lane's sixteenth i of a piece: two columns of a row, of the row eight below, and of the next eight columns. */
template <int BN>
static __device__ __forceinline__ void end_eight(const reduction &r, int rows, int down, int64_t piece, int i,
                                                 const eight &sum) {
    const int tile = (int)(piece / PUSH_WAVES), lane = threadIdx.x % 32;
    const int row = tile % down * PUSH_ROWS + (int)(piece % PUSH_WAVES) * PUSH_WAVE_ROWS + lane / 4;
    const int column = tile / down * BN + 16 * i + 2 * (lane % 4);
#pragma unroll
    for (int k = 0; k < 4; k++)
        if (row + 8 * (k % 2) < rows && column + 8 * (k / 2) < (int)r.width)
            end_two(r, row + 8 * (k % 2), column + 8 * (k / 2), make_float2(sum.x[2 * k], sum.x[2 * k + 1]));
}

/* Adds up a wave's piece that has come; `spread`: and pushes the sum, rounded. */
template <int BN>
static __device__ __forceinline__ void sum_piece(const reduction &r, const tile_sum &s, int rows, int down,
                                                 int64_t piece, bool spread) {
#pragma unroll 4
    for (int i = 0; i < BN / 16; i++) {
        eight all;
        for (uint32_t q = 0; q < s.g->members; q++) {
            const uint64_t from = q == s.g->rank ? s.g->rounded : pushed_at(s, s.g->rank, q);
            const eight theirs(__ldcg((const uint4 *)(from + piece_at<BN>(piece, i))));
            if (q)
                all.add(theirs);
            else
                all = theirs;
        }
        if (spread) {
            const uint4 x = all.packed();
            for (uint32_t k = 1; k < s.g->members; k++)
                *(uint4 *)(pushed_at(s, next_member(s.g, k), s.g->rank) + piece_at<BN>(piece, i)) = x;
            all = eight(x);
        }
        end_eight<BN>(r, rows, down, piece, i, all);
    }
}

/* Each wave goes through its pieces. Of more than two members, first through those of the member's own tiles, which wait for products
 * alone. All groups are on the device at once. */
template <int BN> static __device__ __forceinline__ void sum_tiles_of(const gpu_call *c, int rows) {
    const int wave = threadIdx.x / 32, down = (rows + PUSH_ROWS - 1) / PUSH_ROWS;
    const tile_sum s = tile_sum_of(*c);
    const uint32_t members = s.g->members;
    const bool spread = members > 2;
    int64_t summed = -1;
    reduction r;
    set_reduction(&r, c);
    const int tiles = down * (((int)r.width + BN - 1) / BN);
    come(r);
    if (!rows) { /* the members hear each other, as in a sum of nothing */
        small_message<WIRE_F32>(r);
        return;
    }
    for (int n = blockIdx.x, tile; (tile = spread ? n * (int)members + (int)s.g->rank : n) < tiles; n += gridDim.x) {
        const int64_t piece = (int64_t)tile * PUSH_WAVES + wave;
        if (!piece_came(r, s, piece, members))
            return;
        if (summed >= 0)
            flag_piece(s, summed, true);
        sum_piece<BN>(r, s, rows, down, piece, spread);
        summed = spread ? piece : -1;
    }
    if (summed >= 0)
        flag_piece(s, summed, true);
    for (int tile = blockIdx.x; spread && tile < tiles; tile += gridDim.x) {
        const int64_t piece = (int64_t)tile * PUSH_WAVES + wave;
        const uint32_t owner = (uint32_t)tile % members;
        if (owner == s.g->rank)
            continue;
        if (!piece_came(r, s, piece, owner))
            return;
#pragma unroll 4
        for (int i = 0; i < BN / 16; i++)
            end_eight<BN>(r, rows, down, piece, i,
                          eight(__ldcg((const uint4 *)(pushed_at(s, s.g->rank, owner) + piece_at<BN>(piece, i)))));
    }
}

#define SUM_TILES(name, BN)                                                                                            \
    extern "C" __global__ void __launch_bounds__(GROUP_THREADS, GROUP_TILE_GROUPS)                                     \
        name(const __grid_constant__ gpu_call call) {                                                                  \
        AWAIT_BEFORE();                                                                                                \
        sum_tiles_of<BN>(&call, rows_of(&call, call.v));                                                               \
    }
SUM_TILES(sum_tiles_256, 256)
SUM_TILES(sum_tiles_128, 128)

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
