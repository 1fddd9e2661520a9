/* matrix_table.h: kernel table entries of matrix products on matrix units (matrix.k.h). They accept the same calls as the
 * portable kernel, and weights that the device has packed (packed_layout.h) too. Without them remain the portable kernel and that of
 * packed weights: where the device has no matrix kernel, too little local memory, or too few columns.
 *
 * From MATRIX_LEAST columns on at least half of a tile is used. The crossover is not measured on any GPU.
 */
#ifndef SATCHEL_MATRIX_TABLE_H
#define SATCHEL_MATRIX_TABLE_H

#include <stdlib.h>

#include "check.h"
#include "modes.h"
#include "packed_layout.h"
#include "table.h"

enum { MATRIX_LEAST = 32 };

/* SATCHEL_MATRIX_UNITS=0 turns the matrix kernels off. */
static inline int matrix_wanted(void) {
    const char *said = getenv("SATCHEL_MATRIX_UNITS");
    return !said || strcmp(said, "0") != 0;
}

/* The portable kernel's check sees packed weights as F32: their format alone is what it would refuse. */
static const char *matrix_fault(const char *op, const gpu_call *c, const gpu_traits *t) {
    const gpu_kernel *plain = gpu_portable_kernels;
    gpu_call seen = *c;
    if (MATRIX_LOCAL > t->shared)
        return "too little local memory per group for matrix units";
    for (uint32_t i = 2; i <= c->n_in; i++)
        if (c->v[i].format & HAL_PACKED && packed_bytes(c->v[i].format))
            seen.v[i].format = F32;
    while (strcmp(plain->op, op) != 0)
        plain++;
    return plain->check(&seen, t);
}

static const char *matrix_few(const char *fault, const gpu_call *c) {
    return !fault && c->v[0].shape[0] < MATRIX_LEAST ? "matrix units are for more columns" : fault;
}

static void grid_matrix(const gpu_call *c, const gpu_traits *t, gpu_grid *g) {
    int rows = c->mode == LINEAR_GATED ? MATRIX_ROWS / 2 : MATRIX_ROWS;
    (void)t;
    *g =
        grid_of(parts(c->v[0].shape[1], rows), parts(c->v[0].shape[0], MATRIX_TOKENS), 1, MATRIX_THREADS, MATRIX_LOCAL);
}

/* A check is not told the op, so each op has its own. */
#define MATRIX_CHECKS(op)                                                                                              \
    static const char *able_matrix_##op(const gpu_call *c, const gpu_traits *t) {                                      \
        return matrix_fault(#op, c, t);                                                                                \
    }                                                                                                                  \
    static const char *check_matrix_##op(const gpu_call *c, const gpu_traits *t) {                                     \
        return matrix_few(matrix_fault(#op, c, t), c);                                                                 \
    }
MATRIX_CHECKS(linear)
MATRIX_CHECKS(linear_add)
MATRIX_CHECKS(linear_swiglu)

#define MATRIX_ENTRY(kernel, op_, mode_)                                                                               \
    {                                                                                                                  \
        .op = #op_, .check = check_matrix_##op_, .mode = mode_, .able = able_matrix_##op_,                             \
        .launch = {{kernel, grid_matrix, 0}}                                                                           \
    }
#define MATRIX_ENTRIES(kernel)                                                                                         \
    MATRIX_ENTRY(kernel, linear, LINEAR_PLAIN), MATRIX_ENTRY(kernel, linear_add, LINEAR_ADD),                          \
        MATRIX_ENTRY(kernel, linear_swiglu, LINEAR_GATED)

#endif
