/* tables.c: the order of the CUDA backend's kernel tables: specialized kernels stand before general ones. */
#include "tables.h"

#include <stddef.h>

const gpu_kernel *const cuda_tables[] = {
    cuda_fp8_kernels,   cuda_column_kernels, cuda_warp_kernels,        cuda_prompt_kernels,  cuda_latent_kernels,
    cuda_state_kernels, cuda_products,       cuda_expert_step_kernels, cuda_expert_kernels,  cuda_small_kernels,
    cuda_rope_kernels,  cuda_heads_kernels,  cuda_group_kernels,       gpu_portable_kernels, NULL,
};
const gpu_kernel *const cuda_deterministic_tables[] = {
    cuda_fixed_column_kernels,
    cuda_fixed_prompt_kernels,
    cuda_fixed_attention_kernels,
    cuda_deterministic_products,
    cuda_deterministic_expert_kernels,
    cuda_small_kernels,
    cuda_group_kernels,
    gpu_portable_kernels,
    NULL,
};
