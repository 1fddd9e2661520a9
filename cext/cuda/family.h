/* family.h: the two families of kernels. Hopper's, for compute capability 9.0, has bulk copies, wgmma, clusters and programmatic
 * dependent launch. The other, for 8.0 and all later ones but 9.0, has cp.async and mma.sync; from 9.0 on it is launched early too.
 * 7.5 has some of the second family's files: products and experts by m8n8k16, without asynchronous copies. FP8 tensor cores come with
 * 8.9, block-scaled ones of mma.sync with 12.0.
 */
#ifndef SATCHEL_CUDA_FAMILY_H
#define SATCHEL_CUDA_FAMILY_H

enum { OLD_ARCH = 75, LEAST_ARCH = 80, FP8_ARCH = 89, HOPPER_ARCH = 90, SCALED_ARCH = 120 };

#ifdef __CUDA_ARCH__
#define HOPPER (__CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1000)
#else
#define HOPPER 1 /* nvcc's pass for the host, which compiles no kernel */
#endif

#endif
