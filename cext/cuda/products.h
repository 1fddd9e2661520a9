/* products.h: what the tables of the kernels over packed weights share. */
#ifndef SATCHEL_CUDA_PRODUCTS_H
#define SATCHEL_CUDA_PRODUCTS_H

#include "kernel.h"
#include "packed.h"

/* NULL, or why activations, the output, and what is added or a norm's weights are not as all of these kernels want them. */
const char *cuda_activations_fault(const gpu_call *, uint32_t mode);
/* NULL, or why the call is no product of packed weights in this mode (PRODUCT_...). */
const char *cuda_product_fault(const gpu_call *, uint32_t mode);
/* The same of F16 or BF16 weights, in the file's order. */
const char *cuda_dense_fault(const gpu_call *, uint32_t mode);

#endif
