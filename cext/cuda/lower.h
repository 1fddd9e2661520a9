/* lower.h: the switch that makes a GPU pass for an older one. */
#ifndef SATCHEL_CUDA_LOWER_H
#define SATCHEL_CUDA_LOWER_H

#include "kernel.h"

/* vendor.h's lower(): what SATCHEL_CUDA_CAPABILITY asks for. */
const char *cuda_lower(gpu_traits *);

#endif
