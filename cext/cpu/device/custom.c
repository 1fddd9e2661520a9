/* custom.c: custom kernels on the CPU: functions of shared objects that the user registered. A function gets a gpu_call, whose
 * views have the current step's sizes, and a range of the grid's items.
 *
 * The device owns the libraries; an exec owns what it needs to call them.
 */
#include <stdlib.h>
#include <string.h>

#include "../../kernels/call.h"
#include "device.h"
#include "os.h"

typedef void (*custom_function)(const gpu_call *, int64_t from, int64_t to);

struct cpu_custom_kernel {
    void *library;
    custom_function function;
};

struct cpu_custom_step {
    custom_function function;
    int64_t items;
    const void *arg; /* of the step */
    hal_exec *exec;
    size_t arg_size;
};

int cpu_add_kernel(hal_device *d, const char *image, const char *entry, uint32_t *kernel) {
    cpu_custom_kernel made = {0}, *more;
    void *found;
    if (!(made.library = os_library(image)))
        return hal_fail(HAL_E_INVALID, "kernel %s: its code cannot be loaded: %s", entry, os_library_fault());
    if (!(found = os_function(made.library, entry)) || !(more = realloc(d->custom, (d->n_custom + 1) * sizeof *more))) {
        os_end_library(made.library);
        return found ? hal_fail(HAL_E_MEMORY, "no memory for a kernel")
                     : hal_fail(HAL_E_INVALID, "kernel %s: its code has no function of this name", entry);
    }
    *(void **)&made.function = found; /* POSIX and Windows guarantee that a function pointer fits */
    d->custom = more;
    d->custom[d->n_custom++] = made;
    *kernel = d->n_custom;
    return 0;
}

void cpu_drop_custom(hal_device *d) {
    for (uint32_t i = 0; i < d->n_custom; i++)
        os_end_library(d->custom[i].library);
    free(d->custom);
}

static void run_custom(const cpu_call *c, int64_t from, int64_t to, int thread) {
    const cpu_custom_step *b = (const cpu_custom_step *)c->arg;
    gpu_call call = {.counts = (uint64_t)(uintptr_t)b->exec->block->data,
                     .fault = (uint64_t)(uintptr_t)&b->exec->fault,
                     .n_in = (uint32_t)c->n_in,
                     .step = (uint32_t)c->step,
                     .flags = c->flags};
    (void)thread;
    for (int i = 0; i <= c->n_in; i++) {
        const cpu_view *v = c->v + i;
        call.v[i] = (gpu_view){.data = (uint64_t)(uintptr_t)v->data,
                               .stride = v->stride,
                               .count = -1,
                               .format = v->format | (v->packed ? (uint32_t)HAL_PACKED : 0)};
        memcpy(call.v[i].shape, v->shape, sizeof v->shape);
    }
    memcpy(call.arg, b->arg, b->arg_size);
    b->function(&call, from, to);
}

static cpu_split split_custom(const cpu_call *c) {
    return (cpu_split){((const cpu_custom_step *)c->arg)->items, 1};
}

static const cpu_kernel custom = {.split = split_custom, .run = run_custom, .takes_packed = 1};

static const hal_kernel_override *override_at(const hal_plan *plan, uint32_t step) {
    for (uint32_t i = 0; i < plan->n_overrides; i++)
        if (plan->overrides[i].step == step && plan->overrides[i].kernel)
            return plan->overrides + i;
    return NULL;
}

/* The number of items of a grid; 0: an invalid grid. */
static int64_t items_of(const hal_kernel_override *c) {
    int64_t n = 1;
    for (int i = 0; i < 3; i++)
        n = n > INT32_MAX ? n : n * (int64_t)c->groups[i];
    return n > INT32_MAX || c->local || c->scratch ? 0 : n;
}

int cpu_use_custom(hal_exec *e, const hal_plan *plan, uint32_t step, exec_step *s) {
    const hal_kernel_override *asked = override_at(plan, step);
    cpu_custom_step *b;
    if (!asked)
        return 0;
    if (asked->kernel > e->device->n_custom)
        return hal_fail(HAL_E_INVALID,
                        "kernel override of step %u: it names a custom kernel that was not added to this device", step);
    if (!items_of(asked) || s->call.n_in >= GPU_VIEWS)
        return hal_fail(HAL_E_INVALID,
                        "kernel override of step %u: on the CPU a kernel has 1 to %d groups, no local and no scratch"
                        " memory, and less than %d inputs",
                        step, INT32_MAX, GPU_VIEWS);
    if (!e->custom_steps && !(e->custom_steps = calloc(plan->n_overrides, sizeof *e->custom_steps)))
        return hal_fail(HAL_E_MEMORY, "no memory for a plan's kernels");
    b = e->custom_steps + e->n_custom_steps++;
    *b = (cpu_custom_step){.function = e->device->custom[asked->kernel - 1].function,
                           .items = items_of(asked),
                           .exec = e,
                           .arg = s->call.arg,
                           .arg_size = plan->ops[plan->steps[step].op].arg_size};
    s->kernel = &custom;
    s->call.arg = (const void *)b;
    return 0;
}
