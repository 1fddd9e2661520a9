/* table.h: the portable kernels as the host of a GPU backend chooses them. */
#ifndef SATCHEL_KERNEL_TABLE_H
#define SATCHEL_KERNEL_TABLE_H

#include "kernel.h"

extern const gpu_kernel gpu_portable_kernels[]; /* ended by op == NULL */

#endif
