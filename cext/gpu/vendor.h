/* vendor.h: what makes a backend of the common host in this folder: whose driver it opens, and which kernels it has. */
#ifndef SATCHEL_GPU_VENDOR_H
#define SATCHEL_GPU_VENDOR_H

#include "api.h"
#include "kernel.h"

/* Compiled kernels as the driver loads them. One module may lack what another has: names are looked up in all, in order. */
typedef struct {
    const void *data;
    int least;  /* the smallest arch that it is for */
    int needed; /* 1: a device that cannot load it is not opened */
} gpu_image;

typedef struct {
    const char *name;                       /* of the backend */
    const char *(*driver)(gpu_api *);       /* fills the table; NULL, or why the driver cannot be used here */
    const gpu_image *images;                /* ended by data == NULL */
    /* Kernels for the current device, made now because no image is for it, or NULL and why not; the caller frees them.
     * NULL: none can be made. */
    void *(*compile)(const gpu_traits *, const char **why);
    const gpu_kernel *const *kernels;       /* tables, special ones first, each ended by op == NULL; ended by NULL */
    const gpu_kernel *const *deterministic; /* in place of kernels under HAL_DETERMINISTIC; NULL: the same */
    const gpu_packing *packings;            /* ended by bytes == NULL */
    int stacks;                             /* 1: kernels read packed stacks of matrices too */
    const gpu_fusion *fusions;              /* ended by kernel == NULL; NULL: none */
    uint32_t flags;                         /* of hal_info */
    int wraps;                              /* 1: the driver has wrap() */
} gpu_vendor;

const gpu_vendor *gpu_vendor_entry(void);

/* Looks up every function of the table in the first of these libraries that can be opened (ended by NULL); the vendor's
 * numbers (`is`) are left to the caller. */
const char *gpu_look_up(gpu_api *, const char *const *libraries, int hip);

#endif
