/* products.h: what the tables of the kernels over packed weights share. */
#ifndef SATCHEL_CUDA_PRODUCTS_H
#define SATCHEL_CUDA_PRODUCTS_H

#include "kernel.h"
#include "packed.h"

/* NULL, or why the call is no product of packed weights in this mode (PRODUCT_...). */
const char *cuda_product_fault(const gpu_call *, uint32_t mode);
/* The same of F16 or BF16 weights, in the file's order. */
const char *cuda_dense_fault(const gpu_call *, uint32_t mode);

#endif
