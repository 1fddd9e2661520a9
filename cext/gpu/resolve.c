/* resolve.c: checks the numbers of a plan's step and fills its call with them.
 *
 * Every number of the tables is checked here, at the maximum shapes, before a kernel's own check sees the call.
 */
#include <stdio.h>
#include <string.h>

#include "override.h"
#include "shapes.h"
#include "step.h"

/* Fills *out from a plan's view; NULL, or what is wrong with it. buffers is NULL for supports(). */
static const char *resolve_view(const hal_device *d, const hal_plan *plan, hal_buffer *const *buffers,
                                const hal_view *v, gpu_view *out) {
    const gpu_packing *p = gpu_packing_of(d, v->format & ~(uint32_t)HAL_PACKED);
    const block_format *f;
    const char *fault = step_view_fault(plan, v, &f);
    const int32_t *matrix = v->shape + step_packed_rows(v);
    uint64_t most;
    if (fault)
        return fault;
    most = buffers ? buffers[v->buffer]->size : plan->buffers[v->buffer].size;
    *out = (gpu_view){.stride = v->stride, .count = v->count, .format = v->format};
    memcpy(out->shape, v->shape, sizeof out->shape);
    if (v->format & HAL_PACKED) {
        out->stride = p ? p->bytes(matrix[0], matrix[1], &d->traits) : 0;
        fault = step_packed_fault(v, out->stride, most);
    } else
        fault = step_place_fault(v, f, most, 0);
    if (buffers)
        out->data = buffers[v->buffer]->at + v->offset;
    return fault;
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

static int broadcasts(int op, uint32_t n_in) {
    return n_in == 2 && (op == HAL_OP_ADD || op == HAL_OP_MUL);
}

int gpu_resolve_step(const hal_device *d, const hal_plan *plan, hal_buffer *const *buffers, uint32_t step,
                     gpu_call *out) {
    const hal_step *s = plan->steps + step;
    uint32_t usage;
    const char *fault;
    int op, code;
    memset(out, 0, sizeof *out);
    if (step >= plan->n_steps)
        return hal_fail(HAL_E_INVALID, "the plan has no step %u", step);
    if ((code = step_check(plan, step, &op)))
        return code;
    if (s->n_in >= GPU_VIEWS) {
        fail_step(plan, step, "it has more inputs than a kernel of this backend takes");
        return HAL_E_UNSUPPORTED;
    }
    for (uint32_t i = 0; i <= s->n_in; i++)
        if ((fault = resolve_view(d, plan, buffers, plan->views + s->view + i, out->v + i)))
            return fail_view(plan, step, (int)i, fault);
    if (broadcasts(op, s->n_in) &&
        (fault = align_broadcast(plan->views + s->view + 1, plan->views + s->view + 2, out->v + 2)))
        return fail_step(plan, step, fault);
    if ((fault = shape_fault(op, plan->views + s->view, (int)s->n_in, plan->args + s->arg, buffers != NULL)))
        return fail_step(plan, step, fault);
    usage = plan->buffers[plan->views[s->view].buffer].usage;
    if (buffers && (usage == HAL_WEIGHT || usage == HAL_CONST))
        return fail_view(plan, step, 0, "it lies in memory that is only read");
    if (step_ops[op].arg_size)
        memcpy(out->arg, plan->args + s->arg, step_ops[op].arg_size);
    out->n_in = s->n_in;
    out->step = step;
    out->flags = d->traits.flags;
    return 0;
}
