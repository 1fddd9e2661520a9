/* override.c: kernel overrides of a plan. An override selects a built-in kernel by name, or a custom kernel. plan.c selects the
 * default.
 *
 * Custom kernels, which add_kernel() took, belong to the device: it unloads their modules when it closes.
 */
#include "override.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "block_format.h"

enum { THREADS_MOST = 1024, GROUPS_MOST = 65535 /* limit of a grid's second and third dimension */ };

void gpu_kernel_name(const gpu_kernel *k, int i, const gpu_call *c, char out[GPU_NAME]) {
    if (k->format_of > 0 && !k->launch[i].common)
        snprintf(out, GPU_NAME, "%s_%s", k->launch[i].kernel,
                 block_format_find(c->v[k->format_of].format & ~(uint32_t)HAL_PACKED)->name);
    else
        snprintf(out, GPU_NAME, "%s", k->launch[i].kernel);
}

void gpu_entry_name(const gpu_kernel *k, const gpu_call *c, char out[HAL_NAME]) {
    size_t used = 0;
    *out = 0;
    for (int i = 0; i < GPU_LAUNCHES && k->launch[i].kernel && used < HAL_NAME; i++) {
        char name[GPU_NAME];
        gpu_kernel_name(k, i, c, name);
        used += (size_t)snprintf(out + used, HAL_NAME - used, "%s%s", i ? "+" : "", name);
    }
}

/* Parses the config of "name@config" (0 without "@"); false unless it is one of the entry's. */
static int number_of(const gpu_kernel *k, const char *at, uint32_t *config) {
    char text[16];
    for (int i = 0; *at && i < GPU_CONFIGS && k->configs[i]; i++) {
        snprintf(text, sizeof text, "@%u", k->configs[i]);
        if (strcmp(text, at) == 0) {
            *config = k->configs[i];
            return 1;
        }
    }
    *config = 0;
    return !*at;
}

int gpu_is_named(const gpu_kernel *k, const gpu_call *c, const hal_kernel_override *asked, uint32_t *config) {
    char name[HAL_NAME];
    size_t n;
    gpu_entry_name(k, c, name);
    n = strlen(name);
    return strncmp(name, asked->name, n) == 0 && number_of(k, asked->name + n, config);
}

const hal_kernel_override *gpu_override_at(const hal_plan *plan, uint32_t step) {
    for (uint32_t i = 0; i < plan->n_overrides && plan->overrides[i].step <= step; i++)
        if (plan->overrides[i].step == step)
            return plan->overrides + i;
    return NULL;
}

static const char *override_fault(const hal_device *d, const hal_kernel_override *c) {
    if (!c->kernel)
        return memchr(c->name, 0, HAL_NAME) ? NULL : "its name has no terminating 0";
    if (c->kernel > d->n_custom)
        return "it names a custom kernel that was not added to this device";
    if (!c->threads || c->threads > THREADS_MOST || !c->groups[0] || !c->groups[1] || !c->groups[2] ||
        c->groups[0] > INT32_MAX || c->groups[1] > GROUPS_MOST || c->groups[2] > GROUPS_MOST)
        return "a grid has 1 to 65535 groups each way, along the first more, and groups of 1 to 1024 threads";
    return c->local <= (uint32_t)d->traits.shared ? NULL : "it needs more local memory than a group may have";
}

int gpu_check_overrides(const hal_device *d, const hal_plan *plan) {
    for (uint32_t i = 0; i < plan->n_overrides; i++) {
        const hal_kernel_override *c = plan->overrides + i;
        const char *fault = override_fault(d, c);
        if (c->step >= plan->n_steps || (i && c->step <= c[-1].step))
            fault = "overrides must be in the order of the plan's steps";
        if (fault)
            return hal_fail(HAL_E_INVALID, "kernel override %u, of step %u: %s", i, c->step, fault);
    }
    return 0;
}

int gpu_custom_launch(hal_device *d, const hal_kernel_override *asked, uint32_t call, gpu_launch *out) {
    *out = (gpu_launch){.function = d->custom[asked->kernel - 1].function, .call = call};
    memcpy(out->grid.groups, asked->groups, sizeof out->grid.groups);
    out->grid.threads = asked->threads;
    out->grid.shared = asked->local;
    if (asked->local <= 48 << 10 || !d->api.allow)
        return 0;
    return gpu_check(d, d->api.allow(out->function, GPU_ALLOW_SHARED, (int)asked->local), "local memory of a kernel");
}

/* The lock is held. */
static int load(hal_device *d, const char *image, const char *entry, gpu_custom *out) {
    int code = d->api.load(&out->module, image);
    if (code)
        return hal_fail(HAL_E_INVALID, "kernel %s: the driver cannot load its code: error %d", entry, code);
    if (!(code = d->api.function(&out->function, out->module, entry)))
        return 0;
    d->api.unload(out->module);
    return hal_fail(HAL_E_INVALID, "kernel %s: its code has no function of this name", entry);
}

int gpu_add_kernel(hal_device *d, const char *image, const char *entry, uint32_t *kernel) {
    gpu_custom *more = NULL;
    int code = gpu_lock(d);
    if (code)
        return code;
    if (d->n_custom < UINT32_MAX - 1 && (more = realloc(d->custom, (d->n_custom + 1) * sizeof *more)))
        d->custom = more;
    code = more ? load(d, image, entry, more + d->n_custom) : hal_fail(HAL_E_MEMORY, "no memory for a kernel");
    if (!code)
        *kernel = ++d->n_custom;
    gpu_unlock(d);
    return code;
}

void gpu_drop_custom(hal_device *d) {
    for (uint32_t i = 0; i < d->n_custom; i++)
        d->api.unload(d->custom[i].module);
    free(d->custom);
    d->custom = NULL;
    d->n_custom = 0;
}
