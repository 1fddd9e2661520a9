/* experts.h: sizes shared by experts.cu and experts.c. */
#ifndef SATCHEL_CUDA_EXPERTS_H
#define SATCHEL_CUDA_EXPERTS_H

#include "../kernels/modes.h"
#include "packed.h"

enum { EXPERT_WAVES = 16, EXPERT_WINDOW = 4096, EXPERT_COLUMNS = GEMV_COLUMNS, EXPERT_SHARED = 46 << 10 };

/* Columns that a group processes at once: few enough that two groups fit an SM, and one an SM of 7.5, which has 64 KB. */
BOTH int expert_columns(int chunks) {
    return chunks * gemv_chunk_bytes(EXPERT_COLUMNS) <= EXPERT_SHARED ? EXPERT_COLUMNS : 1;
}

/* Bytes of the activations of `columns` columns, a multiple of 16. */
BOTH int expert_acts(int chunks, int columns) {
    return (chunks * gemv_chunk_bytes(columns) + 15) / 16 * 16;
}

#endif
