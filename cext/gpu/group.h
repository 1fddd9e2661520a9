/* group.h: what the files of this folder share of groups (group.c). A device of a group belongs to it until part(). */
#ifndef SATCHEL_GPU_GROUP_H
#define SATCHEL_GPU_GROUP_H

#include "device.h"
#include "group_call.h"

/* Whether an op is a collective. */
int gpu_is_collective(const char *op);

/* What compile() makes a member's exec with; for a device alone, `group` is NULL. */
typedef struct {
    hal_group *group;
    uint32_t rank;
    gpu_address at;                                        /* the member's gpu_group */
    int (*fault_of)(hal_group *, uint32_t rank, int code); /* as in hal_exec */
} gpu_member;

int gpu_compile_member(hal_device *, const hal_plan *, hal_buffer *const *, const gpu_member *, hal_exec **);
/* Checks a step block's size and counts. */
int gpu_check_block(const hal_exec *, const void *block, uint64_t size);
/* Queues a run; `before`: the group's collectives before it. Takes the device's lock, not the group's. */
int gpu_run_member(hal_exec *, const void *block, uint64_t size, uint32_t before);

int gpu_join(hal_device *const *, uint32_t n, const hal_group_options *, hal_group **);
void gpu_part(hal_group *);
void gpu_group_info(hal_group *, hal_group_info *);
int gpu_compile_group(hal_group *, const hal_plan *const *, hal_buffer *const *const *, hal_exec **);
int gpu_run_group(hal_group *, hal_exec *const *, const void *block, uint64_t size);

#endif
