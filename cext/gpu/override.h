/* override.h: what plan.c uses of override.c (kernels by name, custom kernels) and of resolve.c. Owns nothing. */
#ifndef SATCHEL_GPU_OVERRIDE_H
#define SATCHEL_GPU_OVERRIDE_H

#include "device.h"

enum { GPU_NAME = 96, GPU_ALLOW_SHARED = 8 /* CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, and HIP's */ };

const hal_kernel_override *gpu_override_at(const hal_plan *, uint32_t step); /* NULL: the backend selects the kernel */
int gpu_check_overrides(const hal_device *, const hal_plan *);
/* Whether the override's name, "name" or "name@config", means this entry; *config becomes the number, 0 without "@". */
int gpu_is_named(const gpu_kernel *, const gpu_call *, const hal_kernel_override *, uint32_t *config);
/* An entry's name in overrides and listings: its kernels' names, joined by "+". */
void gpu_entry_name(const gpu_kernel *, const gpu_call *, char out[HAL_NAME]);
void gpu_kernel_name(const gpu_kernel *, int launch, const gpu_call *, char out[GPU_NAME]);
/* Fills the launch of the override's custom kernel for this call. */
int gpu_custom_launch(hal_device *, const hal_kernel_override *, uint32_t call, gpu_launch *);

/* resolve.c: checks the numbers of a step and fills its call. */
int gpu_resolve_step(const hal_device *, const hal_plan *, hal_buffer *const *, uint32_t step, gpu_call *);

#endif
