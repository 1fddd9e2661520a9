/* states.c: kernel tables of states.cu: layers with a recurrent state. */
#include "check.h"
#include "family.h"
#include "states_shape.h"
#include "tables.h"

static int rows_are_whole(const gpu_view *v) {
    return v->data % 16 == 0 && v->stride % 16 == 0;
}

static arg_gated_scan_write arguments(const gpu_call *c) {
    arg_gated_scan_write a;
    memcpy(&a, c->arg, sizeof a);
    return a;
}

/* Checks common to all; keys: the most N. */
static const char *check_states(const gpu_call *c, const gpu_traits *t, int32_t keys) {
    const gpu_view *state = c->v + 6;
    if (t->arch < LEAST_ARCH)
        return "it needs compute capability 8.0";
    if (state->shape[2] > keys || state->shape[3] % 4)
        return "heads must have up to 128 keys (256 in calls of few tokens), and values in whole groups of four "
               "numbers";
    for (int i = 0; i <= 6; i += 3)
        if (!rows_are_whole(c->v + i))
            return "rows must begin at whole groups of four numbers";
    return c->v[3].shape[0] <= STATE_MOST ? NULL : "it takes 8,192 tokens";
}

static const char *check_few(const gpu_call *c, const gpu_traits *t) {
    return c->v[3].shape[0] <= STATE_FEW ? check_states(c, t, STATE_KEYS) : "it is made for fewer tokens";
}

static const char *able_few(const gpu_call *c, const gpu_traits *t) {
    return check_states(c, t, STATE_KEYS);
}

static const char *check_wide(const gpu_call *c, const gpu_traits *t) {
    return check_states(c, t, STATE_KEYS_BY_TOKEN);
}

static const char *check_chunks(const gpu_call *c, const gpu_traits *t, int delta) {
    if (arguments(c).delta != delta)
        return "it is made for the other recurrence";
    if (CHUNK_SHARED > t->shared)
        return "it needs the shared memory of a group of sm_90";
    if (c->v[2].shape[2] % 8 || !rows_are_whole(c->v + 1) || !rows_are_whole(c->v + 2))
        return "keys must be whole groups of eight numbers, and their rows begin at groups of four";
    return check_states(c, t, STATE_KEYS);
}

static const char *check_scan_chunks(const gpu_call *c, const gpu_traits *t) {
    return check_chunks(c, t, 0);
}

static const char *check_delta_chunks(const gpu_call *c, const gpu_traits *t) {
    return check_chunks(c, t, 1);
}

static uint64_t scratch_chunks(const gpu_call *c, const gpu_traits *t) {
    (void)t;
    return 4 * state_scratch_of(c, arguments(c).delta).all;
}

static void grid_each(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    (void)t;
    *g = grid_of((int64_t)c->v[6].shape[1] * state_slices(c->v + 6), c->v[3].shape[0], 1, TOKEN_THREADS, 0);
}

static void grid_short(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    grid_each(c, t, g);
    if (g->groups[1] > TOKEN_STARTS)
        g->groups[1] = TOKEN_STARTS;
}

static void grid_matrices(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    const int32_t groups = c->v[2].shape[1], each = c->v[3].shape[1] / groups;
    (void)t;
    *g = grid_of((int64_t)groups * parts(each, MATRIX_HEADS), parts(c->v[3].shape[0], STATE_CHUNK), 1, MATRIX_THREADS,
                 MATRIX_SHARED);
}

static void grid_chunks(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    (void)t;
    *g = grid_of((int64_t)c->v[6].shape[1] * state_slices(c->v + 6), 1, 1, CHUNK_THREADS, CHUNK_SHARED);
}

#define CHUNKS(checks, kernel)                                                                                         \
    {                                                                                                                  \
        .op = "gated_scan_write", .check = checks, .scratch = scratch_chunks,                                          \
        .launch = {{"scan_short", grid_short, 1}, {"scan_matrices", grid_matrices, 1}, {kernel, grid_chunks, 1}}       \
    }

const gpu_kernel cuda_state_kernels[] = {
    {.op = "gated_scan_write", .check = check_few, .able = able_few, .launch = {{"scan_each", grid_each, 1}}},
    CHUNKS(check_scan_chunks, "scan_chunks"),
    CHUNKS(check_delta_chunks, "scan_chunks_delta"),
    {.op = "gated_scan_write", .check = check_wide, .launch = {{"scan_each_wide", grid_each, 1}}},
    {0},
};
