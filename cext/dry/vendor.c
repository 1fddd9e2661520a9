/* vendor.c: the gpu_vendor of the backend "dry": CUDA's kernel tables. A plan for an H100 is checked and compiled as CUDA's
 * backend does it, on any machine; nothing is computed. For tests only.
 */
#include "vendor.h"

#include "driver.h"
#include "tables.h"

static const gpu_image images[] = {{"kernels are names alone", 0}, {NULL, 0}};
static const gpu_kernel *const kernels[] = {CUDA_KERNELS gpu_portable_kernels, NULL};
static const gpu_kernel *const deterministic[] = {CUDA_DETERMINISTIC_KERNELS gpu_portable_kernels, NULL};

const gpu_vendor *gpu_vendor_entry(void) {
    static const gpu_vendor vendor = {.name = "dry",
                                      .driver = dry_driver,
                                      .images = images,
                                      .kernels = kernels,
                                      .deterministic = deterministic,
                                      .packings = CUDA_PACKINGS,
                                      .stacks = 1,
                                      .flags = HAL_TEST_ONLY};
    return &vendor;
}
