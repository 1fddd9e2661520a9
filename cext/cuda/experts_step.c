/* experts_step.c: kernel tables of experts_step.cu: a mixture's experts in two launches, for steps of few tokens. */
#include "experts_step.h"
#include "check.h"
#include "family.h"
#include "tables.h"

enum { SUM_TOKENS = 512 };

static int chunks_of(const gpu_view *w) {
    return (w->shape[2] + CHUNK - 1) / CHUNK;
}

static int tiles_of(const gpu_view *w) {
    return (w->shape[1] + TILE_ROWS - 1) / TILE_ROWS;
}

static int whole(const gpu_view *v) {
    return v->data % 16 == 0 && v->stride % 16 == 0;
}

/* Checks of both ops: their stacks of weights, the logits with what may be added to them, and x. */
static const char *fault_of(const gpu_call *c, const gpu_traits *t, int stacks, const gpu_view *logits, int each) {
    const gpu_view *w = c->v + 2;
    if (t->arch < LEAST_ARCH)
        return "needs compute capability 8.0";
    for (int i = 0; i < stacks; i++)
        if (!(w[i].format & PACKED_FLAG) || !packed_bytes(w[i].format) || w[i].format != w->format)
            return "weights must be packed (E, N, K), of one format";
    if (c->v[0].shape[0] > STEP_TOKENS || logits->shape[1] > STEP_EXPERTS || each > STEP_CHOSEN)
        return "it is made for 16 tokens, 512 experts and 32 of a token, at most";
    return whole(c->v + 1) && w->shape[2] % 4 == 0 ? NULL : "x must have rows of whole groups of four numbers";
}

/* Tiles of a group, about one group per multiprocessor for `lists` lists of tiles. chunks: that a tile has. */
static int tiles_per(const gpu_call *c, const gpu_traits *t, int64_t lists, int chunks) {
    int tiles = tiles_of(c->v + 2), groups = (int)((t->units + lists - 1) / lists), per = (tiles + groups - 1) / groups;
    int room = STEP_TASKS / chunks;
    return per < room ? per : room > 1 ? room : 1;
}

static int gate_per(const gpu_call *c, const gpu_traits *t) {
    return tiles_per(c, t, (int64_t)c->v[0].shape[0] * c->v[0].shape[1], 2 * chunks_of(c->v + 2));
}

static step_room gate_room(const gpu_call *c, const gpu_traits *t) {
    int chunks = chunks_of(c->v + 2);
    return step_room_of(packed_bytes(c->v[2].format), 2 * chunks * gate_per(c, t), chunks, c->v[5].shape[1]);
}

static const char *check_gate(const gpu_call *c, const gpu_traits *t) {
    const char *fault = fault_of(c, t, 2, c->v + 5, c->v[0].shape[1]);
    if (!fault && c->v[4].data % 16)
        fault = "the norm's weights must begin at a whole group of four numbers";
    return fault || gate_room(c, t).bytes <= t->shared ? fault : "its rows are too long for shared memory";
}

static void grid_gate(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    int per = gate_per(c, t);
    *g = grid_of((tiles_of(c->v + 2) + per - 1) / per, (int64_t)c->v[0].shape[0] * c->v[0].shape[1], 1, STEP_THREADS,
                 (uint64_t)gate_room(c, t).bytes);
}

static int down_columns(const gpu_call *c) {
    return c->v[1].shape[1] * chunks_of(c->v + 2);
}

static int down_per(const gpu_call *c, const gpu_traits *t) {
    return tiles_per(c, t, c->v[0].shape[0], down_columns(c));
}

static step_room down_room(const gpu_call *c, const gpu_traits *t) {
    int columns = down_columns(c);
    return step_room_of(packed_bytes(c->v[2].format), columns * down_per(c, t), columns, c->v[3].shape[1]);
}

static const char *check_down(const gpu_call *c, const gpu_traits *t) {
    arg_expert_linear_sum a;
    const char *fault = fault_of(c, t, 1, c->v + 3, c->v[1].shape[1]);
    memcpy(&a, c->arg, sizeof a);
    if (!fault && a.norm == 2)
        fault = "it does not have SparseMixer's weights";
    return fault || down_room(c, t).bytes <= t->shared ? fault : "its rows are too long for shared memory";
}

static void grid_down(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    int per = down_per(c, t);
    *g = grid_of((tiles_of(c->v + 2) + per - 1) / per, c->v[0].shape[0], 1, STEP_THREADS,
                 (uint64_t)down_room(c, t).bytes);
}

/* --- 2 to 16 tokens: groups of an expert */

static uint32_t grouped(const gpu_call *c, const gpu_traits *t, int64_t pairs) {
    int tiles = tiles_of(c->v + 2), most = parts(tiles, EXPERT_WAVES);
    int64_t groups =
        3 * (int64_t)t->units / pairs; /* two on a multiprocessor, two thirds of the pairs first of their expert */
    return (uint32_t)(groups < 1 ? 1 : groups < most ? groups : most);
}

static step_group_room group_room(const gpu_call *c) {
    return step_group_room_of(packed_bytes(c->v[2].format), chunks_of(c->v + 2));
}

static const char *several(const gpu_call *c, const gpu_traits *t, int each) {
    if (c->v[0].shape[0] < 2 || (int64_t)each * c->v[0].shape[0] > STEP_TOKENS * STEP_CHOSEN)
        return "it is made for 2 to 16 tokens";
    return group_room(c).bytes + (int)sizeof(int) * (STEP_TOKENS * STEP_CHOSEN + STEP_TOKENS) <= t->shared
               ? NULL
               : "its rows are too long for shared memory";
}

static const char *check_grouped_gate(const gpu_call *c, const gpu_traits *t) {
    const char *fault = check_gate(c, t);
    return fault ? fault : several(c, t, c->v[0].shape[1]);
}

static const char *check_grouped_down(const gpu_call *c, const gpu_traits *t) {
    const char *fault = check_down(c, t);
    return fault ? fault : several(c, t, c->v[1].shape[1]);
}

static void grid_grouped_gate(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    int64_t pairs = (int64_t)c->v[0].shape[0] * c->v[0].shape[1];
    *g = grid_of(grouped(c, t, pairs), pairs, 1, STEP_THREADS, (uint64_t)group_room(c).bytes);
}

static void grid_grouped_down(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    int64_t pairs = (int64_t)c->v[0].shape[0] * c->v[1].shape[1];
    *g = grid_of(grouped(c, t, pairs), pairs, 1, STEP_THREADS, (uint64_t)group_room(c).bytes);
}

static void grid_grouped_sum(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    (void)t;
    *g = grid_of(parts(c->v[0].shape[1], STEP_THREADS), c->v[0].shape[0], 1, STEP_THREADS, 0);
}

static uint64_t scratch_grouped(const gpu_call *c, const gpu_traits *t) {
    (void)t;
    return 4 * (uint64_t)c->v[0].shape[0] * c->v[1].shape[1] * c->v[0].shape[1];
}

/* --- top_experts of any number of tokens */

static const char *check_top_rows(const gpu_call *c, const gpu_traits *t) {
    arg_top_experts a;
    memcpy(&a, c->arg, sizeof a);
    if (t->arch < LEAST_ARCH)
        return "needs compute capability 8.0";
    return a.groups == 1 && c->v[1].shape[1] <= STEP_EXPERTS && a.k <= STEP_CHOSEN
               ? NULL
               : "it takes 512 experts without groups, and 32 of a token, at most";
}

static void grid_top_rows(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    (void)t;
    *g = grid_of(c->v[0].shape[0], 1, 1, STEP_THREADS, 0);
}

static const char *check_sum_rows(const gpu_call *c, const gpu_traits *t) {
    arg_expert_sum_add a;
    memcpy(&a, c->arg, sizeof a);
    if (t->arch < LEAST_ARCH)
        return "needs compute capability 8.0";
    if (a.norm == 2 || c->v[1].shape[1] > STEP_CHOSEN || c->v[0].shape[0] > SUM_TOKENS)
        return "it takes 32 experts of a token and 512 tokens, at most, and does not have SparseMixer's weights";
    return c->v[0].shape[1] % 4 == 0 && whole(c->v) && whole(c->v + 1) && whole(c->v + 4)
               ? NULL
               : "rows must be whole groups of four numbers";
}

static void grid_sum_rows(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    *g = grid_of(parts(c->v[0].shape[1], 4 * STEP_THREADS), c->v[0].shape[0], 1,
                 threads_for(t, c->v[0].shape[1] / 4, STEP_THREADS), 0);
}

const gpu_kernel cuda_expert_step_kernels[] = {
    {.op = "expert_sum_add", .check = check_sum_rows, .launch = {{"expert_sum_rows", grid_sum_rows, 1}}},
    {.op = "norm_expert_swiglu",
     .check = check_grouped_gate,
     .format_of = 2,
     .launch = {{"expert_grouped_gate", grid_grouped_gate, 1}}},
    {.op = "expert_linear_sum",
     .check = check_grouped_down,
     .scratch = scratch_grouped,
     .format_of = 2,
     .launch = {{"expert_grouped_down", grid_grouped_down, 1}, {"expert_grouped_sum", grid_grouped_sum, 1, 1}}},
    {.op = "top_experts", .check = check_top_rows, .launch = {{"top_experts_rows", grid_top_rows, 1}}},
    {.op = "norm_expert_swiglu", .check = check_gate, .format_of = 2, .launch = {{"norm_expert_swiglu", grid_gate, 1}}},
    {.op = "expert_linear_sum", .check = check_down, .format_of = 2, .launch = {{"expert_linear_sum", grid_down, 1}}},
    {0},
};
