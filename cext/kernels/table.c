/* table.c: kernel table of the portable kernels: the op, check and grid of each. The host has checked all views against their
 * buffers; a check here gives NULL, or one line on what it cannot do beyond the op's rules (shapes.h). Kernels check a step's values on the device.
 */
#include "table.h"

#include "check.h"
#include "check_latent.h"
#include "check_recurrent.h"
#include "check_sample.h"
#include "check_tokens.h"
#include "modes.h"

/* --- rows and elementwise */

/* Weights from the second input on, in the order of the file. */
static const char *check_weights(const gpu_call *c, uint32_t n) {
    if (c->v[1].format != F32)
        return "activations must be f32";
    for (uint32_t i = 2; i < 2 + n; i++)
        if (!block_of(c->v[i].format))
            return "weights must be in the file's order, in a format that can be unpacked";
    return NULL;
}

static const char *check_get_rows(const gpu_call *c, const gpu_traits *t) {
    (void)t;
    return block_of(c->v[1].format) ? NULL : "the weight must be in the file's order, in a format that can be unpacked";
}

static const char *check_gather(const gpu_call *c, const gpu_traits *t) {
    (void)t;
    return c->v[0].format != HAL_FORMAT_I8 ? NULL : "rows of bytes are not copied";
}

static void grid_rows(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    *g = grid_of(c->v[0].shape[0], 1, 1, threads_for(t, width(c->v) / 4, THREADS), 0);
}

static void grid_numbers(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    uint32_t threads = threads_for(t, width(c->v), THREADS);
    *g = grid_of(parts(width(c->v), threads), c->v[0].shape[0], 1, threads, 0);
}

/* x is (T, D) or (T, H, D). */
static const char *check_norm(const gpu_call *c, const gpu_traits *t) {
    int64_t d = c->v[2].shape[0];
    return width(c->v) == d || c->v[0].shape[2] == d ? few_rows(c, t) : "x must be (T, D) or (T, H, D)";
}

static void grid_norm(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    int64_t d = c->v[2].shape[0];
    uint32_t threads = threads_for(t, d / 4, THREADS);
    *g = grid_of(width(c->v) / d, c->v[0].shape[0], 1, threads, 4 * (uint64_t)(threads / (uint32_t)t->wave));
}

static const char *check_hadamard(const gpu_call *c, const gpu_traits *t) {
    return 4 * c->v[0].shape[2] <= t->shared ? few_rows(c, t) : "a head does not fit into the memory of a group";
}

static void grid_hadamard(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    int d = c->v[0].shape[2];
    *g = grid_of(c->v[0].shape[1], c->v[0].shape[0], 1, threads_for(t, d / 2, THREADS), 4 * (uint64_t)d);
}

/* --- heads */

static void grid_scale(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    uint32_t threads = threads_for(t, c->v[0].shape[0], THREADS);
    *g = grid_of(parts(c->v[0].shape[0], threads), 1, 1, threads, 0);
}

/* --- products */

static const char *check_linear(const gpu_call *c, const gpu_traits *t) {
    (void)t;
    return check_weights(c, c->n_in - 1);
}

static const char *check_linear_add(const gpu_call *c, const gpu_traits *t) {
    (void)t;
    return check_weights(c, 1);
}

static const char *check_linear_swiglu(const gpu_call *c, const gpu_traits *t) {
    (void)t;
    return check_weights(c, 2);
}

static void grid_linear(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    *g = grid_of(parts(c->v[0].shape[1], WAVES), parts(c->v[0].shape[0], LINEAR_COLUMNS), 1,
                 (uint32_t)(WAVES * t->wave), 0);
}

/* --- experts */

static const char *check_top(const gpu_call *c, const gpu_traits *t) {
    arg_top_experts arg;
    (void)t;
    memcpy(&arg, c->arg, sizeof arg);
    return arg.groups <= EXPERT_GROUPS_MOST ? NULL : "groups must be no more than 32";
}

static void grid_tokens(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    *g = grid_of(parts(c->v[0].shape[0], WAVES), 1, 1, (uint32_t)(WAVES * t->wave), 0);
}

/* expert_linear, head_linear: one weight; expert_swiglu: a gate and an up, before the ids. */
static const char *check_experts(const gpu_call *c, const gpu_traits *t) {
    const char *fault = few_rows(c, t);
    if (fault || c->v[0].shape[1] > MOST_TOKENS)
        return fault ? fault : "experts of a token, or heads, must be no more than 65535";
    return check_weights(c, c->n_in == 4 ? 2 : 1);
}

static void grid_experts(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    const gpu_view *y = c->v;
    *g = grid_of(parts(y->shape[2], WAVES), y->shape[0], y->shape[1], (uint32_t)(WAVES * t->wave), 0);
}

#define ENTRY(op, kernel, check, grid, mode)                                                                           \
    {                                                                                                                  \
        op, check, NULL, mode, 0, {{kernel, grid, 0}}                                                                  \
    }

const gpu_kernel gpu_portable_kernels[] = {
    ENTRY("get_rows", "get_rows", check_get_rows, grid_rows, 0),
    ENTRY("get_rows_part", "get_rows_part", check_get_rows, grid_rows, 0),
    ENTRY("gather_rows", "gather_rows", check_gather, grid_rows, 0),
    ENTRY("gather", "gather", few_rows, grid_numbers, 0),
    ENTRY("swiglu", "swiglu", few_rows, grid_numbers, 0),
    ENTRY("geglu", "geglu", few_rows, grid_numbers, 0),
    ENTRY("swiglu_limited", "swiglu_limited", few_rows, grid_numbers, 0),
    ENTRY("gelu", "unary", few_rows, grid_numbers, UNARY_GELU),
    ENTRY("soft_cap", "unary", few_rows, grid_numbers, UNARY_CAP),
    ENTRY("sigmoid", "unary", few_rows, grid_numbers, UNARY_SIGMOID),
    ENTRY("softplus", "unary", few_rows, grid_numbers, UNARY_SOFTPLUS),
    ENTRY("add", "pair", few_rows, grid_numbers, PAIR_ADD),
    ENTRY("mul", "pair", few_rows, grid_numbers, PAIR_MUL),
    ENTRY("rms_norm", "rms_norm", check_norm, grid_norm, 0),
    ENTRY("rms_norm_add", "rms_norm", check_norm, grid_norm, 0),
    ENTRY("layer_norm", "layer_norm", check_norm, grid_norm, 0),
    ENTRY("pad", "pad", few_rows, grid_numbers, 0),
    ENTRY("take", "take", few_rows, grid_numbers, 0),
    ENTRY("concat", "concat", few_rows, grid_numbers, 0),
    ENTRY("hadamard", "hadamard", check_hadamard, grid_hadamard, 0),
    ENTRY("linear", "linear", check_linear, grid_linear, LINEAR_PLAIN),
    ENTRY("linear_add", "linear", check_linear_add, grid_linear, LINEAR_ADD),
    ENTRY("linear_swiglu", "linear", check_linear_swiglu, grid_linear, LINEAR_GATED),
    ENTRY("top_experts", "top_experts", check_top, grid_tokens, 0),
    ENTRY("expert_weights", "expert_weights", any_shape, grid_tokens, 0),
    ENTRY("expert_linear", "expert_linear", check_experts, grid_experts, EXPERTS_ONE),
    ENTRY("expert_swiglu", "expert_linear", check_experts, grid_experts, EXPERTS_GATED),
    ENTRY("head_linear", "expert_linear", check_experts, grid_experts, EXPERTS_BY_HEAD),
    ENTRY("expert_add", "expert_add", few_rows, grid_numbers, 0),
    ENTRY("expert_gate_limited", "expert_gate_limited", few_rows, grid_numbers, 0),
    ENTRY("expert_sum", "expert_sum", few_rows, grid_numbers, 0),
    ENTRY("rope_table", "rope_table", few_rows, grid_rope_table, 0),
    ENTRY("position_scale", "position_scale", any_shape, grid_scale, 0),
    ENTRY("rope", "rope", few_rows, grid_numbers, 0),
    ENTRY("kv_write", "kv_write", check_kv_write, grid_kv_write, KV_PLAIN),
    ENTRY("kv_write_part", "kv_write", check_kv_write, grid_kv_write, KV_PART),
    ENTRY("rope_kv_write", "kv_write", check_kv_write, grid_kv_write, KV_ROPE),
    ENTRY("rope_qkv_write", "rope_qkv_write", few_rows, grid_rope_qkv_write, 0),
    ENTRY("attention", "attention", check_attention, grid_attention, 0),
    ENTRY("attention_parts", "attention_parts", check_parts, grid_parts, 0),
    ENTRY("merge_parts", "merge_parts", few_rows, grid_numbers, 0),
    ENTRY("absorbed_attention", "absorbed_attention", check_latents, grid_latents, 0),
    ENTRY("sparse_attention", "sparse_attention", check_latents, grid_latents, 0),
    {"expanded_attention", check_expanded, scratch_expanded, 0, 0, {{"expanded_attention", grid_expanded, 0}}},
    {"index_positions",
     check_index_apart,
     scratch_index,
     0,
     0,
     {{"index_scores", grid_index_scores, 0}, {"index_top", grid_index, 0}}},
    {"index_positions", check_index, scratch_index, 0, 0, {{"index_positions", grid_index, 0}}},
    ENTRY("short_conv", "short_conv", check_conv, grid_conv, 0),
    ENTRY("conv_write", "conv_write", check_conv, grid_conv, 0),
    ENTRY("gated_scan", "gated_scan", check_scan, grid_scan, 0),
    ENTRY("scan_write", "scan_write", check_scan_write, grid_scan_write, 0),
    ENTRY("tokens_put", "tokens_put", any_shape, grid_one, 0),
    ENTRY("tokens_get", "tokens_get", any_shape, grid_one, 0),
    {"sample",
     check_rows,
     scratch_sample,
     SAMPLE_TOKEN,
     0,
     {{"sample_best", grid_best, 0}, {"sample", grid_sample, 0}}},
    {"sample_masked",
     check_rows,
     scratch_sample,
     SAMPLE_MASKED,
     0,
     {{"sample_best", grid_best, 0}, {"sample", grid_sample, 0}}},
    {"logprobs",
     check_rows,
     scratch_logprobs,
     0,
     0,
     {{"logprobs_best", grid_best, 0}, {"logprobs_parts", grid_report, 0}, {"logprobs", grid_sample, 0}}},
    {0},
};

const gpu_kernel gpu_portable_steps[] = {
    {"rope_qkv_attention",
     check_attention_step,
     scratch_attention_step,
     0,
     0,
     {{"rope_qkv_attention", grid_attention_step, 0}}},
    {0},
};
