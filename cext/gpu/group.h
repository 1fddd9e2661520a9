/* group.h: what the files of this folder share of groups (group.c). A device of a group belongs to it until part(). */
#ifndef SATCHEL_GPU_GROUP_H
#define SATCHEL_GPU_GROUP_H

#include "device.h"
#include "group_call.h"

/* Whether an op is a collective. */
int gpu_is_collective(const char *op);
/* Whether it is one of sequence parallelism. */
int gpu_divides_rows(const char *op);

/* What compile() makes a member's exec with; for a device alone, `group` is NULL. */
typedef struct {
    hal_group *group;
    uint32_t rank, members;
    gpu_address at;                                        /* the member's gpu_group */
    int (*fault_of)(hal_group *, uint32_t rank, int code); /* as in hal_exec, and so the next */
    int (*sum_of)(hal_group *, uint32_t rank, uint64_t numbers, gpu_stream);
    /* Whether a vendor's library adds up a message of so many bytes of float32. NULL: none does. */
    int (*by_library)(const hal_group *, uint64_t bytes);
    int push; /* 1: products may begin the all-reduce of their result */
} gpu_member;

/* The columns of the tiles that a product pushed to a reduce_add; 0: none did. */
static inline uint32_t gpu_pushed(const gpu_call *reduce) {
    return reduce->mode;
}

/* Bytes of float32 that a reduce_add has at most. */
uint64_t gpu_sum_bytes(const gpu_call *);
/* The launches of a sum by a library. */
int gpu_library_launches(hal_device *, const gpu_call *, uint32_t call, gpu_launch out[3]);

int gpu_compile_member(hal_device *, const hal_plan *, hal_buffer *const *, const gpu_member *, hal_exec **);
/* Checks a step block's size and counts. */
int gpu_check_block(const hal_exec *, const void *block, uint64_t size);
/* The size of the largest reduce_add of a plan, in bytes of float32. */
int gpu_largest_sum(hal_device *, const hal_plan *, uint64_t *bytes);
/* Queues a run; `before`: the group's collectives before it. Takes the device's lock, not the group's. */
int gpu_run_member(hal_exec *, const void *block, uint64_t size, uint32_t before);

int gpu_join(hal_device *const *, uint32_t n, const hal_group_options *, hal_group **);
void gpu_part(hal_group *);
void gpu_group_info(hal_group *, hal_group_info *);
int gpu_compile_group(hal_group *, const hal_plan *const *, hal_buffer *const *const *, hal_exec **);
int gpu_run_group(hal_group *, hal_exec *const *, const void *block, uint64_t size);

#endif
