/* plan.c: compile() of GPU backends: checks a plan's tables, selects kernels and makes the launches of an exec.
 *
 * Every number of the tables is checked here, at the maximum shapes, before a kernel's own check sees the call. Kernels check
 * the values that come with a step (ids, slots, positions, blocks). The exec copies all it keeps.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "block_format.h"
#include "override.h"
#include "table.h"
#include "views.h"

enum { MAX_STEPS = 1 << 20, OP_NAME = sizeof((hal_op *)0)->name };

/* Fills *out from a packed weight (N, K), or a stack (E, N, K); NULL, or what is wrong with it. */
static const char *resolve_packed(const hal_device *d, const hal_view *v, uint64_t most, gpu_view *out) {
    const gpu_packing *p = gpu_packing_of(d, v->format & ~(uint32_t)HAL_PACKED);
    int matrix = v->ndim == 3; /* index of the dimension of rows */
    uint64_t bytes, stack = matrix ? (uint64_t)v->shape[0] : 1;
    if (!p || v->ndim < 2 || v->ndim > 3 || v->count >= 0)
        return "only a weight (N, K) or a stack (E, N, K) can be packed";
    bytes = p->bytes(v->shape[matrix], v->shape[matrix + 1], &d->traits);
    if (!bytes || v->offset > most || stack > (most - v->offset) / bytes)
        return "it ends outside of its buffer";
    out->stride = bytes;
    return NULL;
}

/* Fills *out from a plan's view; NULL, or what is wrong with it. buffers is NULL for supports(). */
static const char *resolve_view(const hal_device *d, const hal_plan *plan, hal_buffer *const *buffers,
                                const hal_view *v, gpu_view *out) {
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
    *out = (gpu_view){.stride = v->stride, .count = v->count, .format = v->format};
    memcpy(out->shape, v->shape, sizeof out->shape);
    if (v->format & HAL_PACKED)
        fault = resolve_packed(d, v, most, out);
    else
        fault = view_bounds_fault(v, f->block, f->bytes, most);
    if (fault)
        return fault;
    if ((v->offset | (v->shape[0] > 1 ? v->stride : 0)) % f->align)
        return "its address or stride is not aligned for its format";
    if (buffers)
        out->data = buffers[v->buffer]->at + v->offset;
    return NULL;
}

static int fail_step(const hal_plan *plan, uint32_t step, const char *fault) {
    const hal_step *s = plan->steps + step;
    int named = s->op < plan->n_ops;
    return gpu_fail(HAL_E_INVALID, "step %u (%.28s): %s", step, named ? plan->ops[s->op].name : "?", fault);
}

static uint32_t argument_size(const char *op) {
    static const struct {
        const char *name;
        uint32_t size;
    } sizes[] = {
#define HAL_OP(NAME, name, size) {#name, size},
#include "hal_ops.inc"
#undef HAL_OP
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (strncmp(sizes[i].name, op, OP_NAME) == 0)
            return sizes[i].size;
    return UINT32_MAX;
}

/* A gpu_view has no number of dimensions, so the second input of add and mul gets as many as the first here: it lies under the
 * last ones of that. */
static const char *align_broadcast(const hal_view *a, const hal_view *b, gpu_view *out) {
    int lead = (int)a->ndim - (int)b->ndim;
    uint64_t row = view_width(b) * (uint64_t)b->shape[0] * sizeof(float);
    if (lead <= 0)
        return NULL;
    if (b->count >= 0 || (b->shape[0] > 1 && b->stride * (uint64_t)b->shape[0] != row))
        return "it has fewer dimensions than input 1, and is not dense or changes with the step";
    for (int i = 0; i < 4; i++)
        out->shape[i] = i < lead ? 1 : b->shape[i - lead];
    out->stride = row;
    return NULL;
}

static int broadcasts(const char *op, uint32_t n_in) {
    return n_in == 2 && (strncmp(op, "add", OP_NAME) == 0 || strncmp(op, "mul", OP_NAME) == 0);
}

int gpu_resolve_step(const hal_device *d, const hal_plan *plan, hal_buffer *const *buffers, uint32_t step,
                     gpu_call *out) {
    const hal_step *s = plan->steps + step;
    uint32_t size, usage;
    const char *fault;
    memset(out, 0, sizeof *out);
    if (step >= plan->n_steps)
        return gpu_fail(HAL_E_INVALID, "the plan has no step %u", step);
    if (s->op >= plan->n_ops)
        return fail_step(plan, step, "it names no op of the plan");
    if ((size = argument_size(plan->ops[s->op].name)) == UINT32_MAX) {
        fail_step(plan, step, "this backend has no such op");
        return HAL_E_UNSUPPORTED;
    }
    if (plan->ops[s->op].arg_size != size || size > sizeof out->arg)
        return fail_step(plan, step, "its arguments have another size than this backend's");
    if (size && (s->arg % 8 || s->arg > plan->n_args || size > plan->n_args - s->arg))
        return fail_step(plan, step, "its arguments lie outside of the table, or not at a multiple of 8");
    if (s->view >= plan->n_views || s->n_in >= plan->n_views - s->view)
        return fail_step(plan, step, "its views lie outside of the table");
    if (s->n_in >= GPU_VIEWS) {
        fail_step(plan, step, "it has more inputs than a kernel of this backend takes");
        return HAL_E_UNSUPPORTED;
    }
    for (uint32_t i = 0; i <= s->n_in; i++)
        if ((fault = resolve_view(d, plan, buffers, plan->views + s->view + i, out->v + i))) {
            char text[128];
            snprintf(text, sizeof text, "%s %u: %s", i ? "input" : "output", i, fault);
            return fail_step(plan, step, text);
        }
    if (broadcasts(plan->ops[s->op].name, s->n_in) &&
        (fault = align_broadcast(plan->views + s->view + 1, plan->views + s->view + 2, out->v + 2)))
        return fail_step(plan, step, fault);
    usage = plan->buffers[plan->views[s->view].buffer].usage;
    if (buffers && (usage == HAL_WEIGHT || usage == HAL_CONST))
        return fail_step(plan, step, "its output lies in memory that is only read");
    if (size)
        memcpy(out->arg, plan->args + s->arg, size);
    out->n_in = s->n_in;
    out->step = step;
    out->flags = d->traits.flags;
    return 0;
}

static int has_functions(hal_device *d, const gpu_kernel *k, const gpu_call *c, gpu_function found[GPU_LAUNCHES]) {
    for (int i = 0; i < GPU_LAUNCHES && k->launch[i].kernel; i++) {
        char name[GPU_NAME];
        gpu_kernel_name(k, i, c, name);
        if (gpu_function_find(d, name, found + i))
            return 0;
    }
    return 1;
}

const gpu_kernel *const *gpu_tables(const hal_device *d) {
    return d->traits.flags & HAL_DETERMINISTIC && d->vendor->deterministic ? d->vendor->deterministic
                                                                           : d->vendor->kernels;
}

int gpu_can(hal_device *d, const gpu_kernel *k, const char *op, const gpu_call *c) {
    gpu_function found[GPU_LAUNCHES];
    return strncmp(k->op, op, OP_NAME) == 0 && k->format_of <= (int)c->n_in &&
           !(k->able ? k->able : k->check)(c, &d->traits) && has_functions(d, k, c, found);
}

/* Selects the kernel of a call: the override's (asked; NULL: no override), else the first of the vendor's tables whose check
 * passes. Gives NULL with the kernel and its functions, or why there is none. */
static const char *choose(hal_device *d, const char *op, const hal_kernel_override *asked, const gpu_call *c,
                          const gpu_kernel **out, gpu_function found[GPU_LAUNCHES]) {
    uint32_t config = 0;
    const char *fault =
        asked ? "this backend has no such kernel as is asked for" : "this backend has no kernel for the op";
    for (const gpu_kernel *const *table = gpu_tables(d); *table; table++)
        for (const gpu_kernel *k = *table; k->op; k++) {
            const char *why;
            if (strncmp(k->op, op, OP_NAME) != 0 || k->format_of > (int)c->n_in ||
                (asked && !gpu_is_named(k, c, asked, &config)))
                continue;
            if ((why = (asked && k->able ? k->able : k->check)(c, &d->traits)))
                fault = why;
            else if (!has_functions(d, k, c, found))
                fault = "its kernel was not built for this device";
            else {
                *out = k;
                return NULL;
            }
        }
    return fault;
}

int gpu_supports(hal_device *d, const hal_plan *plan, uint32_t step) {
    const hal_kernel_override *asked = gpu_override_at(plan, step);
    gpu_function found[GPU_LAUNCHES];
    const gpu_kernel *kernel;
    const char *fault;
    gpu_call call;
    int code;
    if ((code = gpu_check_overrides(d, plan)) || (code = gpu_resolve_step(d, plan, NULL, step, &call)))
        return code;
    if (asked && asked->kernel)
        return 1;
    if ((code = gpu_lock(d)))
        return code;
    fault = choose(d, plan->ops[plan->steps[step].op].name, asked, &call, &kernel, found);
    gpu_unlock(d);
    if (!fault)
        return 1;
    fail_step(plan, step, fault);
    return HAL_E_UNSUPPORTED;
}

static int reserve(const hal_plan *plan, hal_exec *e) {
    uint32_t n = plan->n_steps, timed = e->device->traits.flags & HAL_PROFILE;
    e->calls = calloc(n + 1, sizeof *e->calls);
    e->ops = calloc(n + 1, sizeof *e->ops);
    e->launches = calloc(GPU_LAUNCHES * n + 1, sizeof *e->launches);
    e->outs = calloc(plan->n_buffers + 1, sizeof(hal_buffer *));
    e->marks = timed ? calloc(n + 1, sizeof *e->marks) : NULL;
    e->times = timed ? calloc(n + 1, sizeof *e->times) : NULL;
    if (e->calls && e->ops && e->launches && e->outs && (!timed || (e->marks && e->times)))
        return 0;
    return gpu_fail(HAL_E_MEMORY, "no memory for a plan");
}

/* Allocates the exec's host memory (copies of step blocks, the fault word) and its events. The lock is held. */
static int reserve_host(hal_exec *e) {
    hal_device *d = e->device;
    int code = 0;
    for (int i = 0; !code && i < GPU_BLOCKS; i++) {
        code = gpu_take_host(d, GPU_PINNED, e->block->size, (void **)&e->blocks[i], "host memory for step blocks");
        if (!code)
            code = gpu_check(d, d->api.event(e->taken + i, 2), "an event");
    }
    for (int i = 0; !code && e->marks && i <= e->n_calls; i++)
        code = gpu_check(d, d->api.event(e->marks + i, 0), "an event");
    if (!code)
        code = gpu_check(d, d->api.event(&e->done, 2), "an event");
    if (!code)
        code = gpu_take_host(d, GPU_SEEN, sizeof *e->fault, (void **)&e->fault, "host memory for faults");
    if (!code)
        *e->fault = 0;
    return code;
}

/* Raises a function's shared memory limit to the device's maximum: the limit is per function, and its launches differ. */
static int allow_shared(hal_device *d, const gpu_launch *l) {
    if (l->grid.shared <= 48 << 10 || !d->api.allow || !d->api.allow(l->function, GPU_ALLOW_SHARED, d->traits.shared))
        return 0;
    return gpu_check(d, d->api.allow(l->function, GPU_ALLOW_SHARED, (int)l->grid.shared), "shared memory of a kernel");
}

static int is_portable(const gpu_kernel *k) {
    for (const gpu_kernel *one = gpu_portable_kernels; one->op; one++)
        if (one == k)
            return 1;
    return 0;
}

static int add_launches(hal_exec *e, const gpu_kernel *k, const gpu_function *found, int call) {
    hal_device *d = e->device;
    int code;
    for (int i = 0; i < GPU_LAUNCHES && k->launch[i].kernel; i++) {
        gpu_launch *l = e->launches + e->n_launches++;
        *l = (gpu_launch){.function = found[i], .call = (uint32_t)call, .grid.groups = {1, 1, 1}};
        l->early = k->launch[i].early || (d->waits && is_portable(k));
        k->launch[i].grid(e->calls + call, &d->traits, &l->grid);
        if ((code = allow_shared(d, l)))
            return code;
    }
    return 0;
}

/* Allocates the zeroed counters. Every kernel resets them, and launches run one at a time, so all share one set. */
static int give_counters(hal_exec *e, uint32_t bytes) {
    hal_device *d = e->device;
    int code = gpu_check(d, d->api.alloc(&e->counters, bytes), "memory for counters");
    if (!code)
        code = gpu_check(d, d->api.fill(e->counters, 0, bytes, d->main), "clearing counters");
    for (int i = 0; i < e->n_calls; i++)
        e->calls[i].counters = e->counters;
    return code;
}

/* Bounds the step block's counts by the maximum shapes of the call's views. */
static void bound_counts(hal_exec *e, const gpu_call *c) {
    for (uint32_t i = 0; i <= c->n_in; i++)
        if (c->v[i].count >= 0 && c->v[i].shape[0] < e->most[c->v[i].count])
            e->most[c->v[i].count] = c->v[i].shape[0];
}

static int resolve_all(hal_device *d, const hal_plan *plan, hal_buffer *const *buffers, hal_exec *e) {
    int code = reserve(plan, e);
    for (int i = 0; i < HAL_COUNTS; i++)
        e->most[i] = INT32_MAX;
    for (uint32_t i = 0; !code && i < plan->n_steps; i++)
        if (!(code = gpu_resolve_step(d, plan, buffers, i, e->calls + i))) {
            memcpy(e->ops[i], plan->ops[plan->steps[i].op].name, sizeof e->ops[i]);
            bound_counts(e, e->calls + i);
        }
    return code;
}

static int build(hal_device *d, const hal_plan *plan, hal_buffer *const *buffers, hal_exec *e) {
    uint64_t scratch = 0;
    gpu_address fault_at = 0;
    uint32_t counters = 0;
    int code = gpu_check_overrides(d, plan);
    if (!code)
        code = resolve_all(d, plan, buffers, e);
    for (int i = 0; !code && i < (int)plan->n_steps; i++) {
        gpu_function found[GPU_LAUNCHES];
        const gpu_kernel *k = NULL;
        const char *fault;
        const hal_kernel_override *asked = gpu_override_at(plan, (uint32_t)i);
        gpu_call *c = e->calls + i;
        e->n_calls = i + 1;
        c->counts = e->block->at;
        if (asked && asked->kernel) {
            code = gpu_custom_launch(d, asked, (uint32_t)i, e->launches + e->n_launches++);
            scratch = asked->scratch > scratch ? asked->scratch : scratch;
            continue;
        }
        if ((fault = choose(d, e->ops[i], asked, c, &k, found))) {
            fail_step(plan, (uint32_t)i, fault);
            return HAL_E_UNSUPPORTED;
        }
        c->mode = k->mode;
        c->counts = e->block->at;
        if (asked)
            gpu_is_named(k, c, asked, &c->config);
        if (k->scratch && k->scratch(c, &d->traits) > scratch)
            scratch = k->scratch(c, &d->traits);
        counters = k->counters > counters ? k->counters : counters;
        code = add_launches(e, k, found, i);
    }
    if (!code)
        code = reserve_host(e);
    if (!code && scratch)
        code = gpu_scratch_take(d, scratch, &e->scratch);
    if (!code)
        code = d->api.seen ? gpu_check(d, d->api.seen(&fault_at, e->fault), "host memory that the device sees") : 0;
    for (int i = 0; !code && i < e->n_calls; i++) {
        e->calls[i].fault = fault_at ? fault_at : (uint64_t)(uintptr_t)e->fault;
        e->calls[i].scratch = e->scratch ? e->scratch->at : 0;
    }
    if (!code && counters)
        code = give_counters(e, counters);
    for (uint32_t i = 0; !code && i < plan->n_buffers; i++)
        if (buffers[i]->mirror)
            e->outs[e->n_outs++] = buffers[i];
    return code;
}

int gpu_compile(hal_device *d, const hal_plan *plan, hal_buffer *const *buffers, hal_exec **out) {
    hal_exec *e = calloc(1, sizeof *e);
    int code = 0;
    if (!e)
        return gpu_fail(HAL_E_MEMORY, "no memory for a plan");
    e->device = d;
    if (plan->step_buffer >= plan->n_buffers)
        code = gpu_fail(HAL_E_INVALID, "plan: its step buffer is none of its buffers");
    else if (plan->n_steps > MAX_STEPS)
        code = gpu_fail(HAL_E_INVALID, "plan: %u steps are too many", plan->n_steps);
    for (uint32_t i = 0; !code && i < plan->n_buffers; i++)
        if (buffers[i]->device != d)
            code = gpu_fail(HAL_E_INVALID, "plan: buffer %u is another device's", i);
    if (!code && buffers[plan->step_buffer]->size < HAL_COUNTS * sizeof(int32_t))
        code = gpu_fail(HAL_E_INVALID, "plan: its step buffer is too small");
    if (!code && !(code = gpu_lock(d))) {
        e->block = buffers[plan->step_buffer];
        code = build(d, plan, buffers, e);
        gpu_unlock(d);
    }
    if (code) {
        gpu_release(e);
        return code;
    }
    atomic_fetch_add(&d->allocations, 1);
    *out = e;
    return 0;
}
