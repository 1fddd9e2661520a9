/* choice.h: what choice.c and plan.c know of each other: kernels by name, kernels that a caller brought. Owns nothing. */
#ifndef SATCHEL_GPU_CHOICE_H
#define SATCHEL_GPU_CHOICE_H

#include "device.h"

enum { GPU_NAME = 96, GPU_ALLOW_SHARED = 8 /* CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, and HIP's */ };

const hal_choice *gpu_choice_at(const hal_plan *, uint32_t step); /* NULL: it is left to the backend */
int gpu_check_choices(const hal_device *, const hal_plan *);
/* Whether an entry is the one asked for, "name" or "name@number"; *choice becomes the number, 0 where there is none. */
int gpu_is_named(const gpu_kernel *, const gpu_call *, const hal_choice *, uint32_t *choice);
void gpu_kernel_name(const gpu_kernel *, int launch, const gpu_call *, char out[GPU_NAME]);
/* The launch of a kernel that a caller brought, which serves this call. */
int gpu_launch_of(hal_device *, const hal_choice *, uint32_t call, gpu_launch *);

/* plan.c's: the call of a step, once its numbers are in order; whether an entry can serve it, asked for by name. */
int gpu_resolve_step(const hal_device *, const hal_plan *, hal_buffer *const *, uint32_t step, gpu_call *);
/* The tables that the device chooses from, in order. */
const gpu_kernel *const *gpu_tables(const hal_device *);
int gpu_can(hal_device *, const gpu_kernel *, const char *op, const gpu_call *);

#endif
