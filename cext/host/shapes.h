/* shapes.h: the rules of ops on formats and shapes of their operands, which hold on every device. A device's kernel checks what it
 * needs beyond them. Owns nothing.
 */
#ifndef SATCHEL_SHAPES_H
#define SATCHEL_SHAPES_H

#include "backend.h"

#define KV_FORMATS "f32, f16, bf16, fp8, q8_0 or q4_0"

/* NULL, or which rule a call breaks. op: a HAL_OP_ value; v: the output, then the n_in inputs, at their maximum shapes, each of
 * which lies in its buffer. placed 0: as supports() asks, when it is not known yet where a state and the output that must be that
 * state lie. Of an op that this file does not know, nothing is checked. */
const char *shape_fault(int op, const hal_view *v, int n_in, const void *arg, int placed);

#endif
