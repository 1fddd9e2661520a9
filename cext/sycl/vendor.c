/* vendor.c: the SYCL backend's gpu_vendor for the common host code of cext/gpu/: source texts of the portable and matrix unit
 * kernels, and the driver library (driver.cpp), which links with the SYCL runtime. If that library cannot be opened, the
 * backend has no devices and says why.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vendor.h"

#include "images.h"
#include "matrix_table.h"
#include "packed_table.h"
#include "sycl_images.inc"

#define DRIVER "satchel_sycl_driver.so"

/* Path of the driver library, in the folder of this library. */
static int beside(char *out, size_t size) {
    Dl_info self;
    const char *slash;
    if (!dladdr((void *)(uintptr_t)gpu_vendor_entry, &self) || !self.dli_fname)
        return -1;
    slash = strrchr(self.dli_fname, '/');
    return snprintf(out, size, "%.*s%s", slash ? (int)(slash - self.dli_fname + 1) : 0, self.dli_fname, DRIVER) <
                   (int)size
               ? 0
               : -1;
}

static const char *driver(gpu_api *api) {
    static char why[512];
    char path[4096];
    void *library, *entry;
    /* Caches compiled kernels in the user's cache folder: compiling takes half a minute. */
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

static const gpu_image images[] = {
    {satchel_image_sycl_portable, 0, 1}, {satchel_image_sycl_matrix, 0, 0}, {NULL, 0, 0}};
static const gpu_image portable[] = {{satchel_image_sycl_portable, 0, 1}, {NULL, 0, 0}};
/* A device without matrix units lacks these kernels, so the portable one is selected. Their rounding differs from the portable
 * kernel's, so HAL_DETERMINISTIC uses the portable kernel for any number of columns. */
static const gpu_kernel products[] = {MATRIX_ENTRIES("matrix_linear"), {0}};
static const gpu_kernel *const kernels[] = {products,           gpu_packed_steps,     gpu_packed_kernels,
                                            gpu_portable_steps, gpu_portable_kernels, NULL};

#define VENDOR(images_, kernels_, flags_)                                                                              \
    {.name = "sycl",                                                                                                   \
     .driver = driver,                                                                                                 \
     .images = images_,                                                                                                \
     .kernels = kernels_,                                                                                              \
     .packings = gpu_packings,                                                                                         \
     .deterministic = kernels + 2,                                                                                     \
     .flags = flags_}

const gpu_vendor *gpu_vendor_entry(void) {
    /* CPUs are for tests only: the CPU backend serves them. */
    static const gpu_vendor vendors[2][2] = {
        {VENDOR(portable, kernels + 1, 0), VENDOR(portable, kernels + 1, HAL_TEST_ONLY)},
        {VENDOR(images, kernels, 0), VENDOR(images, kernels, HAL_TEST_ONLY)},
    };
    const char *devices = getenv("SATCHEL_SYCL_DEVICES");
    return &vendors[matrix_wanted()][devices && !strcmp(devices, "cpu")];
}
