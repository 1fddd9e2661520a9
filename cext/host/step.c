/* step.c: checks of a plan's steps and views; see step.h. */
#include <stdio.h>
#include <string.h>

#include "error.h"
#include "step.h"

const step_op step_ops[HAL_N_OPS] = {
#define HAL_OP(NAME, name, size) {#name, size},
#include "hal_ops.inc"
#undef HAL_OP
};

int fail_step(const hal_plan *plan, uint32_t step, const char *fault) {
    const hal_step *s = plan->steps + step;
    int named = s->op < plan->n_ops;
    return hal_fail(HAL_E_INVALID, "step %u (%.28s): %s", step, named ? plan->ops[s->op].name : "?", fault);
}

int fail_view(const hal_plan *plan, uint32_t step, int n, const char *fault) {
    char text[128], which[32];
    snprintf(which, sizeof which, n ? "input %d" : "output", n);
    snprintf(text, sizeof text, "%s: %s", which, fault);
    return fail_step(plan, step, text);
}

/* The op's HAL_OP_ value, or -1. */
static int find_op(const hal_op *op) {
    for (int i = 0; i < HAL_N_OPS; i++)
        if (strncmp(step_ops[i].name, op->name, sizeof op->name) == 0)
            return i;
    return -1;
}

int step_check(const hal_plan *plan, uint32_t step, int *op) {
    const hal_step *s = plan->steps + step;
    uint32_t size;
    if (s->op >= plan->n_ops)
        return fail_step(plan, step, "it names no op of the plan");
    if ((*op = find_op(plan->ops + s->op)) < 0) {
        fail_step(plan, step, "this backend has no such op");
        return HAL_E_UNSUPPORTED;
    }
    size = step_ops[*op].arg_size;
    if (plan->ops[s->op].arg_size != size)
        return fail_step(plan, step, "its arguments have another size than this backend's");
    if (size && (s->arg % 8 || s->arg > plan->n_args || size > plan->n_args - s->arg))
        return fail_step(plan, step, "its arguments lie outside of the table, or not at a multiple of 8");
    if (s->view >= plan->n_views || s->n_in >= plan->n_views - s->view)
        return fail_step(plan, step, "its views lie outside of the table");
    return 0;
}

const char *step_view_fault(const hal_plan *plan, const hal_view *v, const block_format **f) {
    const char *fault = view_shape_fault(v);
    *f = block_format_find(v->format & ~(uint32_t)HAL_PACKED);
    if (fault)
        return fault;
    if (!*f)
        return "its format is unknown to this backend";
    return v->buffer < plan->n_buffers ? NULL : "it names no buffer of the plan";
}

const char *step_place_fault(const hal_view *v, const block_format *f, uint64_t most, uint64_t address) {
    const char *fault = view_bounds_fault(v, f->block, f->bytes, most);
    if (fault)
        return fault;
    return ((address + v->offset) | (v->shape[0] > 1 ? v->stride : 0)) % f->align
               ? "its address or stride is not aligned for its format"
               : NULL;
}

const char *step_packed_fault(const hal_view *v, uint64_t bytes, uint64_t most) {
    uint64_t stack = step_packed_rows(v) ? (uint64_t)v->shape[0] : 1;
    if (!bytes || v->ndim < 2 || v->ndim > 3 || v->count >= 0)
        return "only a weight (N, K) or a stack (E, N, K) can be packed";
    return v->offset > most || stack > (most - v->offset) / bytes ? "it ends outside of its buffer" : NULL;
}
