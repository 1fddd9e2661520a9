/* vendor.h: what a GPU vendor's folder supplies to the common host code: the driver to open, and the kernels. */
#ifndef SATCHEL_GPU_VENDOR_H
#define SATCHEL_GPU_VENDOR_H

#include "api.h"
#include "kernel.h"

/* An image of compiled kernels that the driver loads as a module. A kernel is looked up by name in all modules, in order. */
typedef struct {
    const void *data;
    int least;  /* the lowest arch that it runs on */
    int needed; /* 1: open() fails if the device cannot load it */
} gpu_image;

typedef struct {
    const char *name;                 /* of the backend */
    const char *(*driver)(gpu_api *); /* fills the table; NULL, or why the driver cannot be used here */
    const gpu_image *images;          /* ended by data == NULL; NULL: `archive` has them */
    const void *archive;              /* of images that are chosen by the device's architecture (archive.c) */
    /* Compiles an archive's source for the current device, when no image fits it. The result is freed by os_free(); NULL and
     * *why on failure. A NULL pointer: the vendor has no run-time compiler. */
    void *(*compile)(const char *source, const gpu_traits *, const char **why);
    /* Lowers the traits to those of an older device, if the user asks for that. NULL, or what is wrong with what is asked. A NULL
     * pointer: the vendor has no such switch. */
    const char *(*lower)(gpu_traits *);
    const gpu_kernel *const *kernels; /* tables, specialized ones first, each ended by op == NULL; ended by NULL */
    const gpu_kernel *const *deterministic; /* replaces `kernels` under HAL_DETERMINISTIC; NULL: the same tables */
    const gpu_packing *packings;            /* ended by bytes == NULL */
    int stacks;                             /* 1: kernels also read packed stacks of matrices (experts) */
    uint32_t flags;                         /* of hal_info */
    int wraps;                              /* 1: the driver has wrap() */
    int groups; /* 1: there are kernels of collectives, and the driver may have peer access */
} gpu_vendor;

const gpu_vendor *gpu_vendor_entry(void);

/* Looks up every function of the table in the first of these libraries that can be opened (the list ends with NULL). The
 * caller fills the vendor's enum values (`is`). NULL, or why the driver cannot be used. */
const char *gpu_look_up(gpu_api *, const char *const *libraries, int hip);

#endif
