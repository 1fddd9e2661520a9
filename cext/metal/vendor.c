/* vendor.c: what makes the common host of cext/gpu/ the Metal backend: the portable kernels as text, and a driver in plain C
 * (device.c, library.c, stream.c, graph.c) over Objective-C's run time. Where that is missing, the backend says so and has no
 * devices.
 */
#include <stdlib.h>

#include "vendor.h"

#include "images.h"
#include "metal.h"
#include "metal_images.inc"
#include "table.h"

static const gpu_image images[] = {{satchel_image_metal_text, 0}, {NULL, 0}};
static const gpu_kernel *const kernels[] = {gpu_portable_kernels, NULL};

const gpu_vendor *gpu_vendor_entry(void) {
    static const gpu_vendor vendor = {.name = "metal", .driver = metal_driver, .images = images, .kernels = kernels, .wraps = 1};
    return &vendor;
}
