/* portable.hip: the portable kernels and the matrix unit kernels for HIP. */
#include "kernels.h"
#include "packed_linear.k.h"
#include "packed_rows.k.h"
#include "matrix.hip"

#ifdef IMAGE /* By this kernel's name the host finds which code object of a bundle the driver took. */
extern "C" __attribute__((global)) void IMAGE(void) {}
#endif
