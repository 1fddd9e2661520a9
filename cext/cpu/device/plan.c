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
#include "shapes.h"
#include "step.h"

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
    int matrix = step_packed_rows(v);
    int64_t rows = v->shape[matrix], k = v->shape[matrix + 1];
    uint64_t bytes = panel_stack_bytes(panel_format_find(v->format & ~(uint32_t)HAL_PACKED), 1, rows, k);
    const char *fault = step_packed_fault(v, bytes, most);
    if (fault)
        return fault;
    if (((uintptr_t)data + v->offset) % PANEL_LINE)
        return "packed weights lie at multiples of 64";
    fill_view(v, data ? data + v->offset : NULL, bytes, out);
    out->width = (uint64_t)(matrix ? rows * k : k);
    return NULL;
}

/* Fills *out from plan view v; NULL, or what is wrong with it. */
static const char *resolve_view(const hal_plan *plan, hal_buffer *const *buffers, const hal_view *v, cpu_view *out) {
    const block_format *f;
    const char *fault = step_view_fault(plan, v, &f);
    uint8_t *data;
    uint64_t most;
    if (fault)
        return fault;
    most = buffers ? buffers[v->buffer]->size : plan->buffers[v->buffer].size;
    data = buffers ? buffers[v->buffer]->data : NULL;
    if (v->format & HAL_PACKED)
        return resolve_packed(v, most, data, out);
    if ((fault = step_place_fault(v, f, most, (uintptr_t)data)))
        return fault;
    out->width = view_width(v);
    fill_view(v, data ? data + v->offset : NULL, v->stride, out);
    return NULL;
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
    int code = step_check(plan, step, &op);
    if (code)
        return code;
    kernel = cpu_kernel_of(d->set, op);
    for (int i = 0; i <= s->n_in; i++)
        if ((fault = resolve_view(plan, buffers, plan->views + s->view + i, views + i)))
            return fail_view(plan, step, i, fault);
    for (int i = 0; i <= s->n_in; i++)
        if (views[i].packed && kernel && !kernel->takes_packed)
            return fail_view(plan, step, i, "this op takes no packed weight");
    usage = plan->buffers[plan->views[s->view].buffer].usage;
    if (buffers && (usage == HAL_WEIGHT || usage == HAL_CONST || !buffers[plan->views[s->view].buffer]->owned))
        return fail_view(plan, step, 0, "it lies in memory that is only read");
    *out = (exec_step){.kernel = kernel, .op = step_ops[op].name};
    out->call = (cpu_call){.v = views,
                           .arg = step_ops[op].arg_size ? args + s->arg : NULL,
                           .n_in = s->n_in,
                           .step = (int)step,
                           .flags = d->flags,
                           .set = d->set};
    fault = shape_fault(op, plan->views + s->view, s->n_in, out->call.arg, buffers != NULL);
    if (!fault && !kernel)
        fault = "this backend has no kernel for the op";
    if (!fault && kernel->check)
        fault = kernel->check(&out->call);
    return fault ? fail_step(plan, step, fault) : 0;
}

static int check_buffers(const hal_plan *plan, hal_buffer *const *buffers) {
    if (plan->step_buffer >= plan->n_buffers)
        return hal_fail(HAL_E_INVALID, "plan: step buffer %u of %u", plan->step_buffer, plan->n_buffers);
    for (uint32_t i = 0; i < plan->n_buffers; i++)
        if (!buffers[i] || buffers[i]->size < plan->buffers[i].size)
            return hal_fail(HAL_E_INVALID, "plan: buffer %u is missing or smaller than the plan's", i);
    if (buffers[plan->step_buffer]->size < HAL_COUNTS * sizeof(int32_t) || !buffers[plan->step_buffer]->owned)
        return hal_fail(HAL_E_INVALID, "plan: its step buffer cannot hold a step block");
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
        return hal_fail(HAL_E_MEMORY, "no memory for a plan of %u steps", plan->n_steps);
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
        return hal_fail(HAL_E_MEMORY, "no memory for %llu bytes of scratch", (unsigned long long)all);
    if (shared > SIZE_MAX / 2 || !(e->shared = calloc(1, shared ? shared : 1)))
        return hal_fail(HAL_E_MEMORY, "no memory for %llu bytes of shared scratch", (unsigned long long)shared);
    e->scratch_bytes = all;
    e->shared_bytes = shared;
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
        return hal_fail(HAL_E_INVALID, "plan: %u steps are too many", plan->n_steps);
    for (uint32_t i = 0; i < plan->n_steps; i++)
        n_views += plan->steps[i].n_in + 1u;
    e->device = d;
    if (code || (code = reserve(plan, e, n_views)))
        return code;
    e->block = buffers[plan->step_buffer];
    for (uint32_t i = 0; i < plan->n_buffers; i++) {
        if (!buffers[i]->owned)
            e->ranges[e->n_ranges++] = buffers[i]->range;
        else if (plan->buffers[i].usage == HAL_ARENA)
            e->arena = buffers[i], e->arena_bytes = plan->buffers[i].size;
    }
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
    int code = e ? build(d, plan, buffers, e) : hal_fail(HAL_E_MEMORY, "no memory for a plan");
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
    if (e->is_resident)
        cpu_leave_resident(e->device, e, NULL);
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
