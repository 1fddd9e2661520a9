/* matrix.metal: products by matrix units, a text of its own: GPUs that have none are not asked to compile it. */
#define MATRIX_KERNEL matrix_linear
#include "matrix.k.h"
