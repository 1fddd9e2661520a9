/* portable.cpp: the portable kernels for SYCL. */
#include "names.h"

#include "kernels.h"
