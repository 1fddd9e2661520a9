/* wide_warp.h: sizes of wide_warp.cu, shared with its table. */
#ifndef SATCHEL_CUDA_WIDE_WARP_H
#define SATCHEL_CUDA_WIDE_WARP_H

#include "tiles.h"

enum { WIDE_WARP_THREADS = 256, WIDE_WARP_STAGES = 3, WIDE_WARP_SHARED = WIDE_WARP_STAGES * 2 * PANEL_BYTES };

#endif
