/* table.h: kernel table of the portable kernels, for the host code of GPU backends. */
#ifndef SATCHEL_KERNEL_TABLE_H
#define SATCHEL_KERNEL_TABLE_H

#include "kernel.h"

extern const gpu_kernel gpu_portable_kernels[]; /* ended by op == NULL */
extern const gpu_kernel
    gpu_portable_steps[]; /* steps of one token, for vendors that have no kernels of their own for them */

#endif
