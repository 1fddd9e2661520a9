/* call.h: what the host of a GPU backend and its kernels share: the one argument of every kernel.
 *
 * The host resolves a plan's views to device addresses once, at compile(); a call never changes afterwards. What differs
 * from step to step lies in the step block on the device, and kernels read it there: the counts (how many tokens and rows
 * this step has) and the inputs. A grid is made for the largest shape, so a group looks at gpu_rows() first and leaves
 * where there is nothing for it. Plain C with fixed sizes: C, CUDA, HIP, Metal and SYCL lay it out alike.
 */
#ifndef SATCHEL_GPU_CALL_H
#define SATCHEL_GPU_CALL_H

#include <stdint.h>

enum { GPU_VIEWS = 12, GPU_ARGS = 4, GPU_TOGETHER = 4 /* calls that one kernel may take, see gpu_together */ };

/* A tensor: shape is outermost first, unused places hold 1; everything but the first dimension is dense. */
typedef struct {
    uint64_t data;     /* device address */
    uint64_t stride;   /* bytes from one index of the first dimension to the next; of a packed weight: of a stack's matrices */
    int32_t shape[4];  /* shape[0]: the most it can be */
    int32_t count;     /* >= 0: the step block's counts[count] is this step's shape[0] */
    uint32_t format;   /* GGUF's number, with HAL_PACKED where it lies in the device's own order */
} gpu_view;

typedef struct {
    uint64_t counts;        /* device address of the step block's int32 counts */
    uint64_t fault;         /* of a uint32: 0, or 1 + the step that met a bad index */
    uint64_t scratch;       /* of what the kernel asked for; nothing in it outlives the step */
    uint32_t n_in, step;
    uint32_t flags;         /* of hal_options, and below */
    uint32_t mode;          /* what the kernel's entry in the table says: one kernel may serve several ops */
    uint32_t choice;        /* a number that the kernel's own rule would find, a kernel override; 0: the rule's */
    uint32_t unused;
    uint64_t arg[GPU_ARGS]; /* the op's argument struct */
    gpu_view v[GPU_VIEWS];  /* the output, then the inputs */
} gpu_call;

#endif
