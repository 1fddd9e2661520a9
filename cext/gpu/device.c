/* device.c: the parts of a GPU device that all other files use: its errors, its lock, its kernels by name, and their launch. */
#include "device.h"

enum { OUT_OF_MEMORY = 2 /* of CUDA and HIP */ };

/* Sticky errors: after one, the driver fails every call of this process. The numbers are CUDA's, which HIP shares. */
static int is_final(int code) {
    static const int numbers[] = {
        214, 220,      /* uncorrectable ECC error, uncorrectable NVLink error */
        700, 716, 717, /* illegal address, misaligned address, invalid address space */
        702, 709, 710, 714,
        715, 718, 719, /* timeout, context destroyed, assert, stack, instruction, program counter, other */
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i] == code)
            return 1;
    return 0;
}

const char *gpu_words_of(const gpu_api *api) {
    const char *said = NULL;
    return api->said && !api->said(&said) && said ? said : "";
}

int gpu_check(const hal_device *d, int code, const char *what) {
    const char *said;
    int kind = is_final(code) ? HAL_E_LOST : code == OUT_OF_MEMORY ? HAL_E_MEMORY : HAL_E_DEVICE;
    if (!code)
        return 0;
    if (*(said = gpu_words_of(&d->api)))
        return hal_fail(kind, "%s: %s", what, said);
    if (kind == HAL_E_LOST)
        return hal_fail(kind, "%s: the driver gave error %d and fails every further call", what, code);
    if (kind == HAL_E_MEMORY)
        return hal_fail(kind, "%s: the device is out of memory", what);
    return hal_fail(kind, "%s: the driver gave error %d", what, code);
}

int gpu_lock_alone(hal_device *d) {
    int code;
    pthread_mutex_lock(&d->busy);
    if ((code = gpu_check(d, d->api.enter(d->context), "taking the device's context")))
        pthread_mutex_unlock(&d->busy);
    return code;
}

void gpu_unlock_alone(hal_device *d) {
    pthread_mutex_unlock(&d->busy);
}

int gpu_lock(hal_device *d) {
    int code;
    if (d->together)
        pthread_mutex_lock(d->together);
    if ((code = gpu_lock_alone(d)) && d->together)
        pthread_mutex_unlock(d->together);
    return code;
}

void gpu_unlock(hal_device *d) {
    gpu_unlock_alone(d);
    if (d->together)
        pthread_mutex_unlock(d->together);
}

int gpu_settle(hal_device *d) {
    int code = 0;
    if (!d->loading)
        return 0;
    code = gpu_check(d, d->api.record(d->loaded, d->packer), "an event");
    if (!code)
        code = gpu_check(d, d->api.await(d->main, d->loaded, 0), "waiting for weights");
    d->loading = code != 0;
    return code;
}

int gpu_settle_prefetch(hal_buffer *b) {
    hal_device *d = b->device;
    int code = b->fresh ? gpu_check(d, d->api.await(d->main, b->written, 0), "waiting for prefetched weights") : 0;
    b->fresh = b->fresh && code;
    return code;
}

int gpu_function_find(hal_device *d, const char *name, gpu_function *out) {
    for (int i = 0; i < GPU_MODULES && d->modules[i]; i++)
        if (!d->api.function(out, d->modules[i], name))
            return 0;
    return hal_fail(HAL_E_UNSUPPORTED, "kernel %s: it was not built for this device", name);
}

int gpu_start(hal_device *d, const gpu_launch *l, const gpu_call *call, gpu_stream stream) {
    const gpu_grid *g = &l->grid;
    void *arguments[] = {(void *)(uintptr_t)call};
    gpu_launch_attribute with[2];
    gpu_launch_config config = {.grid = {g->groups[0], g->groups[1], g->groups[2]},
                                .block = {g->threads, 1, 1},
                                .shared = g->shared,
                                .stream = stream,
                                .attributes = with};
    if (d->api.launch_with && l->early)
        with[config.n_attributes++] = (gpu_launch_attribute){.id = GPU_LAUNCH_EARLY, .is.value = 1};
    if (d->api.launch_with && g->cluster)
        with[config.n_attributes++] = (gpu_launch_attribute){.id = GPU_LAUNCH_CLUSTER, .is.dim = {g->cluster, 1, 1}};
    if (config.n_attributes)
        return gpu_check(d, d->api.launch_with(&config, l->function, arguments, NULL), "starting a kernel");
    return gpu_check(d,
                     d->api.launch(l->function, g->groups[0], g->groups[1], g->groups[2], g->threads, 1, 1, g->shared,
                                   stream, arguments, NULL),
                     "starting a kernel");
}
