/* matrix.hip: matrix products on matrix units. Empty for GPUs without such units, which use the portable kernels. Source
 * text for hipRTC is preprocessed before its GPU is known, so it has none either. */
#include "port.h"

#if !defined(PORT_AS_TEXT)
#if defined(__gfx90a__) || defined(__gfx942__)
#define MATRIX_MFMA
#elif defined(__GFX11__)
#define MATRIX_WMMA_11
#elif defined(__GFX12__)
#define MATRIX_WMMA_12
#endif
#endif

#if defined(MATRIX_MFMA) || defined(MATRIX_WMMA_11) || defined(MATRIX_WMMA_12)
#define MATRIX_KERNEL matrix_linear
#include "matrix.k.h"
#endif
