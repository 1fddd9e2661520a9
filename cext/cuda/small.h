/* small.h: constants shared by small.cu and small.c. */
#ifndef SATCHEL_CUDA_SMALL_H
#define SATCHEL_CUDA_SMALL_H

enum { NORM_THREADS = 1024, NORM_PARTS = 4, LINEAR_WAVES = 4, LINEAR_DEEP = 16, LINEAR_BESIDE = 16 };

#endif
