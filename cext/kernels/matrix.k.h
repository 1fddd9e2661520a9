/* matrix.k.h: matrix products of many tokens on matrix units (WMMA, MFMA, simdgroup_matrix, joint_matrix): activations (T, K)
 * times weights (N, K), both rounded to bfloat16 (float32 unrounded where MATRIX_BYTES is 4), accumulated in float32. Modes and
 * operands are those of linear.k.h, the plain version of this kernel.
 *
 * A group computes a tile of MATRIX_ROWS rows by MATRIX_TOKENS tokens (a gated product: MATRIX_ROWS / 2 results, from the
 * gate's rows and then the up's). Each thread unpacks 32 elements of a weight at a time into local memory and loads 16 of the
 * activations. Float32 tiles are half as deep, so one half of the threads unpacks and the other half loads. Then the waves
 * multiply: wave i has WAVE rows from i / 2 * WAVE on and the tokens of half i % 2. The operands are bfloat16 because most
 * units support it and it has float32's range; some units flush float16 denormals to zero.
 *
 * The vendor's fragments.h defines the unit:
 *
 *   UNIT_TOKENS, UNIT_ROWS, UNIT_DEPTH   shape of one instruction: n tokens, m rows, k products summed
 *   token_fragment, row_fragment         a wave's operands: UNIT_DEPTH elements of UNIT_TOKENS tokens or UNIT_ROWS rows
 *   sum_fragment                         accumulators
 *   void clear_sums(self, sum_fragment *)
 *   void place_row(LOCAL operand *rows, int slot, int k, const float *w)   elements k to k + 31 of a row, as operands
 *   void load_tokens(self, token_fragment *, LOCAL const operand *tokens, int token, int k)   tokens are MATRIX_PITCH apart
 *   void load_rows(self, row_fragment *, LOCAL const operand *rows, int slot, int k)
 *   void multiply(self, const token_fragment *, const row_fragment *, sum_fragment *)
 *   void store_sums(self, sum_fragment *, LOCAL float *to)   token i's sum with row j to to[i * SUMS_PITCH + j]
 *
 * load_*, multiply and store_sums are collective: all lanes of a wave call them together.
 */
#ifndef SATCHEL_MATRIX_K_H
#define SATCHEL_MATRIX_K_H

#include "formats.k.h"
#include "gated.k.h"
#include "modes.h"
#ifdef DOT4
#include "packed.k.h"
#endif

enum { MATRIX_HALF = MATRIX_TOKENS / 2, SUMS_PITCH = MATRIX_ROWS + 4 };

#if MATRIX_BYTES == 4
typedef float operand;
#define OPERAND(x) (x)
#else
typedef uint16_t operand;
#define OPERAND(x) f32_to_bf16(x)
#endif

#include "fragments.h"

enum { TILES_OF_TOKENS = MATRIX_HALF / UNIT_TOKENS, TILES_OF_ROWS = WAVE / UNIT_ROWS };

_Static_assert(MATRIX_HALF % UNIT_TOKENS == 0 && WAVE % UNIT_ROWS == 0 && MATRIX_DEPTH % UNIT_DEPTH == 0,
               "tiles are whole");
_Static_assert(MATRIX_HALF * SUMS_PITCH * 4 <= MATRIX_LOCAL, "sums of half the tokens lie where the operands lay");
_Static_assert(MATRIX_UNPACKING <= MATRIX_THREADS && MATRIX_UNPACKING % MATRIX_ROWS == 0,
               "a thread unpacks one part at most");
_Static_assert(MATRIX_BRINGING <= MATRIX_THREADS && MATRIX_BRINGING % MATRIX_TOKENS == 0,
               "a thread brings 16 numbers at most");

/* --- loading a tile: a thread loads part `thread / MATRIX_ROWS` of row `thread % MATRIX_ROWS` */

#define TAKE_PART_1(stem, row, i, n, w)                                                                                \
    for (int e = 0; e < MATRIX_PART; e++)                                                                              \
        if (e < (n))                                                                                                   \
    stem##_unpack((row) + MATRIX_PART * (i) + e, (w) + e)
#define TAKE_PART_32(stem, row, i, n, w) UNPACK_32(stem, row, i, w)
#define TAKE_PART_64(stem, row, i, n, w) UNPACK_64(stem, row, i, w)
#define TAKE_PART_128(stem, row, i, n, w) UNPACK_128(stem, row, i, w)
#define TAKE_PART_256(stem, row, i, n, w) UNPACK_256(stem, row, i, w)

/* A row of a weight: its bytes in the file's order, or its tile and place in that of a packed weight. at NULL: none. */
typedef struct {
    DEVICE const char *at;
    uint32_t format;
    int in;
} weight_row;

/* Elements 32 i to 32 i + 31 of a row of k, zeros past its end. */
FN void unpack_part(weight_row r, int i, int k, THREAD float *w) {
    DEVICE const char *row = r.at;
    int n = k - MATRIX_PART * i;
    for (int e = 0; e < MATRIX_PART; e++)
        w[e] = 0;
    if (!row || n <= 0)
        return;
#ifdef DOT4
    if (r.format & PACKED_BIT) {
        packed_unpack(r.format, row, r.in, i, w);
        return;
    }
#endif
    switch (r.format) {
#define CPU_WEIGHT(stem, id, block, act)                                                                               \
    case id:                                                                                                           \
        TAKE_PART_##block(stem, (DEVICE const block_##stem *)row, i, n, w);                                            \
        break;
#include "types.inc"
#undef CPU_WEIGHT
    }
}

/* The weight's row of a row of the tile; none past the last weight. */
FN weight_row row_of_slot(CONSTANT gpu_call *c, THREAD const self *m, int slot) {
    int gated_by = c->mode == LINEAR_GATED, rows = gated_by ? MATRIX_ROWS / 2 : MATRIX_ROWS;
    int64_t row = (int64_t)m->group[0] * rows + slot % rows;
    CONSTANT gpu_view *w = c->v + 2;
    weight_row r = {NULL, 0, 0};
    if (row >= c->v->shape[1])
        return r;
    if (gated_by)
        w += slot / rows;
    else
        w = weight_at(c, c->mode == LINEAR_PLAIN ? (int)c->n_in - 1 : 1, &row);
    r.at = ROW(const char, w, row);
    r.format = w->format;
#ifdef DOT4
    if (r.format & PACKED_BIT) {
        r.at = packed_tile_of(w, row);
        r.in = (int)(row % PACKED_ROWS);
    }
#endif
    return r;
}

/* Loads MATRIX_EACH elements of a token from k on; i is the index among the loading threads. */
FN void bring_tokens(CONSTANT gpu_call *c, int i, int first, int n, int k, LOCAL operand *tokens) {
    enum { SIDE = MATRIX_DEPTH / MATRIX_EACH };
    int token = i / SIDE, at = i % SIDE * MATRIX_EACH, left = token < n ? c->v[1].shape[1] - k - at : 0;
    DEVICE const float *x = ROW(const float, c->v + 1, first + (token < n ? token : 0)) + k + at;
    LOCAL operand *to = tokens + MATRIX_PITCH * token + at;
    for (int e = 0; e < MATRIX_EACH; e++)
        to[e] = e < left ? OPERAND(x[e]) : 0;
}

/* --- multiplication, by waves */

typedef struct {
    sum_fragment of[TILES_OF_TOKENS][TILES_OF_ROWS];
} wave_tile;

FN void multiply_tile(self m, LOCAL const operand *rows, LOCAL const operand *tokens, THREAD wave_tile *t) {
    int first_row = m.wave / 2 * WAVE, first_token = m.wave % 2 * MATRIX_HALF;
    for (int k = 0; k < MATRIX_DEPTH; k += UNIT_DEPTH) {
        row_fragment r[TILES_OF_ROWS];
        UNROLLED
        for (int j = 0; j < TILES_OF_ROWS; j++)
            load_rows(m, r + j, rows, first_row + j * UNIT_ROWS, k);
        UNROLLED
        for (int i = 0; i < TILES_OF_TOKENS; i++) {
            token_fragment x;
            load_tokens(m, &x, tokens, first_token + i * UNIT_TOKENS, k);
            UNROLLED
            for (int j = 0; j < TILES_OF_ROWS; j++)
                multiply(m, &x, r + j, &t->of[i][j]);
        }
    }
}

/* --- results: the waves of one half of the tokens at a time, because local memory has no room for all sums */

FN void write_half(CONSTANT gpu_call *c, THREAD const self *m, int first, int n, LOCAL const float *sums) {
    int gated_by = c->mode == LINEAR_GATED, rows = gated_by ? MATRIX_ROWS / 2 : MATRIX_ROWS;
    for (int i = m->thread; i < MATRIX_HALF * rows; i += MATRIX_THREADS) {
        int token = i / rows, slot = i % rows;
        int64_t row = (int64_t)m->group[0] * rows + slot;
        float sum = sums[token * SUMS_PITCH + slot];
        if (token >= n || row >= c->v->shape[1])
            continue;
        if (c->mode == LINEAR_ADD)
            sum += ROW(const float, c->v + 3, first + token)[row];
        ROW(float, c->v, first + token)[row] = gated_by ? gated(sum, sums[token * SUMS_PITCH + rows + slot]) : sum;
    }
}

FN void write_tile(CONSTANT gpu_call *c, self m, int first, int n, THREAD wave_tile *t) {
    LOCAL float *sums = (LOCAL float *)m.local;
    for (int half = 0; half < 2; half++) {
        if (m.wave % 2 == half) {
            UNROLLED
            for (int i = 0; i < TILES_OF_TOKENS; i++) {
                UNROLLED
                for (int j = 0; j < TILES_OF_ROWS; j++)
                    store_sums(m, &t->of[i][j],
                               sums + i * UNIT_TOKENS * SUMS_PITCH + m.wave / 2 * WAVE + j * UNIT_ROWS);
            }
        }
        BARRIER(m);
        write_half(c, &m, first + half * MATRIX_HALF, n - half * MATRIX_HALF, sums);
        BARRIER(m);
    }
}

#define MATRIX_PRODUCT(name) KERNEL(name, MATRIX_THREADS)

MATRIX_PRODUCT(MATRIX_KERNEL) {
    int first = m.group[1] * MATRIX_TOKENS, n = rows_of(c, c->v) - first, k = c->v[1].shape[1];
    int slot = m.thread % MATRIX_ROWS, part = m.thread / MATRIX_ROWS;
    LOCAL operand *rows = (LOCAL operand *)m.local, *tokens = rows + MATRIX_PITCH * MATRIX_ROWS;
    weight_row row = row_of_slot(c, &m, slot);
    wave_tile t;
    if (n <= 0)
        return;
    UNROLLED
    for (int i = 0; i < TILES_OF_TOKENS; i++) {
        UNROLLED
        for (int j = 0; j < TILES_OF_ROWS; j++)
            clear_sums(m, &t.of[i][j]);
    }
    for (int from = 0; from < k; from += MATRIX_DEPTH) {
        if (MATRIX_UNPACKING == MATRIX_THREADS || m.thread < MATRIX_UNPACKING) {
            float w[MATRIX_PART];
            unpack_part(row, from / MATRIX_PART + part, k, w);
            place_row(rows, slot, MATRIX_PART * part, w);
        }
        if (MATRIX_BRINGING == MATRIX_THREADS || m.thread >= MATRIX_THREADS - MATRIX_BRINGING)
            bring_tokens(c, m.thread - (MATRIX_THREADS - MATRIX_BRINGING), first, n, from, tokens);
        BARRIER(m);
        multiply_tile(m, rows, tokens, &t);
        BARRIER(m);
    }
    write_tile(c, m, first, n, &t);
}

#endif
