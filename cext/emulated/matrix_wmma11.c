/* matrix_wmma11.c: products by the emulated WMMA of RDNA 3, in waves of 32 lanes. */
#define WAVE 32
#define MATRIX_WMMA_11
#ifndef MATRIX_KERNEL
#define MATRIX_KERNEL matrix_linear_wmma11
#endif
#include "matrix.k.h"
