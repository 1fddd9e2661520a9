/* fragments.h: fragments of matrix.k.h for Apple's matrix units: MSL's simdgroup_matrix, from GPU family Apple7 on. Operands
 * are float32, unrounded: bfloat16 needs macOS 14, and float16's range is too small for large activations.
 *
 * The specification does not define which lane holds which element, so matrices are loaded, multiplied and stored whole. They
 * are row-major in memory. The weights' rows are the columns of the second operand, which is therefore loaded transposed.
 */
#ifndef SATCHEL_METAL_FRAGMENTS_H
#define SATCHEL_METAL_FRAGMENTS_H

enum { UNIT_TOKENS = 8, UNIT_ROWS = 8, UNIT_DEPTH = 8 };

typedef simdgroup_float8x8 token_fragment;
typedef simdgroup_float8x8 row_fragment;
typedef simdgroup_float8x8 sum_fragment;

FN void clear_sums(self m, THREAD sum_fragment *s) {
    (void)m;
    *s = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
}

FN void place_row(LOCAL operand *rows, int slot, int k, THREAD const float *w) {
    LOCAL operand *to = rows + MATRIX_PITCH * slot + k;
    for (int e = 0; e < MATRIX_PART; e++)
        to[e] = w[e];
}

FN void load_tokens(self m, THREAD token_fragment *f, LOCAL const operand *tokens, int token, int k) {
    (void)m;
    simdgroup_load(*f, tokens + MATRIX_PITCH * token + k, MATRIX_PITCH);
}

FN void load_rows(self m, THREAD row_fragment *f, LOCAL const operand *rows, int slot, int k) {
    (void)m;
    simdgroup_load(*f, rows + MATRIX_PITCH * slot + k, MATRIX_PITCH, 0, true);
}

FN void multiply(self m, THREAD token_fragment *x, THREAD row_fragment *w, THREAD sum_fragment *s) {
    (void)m;
    simdgroup_multiply_accumulate(*s, *x, *w, *s);
}

FN void store_sums(self m, THREAD sum_fragment *s, LOCAL float *to) {
    (void)m;
    simdgroup_store(*s, to, SUMS_PITCH);
}

#endif
