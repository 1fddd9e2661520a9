/* matrix_wmma12.c: products by the emulated WMMA of RDNA 4, in waves of 32 lanes. */
#define WAVE 32
#define MATRIX_WMMA_12
#ifndef MATRIX_KERNEL
#define MATRIX_KERNEL matrix_linear_wmma12
#endif
#include "matrix.k.h"
