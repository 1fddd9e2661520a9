/* vendor.c: the gpu_vendor of the backend "dry": CUDA's kernel tables. A plan for an H100 is checked and compiled as CUDA's
 * backend does it, on any machine; nothing is computed. For tests only.
 */
#include "vendor.h"

#include "driver.h"
#include "lower.h"
#include "tables.h"

static const gpu_image images[] = {{"kernels are names alone", 0}, {NULL, 0}};

const gpu_vendor *gpu_vendor_entry(void) {
    static gpu_vendor vendor = {.name = "dry",
                                .driver = dry_driver,
                                .lower = cuda_lower,
                                .images = images,
                                .kernels = cuda_tables,
                                .deterministic = cuda_deterministic_tables,
                                .packings = cuda_packings,
                                .stacks = 1,
                                .groups = 1,
                                .flags = HAL_TEST_ONLY};
    vendor.archive = dry_archive();
    return &vendor;
}
