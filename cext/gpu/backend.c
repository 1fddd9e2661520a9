/* backend.c: opens, describes and closes the devices of a GPU backend (CUDA, HIP, SYCL, Metal). The vendor's folder supplies
 * the driver and the kernels (vendor.h); all other host code is common. Nothing here links against a vendor's library.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "archive.h"
#include "group.h"
#include "os.h"

/* Error numbers that CUDA and HIP share; init() gives them on a machine without a GPU. */
enum { NO_DEVICE = 100, NO_SUCH_DEVICE = 101 };

/* Loads the driver once for all devices of the process. NULL, or why it cannot be used; *broken: it is installed but fails. */
static const char *driver(gpu_api *out, int *broken) {
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    static gpu_api api;
    static const char *why;
    static int asked, bad;
    pthread_mutex_lock(&once);
    if (!asked) {
        static char failed[512];
        int code;
        asked = 1;
        if ((why = gpu_vendor_entry()->driver(&api))) {
            bad = api.init != NULL; /* an installed driver that lacks a function */
        } else if ((code = api.init(0))) {
            bad = code != NO_DEVICE && code != NO_SUCH_DEVICE;
            snprintf(failed, sizeof failed, "the driver could not be started: error %d %.400s", code,
                     gpu_words_of(&api));
            why = bad ? failed : "the driver sees no device";
        }
    }
    *out = api;
    *broken = bad;
    pthread_mutex_unlock(&once);
    return why;
}

static int count(void) {
    gpu_api api;
    int n = 0, broken;
    const char *why = driver(&api, &broken);
    if (why)
        return hal_fail(0, "%s", why);
    if (api.count(&n) || !n)
        return hal_fail(0, "the driver sees no device");
    return n;
}

static int score(void) {
    gpu_api api;
    int broken;
    driver(&api, &broken);
    return count() > 0 ? 100 : broken ? -1 : 0;
}

static int read_traits(hal_device *d) {
    const gpu_numbers *is = &d->api.is;
    int major = 0, minor = 0, device = d->ordinal;
    int code = d->api.attribute(&major, is->major, device) | d->api.attribute(&minor, is->minor, device) |
               d->api.attribute(&d->traits.units, is->units, device) |
               d->api.attribute(&d->traits.shared, is->shared, device) |
               d->api.attribute(&d->traits.wave, is->wave, device);
    d->traits.arch = 10 * major + minor;
    if ((code = gpu_check(d, code, "asking what the device is")))
        return code;
    const char *wrong = d->vendor->lower ? d->vendor->lower(&d->traits) : NULL;
    return wrong ? hal_fail(HAL_E_INVALID, "%s", wrong) : 0;
}

static int load_images(hal_device *d) {
    gpu_function unused;
    int n = 0, code;
    if (d->vendor->archive) {
        code = gpu_load_archive(d);
        d->waits = !code && !gpu_function_find(d, "waits_by_itself", &unused);
        return code;
    }
    for (const gpu_image *image = d->vendor->images; image->data; image++) {
        if (n >= GPU_MODULES || d->traits.arch < image->least)
            continue;
        code = d->api.load(d->modules + n, image->data);
        if (code && image->needed)
            return gpu_check(d, code, "loading kernels");
        n += !code;
    }
    d->waits = !gpu_function_find(d, "waits_by_itself", &unused);
    return n ? 0 : hal_fail(HAL_E_UNSUPPORTED, "no kernels were built for this device");
}

static void close_device(hal_device *d) {
    if (!d)
        return;
    if (d->context && !d->api.enter(d->context)) {
        if (d->side)
            d->api.finish(d->side);
        if (d->packer)
            d->api.finish(d->packer);
        if (d->main)
            d->api.finish(d->main);
        for (int i = 0; i < d->n_pinned; i++)
            d->api.unpin((void *)(uintptr_t)d->pinned[i].at);
        for (int i = 0; i < GPU_PIECES; i++) {
            if (d->pieces[i].host)
                d->api.free_host(d->pieces[i].host);
            if (d->pieces[i].device)
                d->api.free(d->pieces[i].device);
            if (d->pieces[i].copied)
                d->api.end_event(d->pieces[i].copied);
            if (d->pieces[i].sent)
                d->api.end_event(d->pieces[i].sent);
        }
        if (d->input)
            d->api.free_host(d->input);
        for (int i = 0; i < 2; i++)
            if (d->input_sent[i])
                d->api.end_event(d->input_sent[i]);
        gpu_scratch_leave(d, d->scratch);
        gpu_drop_custom(d);
        gpu_drop(d);
        for (int i = 0; i < GPU_MODULES && d->modules[i]; i++)
            d->api.unload(d->modules[i]);
        for (int i = 0; i < GPU_MODULES; i++)
            if (d->unpacked[i])
                os_free(d->unpacked[i]);
        if (d->loaded)
            d->api.end_event(d->loaded);
        if (d->packer)
            d->api.end_stream(d->packer);
        if (d->side)
            d->api.end_stream(d->side);
        if (d->main)
            d->api.end_stream(d->main);
        d->api.leave(d->ordinal);
    }
    pthread_mutex_destroy(&d->busy);
    free(d->pinned);
    free(d);
}

/* Lowers the stack per thread to 256 bytes. CUDA's default of 1 KiB for every resident thread reserves 277 MB on a GPU with 132
 * SMs; the driver enlarges it by itself for a kernel that needs more. A context shared with other code of the process (PyTorch,
 * say) is left as it is. */
static void limit_stacks(hal_device *d, int shared) {
    enum { STACK = 0 /* of CUlimit and hipLimit_t */, BYTES = 256 };
    if (!shared && d->api.limit)
        d->api.limit(STACK, BYTES); /* on failure the default stays */
}

static int start_device(hal_device *d, int index) {
    unsigned flags;
    int shared = 0;
    int code = gpu_check(d, d->api.device(&d->ordinal, index), "finding the device");
    if (code || (code = read_traits(d)))
        return code;
    if (d->api.state && d->api.state(d->ordinal, &flags, &shared))
        shared = 0;
    if ((code = gpu_check(d, d->api.retain(&d->context, d->ordinal), "opening the device")) ||
        (code = gpu_check(d, d->api.enter(d->context), "taking the device's context")))
        return code;
    limit_stacks(d, shared);
    if ((code = load_images(d)))
        return code;
    code = gpu_check(d, d->api.stream(&d->main, 1), "a stream");
    if (!code)
        code = gpu_check(d, d->api.stream(&d->side, 1), "a stream");
    if (!code)
        code = gpu_check(d, d->api.stream(&d->packer, 1), "a stream");
    return code ? code : gpu_check(d, d->api.event(&d->loaded, 2), "an event");
}

static int open_device(int index, const hal_options *options, hal_device **out) {
    gpu_api api = {0};
    int broken, n, code;
    const char *why = driver(&api, &broken);
    hal_device *d;
    if (why)
        return hal_fail(HAL_E_UNSUPPORTED, "%s", why);
    n = count();
    if (index < 0 || index >= n)
        return hal_fail(HAL_E_INVALID, "there is no device %d, the driver sees %d", index, n);
    if (!(d = calloc(1, sizeof *d)))
        return hal_fail(HAL_E_MEMORY, "no memory for a device");
    d->vendor = gpu_vendor_entry();
    d->api = api;
    d->traits.flags = options ? options->flags : 0;
    pthread_mutex_init(&d->busy, NULL);
    if ((code = start_device(d, index))) {
        close_device(d);
        return code;
    }
    *out = d;
    return 0;
}

static void info(hal_device *d, hal_info *out) {
    size_t unused = 0, all = 0;
    memset(out, 0, sizeof *out);
    if (!gpu_lock(d)) {
        d->api.name(out->name, sizeof out->name, d->ordinal);
        d->api.memory(&unused, &all);
        unused += gpu_spare(d);
        gpu_unlock(d);
    }
    snprintf(out->variant, sizeof out->variant, "%s %d.%d", d->vendor->name, d->traits.arch / 10, d->traits.arch % 10);
    snprintf(out->image, sizeof out->image, "%s", d->image);
    out->memory_total = all;
    out->memory_free = unused;
    out->allocations = atomic_load(&d->allocations);
    out->threads = (uint32_t)d->traits.units;
    out->flags = d->vendor->flags;
}

const hal_backend *GPU_BACKEND(void);

const hal_backend *GPU_BACKEND(void) {
    static hal_backend backend = {
        .hash = HAL_ABI_HASH,
        .score = score,
        .count = count,
        .open = open_device,
        .close = close_device,
        .info = info,
        .alloc = gpu_alloc,
        .free = gpu_free,
        .write = gpu_write,
        .read = gpu_read,
        .copy = gpu_copy,
        .supports = gpu_supports,
        .compile = gpu_compile,
        .run = gpu_run,
        .wait = gpu_wait,
        .release = gpu_release,
        .error = hal_last_error,
        .packed = gpu_packed,
        .pack = gpu_pack,
        .pin = gpu_pin,
        .unpin = gpu_unpin,
        .times = gpu_times,
        .kernels = gpu_kernels,
        .add_kernel = gpu_add_kernel,
        .measure = gpu_measure,
    };
    if (gpu_vendor_entry()->groups) {
        backend.join = gpu_join;
        backend.part = gpu_part;
        backend.group_info = gpu_group_info;
        backend.compile_group = gpu_compile_group;
        backend.run_group = gpu_run_group;
    }
    backend.name = gpu_vendor_entry()->name;
    backend.wrap = gpu_vendor_entry()->wraps ? gpu_wrap : NULL;
    return &backend;
}
