/* portable.cu: the portable kernels for CUDA. */
#include "kernels.h"

/* Modules with this symbol support early launch of all their kernels (port_cuda.h). */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
extern "C" __global__ void waits_by_itself(void) {}
#endif
