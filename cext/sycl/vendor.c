/* vendor.c: what makes the common host of cext/gpu/ the SYCL backend: the portable kernels and those of matrix units as texts,
 * and the library beside this one that is linked with SYCL's run time (driver.cpp). Where that cannot be opened, the backend
 * says why and has no devices.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vendor.h"

#include "images.h"
#include "matrix_table.h"
#include "sycl_images.inc"

#define DRIVER "satchel_sycl_driver.so"

/* The path of the driver: it stands where this library stands. */
static int beside(char *out, size_t size) {
    Dl_info self;
    const char *slash;
    if (!dladdr((void *)(uintptr_t)gpu_vendor_entry, &self) || !self.dli_fname)
        return -1;
    slash = strrchr(self.dli_fname, '/');
    return snprintf(out, size, "%.*s%s", slash ? (int)(slash - self.dli_fname + 1) : 0, self.dli_fname, DRIVER) < (int)size
               ? 0
               : -1;
}

static const char *driver(gpu_api *api) {
    static char why[512];
    char path[4096];
    void *library, *entry;
    /* Compiled kernels are kept in the user's cache: making them takes half a minute. */
    setenv("SYCL_CACHE_PERSISTENT", "1", 0);
    library = beside(path, sizeof path) ? NULL : dlopen(path, RTLD_NOW | RTLD_LOCAL);
    entry = library ? dlsym(library, "sycl_driver") : NULL;
    if (!entry) {
        snprintf(why, sizeof why, "SYCL's run time cannot be used: %.400s", dlerror());
        return why;
    }
    ((void (*)(gpu_api *))(uintptr_t)entry)(api);
    return NULL;
}

static const gpu_image images[] = {{satchel_image_sycl_portable, 0, 1}, {satchel_image_sycl_matrix, 0, 0}, {NULL, 0, 0}};
static const gpu_image portable[] = {{satchel_image_sycl_portable, 0, 1}, {NULL, 0, 0}};
/* A device without matrix units has no such kernel, so the next one is taken. Their sums round otherwise than the portable
 * kernel's of few columns, which serves all where answers must not hang on their company. */
static const gpu_kernel products[] = {MATRIX_ENTRIES("matrix_linear"), {0}};
static const gpu_kernel *const kernels[] = {products, gpu_portable_kernels, NULL};

#define VENDOR(images_, kernels_, flags_)                                                                              \
    {.name = "sycl", .driver = driver, .images = images_, .kernels = kernels_, .deterministic = kernels + 1, .flags = flags_}

const gpu_vendor *gpu_vendor_entry(void) {
    /* A processor is what the CPU backend is for. */
    static const gpu_vendor vendors[2][2] = {
        {VENDOR(portable, kernels + 1, 0), VENDOR(portable, kernels + 1, HAL_TEST_ONLY)},
        {VENDOR(images, kernels, 0), VENDOR(images, kernels, HAL_TEST_ONLY)},
    };
    const char *devices = getenv("SATCHEL_SYCL_DEVICES");
    return &vendors[matrix_wanted()][devices && !strcmp(devices, "cpu")];
}
