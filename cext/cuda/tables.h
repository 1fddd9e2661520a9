/* tables.h: the CUDA backend's kernel tables; vendor.c orders them. */
#ifndef SATCHEL_CUDA_TABLES_H
#define SATCHEL_CUDA_TABLES_H

#include "kernel.h"

extern const gpu_kernel cuda_deterministic_products[], cuda_fp8_kernels[], cuda_prompt_kernels[], cuda_products[],
    cuda_column_kernels[], cuda_heads_kernels[];
extern const gpu_kernel cuda_small_kernels[], cuda_expert_kernels[], gpu_portable_kernels[];
extern const gpu_packing cuda_packings[];

#define CUDA_KERNELS                                                                                                   \
    cuda_fp8_kernels, cuda_column_kernels, cuda_prompt_kernels, cuda_products, cuda_expert_kernels,                    \
        cuda_small_kernels, cuda_heads_kernels,
#define CUDA_DETERMINISTIC_KERNELS cuda_deterministic_products, cuda_expert_kernels, cuda_small_kernels,
#define CUDA_PACKINGS cuda_packings

#endif
