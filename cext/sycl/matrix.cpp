/* matrix.cpp: matrix products by joint_matrix, a separate source text: only devices with matrix units compile it. */
#include "names.h"

#define MATRIX_KERNEL matrix_linear
#include "matrix.k.h"
