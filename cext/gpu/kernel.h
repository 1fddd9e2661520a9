/* kernel.h: the table of kernels that a GPU backend offers: which op, for which shapes and formats, and how it is launched.
 *
 * A backend tries the entries of an op in order and takes the first whose check() has nothing against the call, so special
 * kernels stand before general ones. All functions here run at compile() and see the largest shapes; a grid comes to them as
 * one group. Entries are static.
 */
#ifndef SATCHEL_GPU_KERNEL_H
#define SATCHEL_GPU_KERNEL_H

#include "backend.h"
#include "call.h"

/* What kernels are chosen by. */
typedef struct {
    int arch;             /* CUDA: 10 * major + minor; Metal: 10 * Apple's family; others: 0 */
    int units;            /* multiprocessors */
    int shared;           /* bytes of shared memory that a group may have at most */
    int wave;             /* lanes of a wave: 32 or 64 */
    uint32_t flags;       /* of hal_options */
} gpu_traits;

typedef struct {
    uint32_t groups[3];
    uint32_t threads;     /* of a group */
    uint32_t shared;      /* bytes of dynamic shared memory */
    uint32_t cluster;     /* groups of a cluster along the first dimension; 0: none */
} gpu_grid;

enum { GPU_LAUNCHES = 3, GPU_CONFIGS = 8 };

typedef struct {
    const char *op;                                               /* as hal.h names it */
    const char *(*check)(const gpu_call *, const gpu_traits *);   /* NULL, or why this kernel cannot, or should not */
    uint64_t (*scratch)(const gpu_call *, const gpu_traits *);    /* bytes; NULL: none */
    uint32_t mode;
    int format_of;        /* > 0: the name of the format of this view is put behind the kernels' names: linear -> linear_q4_k */
    struct {
        const char *kernel;
        void (*grid)(const gpu_call *, const gpu_traits *, gpu_grid *);
        int early;        /* 1: it asks for the end of the kernel before it by itself (griddepcontrol.wait), so may be launched early */
    } launch[GPU_LAUNCHES]; /* one after the other; a NULL kernel ends them */
    const char *(*able)(const gpu_call *, const gpu_traits *); /* why it cannot, where check() says no for speed alone; NULL: check */
    uint8_t configs[GPU_CONFIGS]; /* values of gpu_call.config beside 0 that a kernel override may name; ended by 0 */
} gpu_kernel;

/* A fusion pattern: neighbouring steps that one kernel computes, because small steps are launch-bound. The kernel's argument is an
 * array of their calls. check() may rely on each step's own check. */
typedef struct {
    const char *ops[GPU_FUSED]; /* ended by NULL where there are fewer */
    const char *(*check)(const gpu_call *, const gpu_traits *);
    const char *kernel;
    void (*grid)(const gpu_call *, const gpu_traits *, gpu_grid *);
    int early;
    int format_of;        /* > 0: the name of the last call's view's format is put behind the kernel's; the output of the first call is
                           * not written then, which is for the last alone */
    uint32_t counters;    /* bytes of zeros that the kernel leaves so; their address is that of the last call's last view */
} gpu_fusion;

/* A weight format that has an order of its own on the device. pack: a kernel that reads the file's bytes of `rows` rows from
 * v[1].data and writes the packed order to v[0].data; the call's v[0].shape holds stack, rows, columns. */
typedef struct {
    uint32_t format;
    uint64_t (*bytes)(int64_t rows, int64_t columns, const gpu_traits *);  /* of a matrix; 0: it stays as it is */
    const char *kernel;
    void (*grid)(const gpu_call *, const gpu_traits *, gpu_grid *);
} gpu_packing;

#endif
