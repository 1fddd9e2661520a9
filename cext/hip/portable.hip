/* portable.hip: the portable kernels for HIP. */
#include "kernels.h"
