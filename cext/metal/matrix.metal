/* matrix.metal: matrix products on matrix units, a separate source text: GPUs without such units do not compile it. */
#define MATRIX_KERNEL matrix_linear
#include "matrix.k.h"
