/* packed_table.h: kernel tables of packed weights (packed_layout.h) and their packings, for vendors whose GPUs have the kernels.
 * They stand before the portable tables, which refuse packed weights.
 */
#ifndef SATCHEL_PACKED_TABLE_H
#define SATCHEL_PACKED_TABLE_H

#include "kernel.h"

/* Steps of few tokens, which take the norm in. Plans of HAL_DETERMINISTIC go without: a plan for more tokens has the parts. */
extern const gpu_kernel gpu_packed_steps[];
extern const gpu_kernel gpu_packed_kernels[];
extern const gpu_packing gpu_packings[];

#endif
