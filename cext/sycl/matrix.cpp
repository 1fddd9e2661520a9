/* matrix.cpp: products by joint_matrix, a text of its own: it is compiled for devices that have matrix units alone. */
#include "names.h"

#define MATRIX_KERNEL matrix_linear
#include "matrix.k.h"
