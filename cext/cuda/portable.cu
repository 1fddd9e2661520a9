/* portable.cu: the portable kernels for CUDA. */
#include "kernels.h"
