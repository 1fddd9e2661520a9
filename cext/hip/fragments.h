/* fragments.h: fragments of matrix.k.h for AMD's matrix units: MFMA of CDNA (MATRIX_MFMA: gfx90a, gfx942), WMMA of RDNA 3
 * (MATRIX_WMMA_11) and of RDNA 4 (MATRIX_WMMA_12). AMD's instruction set documents define the layouts (MI200, MI300, RDNA3 and
 * RDNA4, the chapters on MFMA and WMMA). The layouts here follow public sources and are not checked against those. l is the
 * lane:
 *
 *   v_mfma_f32_32x32x8_bf16_1k  operands: 4 elements of row l % 32, from k = 4 (l / 32) on; sum v: row 8 (v / 4) + 4 (l / 32)
 * + v % 4
 *   v_wmma_f32_16x16x16_bf16    RDNA 3: all 16 of row l % 16, in both halves of the wave; sum v: row 2 v + l / 16
 *                               RDNA 4: 8 of row l % 16, from k = 8 (l / 16) on; sum v: row 8 (l / 16) + v
 *
 * The column of every sum is l % 32 or l % 16. Rows are tokens here and columns rows of a weight, so adjacent lanes have
 * adjacent results. A unit sums its products in an unspecified order, so k may be permuted if both operands agree: MFMA takes
 * 16 elements in two steps, and a lane's 8 are adjacent.
 *
 * Elements of a row are adjacent in local memory; rows are MATRIX_PITCH apart.
 */
#ifndef SATCHEL_HIP_FRAGMENTS_H
#define SATCHEL_HIP_FRAGMENTS_H

#if defined(MATRIX_MFMA)
enum { UNIT_TOKENS = 32, UNIT_ROWS = 32, UNIT_DEPTH = 16, EIGHTS = 1, UNIT_SUMS = 16 };
#elif defined(MATRIX_WMMA_11)
enum { UNIT_TOKENS = 16, UNIT_ROWS = 16, UNIT_DEPTH = 16, EIGHTS = 2, UNIT_SUMS = 8 };
#elif defined(MATRIX_WMMA_12)
enum { UNIT_TOKENS = 16, UNIT_ROWS = 16, UNIT_DEPTH = 16, EIGHTS = 1, UNIT_SUMS = 8 };
#endif

typedef short eight __attribute__((vector_size(16)));
typedef struct {
    eight part[EIGHTS];
} row_fragment;
typedef row_fragment token_fragment;
typedef float sum_fragment __attribute__((vector_size(4 * UNIT_SUMS)));

#ifdef PORT_EMULATED
#include "instructions.h"
#else
#include "builtins.h"
#endif

FN void clear_sums(self m, sum_fragment *s) {
    (void)m;
    for (int v = 0; v < UNIT_SUMS; v++)
        (*s)[v] = 0;
}

FN void place_row(LOCAL uint16_t *rows, int slot, int k, const float *w) {
    LOCAL eight *to = (LOCAL eight *)(rows + MATRIX_PITCH * slot + k);
    for (int i = 0; i < MATRIX_PART / 8; i++) {
        eight made = {0};
        for (int e = 0; e < 8; e++)
            made[e] = (short)f32_to_bf16(w[8 * i + e]);
        to[i] = made;
    }
}

FN void load_rows(self m, row_fragment *f, LOCAL const uint16_t *rows, int slot, int k) {
    int begin = EIGHTS == 2 ? 0 : 8 * (m.lane / UNIT_ROWS);
    LOCAL const eight *from = (LOCAL const eight *)(rows + MATRIX_PITCH * (slot + m.lane % UNIT_ROWS) + k + begin);
    for (int i = 0; i < EIGHTS; i++)
        f->part[i] = from[i];
}

FN void load_tokens(self m, token_fragment *f, LOCAL const uint16_t *tokens, int token, int k) {
    load_rows(m, f, tokens, token, k);
}

/* Index of the token of a lane's sum v. */
FN int token_of_sum(int lane, int v) {
#if defined(MATRIX_MFMA)
    return 8 * (v / 4) + 4 * (lane / 32) + v % 4;
#elif defined(MATRIX_WMMA_11)
    return 2 * v + lane / 16;
#else
    return 8 * (lane / 16) + v;
#endif
}

FN void store_sums(self m, sum_fragment *s, LOCAL float *to) {
    for (int v = 0; v < UNIT_SUMS; v++)
        to[token_of_sum(m.lane, v) * SUMS_PITCH + m.lane % UNIT_ROWS] = (*s)[v];
}

#endif
