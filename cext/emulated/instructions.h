/* instructions.h: multiply() of cext/hip/fragments.h without AMD hardware: a model of each matrix instruction. A lane posts
 * its registers; when all lanes of its wave have, it computes its own results from all of them, by the layouts that
 * fragments.h states. The model is independent of how the kernel fills the registers. Products are added in ascending k; the
 * hardware's order is unspecified.
 *
 * RDNA 3 requires equal operands in both halves of a wave: where they differ, a result of each lane is NaN.
 */
#ifndef SATCHEL_EMULATED_INSTRUCTIONS_H
#define SATCHEL_EMULATED_INSTRUCTIONS_H

/* The operands that the running group's threads posted last; groups run one after the other. */
static struct {
    uint16_t a[8 * EIGHTS], b[8 * EIGHTS];
} operands[MATRIX_THREADS];

FN void share_operands(self m, const token_fragment *a, const row_fragment *b) {
    memcpy(operands[m.thread].a, a, sizeof operands->a);
    memcpy(operands[m.thread].b, b, sizeof operands->b);
    (void)TAKE(m, 0, m.lane);
}

/* D = A B + C of `sides` rows and columns, with A's row i and number k in register a_of(i, k) of lane lane_of(i, k), and so
 * B's column; and D's numbers of this lane as its own table says. */
#define ADD_PRODUCTS(sides, depth, row_of, lane_of, register_of)                                                       \
    for (int v = 0; v < UNIT_SUMS; v++)                                                                                \
        for (int k = 0; k < (depth); k++)                                                                              \
    (*s)[v] += bf16_to_f32(operands[first + lane_of(row_of(m.lane, v), k)].a[register_of(k)]) *                        \
               bf16_to_f32(operands[first + lane_of(m.lane % (sides), k)].b[register_of(k)])

#if defined(MATRIX_MFMA)

#define MFMA_ROW(lane, v) (8 * ((v) / 4) + 4 * ((lane) / 32) + (v) % 4)
#define MFMA_LANE(i, k) ((i) + 32 * ((k) / 4))
#define MFMA_REGISTER(k) (4 * step + (k) % 4)

/* v_mfma_f32_32x32x8_bf16_1k, on the lower and then on the upper four numbers. */
FN void multiply(self m, const token_fragment *x, const row_fragment *w, sum_fragment *s) {
    int first = m.thread - m.lane;
    share_operands(m, x, w);
    for (int step = 0; step < 2; step++)
        ADD_PRODUCTS(32, 8, MFMA_ROW, MFMA_LANE, MFMA_REGISTER);
    (void)TAKE(m, 0, m.lane);
}

#elif defined(MATRIX_WMMA_11)

#define WMMA_ROW(lane, v) (2 * (v) + (lane) / 16)
#define WMMA_LANE(i, k) (i)
#define WMMA_REGISTER(k) (k)

/* v_wmma_f32_16x16x16_bf16 of RDNA 3, in waves of 32. */
FN void multiply(self m, const token_fragment *x, const row_fragment *w, sum_fragment *s) {
    int first = m.thread - m.lane;
    share_operands(m, x, w);
    ADD_PRODUCTS(16, 16, WMMA_ROW, WMMA_LANE, WMMA_REGISTER);
    for (int i = 0; i < 16; i++)
        if (memcmp(operands + first + i, operands + first + i + 16, sizeof *operands))
            (*s)[0] = f32_nan();
    (void)TAKE(m, 0, m.lane);
}

#else

#define WMMA_ROW(lane, v) (8 * ((lane) / 16) + (v))
#define WMMA_LANE(i, k) ((i) + 16 * ((k) / 8))
#define WMMA_REGISTER(k) ((k) % 8)

/* v_wmma_f32_16x16x16_bf16 of RDNA 4, in waves of 32. */
FN void multiply(self m, const token_fragment *x, const row_fragment *w, sum_fragment *s) {
    int first = m.thread - m.lane;
    share_operands(m, x, w);
    ADD_PRODUCTS(16, 16, WMMA_ROW, WMMA_LANE, WMMA_REGISTER);
    (void)TAKE(m, 0, m.lane);
}

#endif

#endif
