/* matrix_mfma.c: products by the emulated MFMA of CDNA, in waves of 64 lanes. */
#define WAVE 64
#define MATRIX_MFMA
#ifndef MATRIX_KERNEL
#define MATRIX_KERNEL matrix_linear_mfma
#endif
#include "matrix.k.h"
