/* vendor.c: what makes the common host of cext/gpu/ the SYCL backend: the portable kernels as text, and the library beside this
 * one that is linked with SYCL's run time (driver.cpp). Where that cannot be opened, the backend says why and has no devices.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vendor.h"

#include "images.h"
#include "sycl_images.inc"
#include "table.h"

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

static const gpu_image images[] = {{satchel_image_sycl_text, 0}, {NULL, 0}};
static const gpu_kernel *const kernels[] = {gpu_portable_kernels, NULL};

const gpu_vendor *gpu_vendor_entry(void) {
    static gpu_vendor vendor = {.name = "sycl", .driver = driver, .images = images, .kernels = kernels};
    const char *devices = getenv("SATCHEL_SYCL_DEVICES");
    /* A processor is what the CPU backend is for. */
    vendor.flags = devices && !strcmp(devices, "cpu") ? HAL_TEST_ONLY : 0;
    return &vendor;
}
