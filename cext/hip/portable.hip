/* portable.hip: the portable kernels for HIP, and beside them those for matrix units. */
#include "kernels.h"
#include "matrix.hip"
