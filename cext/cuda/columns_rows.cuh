/* columns_rows.cuh: which rows of which weight a team of columns.cu or columns_warp.cu has. */
#ifndef SATCHEL_CUDA_COLUMNS_ROWS_CUH
#define SATCHEL_CUDA_COLUMNS_ROWS_CUH

#include "columns.h"
#include "tile.cuh"

/* A team's 64 rows: their weight, first row, and its output column; left: rows that exist. */
struct team_rows {
    int which, row, column, left;
};

static __device__ __forceinline__ team_rows rows_of_team(const gpu_call &c, int group, int team, int teams) {
    team_rows t = {2, 0, 0, 0};
    int block = group * teams + team, last = product_last(&c, c.mode);
    if (c.mode & PRODUCT_GATED) {
        t.which = 2 + team / (teams / 2);
        block = group * (teams / 2) + team % (teams / 2);
    } else {
        for (int n; t.which < last && block >= (n = columns_blocks(&c.v[t.which])); t.which++) {
            block -= n;
            t.column += c.v[t.which].shape[0];
        }
    }
    t.row = block * COLUMNS_ROWS;
    t.column += t.row;
    t.left = min(COLUMNS_ROWS, c.v[t.which].shape[0] - t.row);
    return t;
}

#endif
