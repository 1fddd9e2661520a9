/* portable.cpp: the portable kernels for SYCL. */
#include "names.h"

#include "kernels.h"
#include "packed_linear.k.h"
#include "packed_rows.k.h"
