/* plan.c: compile() of GPU backends: selects a plan's kernels and makes the launches of an exec.
 *
 * resolve.c checks every number of the tables first. Kernels check the values that come with a step (ids, slots, positions,
 * blocks). The exec copies all it keeps.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "block_format.h"
#include "group.h"
#include "override.h"
#include "step.h"
#include "table.h"

enum { EARLY_ARCH = 90 /* CUDA: has programmatic dependent launch */ };
enum { LIBRARY_LAUNCHES = 3 };
enum { HAND_ALIGN = 1024 /* bytes; for activations that are handed over */ };
enum { PUSH_LEAST = 256 /* rows from which a product begins the all-reduce of its result */ };
enum { MAX_STEPS = 1 << 20, OP_NAME = sizeof((hal_op *)0)->name };

static int has_functions(hal_device *d, const gpu_kernel *k, const gpu_call *c, gpu_function found[GPU_LAUNCHES]) {
    for (int i = 0; i < GPU_LAUNCHES && k->launch[i].kernel; i++) {
        char name[GPU_NAME];
        gpu_kernel_name(k, i, c, name);
        if (gpu_function_find(d, name, found + i))
            return 0;
    }
    return 1;
}

static const gpu_kernel *const *tables_of(const hal_device *d) {
    return d->traits.flags & HAL_DETERMINISTIC && d->vendor->deterministic ? d->vendor->deterministic
                                                                           : d->vendor->kernels;
}

static int can(hal_device *d, const gpu_kernel *k, const char *op, const gpu_call *c) {
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
    for (const gpu_kernel *const *table = tables_of(d); *table; table++)
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

static void tell(const gpu_kernel *k, const gpu_call *c, uint32_t config, char out[HAL_NAME]) {
    size_t n;
    gpu_entry_name(k, c, out);
    n = strlen(out);
    if (config)
        snprintf(out + n, HAL_NAME - n, "@%u", config);
}

int gpu_kernels(hal_device *d, const hal_plan *plan, uint32_t step, char *names, uint32_t most) {
    const char *op =
        step < plan->n_steps && plan->steps[step].op < plan->n_ops ? plan->ops[plan->steps[step].op].name : "";
    uint32_t found = 0, own = UINT32_MAX;
    gpu_call call;
    int code = gpu_resolve_step(d, plan, NULL, step, &call);
    if (code || (code = gpu_lock(d)))
        return code;
    for (const gpu_kernel *const *table = tables_of(d); *table; table++)
        for (const gpu_kernel *k = *table; k->op; k++) {
            if (!can(d, k, op, &call))
                continue;
            own = own == UINT32_MAX && !k->check(&call, &d->traits) ? found : own;
            for (int i = -1; i < GPU_CONFIGS && (i < 0 || k->configs[i]); i++, found++)
                if (found < most)
                    tell(k, &call, i < 0 ? 0 : k->configs[i], names + (size_t)HAL_NAME * found);
        }
    gpu_unlock(d);
    if (own != UINT32_MAX && own && own < most) {
        char first[HAL_NAME];
        memcpy(first, names + (size_t)HAL_NAME * own, HAL_NAME);
        memmove(names + HAL_NAME, names, (size_t)HAL_NAME * own);
        memcpy(names, first, HAL_NAME);
    }
    return (int)found;
}

/* Whether a step reads or writes this buffer. A run waits for no uploads to others. */
static int is_used(const hal_plan *plan, uint32_t buffer) {
    for (uint32_t i = 0; i < plan->n_views; i++)
        if (plan->views[i].buffer == buffer)
            return 1;
    return 0;
}

static int reserve(const hal_plan *plan, hal_exec *e) {
    uint32_t n = plan->n_steps, timed = e->device->traits.flags & HAL_PROFILE;
    e->calls = calloc(n + 1, sizeof *e->calls);
    e->ops = calloc(n + 1, sizeof *e->ops);
    e->launches = calloc(GPU_LAUNCHES * n + 1, sizeof *e->launches);
    e->outs = calloc(plan->n_buffers + 1, sizeof(hal_buffer *));
    e->prefetched = calloc(plan->n_buffers + 1, sizeof(hal_buffer *));
    e->marks = timed ? calloc(n + 1, sizeof *e->marks) : NULL;
    e->times = timed ? calloc(n + 1, sizeof *e->times) : NULL;
    if (e->calls && e->ops && e->launches && e->outs && (!timed || (e->marks && e->times)))
        return 0;
    return hal_fail(HAL_E_MEMORY, "no memory for a plan");
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

/* Raises a function's shared memory limit to the device's maximum, less what its static variables may take: the limit is per function, and
 * its launches differ. A launch with 48 KiB needs no leave, these variables included, which take STATIC_SHARED at most. */
static int allow_shared(hal_device *d, const gpu_launch *l) {
    enum { STATIC_SHARED = 20 << 10 };
    const int most = d->traits.shared - STATIC_SHARED;
    if (l->grid.shared <= (48 << 10) - STATIC_SHARED || !d->api.allow ||
        !d->api.allow(l->function, GPU_ALLOW_SHARED, d->traits.shared) ||
        ((int)l->grid.shared <= most && !d->api.allow(l->function, GPU_ALLOW_SHARED, most)))
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
    for (int i = e->calls[call].taken != 0; i < GPU_LAUNCHES && k->launch[i].kernel; i++) {
        gpu_launch *l = e->launches + e->n_launches++;
        *l = (gpu_launch){.function = found[i], .call = (uint32_t)call, .grid.groups = {1, 1, 1}};
        l->early = (k->launch[i].early && d->traits.arch >= EARLY_ARCH) || (d->waits && is_portable(k));
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

/* Gives every call its scratch, and what steps hand over (calls whose `taken` is not 0) `hand` bytes behind it: in two places in turn, for
 * a step may take what the one before left, and leave some itself. */
static int give_scratch(hal_exec *e, uint64_t scratch, uint64_t hand) {
    int code = 0;
    scratch = (scratch + HAND_ALIGN - 1) / HAND_ALIGN * HAND_ALIGN;
    hand = (hand + HAND_ALIGN - 1) / HAND_ALIGN * HAND_ALIGN;
    if (scratch + hand)
        code = gpu_scratch_take(e->device, scratch + 2 * hand, &e->scratch);
    for (int i = 0; !code && i < e->n_calls; i++) {
        e->calls[i].scratch = e->scratch ? e->scratch->at : 0;
        if (!e->calls[i].taken)
            continue;
        e->calls[i].taken = e->scratch->at + scratch + i % 2 * hand;
        e->calls[i - 1].handed.at = e->calls[i].taken;
    }
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

/* Views of the arena: bytes from `offset` on of as many rows as they have at most. */
static int overlaps(const hal_view *a, const hal_view *b) {
    return a->buffer == b->buffer && a->offset < b->offset + (uint64_t)b->shape[0] * b->stride &&
           b->offset < a->offset + (uint64_t)a->shape[0] * a->stride;
}

/* Whether a step behind i + 1 reads the result of step i. */
static int is_read_later(const hal_plan *plan, uint32_t i) {
    const hal_view *y = plan->views + plan->steps[i].view;
    for (uint32_t j = i + 2; j < plan->n_steps; j++) {
        const hal_step *s = plan->steps + j;
        for (uint32_t v = 1; v <= s->n_in; v++)
            if (overlaps(plan->views + s->view + v, y))
                return 1;
        if (overlaps(plan->views + s->view, y))
            return 0;
    }
    return 0;
}

/* The columns of a product's tiles if it can push them to the reduce_add behind it, which alone reads them; else 0. */
static uint32_t push_columns(const hal_exec *e, const hal_plan *plan, const gpu_kernel *k, uint32_t i) {
    const gpu_call *c = e->calls + i, *sum = c + 1;
    const char *kernel = k->launch[1].kernel;
    const uint32_t columns = !kernel                            ? 0
                             : !strcmp(kernel, "linear_wide")   ? 256
                             : !strcmp(kernel, "linear_narrow") ? 128
                                                                : 0;
    if (!columns || i + 1 >= plan->n_steps || strncmp(e->ops[i + 1], "reduce_add", OP_NAME) != 0 ||
        gpu_override_at(plan, i) || gpu_override_at(plan, i + 1))
        return 0;
    return c->v[0].shape[0] >= PUSH_LEAST && !memcmp(c->v, sum->v + 1, sizeof *c->v) && sum->v[1].stride % 8 == 0 &&
                   !is_read_later(plan, i)
               ? columns
               : 0;
}

/* The numbers of a row. */
static int64_t row_numbers(const gpu_view *v) {
    return (int64_t)v->shape[1] * v->shape[2] * v->shape[3];
}

/* Bytes of step i's activations if the step before, whose kernel is `before`, hands them over converted: it is told in its call. 0: it
 * does not. Never of deterministic plans, in which a row's bits may not depend on how many rows a step has. */
static uint64_t hand_over(const hal_exec *e, const gpu_kernel *before, const gpu_kernel *k, int i) {
    gpu_call *from = e->calls + i - 1;
    gpu_hand hand = {0};
    const int hands = before && before->hands ? before->hands(from) : 0;
    uint64_t bytes;
    const gpu_view *y = &from->v[0], *x = &e->calls[i].v[1];
    if (!hands || !k->takes || e->device->traits.flags & HAL_DETERMINISTIC || y->data != x->data ||
        y->stride != x->stride || y->shape[0] != x->shape[0] || y->count != x->count ||
        row_numbers(y) != row_numbers(x))
        return 0;
    bytes = k->takes(e->calls + i, &e->device->traits, &hand);
    if (hand.norm && hands < HANDS_NORMED)
        return 0;
    from->handed = hand;
    return bytes;
}

/* Lets the product of step i, whose launches were added last, push its tiles to the next collective. */
static int begin_sum(hal_exec *e, const gpu_kernel *k, int i) {
    gpu_launch *l = e->launches + e->n_launches - 1;
    char name[GPU_NAME];
    snprintf(name, sizeof name, "%s_push", k->launch[1].kernel);
    e->calls[i].arg[GROUP_ARG_PLACE] = e->n_meetings + 1;
    return gpu_function_find(e->device, name, &l->function)
               ? hal_fail(HAL_E_UNSUPPORTED, "%s was not built for this device", name)
               : allow_shared(e->device, l);
}

/* The sum of what a product pushed. Its groups wait for those of other members, so all are on the device at once. */
static int end_sum(hal_exec *e, int i, uint32_t columns) {
    gpu_call *c = e->calls + i;
    const uint64_t down = ((uint64_t)c->v[0].shape[0] + 127) / 128,
                   tiles = down * (((uint64_t)c->v[0].shape[1] + columns - 1) / columns),
                   most = GROUP_TILE_GROUPS * (uint64_t)e->device->traits.units;
    gpu_launch *l = e->launches + e->n_launches++;
    *l = (gpu_launch){.grid = {.groups = {(uint32_t)(tiles < most ? tiles : most), 1, 1}, .threads = GROUP_THREADS},
                      .call = (uint32_t)i,
                      .early = e->device->traits.arch >= EARLY_ARCH};
    c->mode = columns;
    return gpu_function_find(e->device, columns == 256 ? "sum_tiles_256" : "sum_tiles_128", &l->function)
               ? hal_fail(HAL_E_UNSUPPORTED, "sums of tiles were not built for this device")
               : 0;
}

/* Adds the launches of a step's kernel, or of a sum that goes another way. *pushed: columns of the tiles that the step before pushed,
 * then of those that this one pushes. */
static int add_step(hal_exec *e, const hal_plan *plan, const gpu_member *member, const gpu_kernel *k,
                    const gpu_function *found, int i, uint32_t *pushed) {
    gpu_call *c = e->calls + i;
    const uint32_t columns = *pushed;
    int code;
    *pushed = 0;
    if (columns)
        return end_sum(e, i, columns);
    if (member->by_library && !strncmp(e->ops[i], "reduce_add", OP_NAME) &&
        member->by_library(member->group, gpu_sum_bytes(c))) {
        code = gpu_library_launches(e->device, c, (uint32_t)i, e->launches + e->n_launches);
        e->n_launches += LIBRARY_LAUNCHES;
        e->n_library++;
        return code;
    }
    if ((code = add_launches(e, k, found, i)) || !member->push || !(*pushed = push_columns(e, plan, k, (uint32_t)i)))
        return code;
    c->arg[GROUP_ARG] = member->at;
    return begin_sum(e, k, i);
}

/* What a plan's calls need besides their views, in bytes; hand: of the largest activations that a step hands over. */
typedef struct {
    uint64_t scratch, hand;
    uint32_t counters;
} call_needs;

/* Selects each step's kernel and adds its launches. */
static int add_steps(hal_exec *e, const hal_plan *plan, const gpu_member *member, call_needs *needs) {
    hal_device *d = e->device;
    const gpu_kernel *before = NULL; /* of the step before */
    uint32_t pushed = 0;
    int code = 0;
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
            needs->scratch = asked->scratch > needs->scratch ? asked->scratch : needs->scratch;
            before = NULL;
            continue;
        }
        if (gpu_is_collective(e->ops[i]) && !member->group)
            return fail_step(plan, (uint32_t)i, "a collective needs a group of devices");
        if (gpu_is_collective(e->ops[i])) {
            c->arg[GROUP_ARG] = member->at;
            c->arg[GROUP_ARG_PLACE] = ++e->n_meetings;
        }
        if ((fault = choose(d, e->ops[i], asked, c, &k, found))) {
            fail_step(plan, (uint32_t)i, fault);
            return HAL_E_UNSUPPORTED;
        }
        c->mode = k->mode;
        if (asked)
            gpu_is_named(k, c, asked, &c->config);
        if (k->scratch && k->scratch(c, &d->traits) > needs->scratch)
            needs->scratch = k->scratch(c, &d->traits);
        needs->counters = k->counters > needs->counters ? k->counters : needs->counters;
        if ((c->taken = hand_over(e, before, k, i)) > needs->hand)
            needs->hand = c->taken;
        code = add_step(e, plan, member, k, found, i, &pushed);
        before = k;
    }
    return code;
}

static int build(hal_device *d, const hal_plan *plan, hal_buffer *const *buffers, const gpu_member *member,
                 hal_exec *e) {
    call_needs needs = {0};
    gpu_address fault_at = 0;
    int code = gpu_check_overrides(d, plan);
    if (!code)
        code = resolve_all(d, plan, buffers, e);
    if (!code)
        code = add_steps(e, plan, member, &needs);
    if (!code)
        code = reserve_host(e);
    if (!code)
        code = give_scratch(e, needs.scratch, needs.hand);
    if (!code)
        code = d->api.seen ? gpu_check(d, d->api.seen(&fault_at, e->fault), "host memory that the device sees") : 0;
    for (int i = 0; !code && i < e->n_calls; i++)
        e->calls[i].fault = fault_at ? fault_at : (uint64_t)(uintptr_t)e->fault;
    if (!code && needs.counters)
        code = give_counters(e, needs.counters);
    for (uint32_t i = 0; !code && i < plan->n_buffers; i++)
        if (buffers[i]->mirror)
            e->outs[e->n_outs++] = buffers[i];
        else if (buffers[i]->usage == HAL_PREFETCH && is_used(plan, i))
            e->prefetched[e->n_prefetched++] = buffers[i];
    return code ? code : gpu_capture(e);
}

uint64_t gpu_sum_bytes(const gpu_call *c) {
    return sizeof(float) * (uint64_t)c->v[0].shape[0] * (uint64_t)c->v[0].shape[1];
}

int gpu_largest_sum(hal_device *d, const hal_plan *plan, uint64_t *bytes) {
    gpu_call call;
    int code = 0;
    *bytes = 0;
    for (uint32_t i = 0; i < plan->n_steps && !code; i++) {
        if (plan->steps[i].op >= plan->n_ops || strncmp(plan->ops[plan->steps[i].op].name, "reduce_add", OP_NAME) != 0)
            continue;
        code = gpu_resolve_step(d, plan, NULL, i, &call); /* compile() tells what is wrong with it */
        if (!code && gpu_sum_bytes(&call) > *bytes)
            *bytes = gpu_sum_bytes(&call);
    }
    return code;
}

int gpu_library_launches(hal_device *d, const gpu_call *c, uint32_t call, gpu_launch out[3]) {
    enum { EACH = 4 /* numbers of a thread's word */, WAVES = 8 };
    const uint64_t all = gpu_sum_bytes(c) / sizeof(float) / (EACH * GROUP_THREADS) + 1,
                   most = WAVES * (uint64_t)d->traits.units;
    const gpu_launch one = {.grid = {.groups = {(uint32_t)(all < most ? all : most), 1, 1}, .threads = GROUP_THREADS},
                            .call = call};
    for (int i = 0; i < LIBRARY_LAUNCHES; i++)
        out[i] = one;
    out[1].function = NULL;
    if (gpu_function_find(d, "round_rows", &out[0].function) || gpu_function_find(d, "finish_rows", &out[2].function))
        return hal_fail(HAL_E_UNSUPPORTED, "the kernels around a library's all-reduce were not built for this device");
    out[0].early = d->traits.arch >= EARLY_ARCH;
    return 0;
}

int gpu_is_collective(const char *op) {
    return !strncmp(op, "reduce_add", OP_NAME) || !strncmp(op, "gather_columns", OP_NAME) || gpu_divides_rows(op);
}

int gpu_divides_rows(const char *op) {
    return !strncmp(op, "reduce_scatter", OP_NAME) || !strncmp(op, "all_gather", OP_NAME) ||
           !strncmp(op, "norm_all_gather", OP_NAME);
}

int gpu_compile_member(hal_device *d, const hal_plan *plan, hal_buffer *const *buffers, const gpu_member *member,
                       hal_exec **out) {
    hal_exec *e = calloc(1, sizeof *e);
    int code = 0;
    if (!e)
        return hal_fail(HAL_E_MEMORY, "no memory for a plan");
    e->device = d;
    e->group = member->group;
    e->rank = member->rank;
    e->members = member->members;
    e->fault_of = member->fault_of;
    e->sum_of = member->sum_of;
    if (plan->step_buffer >= plan->n_buffers)
        code = hal_fail(HAL_E_INVALID, "plan: its step buffer is none of its buffers");
    else if (plan->n_steps > MAX_STEPS)
        code = hal_fail(HAL_E_INVALID, "plan: %u steps are too many", plan->n_steps);
    for (uint32_t i = 0; !code && i < plan->n_buffers; i++)
        if (buffers[i]->device != d)
            code = hal_fail(HAL_E_INVALID, "plan: buffer %u is another device's", i);
    if (!code && buffers[plan->step_buffer]->size < HAL_COUNTS * sizeof(int32_t))
        code = hal_fail(HAL_E_INVALID, "plan: its step buffer is too small");
    if (!code && !(code = gpu_lock(d))) {
        e->block = buffers[plan->step_buffer];
        code = build(d, plan, buffers, member, e);
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

int gpu_compile(hal_device *d, const hal_plan *plan, hal_buffer *const *buffers, hal_exec **out) {
    const gpu_member alone = {0};
    return gpu_compile_member(d, plan, buffers, &alone, out);
}
