/* products.h: checks shared by the kernel tables of matrix products. NULL, or what is wrong. */
#ifndef SATCHEL_CUDA_PRODUCTS_H
#define SATCHEL_CUDA_PRODUCTS_H

#include "kernel.h"
#include "packed.h"

enum { FORMAT_F16 = 1, FORMAT_BF16 = 30 /* as GGUF numbers them */ };

/* Checks activations, the output, and the residual or the norm's weights. */
const char *cuda_activations_fault(const gpu_call *, uint32_t mode);
/* Checks a product of packed weights in this mode (PRODUCT_...). */
const char *cuda_product_fault(const gpu_call *, uint32_t mode);
/* Whether gemv.cu or gemv_8.cu computes the product. */
int cuda_gemv_takes(const gpu_call *, const gpu_traits *, uint32_t mode);
/* Checks a product of F16 or BF16 weights in the file's layout. */
const char *cuda_dense_fault(const gpu_call *, uint32_t mode);
/* Checks a product that columns.cu and wide.cu compute with the same bits for any number of columns, on which it does not depend. */
const char *cuda_fixed_fault(const gpu_call *, const gpu_traits *, uint32_t mode);

#endif
