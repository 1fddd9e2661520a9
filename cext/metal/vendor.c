/* vendor.c: the Metal backend's gpu_vendor for the common host code of cext/gpu/: source texts of the portable kernels and of
 * products on matrix units, and a driver in plain C (device.c, library.c, stream.c, graph.c) over the Objective-C runtime.
 * Without that runtime the backend has no devices and says why.
 */
#include <stdlib.h>

#include "vendor.h"

#include "images.h"
#include "metal.h"
#include "metal_images.inc"
#include "matrix_table.h"

enum { APPLE7 = 70 /* gpu_traits.arch of the first GPUs that have simdgroup_matrix */ };

/* The first text includes the driver's own kernels. The portable kernels alone serve GPUs without matrix units, Metal versions
 * that do not compile the second text, and HAL_DETERMINISTIC. */
static const gpu_image images[] = {{satchel_image_portable_text, 0}, {satchel_image_matrix_text, APPLE7}, {NULL, 0}};
static const gpu_image plain_images[] = {{satchel_image_portable_text, 0}, {NULL, 0}};
static const gpu_kernel products[] = {MATRIX_ENTRIES("matrix_linear"), {0}};
static const gpu_kernel *const kernels[] = {products, gpu_portable_steps, gpu_portable_kernels, NULL},
                               *const *const plain = kernels + 1;

/* Fills the table; NULL, or why there is no Metal. */
static const char *driver(gpu_api *out) {
    const char *why = objc_open();
    if (why && !objc.send) /* not a Mac: leaves the table empty, because a partly filled one means a broken driver */
        return why;
    metal_devices(out);
    out->load = metal_load, out->unload = metal_unload, out->function = metal_function_of;
    metal_streams(out);
    metal_graphs(out);
    return why;
}

const gpu_vendor *gpu_vendor_entry(void) {
    static gpu_vendor vendor = {.name = "metal", .driver = driver, .deterministic = plain, .wraps = 1};
    int wanted = matrix_wanted();
    vendor.images = wanted ? images : plain_images;
    vendor.kernels = wanted ? kernels : plain;
    return &vendor;
}
