/* vendor.c: the gpu_vendor of the backend "emulated": the portable kernels compiled for this CPU, and a driver that runs them,
 * so that host code and kernels are tested without a GPU. Slow; for tests only.
 */
#include "vendor.h"

#include "check.h"
#include "driver.h"
#include "matrix_table.h"
#include "packed_table.h"
#include "table.h"

static const gpu_image images[] = {{"the kernels are in this library", 0}, {NULL, 0}};

static const char *check_serial(const gpu_call *c, const gpu_traits *t) {
    (void)t;
    return c->n_in == 2 && c->v[0].format == F32 && c->v[1].format == F32 && c->v[2].format == F32 &&
                   same_shape(c->v, c->v + 1) && c->v[2].stride == 4 && c->v[0].shape[0] <= MOST_TOKENS &&
                   width(c->v) % c->v[2].shape[0] == 0
               ? NULL
               : "x, its weights and the output must be f32";
}

static void grid_serial(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    (void)t;
    *g = grid_of(width(c->v) / c->v[2].shape[0], c->v[0].shape[0], 1, 32, 0);
}

/* Comes after the portable kernels, so only a kernel override selects it. */
static const gpu_kernel serial[] = {
    {.op = "rms_norm", .check = check_serial, .launch = {{"rms_norm_serial", grid_serial, 0}}, .configs = {3}},
    {0},
};
static const gpu_kernel units[] = {
    MATRIX_ENTRIES("matrix_linear_mfma"),
    MATRIX_ENTRIES("matrix_linear_wmma11"),
    MATRIX_ENTRIES("matrix_linear_wmma12"),
    {0},
};
static const gpu_kernel *const kernels[] = {
    gpu_packed_steps, gpu_packed_kernels, gpu_portable_steps, gpu_portable_kernels, serial, units, NULL};
static const gpu_kernel *const plain[] = {
    gpu_packed_steps, gpu_packed_kernels, gpu_portable_steps, gpu_portable_kernels, serial, NULL};

#define VENDOR(kernels_)                                                                                               \
    {.name = "emulated",                                                                                               \
     .driver = emulated_driver,                                                                                        \
     .images = images,                                                                                                 \
     .kernels = kernels_,                                                                                              \
     .deterministic = kernels_ + 1,                                                                                    \
     .packings = gpu_packings,                                                                                         \
     .flags = HAL_TEST_ONLY}

const gpu_vendor *gpu_vendor_entry(void) {
    static const gpu_vendor all = VENDOR(kernels), few = VENDOR(plain);
    return matrix_wanted() ? &all : &few;
}
