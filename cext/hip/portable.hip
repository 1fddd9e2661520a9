/* portable.hip: the portable kernels and the matrix unit kernels for HIP. */
#include "kernels.h"
#include "matrix.hip"
