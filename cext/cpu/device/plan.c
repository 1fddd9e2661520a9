/* plan.c: compile() of the CPU backend: checks a plan's tables and turns them into an exec.
 *
 * A plan is untrusted, and an invalid one must not crash the process. So every number of the tables is checked here: indices,
 * formats, alignment, each view's bytes against its buffer at the maximum shape, writes to read-only memory, argument sizes,
 * and each op's rules on shapes. The exec copies all it keeps and owns the scratch of all threads, so run() allocates nothing.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "os.h"
#include "weights/panel.h"
#include "size.h"
#include "views.h"

enum { MAX_STEPS = 1 << 20, LINE = 64 };

static void fill_view(const hal_view *v, uint8_t *data, uint64_t stride, cpu_view *out) {
    out->data = data;
    out->stride = stride;
    out->format = v->format & ~(uint32_t)HAL_PACKED;
    out->packed = v->format != out->format;
    out->ndim = v->ndim;
    memcpy(out->shape, v->shape, sizeof out->shape);
}

/* Fills *out from a packed weight (N, K), or a stack (E, N, K); NULL, or what is wrong with it. */
static const char *resolve_packed(const hal_view *v, uint64_t most, uint8_t *data, cpu_view *out) {
    const panel_format *f = panel_format_find(v->format & ~(uint32_t)HAL_PACKED);
    int matrix = v->ndim == 3; /* index of the dimension of rows */
    int64_t stack = matrix ? v->shape[0] : 1, rows = v->shape[matrix], k = v->shape[matrix + 1];
    uint64_t bytes;
    if (!f || v->ndim < 2 || v->ndim > 3 || v->count >= 0 || k % f->block)
        return "only a weight (N, K) or a stack (E, N, K) can be packed";
    bytes = panel_stack_bytes(f, 1, rows, k);
    if (!bytes || v->offset > most || (uint64_t)stack > (most - v->offset) / bytes)
        return "it ends outside of its buffer";
    if (((uintptr_t)data + v->offset) % PANEL_LINE)
        return "packed weights lie at multiples of 64";
    fill_view(v, data ? data + v->offset : NULL, bytes, out);
    out->width = (uint64_t)(v->ndim == 3 ? rows * k : k);
    return NULL;
}

/* Fills *out from plan view v; NULL, or what is wrong with it. */
static const char *resolve_view(const hal_plan *plan, hal_buffer *const *buffers, const hal_view *v, cpu_view *out) {
    const block_format *f = block_format_find(v->format & ~(uint32_t)HAL_PACKED);
    const char *fault = view_shape_fault(v);
    uint64_t most;
    if (fault)
        return fault;
    if (!f)
        return "its format is unknown to this backend";
    if (v->buffer >= plan->n_buffers)
        return "it names no buffer of the plan";
    most = buffers ? buffers[v->buffer]->size : plan->buffers[v->buffer].size;
    if (v->format & HAL_PACKED)
        return resolve_packed(v, most, buffers ? buffers[v->buffer]->data : NULL, out);
    if ((fault = view_bounds_fault(v, f->block, f->bytes, most)))
        return fault;
    out->width = view_width(v);
    fill_view(v, buffers ? buffers[v->buffer]->data + v->offset : NULL, v->stride, out);
    if (((uintptr_t)out->data | (v->shape[0] > 1 ? v->stride : 0)) % f->align)
        return "its address or stride is not aligned for its format";
    return NULL;
}

static int fail_step(const hal_plan *plan, uint32_t step, const char *fault) {
    const hal_step *s = plan->steps + step;
    int named = s->op < plan->n_ops;
    return cpu_fail(HAL_E_INVALID, "step %u (%.28s): %s", step, named ? plan->ops[s->op].name : "?", fault);
}

static int fail_view(const hal_plan *plan, uint32_t step, int n, const char *fault) {
    char text[128], which[32];
    snprintf(which, sizeof which, n ? "input %d" : "output", n);
    snprintf(text, sizeof text, "%s: %s", which, fault);
    return fail_step(plan, step, text);
}

static const struct {
    const char *name;
    uint32_t arg_size;
} ops[HAL_N_OPS] = {
#define HAL_OP(NAME, name, size) {#name, size},
#include "hal_ops.inc"
#undef HAL_OP
};

/* The op's HAL_OP_ value, or -1. */
static int find_op(const hal_op *op) {
    for (int i = 0; i < HAL_N_OPS; i++)
        if (strncmp(ops[i].name, op->name, sizeof op->name) == 0)
            return i;
    return -1;
}

/* Checks a step's own numbers; *out becomes its op's HAL_OP_ value. */
static int step_op(const hal_plan *plan, uint32_t step, int *out) {
    const hal_step *s = plan->steps + step;
    int op = s->op < plan->n_ops ? find_op(plan->ops + s->op) : -1;
    *out = op;
    if (s->op >= plan->n_ops)
        return fail_step(plan, step, "it names no op of the plan");
    if (op < 0) {
        fail_step(plan, step, "this backend has no such op");
        return HAL_E_UNSUPPORTED;
    }
    if (plan->ops[s->op].arg_size != ops[op].arg_size)
        return fail_step(plan, step, "its arguments have another size than this backend's");
    if (ops[op].arg_size && (s->arg % 8 || s->arg > plan->n_args || ops[op].arg_size > plan->n_args - s->arg))
        return fail_step(plan, step, "its arguments lie outside of the table, or not at a multiple of 8");
    if (s->view >= plan->n_views || s->n_in >= plan->n_views - s->view)
        return fail_step(plan, step, "its views lie outside of the table");
    return 0;
}

/* Checks step `step` and resolves its views into `views`; its arguments are read from `args`. buffers is NULL for supports():
 * then addresses are unknown, and so is which memory is read-only. */
static int resolve_step(const hal_device *d, const hal_plan *plan, hal_buffer *const *buffers, const uint8_t *args,
                        uint32_t step, exec_step *out, cpu_view *views) {
    const hal_step *s = plan->steps + step;
    const cpu_kernel *kernel;
    int op;
    const char *fault;
    uint32_t usage;
    int code = step_op(plan, step, &op);
    if (code)
        return code;
    kernel = cpu_kernel_of(d->set, op);
    for (int i = 0; i <= s->n_in; i++)
        if ((fault = resolve_view(plan, buffers, plan->views + s->view + i, views + i)))
            return fail_view(plan, step, i, fault);
    for (int i = 0; i <= s->n_in; i++)
        if (views[i].packed && !kernel->takes_packed)
            return fail_view(plan, step, i, "this op takes no packed weight");
    usage = plan->buffers[plan->views[s->view].buffer].usage;
    if (buffers && (usage == HAL_WEIGHT || usage == HAL_CONST || !buffers[plan->views[s->view].buffer]->owned))
        return fail_view(plan, step, 0, "it lies in memory that is only read");
    *out = (exec_step){.kernel = kernel, .op = ops[op].name};
    out->call = (cpu_call){.v = views,
                           .arg = ops[op].arg_size ? args + s->arg : NULL,
                           .n_in = s->n_in,
                           .step = (int)step,
                           .flags = d->flags,
                           .set = d->set};
    if ((fault = kernel->check(&out->call)))
        return fail_step(plan, step, fault);
    return 0;
}

static int check_buffers(const hal_plan *plan, hal_buffer *const *buffers) {
    if (plan->step_buffer >= plan->n_buffers)
        return cpu_fail(HAL_E_INVALID, "plan: step buffer %u of %u", plan->step_buffer, plan->n_buffers);
    for (uint32_t i = 0; i < plan->n_buffers; i++)
        if (!buffers[i] || buffers[i]->size < plan->buffers[i].size)
            return cpu_fail(HAL_E_INVALID, "plan: buffer %u is missing or smaller than the plan's", i);
    if (buffers[plan->step_buffer]->size < HAL_COUNTS * sizeof(int32_t) || !buffers[plan->step_buffer]->owned)
        return cpu_fail(HAL_E_INVALID, "plan: its step buffer cannot hold a step block");
    return 0;
}

int cpu_supports(hal_device *d, const hal_plan *plan, uint32_t step) {
    exec_step out;
    cpu_view *views;
    int code;
    if (step >= plan->n_steps)
        return 0;
    views = calloc((size_t)plan->steps[step].n_in + 1, sizeof *views);
    code = views ? resolve_step(d, plan, NULL, plan->args, step, &out, views) : HAL_E_MEMORY;
    free(views);
    return code == 0;
}

static int reserve(const hal_plan *plan, hal_exec *e, size_t n_views) {
    e->steps = calloc(plan->n_steps + 1, sizeof *e->steps);
    e->views = calloc(n_views + 1, sizeof *e->views);
    e->dims = calloc(n_views + 1, sizeof *e->dims);
    e->args = malloc((size_t)plan->n_args + 8);
    e->splits = calloc(plan->n_steps + 1, sizeof *e->splits);
    if (e->device->flags & HAL_PROFILE)
        e->times = calloc(plan->n_steps + 1, sizeof *e->times);
    e->phases = calloc(plan->n_steps + 1, sizeof *e->phases);
    e->grains = calloc(plan->n_steps + 1, sizeof *e->grains);
    e->ranges = calloc(plan->n_buffers + 1, sizeof *e->ranges);
    if (!e->ranges || !e->steps || !e->views || !e->dims || !e->args || !e->splits || !e->phases || !e->grains ||
        (!e->times && e->device->flags & HAL_PROFILE))
        return cpu_fail(HAL_E_MEMORY, "no memory for a plan of %u steps", plan->n_steps);
    if (plan->n_args)
        memcpy(e->args, plan->args, plan->n_args);
    return 0;
}

static int reserve_scratch(hal_exec *e) {
    uint64_t most = 0, shared = 0, all, threads = (uint64_t)pool_threads(e->device->pool);
    for (int i = 0; i < e->n_steps; i++) {
        const exec_step *s = e->steps + i;
        uint64_t size = s->kernel->scratch ? s->kernel->scratch(&s->call) : 0;
        uint64_t common = s->kernel->shared ? s->kernel->shared(&s->call) : 0;
        most = size > most ? size : most;
        shared = common > shared ? common : shared;
    }
    most = size_line_up(most, LINE);
    all = size_mul(most, threads);
    if (all > SIZE_MAX / 2 || !(e->scratch = os_alloc(LINE, all ? all : LINE)))
        return cpu_fail(HAL_E_MEMORY, "no memory for %llu bytes of scratch", (unsigned long long)all);
    if (shared > SIZE_MAX / 2 || !(e->shared = calloc(1, shared ? shared : 1)))
        return cpu_fail(HAL_E_MEMORY, "no memory for %llu bytes of shared scratch", (unsigned long long)shared);
    for (int i = 0; i < e->n_steps; i++) {
        e->steps[i].call.scratch = e->scratch;
        e->steps[i].call.scratch_stride = most;
        e->steps[i].call.shared = e->shared;
    }
    return 0;
}

/* Fills the exec; on failure the caller releases it. */
static int build(hal_device *d, const hal_plan *plan, hal_buffer *const *buffers, hal_exec *e) {
    size_t n_views = 0;
    int code = check_buffers(plan, buffers);
    if (plan->n_steps > MAX_STEPS)
        return cpu_fail(HAL_E_INVALID, "plan: %u steps are too many", plan->n_steps);
    for (uint32_t i = 0; i < plan->n_steps; i++)
        n_views += plan->steps[i].n_in + 1u;
    e->device = d;
    if (code || (code = reserve(plan, e, n_views)))
        return code;
    e->block = buffers[plan->step_buffer];
    for (uint32_t i = 0; i < plan->n_buffers; i++)
        if (!buffers[i]->owned)
            e->ranges[e->n_ranges++] = buffers[i]->range;
    n_views = 0;
    for (uint32_t i = 0; i < plan->n_steps; i++, e->n_steps++) {
        exec_step *s = e->steps + i;
        if ((code = resolve_step(d, plan, buffers, e->args, i, s, e->views + n_views)))
            return code;
        if ((code = cpu_use_custom(e, plan, i, s)))
            return code;
        s->call.fault = &e->fault;
        for (int j = 0; j <= s->call.n_in; j++, n_views++) {
            const hal_view *v = plan->views + plan->steps[i].view + j;
            if (v->count >= 0)
                e->dims[e->n_dims++] = (exec_dim){.view = (int)n_views, .count = v->count, .most = v->shape[0]};
        }
    }
    return reserve_scratch(e);
}

int cpu_compile(hal_device *d, const hal_plan *plan, hal_buffer *const *buffers, hal_exec **out) {
    hal_exec *e = calloc(1, sizeof *e);
    int code = e ? build(d, plan, buffers, e) : cpu_fail(HAL_E_MEMORY, "no memory for a plan");
    if (code) {
        cpu_release(e);
        return code;
    }
    atomic_fetch_add(&d->allocations, 1);
    *out = e;
    return 0;
}

void cpu_release(hal_exec *e) {
    if (!e)
        return;
    free(e->ranges);
    free(e->steps);
    free(e->views);
    free(e->dims);
    free(e->args);
    free(e->splits);
    free(e->times);
    free(e->phases);
    free(e->grains);
    os_free(e->scratch);
    free(e->shared);
    free(e->custom_steps);
    free(e);
}
