/* modes.h: what the kernels and table.c agree on: the mode of a kernel that serves several ops, and sizes that make a grid. */
#ifndef SATCHEL_KERNEL_MODES_H
#define SATCHEL_KERNEL_MODES_H

enum { LINEAR_PLAIN, LINEAR_ADD, LINEAR_GATED };
enum { LINEAR_COLUMNS = 8 }; /* that a wave multiplies with a row, at most */
#ifndef MATRIX_BYTES
#define MATRIX_BYTES 2 /* of a number as matrix units take it: bfloat16; 4: float32 */
#endif
enum { /* products by matrix units: a group's tile, numbers of weights and tokens that it brings at a time, and their room */
    MATRIX_THREADS = 256,
    MATRIX_ROWS = 128,
    MATRIX_TOKENS = 64,
    MATRIX_DEPTH = 128 / MATRIX_BYTES,
    MATRIX_PITCH = MATRIX_DEPTH + 16 / MATRIX_BYTES, /* from row to row: neighbours lie in other banks of local memory */
    MATRIX_LOCAL = MATRIX_BYTES * MATRIX_PITCH * (MATRIX_ROWS + MATRIX_TOKENS),
    MATRIX_PART = 32, /* numbers of a weight that a thread unpacks at a time, and of a token that one brings */
    MATRIX_EACH = 16,
    MATRIX_UNPACKING = MATRIX_ROWS * MATRIX_DEPTH / MATRIX_PART, /* threads that unpack, the first; that bring, the last */
    MATRIX_BRINGING = MATRIX_TOKENS * MATRIX_DEPTH / MATRIX_EACH
};
enum { PAIR_ADD, PAIR_MUL };
enum { UNARY_GELU, UNARY_CAP, UNARY_SIGMOID, UNARY_SOFTPLUS };
enum { EXPERTS_ONE, EXPERTS_GATED, EXPERTS_BY_HEAD };
enum { EXPERT_GROUPS_MOST = 32 /* of experts, of which the best are looked at: one a lane */ };
enum { KV_PLAIN, KV_ROPE };
enum { SCAN_LANES = 8, SCAN_COLUMNS = 8 /* of a head's matrix: a group has so many, each with so many lanes */ };

enum {
    SAMPLE_THREADS = 1024, /* of a group, at most */
    SAMPLE_GROUPS = 64,    /* that go over the rows, each with scratch of its own: */
    SAMPLE_BYTES = 20,     /* for each token of the vocabulary */
    SAMPLE_LOCAL = 8192,   /* a group's local memory */
    BEST_CHUNK = 1024      /* logits of a row of which sample_best finds the largest */
};
enum { SAMPLE_TOKEN, SAMPLE_MASKED };

#endif
