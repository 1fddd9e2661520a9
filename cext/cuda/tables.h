/* tables.h: the CUDA backend's kernel tables. */
#ifndef SATCHEL_CUDA_TABLES_H
#define SATCHEL_CUDA_TABLES_H

#include "kernel.h"

extern const gpu_kernel cuda_deterministic_products[], cuda_fp8_kernels[], cuda_prompt_kernels[], cuda_products[],
    cuda_column_kernels[], cuda_warp_kernels[], cuda_heads_kernels[], cuda_rope_kernels[], cuda_latent_kernels[],
    cuda_group_kernels[], cuda_fixed_column_kernels[], cuda_fixed_prompt_kernels[], cuda_fixed_attention_kernels[],
    cuda_state_kernels[];
extern const gpu_kernel cuda_small_kernels[], cuda_expert_kernels[], cuda_expert_step_kernels[], gpu_portable_kernels[];
extern const gpu_packing cuda_packings[];
extern const gpu_kernel cuda_deterministic_expert_kernels[];
/* All of them in order of preference, and those of HAL_DETERMINISTIC. */
extern const gpu_kernel *const cuda_tables[], *const cuda_deterministic_tables[];

/* gpu_kernel.hands of attention, whose groups have parts of a token's row. */
int cuda_hands_plain(const gpu_call *);

#endif
