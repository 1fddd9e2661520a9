/* call.h: gpu_call, the one argument of every GPU kernel, shared by host code and kernels.
 *
 * The host resolves a plan's views to device addresses once, at compile(); a call never changes afterwards. Kernels read what
 * differs from step to step in the step block on the device: the counts (tokens and rows of this step) and the inputs. A grid
 * has the maximum shape, so a group compares its index with rows_of() first and returns if it has no row. Plain C with
 * fixed sizes: C, CUDA, HIP, Metal and SYCL lay it out alike.
 */
#ifndef SATCHEL_GPU_CALL_H
#define SATCHEL_GPU_CALL_H

#include <stdint.h>

enum { GPU_VIEWS = 14, GPU_ARGS = 4 };

/* A tensor. All dimensions but the first are dense. */
typedef struct {
    uint64_t data; /* device address */
    /* bytes from one index of the first dimension to the next; packed weight: from matrix to matrix of a stack */
    uint64_t stride;
    int32_t shape[4]; /* outermost first, unused entries are 1; shape[0] is its maximum */
    int32_t count;    /* >= 0: the step block's counts[count] is this step's shape[0] */
    uint32_t format;  /* GGUF's type number, with HAL_PACKED for a packed weight */
} gpu_view;

/* Where a kernel leaves its result as the activations of the product behind it too. */
typedef struct {
    uint64_t at;    /* device address; 0: nowhere */
    uint64_t norm;  /* device address of the weights of that product's norm, which multiply them; 0: it has none */
    uint32_t order; /* of the elements, as the product's kernel reads them */
    uint32_t unused;
} gpu_hand;

typedef struct {
    uint64_t counts;  /* device address of the step block's int32 counts */
    uint64_t fault;   /* device address of a uint32: 0, or 1 + the step that met an index out of range */
    uint64_t scratch; /* device address of the kernel's scratch; its contents end with the step */
    uint32_t n_in, step;
    uint32_t flags;  /* of hal_options, and below */
    uint32_t mode;   /* gpu_kernel.mode: tells apart the ops that one kernel serves */
    uint32_t config; /* set by a kernel override (`satchel tune`); 0: the kernel's own heuristic decides */
    uint32_t unused;
    uint64_t counters;      /* device address of gpu_kernel.counters zero bytes, which the kernel leaves zero */
    uint64_t arg[GPU_ARGS]; /* the op's argument struct */
    gpu_view v[GPU_VIEWS];  /* the output, then the inputs */
    gpu_hand handed;        /* of gpu_kernel.hands */
    uint64_t taken;         /* device address of what the step before handed to this one; 0: nothing */
} gpu_call;

#endif
