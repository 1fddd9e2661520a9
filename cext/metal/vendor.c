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
static const gpu_kernel *const kernels[] = {products, gpu_portable_kernels, NULL}, *const *const plain = kernels + 1;

const gpu_vendor *gpu_vendor_entry(void) {
    static gpu_vendor vendor = {.name = "metal", .driver = metal_driver, .deterministic = plain, .wraps = 1};
    int wanted = matrix_wanted();
    vendor.images = wanted ? images : plain_images;
    vendor.kernels = wanted ? kernels : plain;
    return &vendor;
}
