/* table.c: kernel table of the portable kernels: the op, check and grid of each. The host has checked all views against their
 * buffers; a check here gives NULL, or one line on what the kernel cannot do. Kernels check a step's values on the device.
 */
#include "table.h"

#include "check.h"
#include "check_recurrent.h"
#include "check_sample.h"
#include "check_tokens.h"
#include "modes.h"

/* --- rows and elementwise */

static const char *check_get_rows(const gpu_call *c, const gpu_traits *t) {
    const gpu_view *y = c->v, *w = c->v + 1;
    (void)t;
    if (c->n_in != 2 || !block_of(w->format))
        return "it takes a weight in the file's order, in a format that can be unpacked, and ids";
    if (y->format != F32 || !is_list(c->v + 2, I32, y->shape[0]) || width(y) != w->shape[1] || width(w) != w->shape[1])
        return "ids must be i32 (T) and the output f32 (T, D)";
    return NULL;
}

static const char *check_gather(const gpu_call *c, const gpu_traits *t) {
    (void)t;
    if (c->n_in != 2 || !is_list(c->v + 2, I32, c->v[0].shape[0]))
        return "it takes x and i32 rows, as many as the output's";
    return c->v[0].format == c->v[1].format && same_rows(c->v, c->v + 1) && c->v[0].format != HAL_FORMAT_I8
               ? NULL
               : "x and output must have rows of one shape and format";
}

static void grid_rows(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    *g = grid_of(c->v[0].shape[0], 1, 1, threads_for(t, width(c->v) / 4, THREADS), 0);
}

static int all_f32(const gpu_call *c) {
    for (uint32_t i = 0; i <= c->n_in; i++)
        if (c->v[i].format != F32)
            return 0;
    return 1;
}

static const char *check_swiglu(const gpu_call *c, const gpu_traits *t) {
    (void)t;
    return c->n_in == 2 && all_f32(c) && same_shape(c->v, c->v + 1) && same_shape(c->v, c->v + 2) &&
                   c->v[0].shape[0] <= MOST_TOKENS
               ? NULL
               : "it takes a gate and an up, and all must be f32 of one shape";
}

static const char *check_unary(const gpu_call *c, const gpu_traits *t) {
    (void)t;
    return c->n_in == 1 && all_f32(c) && same_shape(c->v, c->v + 1) && c->v[0].shape[0] <= MOST_TOKENS
               ? NULL
               : "it takes x, and gives its shape, all f32";
}

static const char *check_gelu(const gpu_call *c, const gpu_traits *t) {
    arg_gelu arg;
    memcpy(&arg, c->arg, sizeof arg);
    return arg.style == 0 || arg.style == 1 ? check_unary(c, t) : "style must be 0 or 1";
}

static const char *check_cap(const gpu_call *c, const gpu_traits *t) {
    arg_soft_cap arg;
    memcpy(&arg, c->arg, sizeof arg);
    return arg.cap > 0 ? check_unary(c, t) : "cap must be above 0";
}

static const char *check_pair(const gpu_call *c, const gpu_traits *t) {
    const gpu_view *a = c->v + 1, *b = c->v + 2;
    (void)t;
    if (c->n_in != 2 || !all_f32(c) || !same_shape(c->v, a) || a->shape[0] > MOST_TOKENS)
        return "it takes two f32 inputs, and the output has the first one's shape";
    for (int i = 0; i < 4; i++)
        if (b->shape[i] != 1 && b->shape[i] != a->shape[i])
            return "the second input must broadcast to the first's shape";
    return NULL;
}

static void grid_numbers(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    uint32_t threads = threads_for(t, width(c->v), THREADS);
    *g = grid_of(parts(width(c->v), threads), c->v[0].shape[0], 1, threads, 0);
}

static const char *check_norm(const gpu_call *c, const gpu_traits *t) {
    const gpu_view *w = c->v + 2;
    int64_t d = w->shape[0];
    (void)t;
    if (c->n_in != 2 || !all_f32(c) || !same_shape(c->v, c->v + 1) || c->v[0].shape[0] > MOST_TOKENS)
        return "it takes x and w, all f32, and gives x's shape";
    return is_list(w, F32, d) && w->stride == 4 && (width(c->v) == d || c->v[0].shape[2] == d)
               ? NULL
               : "w must have the length of x's last dimension";
}

static const char *check_norm_add(const gpu_call *c, const gpu_traits *t) {
    gpu_call plain = *c;
    plain.n_in = 2;
    return c->n_in == 3 && c->v[3].format == F32 && same_shape(c->v, c->v + 3)
               ? check_norm(&plain, t)
               : "it takes x, w and a residual of x's shape";
}

static const char *check_geglu(const gpu_call *c, const gpu_traits *t) {
    arg_geglu arg;
    memcpy(&arg, c->arg, sizeof arg);
    return arg.style == 0 || arg.style == 1 ? check_swiglu(c, t) : "style must be 0 or 1";
}

static const char *check_layer_norm(const gpu_call *c, const gpu_traits *t) {
    gpu_call plain = *c;
    plain.n_in = 2;
    if (c->n_in == 3 && (!is_list(c->v + 3, F32, c->v[2].shape[0]) || c->v[3].stride != 4))
        return "the bias must be f32 and have w's length";
    return c->n_in == 2 || c->n_in == 3 ? check_norm(&plain, t) : "it takes x, w and maybe a bias";
}

static void grid_norm(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    int64_t d = c->v[2].shape[0];
    *g = grid_of(width(c->v) / d, c->v[0].shape[0], 1, threads_for(t, d / 4, THREADS), THREADS / 8);
}

static const char *check_hadamard(const gpu_call *c, const gpu_traits *t) {
    if (c->n_in != 1 || !all_f32(c) || !same_shape(c->v, c->v + 1) || c->v[0].shape[0] > MOST_TOKENS)
        return "x and output must be f32 (T, H, D)";
    return 4 * c->v[0].shape[2] <= t->shared ? NULL : "a head does not fit into the memory of a group";
}

static void grid_hadamard(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    int d = c->v[0].shape[2];
    *g = grid_of(c->v[0].shape[1], c->v[0].shape[0], 1, threads_for(t, d / 2, THREADS), 4 * (uint64_t)d);
}

/* --- heads */

static const char *check_take(const gpu_call *c, const gpu_traits *t) {
    const gpu_view *y = c->v, *x = c->v + 1;
    arg_take arg;
    (void)t;
    memcpy(&arg, c->arg, sizeof arg);
    if (c->n_in != 1 || !all_f32(c) || x->shape[0] != y->shape[0] || x->shape[1] != y->shape[1] ||
        y->shape[0] > MOST_TOKENS)
        return "it takes x f32 (T, H, D) and gives f32 (T, H, size)";
    return arg.start >= 0 && arg.size == y->shape[2] && arg.start <= x->shape[2] - arg.size
               ? NULL
               : "start and size must lie within x's heads, and size be the output's width";
}

static const char *check_concat(const gpu_call *c, const gpu_traits *t) {
    const gpu_view *y = c->v, *a = c->v + 1, *b = c->v + 2;
    (void)t;
    if (c->n_in != 2 || !all_f32(c) || a->shape[0] != b->shape[0] || a->shape[0] != y->shape[0] ||
        y->shape[0] > MOST_TOKENS)
        return "it takes a f32 (T, H, A) and b f32 (T, H, B), and gives f32";
    if (a->shape[1] != y->shape[1] || (b->shape[1] != a->shape[1] && b->shape[1] != 1))
        return "a, b and output differ in heads";
    return (int64_t)a->shape[2] + b->shape[2] == y->shape[2] ? NULL : "the output must be as wide as both";
}

static void grid_scale(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    uint32_t threads = threads_for(t, c->v[0].shape[0], THREADS);
    *g = grid_of(parts(c->v[0].shape[0], threads), 1, 1, threads, 0);
}

/* --- products */

static int is_weight(const gpu_view *w, int64_t columns) {
    int block = block_of(w->format);
    return block && w->shape[1] == columns && width(w) == columns && columns % block == 0;
}

static const char *check_weights(const gpu_call *c, uint32_t n, int64_t columns) {
    const gpu_view *y = c->v, *x = c->v + 1;
    int64_t rows = 0;
    if (y->format != F32 || x->format != F32 || x->shape[0] != y->shape[0] || width(y) != y->shape[1])
        return "activations must be f32 (T, K) and the output f32 (T, N)";
    for (uint32_t i = 2; i < 2 + n; i++) {
        if (!is_weight(c->v + i, width(x)))
            return "weights must be (N, K) in the file's order, with x's K, in a format that can be unpacked";
        rows += c->v[i].shape[0];
    }
    return rows == columns ? NULL : "the output must be as wide as the weights have rows";
}

static const char *check_linear(const gpu_call *c, const gpu_traits *t) {
    (void)t;
    return c->n_in < 2 ? "it takes x and one weight or more" : check_weights(c, c->n_in - 1, c->v[0].shape[1]);
}

static const char *check_linear_add(const gpu_call *c, const gpu_traits *t) {
    (void)t;
    if (c->n_in != 3 || c->v[3].format != F32 || !same_shape(c->v, c->v + 3))
        return "it takes x, a weight, and a residual f32 with the output's shape";
    return check_weights(c, 1, c->v[0].shape[1]);
}

static const char *check_linear_swiglu(const gpu_call *c, const gpu_traits *t) {
    (void)t;
    if (c->n_in != 3 || c->v[2].shape[0] != c->v[3].shape[0])
        return "it takes x, a gate, and an up of its shape";
    return check_weights(c, 2, 2 * (int64_t)c->v[0].shape[1]);
}

static void grid_linear(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    *g = grid_of(parts(c->v[0].shape[1], WAVES), parts(c->v[0].shape[0], LINEAR_COLUMNS), 1,
                 (uint32_t)(WAVES * t->wave), 0);
}

/* --- experts */

static const char *check_top(const gpu_call *c, const gpu_traits *t) {
    const gpu_view *y = c->v, *x = c->v + 1;
    arg_top_experts arg;
    (void)t;
    memcpy(&arg, c->arg, sizeof arg);
    if (arg.groups < 1 || arg.groups > EXPERT_GROUPS_MOST || x->shape[1] % arg.groups || arg.kept < 1 ||
        arg.kept > arg.groups)
        return "groups must divide the experts and be no more than 32, and kept be 1 to groups";
    if (c->n_in == 2 && (!is_list(c->v + 2, F32, x->shape[1]) || c->v[2].stride != 4))
        return "the bias must be f32 (E)";
    if (c->n_in < 1 || c->n_in > 2 || x->format != F32 || y->format != I32 || x->shape[0] != y->shape[0])
        return "it takes logits f32 (T, E), and may take a bias, and gives i32 (T, k)";
    return arg.k == y->shape[1] && arg.k <= x->shape[1] ? NULL : "k must be the output's width and at most the logits'";
}

static const char *check_expert_weights(const gpu_call *c, const gpu_traits *t) {
    (void)t;
    return c->n_in == 2 && c->v[0].format == F32 && c->v[1].format == F32 && c->v[2].format == I32 &&
                   same_shape(c->v, c->v + 2) && c->v[0].shape[0] == c->v[1].shape[0]
               ? NULL
               : "it takes logits f32 (T, E) and ids i32 (T, k), and gives f32 (T, k)";
}

static void grid_tokens(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    *g = grid_of(parts(c->v[0].shape[0], WAVES), 1, 1, (uint32_t)(WAVES * t->wave), 0);
}

static const char *check_experts(const gpu_call *c, uint32_t n_weights) {
    const gpu_view *y = c->v, *x = c->v + 1, *ids = c->v + c->n_in;
    if (c->n_in != n_weights + 2)
        return "it takes x, one weight or a gate and an up, and ids";
    if (x->format != F32 || y->format != F32 || ids->format != I32 || ids->shape[0] != y->shape[0] ||
        x->shape[0] != y->shape[0] || ids->shape[1] != y->shape[1] || y->shape[0] > MOST_TOKENS ||
        y->shape[1] > MOST_TOKENS)
        return "x must be f32, ids i32 (T, k) and the output f32 (T, k, N)";
    for (uint32_t i = 2; i < 2 + n_weights; i++) {
        const gpu_view *w = c->v + i;
        int64_t k = w->shape[2];
        if (!block_of(w->format) || k % block_of(w->format) || w->shape[1] != y->shape[2] || k != c->v[2].shape[2] ||
            w->shape[0] != c->v[2].shape[0] || (width(x) != k && width(x) != k * y->shape[1]))
            return "weights must be (E, N, K) in the file's order, with x's K, in a format that can be unpacked";
    }
    return NULL;
}

static const char *check_expert_linear(const gpu_call *c, const gpu_traits *t) {
    (void)t;
    return check_experts(c, 1);
}

static const char *check_expert_swiglu(const gpu_call *c, const gpu_traits *t) {
    (void)t;
    return check_experts(c, 2);
}

static void grid_experts(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    const gpu_view *y = c->v;
    *g = grid_of(parts(y->shape[2], WAVES), y->shape[0], y->shape[1], (uint32_t)(WAVES * t->wave), 0);
}

static const char *check_head_linear(const gpu_call *c, const gpu_traits *t) {
    const gpu_view *y = c->v, *x = c->v + 1, *w = c->v + 2;
    (void)t;
    if (c->n_in != 2 || x->format != F32 || y->format != F32 || x->shape[0] != y->shape[0] ||
        x->shape[1] != y->shape[1] || y->shape[0] > MOST_TOKENS || y->shape[1] > MOST_TOKENS)
        return "it takes x f32 (T, H, K) and a weight (H, N, K), and gives f32 (T, H, N)";
    return block_of(w->format) && w->shape[2] % block_of(w->format) == 0 && w->shape[0] == y->shape[1] &&
                   w->shape[1] == y->shape[2] && w->shape[2] == x->shape[2]
               ? NULL
               : "the weight must be (H, N, K) in the file's order, with x's H and K, in a format that can be unpacked";
}

static const char *check_expert_add(const gpu_call *c, const gpu_traits *t) {
    const gpu_view *y = c->v, *b = c->v + 2, *ids = c->v + 3;
    (void)t;
    if (c->n_in != 3 || y->format != F32 || c->v[1].format != F32 || b->format != F32 || ids->format != I32 ||
        y->shape[0] > MOST_TOKENS)
        return "it takes y f32 (T, k, N), bias f32 (E, N) and ids i32 (T, k)";
    return same_shape(y, c->v + 1) && ids->shape[0] == y->shape[0] && ids->shape[1] == y->shape[1] &&
                   width(ids) == y->shape[1] && b->shape[1] == y->shape[2] && width(b) == b->shape[1]
               ? NULL
               : "y, bias, ids and output differ in tokens, experts or width";
}

static const char *check_gate_limited(const gpu_call *c, const gpu_traits *t) {
    gpu_call half = *c;
    if (c->n_in != 5 || c->v[3].format != F32 || !same_shape(c->v + 1, c->v + 3) || c->v[4].format != F32 ||
        !same_shape(c->v + 2, c->v + 4))
        return "it takes gate and up f32 (T, k, N), each with its bias f32 (E, N), and ids i32 (T, k)";
    half.n_in = 3;
    half.v[3] = c->v[5];
    return check_expert_add(&half, t);
}

static const char *check_numbers(const gpu_call *c, const gpu_traits *t) {
    const gpu_view *y = c->v, *ids = c->v + 1, *table = c->v + 2;
    (void)t;
    return c->n_in == 2 && (y->format == I32 || y->format == F32) && ids->format == I32 && table->format == y->format &&
                   same_shape(y, ids) && is_list(table, y->format, table->shape[0]) &&
                   table->stride == sizeof(int32_t) && y->shape[0] <= MOST_TOKENS
               ? NULL
               : "it takes ids i32 (T, k) and a table i32 or f32 (N), and gives (T, k) in the table's format";
}

static const char *check_expert_sum(const gpu_call *c, const gpu_traits *t) {
    const gpu_view *z = c->v, *y = c->v + 1, *w = c->v + 2;
    (void)t;
    return c->n_in == 2 && all_f32(c) && y->shape[0] == z->shape[0] && w->shape[0] == z->shape[0] &&
                   y->shape[1] == w->shape[1] && y->shape[2] == z->shape[1] && z->shape[0] <= MOST_TOKENS
               ? NULL
               : "it takes y f32 (T, k, N) and weights f32 (T, k), and gives f32 (T, N)";
}

#define ENTRY(op, kernel, check, grid, mode)                                                                           \
    {                                                                                                                  \
        op, check, NULL, mode, 0, {{kernel, grid, 0}}                                                                  \
    }

const gpu_kernel gpu_portable_kernels[] = {
    ENTRY("get_rows", "get_rows", check_get_rows, grid_rows, 0),
    ENTRY("gather_rows", "gather_rows", check_gather, grid_rows, 0),
    ENTRY("gather", "gather", check_numbers, grid_numbers, 0),
    ENTRY("swiglu", "swiglu", check_swiglu, grid_numbers, 0),
    ENTRY("geglu", "geglu", check_geglu, grid_numbers, 0),
    ENTRY("swiglu_limited", "swiglu_limited", check_swiglu, grid_numbers, 0),
    ENTRY("gelu", "unary", check_gelu, grid_numbers, UNARY_GELU),
    ENTRY("soft_cap", "unary", check_cap, grid_numbers, UNARY_CAP),
    ENTRY("sigmoid", "unary", check_unary, grid_numbers, UNARY_SIGMOID),
    ENTRY("softplus", "unary", check_unary, grid_numbers, UNARY_SOFTPLUS),
    ENTRY("add", "pair", check_pair, grid_numbers, PAIR_ADD),
    ENTRY("mul", "pair", check_pair, grid_numbers, PAIR_MUL),
    ENTRY("rms_norm", "rms_norm", check_norm, grid_norm, 0),
    ENTRY("rms_norm_add", "rms_norm", check_norm_add, grid_norm, 0),
    ENTRY("layer_norm", "layer_norm", check_layer_norm, grid_norm, 0),
    ENTRY("take", "take", check_take, grid_numbers, 0),
    ENTRY("concat", "concat", check_concat, grid_numbers, 0),
    ENTRY("hadamard", "hadamard", check_hadamard, grid_hadamard, 0),
    ENTRY("linear", "linear", check_linear, grid_linear, LINEAR_PLAIN),
    ENTRY("linear_add", "linear", check_linear_add, grid_linear, LINEAR_ADD),
    ENTRY("linear_swiglu", "linear", check_linear_swiglu, grid_linear, LINEAR_GATED),
    ENTRY("top_experts", "top_experts", check_top, grid_tokens, 0),
    ENTRY("expert_weights", "expert_weights", check_expert_weights, grid_tokens, 0),
    ENTRY("expert_linear", "expert_linear", check_expert_linear, grid_experts, EXPERTS_ONE),
    ENTRY("expert_swiglu", "expert_linear", check_expert_swiglu, grid_experts, EXPERTS_GATED),
    ENTRY("head_linear", "expert_linear", check_head_linear, grid_experts, EXPERTS_BY_HEAD),
    ENTRY("expert_add", "expert_add", check_expert_add, grid_numbers, 0),
    ENTRY("expert_gate_limited", "expert_gate_limited", check_gate_limited, grid_numbers, 0),
    ENTRY("expert_sum", "expert_sum", check_expert_sum, grid_numbers, 0),
    ENTRY("rope_table", "rope_table", check_rope_table, grid_rope_table, 0),
    ENTRY("position_scale", "position_scale", check_position_scale, grid_scale, 0),
    ENTRY("rope", "rope", check_rope, grid_numbers, 0),
    ENTRY("kv_write", "kv_write", check_kv_write, grid_kv_write, KV_PLAIN),
    ENTRY("rope_kv_write", "kv_write", check_rope_kv_write, grid_kv_write, KV_ROPE),
    ENTRY("rope_qkv_write", "rope_qkv_write", check_rope_qkv_write, grid_rope_qkv_write, 0),
    ENTRY("attention", "attention", check_attention, grid_attention, 0),
    ENTRY("short_conv", "short_conv", check_conv, grid_conv, 0),
    ENTRY("conv_write", "conv_write", check_conv_write, grid_conv, 0),
    ENTRY("gated_scan", "gated_scan", check_scan, grid_scan, 0),
    ENTRY("scan_write", "scan_write", check_scan_write, grid_scan_write, 0),
    ENTRY("tokens_put", "tokens_put", check_tokens_put, grid_one, 0),
    ENTRY("tokens_get", "tokens_get", check_tokens_get, grid_one, 0),
    {"sample",
     check_sample,
     scratch_sample,
     SAMPLE_TOKEN,
     0,
     {{"sample_best", grid_best, 0}, {"sample", grid_sample, 0}}},
    {"sample_masked", check_masked, scratch_sample, SAMPLE_MASKED, 0, {{"sample", grid_sample, 0}}},
    {"logprobs", check_logprobs, scratch_sample, 0, 0, {{"logprobs", grid_sample, 0}}},
    {0},
};
