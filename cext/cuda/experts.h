/* experts.h: what experts.cu and experts.c agree on: how a group of waves shares a mixture's packed weights out. */
#ifndef SATCHEL_CUDA_EXPERTS_H
#define SATCHEL_CUDA_EXPERTS_H

#include "../kernels/modes.h"
#include "packed.h"

enum { EXPERT_WAVES = 16, EXPERT_WINDOW = 4096, EXPERT_COLUMNS = GEMV_COLUMNS, EXPERT_SHARED = 100 << 10 };

/* Columns that a group takes at once: as many as leave room for a second group beside it. */
BOTH int expert_columns(int chunks) {
    return chunks * gemv_chunk_bytes(EXPERT_COLUMNS) <= EXPERT_SHARED ? EXPERT_COLUMNS : 1;
}

/* Bytes of so many columns' activations, a multiple of 16. */
BOTH int expert_acts(int chunks, int columns) {
    return (chunks * gemv_chunk_bytes(columns) + 15) / 16 * 16;
}

#endif
