/* shapes.c: the rules of ops on formats and shapes; see shapes.h. runtime/ops/ defines the ops. */
#include <string.h>

#include "shapes.h"

enum { F32 = 0, I32 = HAL_FORMAT_I32, MOST_TAPS = 64, MOST_LOGPROBS = 1024 };

/* A call: v[0] is the output, v[1] .. v[n] are the inputs. placed 0: where they lie is not known yet. */
typedef struct {
    const hal_view *v;
    const void *arg;
    int n, placed;
} call;

static int is(const hal_view *v, uint32_t format, uint32_t ndim) {
    return v->format == format && v->ndim == ndim;
}

/* Whether v is a list of n numbers. */
static int is_list(const hal_view *v, uint32_t format, int32_t n) {
    return is(v, format, 1) && v->shape[0] == n;
}

static int is_dense_list(const hal_view *v, uint32_t format, int32_t n) {
    return is_list(v, format, n) && v->stride == sizeof(float);
}

static int same_shape(const hal_view *a, const hal_view *b) {
    return a->ndim == b->ndim && memcmp(a->shape, b->shape, sizeof a->shape) == 0;
}

/* Whether the output is the first input's memory. */
static int in_place(const call *c) {
    const hal_view *y = c->v, *x = c->v + 1;
    int there = !c->placed || (y->buffer == x->buffer && y->offset == x->offset);
    return there && same_shape(y, x) && y->format == x->format;
}

/* --- elementwise */

static const char *all_alike(const call *c) {
    for (int i = 0; i <= c->n; i++)
        if (c->v[i].format != F32 || !same_shape(c->v, c->v + i))
            return "inputs and output must be f32 of one shape";
    return NULL;
}

static const char *unary(const call *c) {
    return c->n == 1 ? all_alike(c) : "it takes x";
}

static const char *gelu(const call *c) {
    int32_t style = ((const arg_gelu *)c->arg)->style;
    return style < 0 || style > 1 ? "style must be 0 or 1" : unary(c);
}

static const char *soft_cap(const call *c) {
    return ((const arg_soft_cap *)c->arg)->cap > 0 ? unary(c) : "cap must be above 0";
}

static const char *swiglu(const call *c) {
    return c->n == 2 ? all_alike(c) : "it takes a gate and an up";
}

static const char *geglu(const call *c) {
    int32_t style = ((const arg_geglu *)c->arg)->style;
    return style < 0 || style > 1 ? "style must be 0 or 1" : swiglu(c);
}

/* Numpy's broadcast of b to a's shape; one with fewer dimensions must be dense. */
static int broadcasts(const hal_view *a, const hal_view *b) {
    int lead = (int)a->ndim - (int)b->ndim;
    uint64_t row = sizeof(float);
    for (uint32_t i = 1; i < b->ndim; i++)
        row *= (uint64_t)b->shape[i];
    if (lead < 0 || (lead && b->shape[0] > 1 && b->stride != row))
        return 0;
    for (int i = lead; i < (int)a->ndim; i++)
        if (b->shape[i - lead] != 1 && b->shape[i - lead] != a->shape[i])
            return 0;
    return 1;
}

static const char *pair(const call *c) {
    const hal_view *a = c->v + 1, *b = c->v + 2;
    if (c->n != 2)
        return "it takes two inputs";
    if (c->v->format != F32 || a->format != F32 || b->format != F32)
        return "inputs and output must be f32";
    if (!same_shape(c->v, a))
        return "the output must have the first input's shape";
    return broadcasts(a, b) ? NULL : "the second input must broadcast to the first's shape";
}

/* --- rows and heads */

static const char *norm(const call *c, int most) {
    const hal_view *y = c->v, *x = c->v + 1;
    if (c->n < 2 || c->n > most)
        return most == 2 ? "it takes x and w" : "it takes x, w and maybe a bias";
    if (y->format != F32 || x->format != F32 || !same_shape(x, y) || x->ndim < 2)
        return "x and output must be f32, and the output of x's shape";
    for (int i = 2; i <= c->n; i++)
        if (!is_dense_list(c->v + i, F32, x->shape[x->ndim - 1]))
            return "w must be f32 and have the length of x's last dimension";
    return NULL;
}

static const char *rms_norm(const call *c) {
    return norm(c, 2);
}

static const char *rms_norm_add(const call *c) {
    const call plain = {c->v, c->arg, 2, c->placed};
    return c->n == 3 && c->v[3].format == F32 && same_shape(c->v, c->v + 3)
               ? rms_norm(&plain)
               : "it takes x, w and a residual of x's shape";
}

static const char *layer_norm(const call *c) {
    return norm(c, 3);
}

static const char *hadamard(const call *c) {
    return c->n != 1 ? "it takes x" : c->v->ndim == 3 ? all_alike(c) : "x and output must be f32 (T, H, D)";
}

static const char *take(const call *c) {
    const hal_view *y = c->v, *x = c->v + 1;
    const arg_take *a = c->arg;
    if (c->n != 1 || !is(x, F32, 3) || !is(y, F32, 3) || x->shape[0] != y->shape[0] || x->shape[1] != y->shape[1])
        return "it takes x f32 (T, H, D) and gives f32 (T, H, size)";
    return a->start >= 0 && a->size == y->shape[2] && a->start <= x->shape[2] - a->size
               ? NULL
               : "start and size must lie within x's heads, and size be the output's width";
}

static const char *concat(const call *c) {
    const hal_view *y = c->v, *a = c->v + 1, *b = c->v + 2;
    if (c->n != 2 || !is(a, F32, 3) || !is(b, F32, 3) || !is(y, F32, 3))
        return "it takes a f32 (T, H, A) and b f32 (T, H, B), and gives f32";
    if (a->shape[0] != b->shape[0] || a->shape[0] != y->shape[0] || a->shape[1] != y->shape[1] ||
        (b->shape[1] != a->shape[1] && b->shape[1] != 1))
        return "a, b and output differ in tokens or heads";
    return (int64_t)a->shape[2] + b->shape[2] == y->shape[2] ? NULL : "the output must be as wide as both";
}

static const char *get_rows(const call *c) {
    const hal_view *y = c->v, *w = c->v + 1, *ids = c->v + 2;
    if (c->n != 2 || w->ndim != 2)
        return "it takes a weight (V, D) and ids";
    return is(y, F32, 2) && is_list(ids, I32, y->shape[0]) && y->shape[1] == w->shape[1]
               ? NULL
               : "ids must be i32 (T) and the output f32 (T, D)";
}

static const char *get_rows_part(const call *c) {
    return ((const arg_get_rows_part *)c->arg)->first < 0 ? "first must not be negative" : get_rows(c);
}

static const char *pad(const call *c) {
    const hal_view *y = c->v, *x = c->v + 1;
    const arg_pad *a = c->arg;
    uint32_t last = y->ndim - 1;
    if (c->n != 1 || y->ndim < 2 || !is(x, F32, y->ndim) || y->format != F32 ||
        memcmp(x->shape, y->shape, last * sizeof *x->shape) != 0)
        return "x and output must be f32 and differ in their last dimension alone";
    return a->before >= 0 && a->after >= 0 && (int64_t)a->before + x->shape[last] + a->after == y->shape[last] &&
                   x->shape[last] > 0
               ? NULL
               : "the output must be as wide as x with its zeros";
}

/* --- collectives */

static const char *reduce_add(const call *c) {
    const hal_view *y = c->v, *x = c->v + 1, *rest = c->v + 2;
    if (c->n < 1 || c->n > 2 || !is(y, F32, 2) || !is(x, F32, 2) || !same_shape(x, y))
        return "it takes y f32 (T, N), and may take a residual, and gives f32 (T, N)";
    if (c->n == 1 || (is(rest, F32, 2) && same_shape(rest, y)) || is_dense_list(rest, F32, y->shape[1]))
        return NULL;
    return "the residual must be f32 (T, N) or (N)";
}

static const char *gather_columns(const call *c) {
    const hal_view *y = c->v, *x = c->v + 1;
    const arg_gather_columns *a = c->arg;
    if (c->n != 1 || !is(y, F32, 2) || !is(x, F32, 2) || x->shape[0] != y->shape[0])
        return "it takes y f32 (T, N) and gives f32 of as many rows";
    return a->start >= 0 && a->total == y->shape[1] && a->start <= a->total - x->shape[1]
               ? NULL
               : "its columns must lie within the output's, which are total";
}

/* Whether v has a member's own rows of those of `all`. */
static int is_own(const hal_view *v, const hal_view *all, int32_t ranks) {
    return is(v, F32, 2) && is(all, F32, 2) && all->count == HAL_COUNT_TOKENS && v->count == HAL_COUNT_OWN &&
           ranks > 0 && ranks <= HAL_MEMBERS && v->shape[1] == all->shape[1] &&
           v->shape[0] == (all->shape[0] - 1) / ranks + 1;
}

static const char *reduce_scatter(const call *c) {
    const hal_view *y = c->v, *x = c->v + 1, *rest = c->v + 2;
    const int32_t ranks = ((const arg_reduce_scatter *)c->arg)->ranks;
    if (c->n < 1 || c->n > 2 || !is_own(y, x, ranks))
        return "it takes y f32 (T, N), and may take a residual, and gives a member's own rows";
    if (c->n == 1 || is_own(rest, x, ranks))
        return NULL;
    return is(rest, F32, 2) && same_shape(rest, x) && rest->count == x->count
               ? NULL
               : "the residual must be f32, of as many rows as y or the member's own";
}

static const char *all_gather(const call *c) {
    const arg_all_gather *a = c->arg;
    return c->n == 1 && is_own(c->v + 1, c->v, a->ranks) ? NULL : "it takes a member's own rows, f32, and gives all";
}

static const char *norm_all_gather(const call *c) {
    const arg_norm_all_gather *a = c->arg;
    if (c->n != 2 || !is_own(c->v + 1, c->v, a->ranks))
        return "it takes a member's own rows, f32, and w, and gives all rows";
    return is_dense_list(c->v + 2, F32, c->v->shape[1]) ? NULL : "w must be f32 and have the length of a row";
}

static const char *first(const call *c) {
    const hal_view *y = c->v, *x = c->v + 1;
    int words = y->format == F32 || y->format == I32;
    return c->n == 1 && words && y->ndim <= 2 && is(x, y->format, y->ndim) && same_shape(x, y)
               ? NULL
               : "it takes x (T) or (T, k), i32 or f32, and gives the same";
}

static const char *gather_rows(const call *c) {
    const hal_view *y = c->v, *x = c->v + 1;
    if (c->n != 2)
        return "it takes x and rows";
    if (!is_list(c->v + 2, I32, y->shape[0]))
        return "rows must be i32 and as many as the output's";
    return x->format == y->format && x->ndim == y->ndim && memcmp(x->shape + 1, y->shape + 1, 3 * sizeof *x->shape) == 0
               ? NULL
               : "x and output must have rows of one shape and format";
}

static const char *gather(const call *c) {
    const hal_view *y = c->v, *ids = c->v + 1, *table = c->v + 2;
    if (c->n != 2 || !is(ids, I32, 2) || !same_shape(y, ids))
        return "it takes ids i32 (T, k) and a table, and gives (T, k)";
    if (y->format != I32 && y->format != F32)
        return "table and output must both be i32, or both f32";
    return is_dense_list(table, y->format, table->shape[0]) ? NULL : "the table must be (N), in the output's format";
}

/* --- products */

static const char *weights(const call *c, int n, int64_t rows) {
    const hal_view *x = c->v + 1;
    int64_t all = 0;
    if (x->ndim != 2 || c->v->ndim != 2 || x->shape[0] != c->v->shape[0])
        return "x must be (T, K) and the output (T, N)";
    for (int i = 2; i < 2 + n; i++) {
        if (c->v[i].ndim != 2 || c->v[i].shape[1] != x->shape[1])
            return "weights must be (N, K) with x's K";
        all += c->v[i].shape[0];
    }
    return all == rows ? NULL : "the output must be as wide as the weights have rows";
}

static const char *linear(const call *c) {
    if (c->n < 2 || c->v->format != F32)
        return "it takes x and one weight or more, and gives f32";
    return weights(c, c->n - 1, c->v->shape[1]);
}

static const char *linear_add(const call *c) {
    if (c->n != 3 || c->v->format != F32)
        return "it takes x, a weight and a residual, and gives f32";
    if (c->v[3].format != F32 || !same_shape(c->v, c->v + 3))
        return "the residual must be f32 with the output's shape";
    return weights(c, 1, c->v->shape[1]);
}

static const char *linear_swiglu(const call *c) {
    if (c->n != 3)
        return "it takes x, a gate and an up";
    return c->v[2].shape[0] == c->v[3].shape[0] ? weights(c, 2, 2 * (int64_t)c->v->shape[1])
                                                : "gate and up must be (N, K) and the output (T, N)";
}

/* --- mixture of experts */

static const char *expert_weights_shape(const call *c, int n) {
    const hal_view *y = c->v, *x = c->v + 1, *first = c->v + 2;
    for (const hal_view *w = first; w < first + n; w++)
        if (w->ndim != 3 || w->shape[0] != first->shape[0] || w->shape[1] != y->shape[2] ||
            w->shape[2] != x->shape[x->ndim - 1])
            return "each weight must be (E, N, K) with x's K";
    return NULL;
}

static const char *experts(const call *c, int n) {
    const hal_view *y = c->v, *x = c->v + 1, *ids = c->v + c->n;
    if (c->n != n + 2)
        return "it takes x, one weight or a gate and an up, and ids";
    if (!is(ids, I32, 2) || !is(y, F32, 3) || y->shape[0] != ids->shape[0] || y->shape[1] != ids->shape[1])
        return "ids must be i32 (T, k) and the output f32 (T, k, N)";
    if ((x->ndim != 2 && x->ndim != 3) || x->shape[0] != y->shape[0] || (x->ndim == 3 && x->shape[1] != y->shape[1]))
        return "x must be (T, K) or (T, k, K)";
    return expert_weights_shape(c, n);
}

static const char *expert_linear(const call *c) {
    return experts(c, 1);
}

static const char *expert_swiglu(const call *c) {
    return experts(c, 2);
}

static const char *head_linear(const call *c) {
    const hal_view *y = c->v, *x = c->v + 1, *w = c->v + 2;
    if (c->n != 2 || x->ndim != 3 || w->ndim != 3 || x->shape[1] != w->shape[0])
        return "it takes x (T, H, K) and a weight (H, N, K)";
    return is(y, F32, 3) && y->shape[0] == x->shape[0] && y->shape[1] == x->shape[1]
               ? expert_weights_shape(c, 1)
               : "the output must be f32 (T, H, N)";
}

static const char *top_experts(const call *c) {
    const hal_view *y = c->v, *x = c->v + 1;
    const arg_top_experts *a = c->arg;
    if (c->n < 1 || c->n > 2 || !is(x, F32, 2) || !is(y, I32, 2) || x->shape[0] != y->shape[0])
        return "it takes logits f32 (T, E), and may take a bias, and gives i32 (T, k)";
    if (c->n == 2 && !is_dense_list(c->v + 2, F32, x->shape[1]))
        return "the bias must be f32 (E)";
    if (a->groups < 1 || x->shape[1] % a->groups || a->kept < 1 || a->kept > a->groups)
        return "groups must divide the experts, and kept be 1 to groups";
    return a->k == y->shape[1] && a->k <= x->shape[1] ? NULL : "k must be the output's width and at most the logits'";
}

static const char *expert_weights(const call *c) {
    const hal_view *y = c->v, *x = c->v + 1, *ids = c->v + 2;
    if (c->n != 2 || !is(x, F32, 2) || !is(ids, I32, 2))
        return "it takes logits f32 (T, E) and ids i32 (T, k)";
    return is(y, F32, 2) && x->shape[0] == y->shape[0] && same_shape(ids, y)
               ? NULL
               : "the output must be f32 with the shape of ids";
}

static const char *expert_sum(const call *c) {
    const hal_view *z = c->v, *y = c->v + 1, *w = c->v + 2;
    if (c->n != 2 || !is(y, F32, 3) || !is(w, F32, 2) || !is(z, F32, 2))
        return "it takes y f32 (T, k, N) and weights f32 (T, k), and gives f32 (T, N)";
    return y->shape[0] == w->shape[0] && y->shape[1] == w->shape[1] && y->shape[0] == z->shape[0] &&
                   y->shape[2] == z->shape[1]
               ? NULL
               : "y, weights and output differ in tokens, experts or width";
}

/* A router's logits f32 (T, E) at v[at], for experts that a token has k of, and maybe a bias (E) behind the other inputs. */
static const char *router(const call *c, int at, int inputs, int32_t k) {
    const hal_view *x = c->v + at;
    if (c->n != inputs && c->n != inputs + 1)
        return "it takes as many inputs as the op has, and may take a bias of the router";
    if (!is(x, F32, 2) || x->shape[0] != c->v->shape[0] || x->shape[1] != c->v[2].shape[0])
        return "logits must be f32 (T, E), for as many experts as the weights have";
    if (c->n > inputs && !is_dense_list(c->v + c->n, F32, x->shape[1]))
        return "the bias must be f32 (E)";
    return k > 0 && k <= x->shape[1] ? NULL : "k must be 1 to E";
}

static const char *norm_expert_swiglu(const call *c) {
    const hal_view *y = c->v, *x = c->v + 1, *w = c->v + 4;
    int32_t k = ((const arg_norm_expert_swiglu *)c->arg)->k;
    const char *fault = router(c, 5, 5, k);
    if (fault)
        return fault;
    if (!is(x, F32, 2) || !is(y, F32, 3) || x->shape[0] != y->shape[0] || y->shape[1] != k)
        return "x must be f32 (T, K) and the output f32 (T, k, N)";
    return is_dense_list(w, F32, x->shape[1]) ? expert_weights_shape(c, 2) : "the norm's weights must be f32 (K)";
}

static const char *expert_linear_sum(const call *c) {
    const hal_view *z = c->v, *y = c->v + 1, *w = c->v + 2, *r = c->v + 4;
    const arg_expert_linear_sum *a = c->arg;
    const char *fault = router(c, 3, 4, a->k);
    if (fault)
        return fault;
    if (!is(y, F32, 3) || !is(z, F32, 2) || !is(r, F32, 2) || !same_shape(r, z) || y->shape[0] != z->shape[0] ||
        y->shape[1] != a->k)
        return "y must be f32 (T, k, K), and output and residual f32 (T, N)";
    return w->ndim == 3 && w->shape[1] == z->shape[1] && w->shape[2] == y->shape[2] ? NULL
                                                                                    : "the weight must be (E, N, K)";
}

static const char *expert_sum_add(const call *c) {
    const hal_view *z = c->v, *y = c->v + 1, *logits = c->v + 2, *ids = c->v + 3, *r = c->v + 4;
    if (c->n != 4 || !is(y, F32, 3) || !is(logits, F32, 2) || !is(ids, I32, 2) || !is(r, F32, 2) || !is(z, F32, 2))
        return "it takes y f32 (T, k, N), logits f32 (T, E), ids i32 (T, k) and a residual, and gives f32 (T, N)";
    return y->shape[0] == z->shape[0] && y->shape[2] == z->shape[1] && logits->shape[0] == z->shape[0] &&
                   ids->shape[0] == z->shape[0] && ids->shape[1] == y->shape[1] && same_shape(r, z)
               ? NULL
               : "y, logits, ids, residual and output differ in tokens, experts or width";
}

static const char *expert_add(const call *c) {
    const hal_view *y = c->v, *x = c->v + 1, *b = c->v + 2, *ids = c->v + 3;
    if (c->n != 3 || !is(x, F32, 3) || !is(b, F32, 2) || !is(ids, I32, 2) || y->format != F32)
        return "it takes y f32 (T, k, N), bias f32 (E, N) and ids i32 (T, k)";
    return same_shape(x, y) && ids->shape[0] == x->shape[0] && ids->shape[1] == x->shape[1] &&
                   b->shape[1] == x->shape[2]
               ? NULL
               : "y, bias, ids and output differ in tokens, experts or width";
}

/* Each half is y, bias and ids of an expert_add. */
static const char *expert_gate_limited(const call *c) {
    const hal_view *v = c->v;
    const char *fault;
    if (c->n != 5 || v[2].shape[0] != v[4].shape[0])
        return "it takes gate and up f32 (T, k, N), each with its bias f32 (E, N), and ids i32 (T, k)";
    fault = expert_add(&(call){(const hal_view[]){v[0], v[1], v[2], v[5]}, NULL, 3, c->placed});
    return fault ? fault : expert_add(&(call){(const hal_view[]){v[0], v[3], v[4], v[5]}, NULL, 3, c->placed});
}

/* --- positions, the KV cache, attention */

static const char *rope_table(const call *c) {
    const hal_view *y = c->v, *freq = c->v + 2;
    if (c->n != 2)
        return "it takes pos and freq";
    if (!is_list(c->v + 1, I32, y->shape[0]) || !is_dense_list(freq, F32, freq->shape[0]))
        return "pos must be i32 (T) and freq f32 (N)";
    return is(y, F32, 2) && y->shape[1] == 2 * (int64_t)freq->shape[0] ? NULL : "the output must be f32 (T, 2 N)";
}

static const char *position_scale(const call *c) {
    if (c->n != 1 || !is_list(c->v + 1, I32, c->v->shape[0]) || !is(c->v, F32, 2) || c->v->shape[1] != 1)
        return "it takes pos i32 (T) and gives f32 (T, 1)";
    return ((const arg_position_scale *)c->arg)->step > 0 ? NULL : "step must be above 0";
}

static const char *rotation(const hal_view *x, const hal_view *cos_sin, int32_t style) {
    if (!is(x, F32, 3) || !is(cos_sin, F32, 2) || cos_sin->shape[0] != x->shape[0])
        return "x must be f32 (T, H, D) and cos_sin f32 (T, n_rot)";
    if (cos_sin->shape[1] < 2 || cos_sin->shape[1] % 2 || cos_sin->shape[1] > x->shape[2])
        return "n_rot must be even and no more than D";
    return style == HAL_ROPE_INTERLEAVED || style == HAL_ROPE_HALVES ? NULL : "style must be 0 or 1";
}

static const char *rope(const call *c) {
    if (c->n != 2)
        return "it takes x and cos_sin";
    if (c->v->format != F32 || !same_shape(c->v, c->v + 1))
        return "the output must be f32 with x's shape";
    return rotation(c->v + 1, c->v + 2, ((const arg_rope *)c->arg)->style);
}

static int is_cache(const hal_view *v) {
    return v->ndim == 4 && (v->format == F32 || v->format == 1 || v->format == 30 || v->format == 1008 ||
                            v->format == 8 || v->format == 2);
}

/* slot: the input slot; pos and table follow it. */
static const char *places(const hal_view *slot, int32_t tokens) {
    if (!is_list(slot, I32, tokens) || !is_list(slot + 1, I32, tokens))
        return "slot and pos must be i32 (T)";
    return is(slot + 2, I32, 2) ? NULL : "table must be i32 (S, B)";
}

static const char *countable(const hal_view *table, const hal_view *cache) {
    return (int64_t)table->shape[1] * cache->shape[2] > INT32_MAX / 2
               ? "the table holds more positions than 32 bits can count"
               : NULL;
}

static const char *cache_write(const call *c, const hal_view *slot) {
    const hal_view *cache = c->v, *x = c->v + 2;
    if (!is_cache(cache))
        return "the cache must be " KV_FORMATS " (blocks, H, block, D)";
    if (!in_place(c))
        return "the output must be the cache itself";
    if (!is(x, F32, 3) || x->shape[1] != cache->shape[1] || x->shape[2] != cache->shape[3])
        return "x must be f32 (T, H, D) with the cache's H and D";
    return places(slot, x->shape[0]);
}

static const char *kv_write(const call *c) {
    return c->n == 5 ? cache_write(c, c->v + 3) : "it takes cache, x, slot, pos and table";
}

static const char *deal(int32_t ranks, int32_t rank) {
    return ranks < 1 || rank < 0 || rank >= ranks ? "rank must be one of the ranks" : NULL;
}

static const char *kv_write_part(const call *c) {
    const arg_kv_write_part *a = c->arg;
    const char *fault = kv_write(c);
    return fault ? fault : deal(a->ranks, a->rank);
}

static const char *rope_kv_write(const call *c) {
    const char *fault = c->n == 6 ? cache_write(c, c->v + 4) : "it takes cache, x, cos_sin, slot, pos and table";
    return fault ? fault : rotation(c->v + 2, c->v + 3, ((const arg_rope_kv_write *)c->arg)->style);
}

/* The n inputs that rope_qkv_write and rope_qkv_attention share: queries, both caches, slot, pos, table, cos_sin, keys, values,
 * then biases or norms. */
static const char *rope_qkv(const call *c, int n, const arg_rope_qkv_write *a) {
    const hal_view *q = c->v + 1, *cache = c->v + 2, *cos_sin = c->v + 7, *k = c->v + 8;
    const char *fault;
    if ((a->biases | a->norms) & ~1 || a->biases + a->norms > 1 || n != 9 + 3 * a->biases + 2 * a->norms)
        return "it takes q, both caches, slot, pos, table, cos_sin, k, v, and three biases or two norms";
    for (int i = 0; i < 2; i++)
        if (!is_cache(cache + i) || !is(k + i, F32, 3) || k[i].shape[0] != q->shape[0] ||
            k[i].shape[1] != cache[i].shape[1] || k[i].shape[2] != cache[i].shape[3] || k[i].shape[1] != k->shape[1])
            return "k and v must be f32 (T, H, D) with their caches' H and D";
    for (int i = 0; i < 3 * a->biases + 2 * a->norms; i++) {
        const hal_view *x = i ? k + i - 1 : q;
        if (!is_dense_list(c->v + 10 + i, F32, a->biases ? x->shape[1] * x->shape[2] : x->shape[2]))
            return "a bias must be f32 (H * D), a norm f32 (D)";
    }
    if ((fault = places(c->v + 4, q->shape[0])) || (fault = rotation(q, cos_sin, a->style)))
        return fault;
    return rotation(k, cos_sin, a->style);
}

static const char *rope_qkv_write(const call *c) {
    return c->v->format == F32 && same_shape(c->v, c->v + 1) ? rope_qkv(c, c->n, c->arg)
                                                             : "the output must have the shape of q, in f32";
}

static const char *rope_qkv_attention(const call *c) {
    const hal_view *y = c->v, *q = c->v + 1, *k = c->v + 2, *v = c->v + 3, *table = c->v + 6;
    const arg_rope_qkv_attention *a = c->arg;
    const arg_rope_qkv_write inputs = {a->style, a->biases, a->norms, a->eps};
    int n = 9 + 3 * (a->biases == 1) + 2 * (a->norms == 1);
    const char *fault = rope_qkv(c, c->n == n + 1 ? n : c->n, &inputs);
    if (fault)
        return fault;
    if (c->n > n && !is_dense_list(c->v + n + 1, F32, q->shape[1]))
        return "sinks must be f32 (H)";
    if (!is(y, F32, 2) || y->shape[0] != q->shape[0] || y->shape[1] != (int64_t)q->shape[1] * v->shape[3])
        return "the output must be f32 (T, H * D)";
    if (memcmp(k->shape, v->shape, 3 * sizeof *k->shape) != 0 || k->shape[3] != q->shape[2] ||
        q->shape[1] % k->shape[1])
        return "q must have the keys' D, and a multiple of KV heads";
    if ((fault = countable(table, k)))
        return fault;
    return a->window < 0 || a->chunk < 0 || !(a->cap >= 0) ? "window, cap and chunk must not be negative" : NULL;
}

/* MLA: q (T, H, nope + n_rot), kv (T, rank + n_rot), cache, slot, pos, table, cos_sin, norm (rank), k_b (H, rank, nope). */
static const char *rope_latent_write(const call *c) {
    const hal_view *y = c->v, *q = c->v + 1, *kv = c->v + 2, *cache = c->v + 3, *cos_sin = c->v + 7, *norm = c->v + 8;
    const hal_view *w = c->v + 9;
    const arg_rope_latent_write *a = c->arg;
    const char *fault;
    if (c->n != 9 || w->ndim != 3 || !is(q, F32, 3) || !is(y, F32, 3) || !is(kv, F32, 2) || !is_cache(cache))
        return "it takes q, kv, a cache, slot, pos, table, cos_sin, a norm and a weight (H, N, K), and gives f32 (T, "
               "H, D)";
    if ((fault = places(c->v + 4, q->shape[0])))
        return fault;
    if (!is(cos_sin, F32, 2) || cos_sin->shape[0] != q->shape[0] || cos_sin->shape[1] < 2 || cos_sin->shape[1] % 2)
        return "cos_sin must be f32 (T, n_rot), n_rot even";
    if (q->shape[1] != w->shape[0] || q->shape[2] != (int64_t)w->shape[2] + cos_sin->shape[1] ||
        kv->shape[1] != (int64_t)w->shape[1] + cos_sin->shape[1] || !is_dense_list(norm, F32, w->shape[1]))
        return "q must be (T, H, K + n_rot), kv (T, N + n_rot) and the norm (N), of a weight (H, N, K)";
    if (y->shape[0] != q->shape[0] || kv->shape[0] != q->shape[0] || y->shape[1] != q->shape[1] ||
        y->shape[2] != kv->shape[1] || cache->shape[1] != 1 || cache->shape[3] != kv->shape[1])
        return "the output must be (T, H, N + n_rot), and the cache have one such row for each position";
    return a->style == HAL_ROPE_INTERLEAVED || a->style == HAL_ROPE_HALVES ? NULL : "style must be 0 or 1";
}

/* Mask, sinks and slopes of attention. */
static const char *sight(const hal_view *all, int n, const arg_attention *a) {
    const hal_view *k = all + 2, *v = all + 3;
    if (a->window < 0 || a->chunk < 0 || a->value < 0 || !(a->cap >= 0))
        return "window, cap, chunk and value must not be negative";
    if (a->value && (k->format != v->format || !same_shape(k, v) || a->value > k->shape[3]))
        return "with value > 0, v must be the same cache as k, and at least `value` wide";
    for (const hal_view *x = all + 7; x <= all + n; x++)
        if (!is_dense_list(x, F32, all[1].shape[1]))
            return "sinks and slopes must be f32 (H)";
    return !a->causal && a->chunk ? "chunks must be causal" : NULL;
}

/* q, k, v, slot, pos and table of attention. */
static const char *queries_and_caches(const call *c) {
    const hal_view *q = c->v + 1, *k = c->v + 2, *v = c->v + 3, *table = c->v + 6;
    const char *fault;
    if (!is(q, F32, 3))
        return "q must be f32 (T, H, D)";
    if ((fault = places(c->v + 4, q->shape[0])))
        return fault;
    if (!is_cache(k) || !is_cache(v) || memcmp(k->shape, v->shape, 3 * sizeof *k->shape) != 0)
        return "k and v must be caches " KV_FORMATS " (blocks, KV, block, D)";
    if ((fault = countable(table, k)))
        return fault;
    return k->shape[3] != q->shape[2] || q->shape[1] % k->shape[1]
               ? "q must have the keys' D, and a multiple of KV heads"
               : NULL;
}

static const char *attention(const call *c) {
    const hal_view *y = c->v, *q = c->v + 1, *v = c->v + 3;
    const arg_attention *a = c->arg;
    const char *fault;
    if (a->alibi < 0 || a->alibi > 1 || (c->n - a->alibi != 6 && c->n - a->alibi != 7))
        return "it takes q, k, v, slot, pos and table, may take sinks, and with alibi 1 slopes";
    if ((fault = queries_and_caches(c)))
        return fault;
    if (!is(y, F32, 2) || y->shape[0] != q->shape[0] ||
        y->shape[1] != (int64_t)q->shape[1] * (a->value ? a->value : v->shape[3]))
        return "the output must be f32 (T, H * D)";
    return sight(c->v, c->n, a);
}

static const char *attention_parts(const call *c) {
    const hal_view *y = c->v, *q = c->v + 1, *v = c->v + 3;
    const arg_attention_parts *a = c->arg;
    const char *fault;
    if (a->alibi < 0 || a->alibi > 1 || c->n - a->alibi != 6)
        return "it takes q, k, v, slot, pos and table, and with alibi 1 slopes";
    if ((fault = queries_and_caches(c)) || (fault = deal(a->ranks, a->rank)))
        return fault;
    if (!is(y, F32, 2) || y->shape[0] != q->shape[0] ||
        y->shape[1] != q->shape[1] * ((int64_t)(a->value ? a->value : v->shape[3]) + 2))
        return "the output must be f32 (T, H * (D + 2))";
    return sight(c->v, c->n, &(arg_attention){.cap = a->cap, .value = a->value, .causal = 1, .alibi = a->alibi});
}

static const char *merge_parts(const call *c) {
    const hal_view *y = c->v, *x = c->v + 1, *stats = c->v + 2;
    const arg_merge_parts *a = c->arg;
    if (c->n < 2 || c->n > 3 || !is(y, F32, 2) || !is(x, F32, 2) || !is(stats, F32, 2) || x->shape[0] != y->shape[0] ||
        stats->shape[0] != y->shape[0])
        return "it takes parts and stats f32 (T, N), may take sinks, and gives f32 (T, H * D)";
    if (a->heads < 1 || x->shape[1] % a->heads || x->shape[1] / a->heads < 3 ||
        y->shape[1] != x->shape[1] - 2 * (int64_t)a->heads || stats->shape[1] % (2 * (int64_t)a->heads))
        return "parts must have H * (D + 2) columns, stats 2 H of each rank, and the output H * D";
    if (c->n == 3 && !is_dense_list(c->v + 3, F32, a->heads))
        return "sinks must be f32 (H)";
    return deal((int32_t)(stats->shape[1] / (2 * (int64_t)a->heads)), a->rank);
}

/* --- latent attention */

/* q, the cache (given as k and as v), slot, pos and table. */
static const char *latents(const call *c) {
    const hal_view *q = c->v + 1, *k = c->v + 2, *v = c->v + 3, *table = c->v + 6;
    const char *fault = is(q, F32, 3) ? places(c->v + 4, q->shape[0]) : "q must be f32 (T, H, D)";
    if (fault)
        return fault;
    if (!is_cache(k) || k->shape[1] != 1 || !same_shape(k, v) || k->format != v->format)
        return "k and v must be one cache " KV_FORMATS " (blocks, 1, block, D)";
    return countable(table, k);
}

/* Of queries that k_b was absorbed into. */
static const char *absorbed(const call *c, int32_t value) {
    const hal_view *y = c->v, *q = c->v + 1, *k = c->v + 2;
    const char *fault = latents(c);
    if (fault)
        return fault;
    if (value < 1 || value > k->shape[3] || q->shape[2] != k->shape[3])
        return "q must have the keys' D, and value be 1 to D";
    return is(y, F32, 2) && y->shape[0] == q->shape[0] && y->shape[1] == (int64_t)q->shape[1] * value
               ? NULL
               : "the output must be f32 (T, H * value)";
}

static const char *absorbed_attention(const call *c) {
    const arg_absorbed_attention *a = c->arg;
    if (c->n != 6)
        return "it takes q, k, v, slot, pos and table";
    return a->least < 1 ? "least must be 1 or more" : absorbed(c, a->value);
}

static const char *sparse_attention(const call *c) {
    const hal_view *positions = c->v + 7;
    if (c->n != 7)
        return "it takes q, k, v, slot, pos, table and positions";
    return is(positions, I32, 2) && positions->shape[0] == c->v[1].shape[0]
               ? absorbed(c, ((const arg_sparse_attention *)c->arg)->value)
               : "positions must be i32 (T, k)";
}

static const char *expanded_attention(const call *c) {
    const hal_view *y = c->v, *q = c->v + 1, *k = c->v + 2, *k_b = c->v + 7, *v_b = c->v + 8, *left = c->v + 9;
    const char *fault = c->n == 9 ? latents(c) : "it takes q, k, v, slot, pos, table, k_b, v_b and the absorbed rows";
    if (fault)
        return fault;
    if (k_b->ndim != 3 || v_b->ndim != 3 || k_b->shape[0] != q->shape[1] || v_b->shape[0] != q->shape[1])
        return "k_b must be (H, rank, nope) and v_b (H, value, rank)";
    if (v_b->shape[2] != k_b->shape[1] || q->shape[2] < k_b->shape[2] ||
        q->shape[2] - k_b->shape[2] != k->shape[3] - k_b->shape[1])
        return "q, the cache and the weights disagree about the sizes of latents and keys";
    if (!is(y, F32, 3) || !is(left, F32, 3) || !same_shape(y, left) || y->shape[0] != q->shape[0] ||
        y->shape[1] != q->shape[1] || y->shape[2] != v_b->shape[1])
        return "the absorbed rows and the output must be f32 (T, H, value)";
    return ((const arg_expanded_attention *)c->arg)->least < 1 ? "least must be 1 or more" : NULL;
}

static const char *index_positions(const call *c) {
    const hal_view *y = c->v, *q = c->v + 1, *weights = c->v + 2, *k = c->v + 3, *table = c->v + 6;
    const arg_index_positions *a = c->arg;
    const char *fault;
    if (c->n != 6)
        return "it takes q, weights, keys, slot, pos and table";
    if (!is(q, F32, 3) || !is(weights, F32, 2) || weights->shape[0] != q->shape[0] || weights->shape[1] != q->shape[1])
        return "q must be f32 (T, H, D) and weights f32 (T, H)";
    if (!is_cache(k) || k->shape[1] != 1 || k->shape[3] != q->shape[2])
        return "keys must be a cache " KV_FORMATS " (blocks, 1, block, D)";
    if ((fault = places(c->v + 4, q->shape[0])) || (fault = countable(table, k)))
        return fault;
    return is(y, I32, 2) && y->shape[0] == q->shape[0] && a->k > 0 && y->shape[1] == a->k
               ? NULL
               : "the output must be i32 (T, k)";
}

/* --- recurrent layers */

static const char *state_places(const hal_view *slot, const hal_view *state, int32_t tokens, int32_t block) {
    return block < 1 || state->format != F32 ? "state must be f32, block above 0" : places(slot, tokens);
}

static const char *conv(const hal_view *x, const hal_view *state) {
    return is(x, F32, 2) && state->ndim == 3 && state->shape[1] < MOST_TAPS && state->shape[2] == x->shape[1]
               ? NULL
               : "x must be f32 (T, C), and state (pages, K - 1, C) with 2 to 64 taps";
}

static const char *short_conv(const call *c) {
    const hal_view *x = c->v + 1, *state = c->v + 2, *w = c->v + 3;
    const char *fault =
        c->n == 6 || c->n == 7 ? conv(x, state) : "it takes x, state, w, slot, pos, table and maybe a bias";
    if (fault)
        return fault;
    if (c->v->format != F32 || !same_shape(c->v, x))
        return "the output must be f32, of x's shape";
    if (!is(w, F32, 2) || w->shape[0] != x->shape[1] || w->shape[1] != state->shape[1] + 1)
        return "w must be f32 (C, K)";
    if (c->n == 7 && !is_list(c->v + 7, F32, x->shape[1]))
        return "the bias must be f32 (C)";
    return state_places(c->v + 4, state, x->shape[0], ((const arg_short_conv *)c->arg)->block);
}

static const char *conv_write(const call *c) {
    const hal_view *state = c->v, *x = c->v + 2;
    const char *fault;
    if (c->n != 5)
        return "it takes state, x, slot, pos and table";
    if (!in_place(c))
        return "the output must be the state itself";
    fault = conv(x, state);
    return fault ? fault : state_places(c->v + 3, state, x->shape[0], ((const arg_conv_write *)c->arg)->block);
}

static const char *keys(const hal_view *k, const hal_view *g, const hal_view *state, int32_t tokens) {
    if (!is(k, F32, 3) || !is(g, F32, 2) || state->ndim != 4 || k->shape[0] != tokens || g->shape[0] != tokens)
        return "keys must be f32 (T, G, N), g f32 (T, H), state (pages, H, N, P)";
    return g->shape[1] == state->shape[1] && state->shape[1] % k->shape[1] == 0 && k->shape[2] == state->shape[2]
               ? NULL
               : "keys, g and state must agree in G, H and N";
}

/* The inputs of gated_scan and gated_scan_write; block: positions per page. */
static const char *scan_inputs(const call *c, int32_t block) {
    const hal_view *q = c->v + 1, *k = c->v + 2, *v = c->v + 3, *g = c->v + 4, *state = c->v + 6;
    const char *fault;
    if (c->n != 9)
        return "it takes q, k, v, g, beta, state, slot, pos and table";
    if ((fault = keys(k, g, state, v->shape[0])))
        return fault;
    if (!is(q, F32, 3) || !same_shape(q, k) || !is(c->v + 5, F32, 2) || !same_shape(c->v + 5, g))
        return "q must have k's type and shape, and beta g's";
    if (!is(v, F32, 3) || v->shape[1] != state->shape[1] || v->shape[2] != state->shape[3])
        return "v must be f32 (T, H, P)";
    return state_places(c->v + 7, state, v->shape[0], block);
}

static const char *gated_scan(const call *c) {
    const hal_view *y = c->v, *v = c->v + 3;
    const char *fault = scan_inputs(c, ((const arg_gated_scan *)c->arg)->block);
    if (fault)
        return fault;
    return is(y, F32, 3) && y->shape[0] == v->shape[0] && y->shape[1] == v->shape[1] && y->shape[2] == 2 * v->shape[2]
               ? NULL
               : "the output must be f32 (T, H, 2 P)";
}

static const char *gated_scan_write(const call *c) {
    const char *fault = scan_inputs(c, ((const arg_gated_scan_write *)c->arg)->block);
    if (fault)
        return fault;
    return c->v->format == F32 && same_shape(c->v, c->v + 3) ? NULL : "the output must have the shape of v, in f32";
}

static const char *scan_write(const call *c) {
    const hal_view *state = c->v, *k = c->v + 2, *made = c->v + 3;
    const char *fault;
    if (c->n != 7)
        return "it takes state, k, made, g, slot, pos and table";
    if (!in_place(c))
        return "the output must be the state itself";
    if ((fault = keys(k, c->v + 4, state, k->shape[0])))
        return fault;
    if (!is(made, F32, 3) || made->shape[0] != k->shape[0] || made->shape[1] != state->shape[1] ||
        made->shape[2] != 2 * state->shape[3])
        return "made must be f32 (T, H, 2 P)";
    return state_places(c->v + 5, state, k->shape[0], ((const arg_scan_write *)c->arg)->block);
}

/* --- tokens and sampling */

static const char *ring(const hal_view *table, const hal_view *slot, const hal_view *pos) {
    if (!is(table, I32, 2))
        return "the table must be i32 (S, W)";
    return is_list(slot, I32, pos->shape[0]) && is_list(pos, I32, pos->shape[0])
               ? NULL
               : "slot and pos must be i32 of one length";
}

static const char *tokens_put(const call *c) {
    if (c->n != 4)
        return "it takes the table, ids, slot and pos";
    if (!in_place(c) || c->v->format != I32)
        return "the output must be the table itself";
    if (!is_list(c->v + 2, I32, c->v[4].shape[0]))
        return "ids must be i32 and as long as pos";
    return ring(c->v + 1, c->v + 3, c->v + 4);
}

static const char *tokens_get(const call *c) {
    if (c->n != 3)
        return "it takes the table, slot and pos";
    if (!is_list(c->v, I32, c->v[3].shape[0]))
        return "the output must be i32 and as long as pos";
    return ring(c->v + 1, c->v + 2, c->v + 3);
}

static const char *params(const hal_view *v, int32_t rows) {
    int64_t bytes = (int64_t)v->shape[1] * v->shape[2] * v->shape[3];
    return v->format == HAL_FORMAT_I8 && v->shape[0] == rows && bytes == (int64_t)sizeof(hal_sampling)
               ? NULL
               : "params must be one hal_sampling per row";
}

static const char *sampled(const call *c) {
    const hal_view *y = c->v, *logits = c->v + 1, *pos = c->v + 4;
    const char *fault = ring(c->v + 2, c->v + 3, pos);
    if (!is(logits, F32, 2) || y->shape[0] != logits->shape[0])
        return "logits must be f32 (R, V) and the output of as many rows";
    if (fault || pos->shape[0] != y->shape[0])
        return fault ? fault : "slot and pos must be i32 (R)";
    return params(c->v + 5, y->shape[0]);
}

static const char *sample(const call *c) {
    if (c->n != 5)
        return "it takes logits, ring, slot, pos and params";
    return c->v->format == I32 && c->v->ndim == 1 ? sampled(c) : "the output must be i32 (R)";
}

static const char *sample_masked(const call *c) {
    const hal_view *y = c->v, *bitmask = c->v + 6, *edits = c->v + 7;
    if (c->n != 7)
        return "it takes logits, ring, slot, pos, params, token bitmask and edits";
    if (!is(y, I32, 2) || y->shape[1] != 2)
        return "the output must be i32 (R, 2)";
    if (!is(bitmask, I32, 2) || bitmask->shape[0] != y->shape[0] || bitmask->shape[1] < (c->v[1].shape[1] + 31) / 32)
        return "the token bitmask must be i32 (R, V / 32)";
    if (!is(edits, I32, 3) || edits->shape[0] != y->shape[0] || edits->shape[2] != 2)
        return "edits must be i32 (R, E, 2)";
    return sampled(c);
}

static const char *logprobs(const call *c) {
    const hal_view *y = c->v, *logits = c->v + 1;
    int32_t k = ((const arg_logprobs *)c->arg)->k;
    if (c->n != 2 && c->n != 3)
        return "it takes logits and ids, and may take params";
    if (!is(logits, F32, 2) || !is(y, F32, 2) || y->shape[0] != logits->shape[0])
        return "logits must be f32 (R, V) and the output f32 of as many rows";
    if (k < 1 || k > MOST_LOGPROBS || k > logits->shape[1] || y->shape[1] != 2 + 2 * k)
        return "k must be 1 to 1024, no more than tokens, and the output (R, 2 + 2 k)";
    if (!is_list(c->v + 2, I32, y->shape[0]))
        return "ids must be i32 (R)";
    return c->n == 3 ? params(c->v + 3, y->shape[0]) : NULL;
}

typedef const char *rule(const call *);

static rule *const rules[HAL_N_OPS] = {
    [HAL_OP_GET_ROWS] = get_rows,
    [HAL_OP_GET_ROWS_PART] = get_rows_part,
    [HAL_OP_GATHER_ROWS] = gather_rows,
    [HAL_OP_PAD] = pad,
    [HAL_OP_REDUCE_ADD] = reduce_add,
    [HAL_OP_GATHER_COLUMNS] = gather_columns,
    [HAL_OP_REDUCE_SCATTER] = reduce_scatter,
    [HAL_OP_ALL_GATHER] = all_gather,
    [HAL_OP_NORM_ALL_GATHER] = norm_all_gather,
    [HAL_OP_FIRST] = first,
    [HAL_OP_GATHER] = gather,
    [HAL_OP_LINEAR] = linear,
    [HAL_OP_LINEAR_ADD] = linear_add,
    [HAL_OP_LINEAR_SWIGLU] = linear_swiglu,
    [HAL_OP_LINEAR_SWIGLU_QUANTIZE] = linear_swiglu,
    [HAL_OP_RMS_NORM] = rms_norm,
    [HAL_OP_RMS_NORM_ADD] = rms_norm_add,
    [HAL_OP_LAYER_NORM] = layer_norm,
    [HAL_OP_SWIGLU] = swiglu,
    [HAL_OP_GEGLU] = geglu,
    [HAL_OP_SWIGLU_LIMITED] = swiglu,
    [HAL_OP_ADD] = pair,
    [HAL_OP_MUL] = pair,
    [HAL_OP_GELU] = gelu,
    [HAL_OP_SOFT_CAP] = soft_cap,
    [HAL_OP_SIGMOID] = unary,
    [HAL_OP_SOFTPLUS] = unary,
    [HAL_OP_HADAMARD] = hadamard,
    [HAL_OP_TAKE] = take,
    [HAL_OP_CONCAT] = concat,
    [HAL_OP_ROPE_TABLE] = rope_table,
    [HAL_OP_POSITION_SCALE] = position_scale,
    [HAL_OP_ROPE] = rope,
    [HAL_OP_KV_WRITE] = kv_write,
    [HAL_OP_KV_WRITE_PART] = kv_write_part,
    [HAL_OP_ROPE_KV_WRITE] = rope_kv_write,
    [HAL_OP_ROPE_QKV_WRITE] = rope_qkv_write,
    [HAL_OP_ROPE_LATENT_WRITE] = rope_latent_write,
    [HAL_OP_ROPE_QKV_ATTENTION] = rope_qkv_attention,
    [HAL_OP_ATTENTION] = attention,
    [HAL_OP_ATTENTION_PARTS] = attention_parts,
    [HAL_OP_MERGE_PARTS] = merge_parts,
    [HAL_OP_ABSORBED_ATTENTION] = absorbed_attention,
    [HAL_OP_EXPANDED_ATTENTION] = expanded_attention,
    [HAL_OP_INDEX_POSITIONS] = index_positions,
    [HAL_OP_SPARSE_ATTENTION] = sparse_attention,
    [HAL_OP_TOP_EXPERTS] = top_experts,
    [HAL_OP_EXPERT_WEIGHTS] = expert_weights,
    [HAL_OP_EXPERT_LINEAR] = expert_linear,
    [HAL_OP_EXPERT_SWIGLU] = expert_swiglu,
    [HAL_OP_EXPERT_ADD] = expert_add,
    [HAL_OP_EXPERT_GATE_LIMITED] = expert_gate_limited,
    [HAL_OP_EXPERT_SUM] = expert_sum,
    [HAL_OP_NORM_EXPERT_SWIGLU] = norm_expert_swiglu,
    [HAL_OP_EXPERT_LINEAR_SUM] = expert_linear_sum,
    [HAL_OP_EXPERT_SUM_ADD] = expert_sum_add,
    [HAL_OP_HEAD_LINEAR] = head_linear,
    [HAL_OP_SHORT_CONV] = short_conv,
    [HAL_OP_CONV_WRITE] = conv_write,
    [HAL_OP_GATED_SCAN] = gated_scan,
    [HAL_OP_SCAN_WRITE] = scan_write,
    [HAL_OP_GATED_SCAN_WRITE] = gated_scan_write,
    [HAL_OP_TOKENS_PUT] = tokens_put,
    [HAL_OP_TOKENS_GET] = tokens_get,
    [HAL_OP_SAMPLE] = sample,
    [HAL_OP_SAMPLE_MASKED] = sample_masked,
    [HAL_OP_LOGPROBS] = logprobs,
};

const char *shape_fault(int op, const hal_view *v, int n_in, const void *arg, int placed) {
    return rules[op] ? rules[op](&(call){v, arg, n_in, placed}) : NULL;
}
