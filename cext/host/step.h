/* step.h: checks of a plan's numbers that backends with kernels make at compile(), before a kernel's own check sees a call. A plan
 * is untrusted: an invalid one must fail with a text and touch no memory outside of its tables and buffers. Owns nothing.
 */
#ifndef SATCHEL_STEP_H
#define SATCHEL_STEP_H

#include "block_format.h"
#include "views.h"

/* Name and argument bytes of each op, by its HAL_OP_ value. */
typedef struct {
    const char *name;
    uint32_t arg_size;
} step_op;
extern const step_op step_ops[HAL_N_OPS];

/* Gives HAL_E_INVALID; the error's text names the step and its op. */
int fail_step(const hal_plan *, uint32_t step, const char *fault);
int fail_view(const hal_plan *, uint32_t step, int n, const char *fault); /* n: 0 the output, i input i */

/* Checks the step's op, arguments and range of views. *op becomes its HAL_OP_ value; 0 or a HAL_E_ code. */
int step_check(const hal_plan *, uint32_t step, int *op);

/* Checks shape, format and buffer of a view; *f becomes its format. NULL, or what is wrong. */
const char *step_view_fault(const hal_plan *, const hal_view *, const block_format **f);

/* Checks where the view lies in a buffer of `most` bytes at `address`: its bounds, and the alignment of its rows. */
const char *step_place_fault(const hal_view *, const block_format *, uint64_t most, uint64_t address);

/* The index of the dimension of rows of a packed weight: (N, K) or a stack (E, N, K). */
static inline int step_packed_rows(const hal_view *v) {
    return v->ndim == 3;
}
/* Checks a packed weight of which a matrix has `bytes` bytes; 0: the device has no packed layout for its format and shape. */
const char *step_packed_fault(const hal_view *, uint64_t bytes, uint64_t most);

#endif
