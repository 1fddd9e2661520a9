/* kernel.h: the entries of a GPU backend's kernel table: which op a kernel computes, for which shapes and formats, and its
 * launch grid.
 *
 * compile() tries the entries of an op in order and takes the first whose check() gives NULL, so specialized kernels stand
 * before general ones. check(), scratch() and grid() run at compile() only and see the maximum shapes. grid() starts from a
 * grid of one group. Entries are static.
 */
#ifndef SATCHEL_GPU_KERNEL_H
#define SATCHEL_GPU_KERNEL_H

#include "backend.h"
#include "call.h"

/* Properties of the device that kernels are selected by. */
typedef struct {
    int arch;       /* CUDA: 10 * major + minor; Metal: 10 * Apple's family; others: 0 */
    int units;      /* multiprocessors */
    int shared;     /* most bytes of shared memory per group */
    int wave;       /* lanes of a wave: 32 or 64 */
    int lowered;    /* 1: arch and shared are below the device's own, as vendor.h's lower() was asked */
    uint32_t flags; /* of hal_options */
} gpu_traits;

typedef struct {
    uint32_t groups[3];
    uint32_t threads; /* of a group */
    uint32_t shared;  /* bytes of dynamic shared memory */
    uint32_t cluster; /* groups of a cluster along the first dimension; 0: none */
} gpu_grid;

enum { GPU_LAUNCHES = 3, GPU_CONFIGS = 8 };
/* What gpu_kernel.hands gives: a result as it is, or multiplied with a norm's weights too, with the sums of its squares. */
enum { HANDS_PLAIN = 1, HANDS_NORMED };

typedef struct {
    const char *op; /* as hal.h names it */
    /* NULL, or why this kernel cannot compute the call or is not the fastest for it */
    const char *(*check)(const gpu_call *, const gpu_traits *);
    uint64_t (*scratch)(const gpu_call *, const gpu_traits *); /* bytes; NULL: none */
    uint32_t mode;
    /* > 0: index of the view whose format is appended to the kernels' names: linear -> linear_q4_k */
    int format_of;
    struct {
        const char *kernel;
        void (*grid)(const gpu_call *, const gpu_traits *, gpu_grid *);
        /* 1: the kernel waits for its predecessor itself (griddepcontrol.wait), so it may be launched early */
        int early;
        int common;         /* 1: the kernel's name has no format */
    } launch[GPU_LAUNCHES]; /* run in order; a NULL kernel ends them */
    /* NULL, or why the kernel cannot compute the call at any speed. A NULL pointer: check() decides that too. */
    const char *(*able)(const gpu_call *, const gpu_traits *);
    uint8_t
        configs[GPU_CONFIGS]; /* values of gpu_call.config, besides 0, that a kernel override may name; ended by 0 */
    uint32_t counters;        /* bytes that gpu_call.counters has */
    /* NULL, or whether the call's last kernel writes what gpu_call.handed asks for: HANDS_PLAIN, HANDS_NORMED; 0: it does not. */
    int (*hands)(const gpu_call *);
    /* NULL, or: the first launch converts the activations, and is left out where the step before can hand them over converted. Gives
     * their bytes, and fills in the rest of what that step's call is told; 0: this call cannot take them. */
    uint64_t (*takes)(const gpu_call *, const gpu_traits *, gpu_hand *);
} gpu_kernel;

/* A weight format with a packed layout on the device. `kernel` reads the file's bytes of `rows` rows from v[1].data and writes
 * the packed layout to v[0].data; the call's v[0].shape is (stack, rows, columns). */
typedef struct {
    uint32_t format;
    uint64_t (*bytes)(int64_t rows, int64_t columns, const gpu_traits *); /* packed bytes of a matrix; 0: not packed */
    const char *kernel;
    void (*grid)(const gpu_call *, const gpu_traits *, gpu_grid *);
} gpu_packing;

#endif
