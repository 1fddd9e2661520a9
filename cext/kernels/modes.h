/* modes.h: constants that the kernels and table.c share: modes of kernels that serve several ops, and tile and group sizes. */
#ifndef SATCHEL_KERNEL_MODES_H
#define SATCHEL_KERNEL_MODES_H

enum { LINEAR_PLAIN, LINEAR_ADD, LINEAR_GATED };
enum { LINEAR_COLUMNS = 8 }; /* most columns that a wave multiplies with a row at once */
#ifndef MATRIX_BYTES
#define MATRIX_BYTES 2 /* bytes of a matrix unit's operand: 2 bfloat16, 4 float32 */
#endif
enum { /* matrix.k.h: a group's tile, its depth in elements of weights and tokens, and its local memory */
       MATRIX_THREADS = 256,
       MATRIX_ROWS = 128,
       MATRIX_TOKENS = 64,
       MATRIX_DEPTH = 128 / MATRIX_BYTES,
       MATRIX_PITCH = MATRIX_DEPTH + 16 / MATRIX_BYTES, /* elements from row to row, padded against bank conflicts */
       MATRIX_LOCAL = MATRIX_BYTES * MATRIX_PITCH * (MATRIX_ROWS + MATRIX_TOKENS),
       MATRIX_PART = 32, /* elements of a weight that a thread unpacks at a time, and of a token that one loads */
       MATRIX_EACH = 16,
       MATRIX_UNPACKING = MATRIX_ROWS * MATRIX_DEPTH / MATRIX_PART, /* the first threads unpack, the last ones load */
       MATRIX_BRINGING = MATRIX_TOKENS * MATRIX_DEPTH / MATRIX_EACH
};
enum { PAIR_ADD, PAIR_MUL };
enum { UNARY_GELU, UNARY_CAP, UNARY_SIGMOID, UNARY_SOFTPLUS };
enum { EXPERTS_ONE, EXPERTS_GATED, EXPERTS_BY_HEAD };
enum { EXPERT_GROUPS_MOST = 32 /* most groups of experts: one per lane */ };
enum { KV_PLAIN, KV_ROPE, KV_PART };
enum { KV_WAVES = 4 /* of a group that attends */, KV_VALUES_MOST = 512 /* columns of a value */ };
#define STEP_ROW(d) (4 * ((int64_t)(d) + 3)) /* bytes of a row of a cache at most, rounded up to whole words */
enum { EXPANDED_ROWS = 64 /* groups of a head; each loops over tokens and has scratch of its own */ };
enum {
    INDEX_HEADS = 16,  /* whose queries lie in a group's local memory at once */
    INDEX_LOCAL = 2048 /* least bytes of that memory */
};
/* Tokens whose scores of so many positions fit into 64 MiB of scratch, but one at least and no more than 256. */
#define INDEX_ROOMS(positions) ((positions) > 1 << 24 ? 1 : (positions) < 1 << 16 ? 256 : (1 << 24) / (positions))
enum { SCAN_LANES = 8, SCAN_COLUMNS = 8 /* of a head's state per group, SCAN_LANES lanes each */ };

enum {
    SAMPLE_THREADS = 1024, /* most threads of a group */
    SAMPLE_GROUPS = 64,    /* groups; each loops over rows and has scratch of its own */
    SAMPLE_BYTES = 20,     /* bytes of scratch per token of the vocabulary and group */
    SAMPLE_LOCAL = 8192,   /* bytes of a group's local memory */
    BEST_CHUNK = 256,      /* logits of a stretch, of which a wave finds the largest */
    BEST_THREADS = 128,    /* of a group of such waves */
    BEST_MOST = 4096,      /* stretches of a row, up to which candidates are gathered */
    GATHER_MOST = 1024,    /* candidates, up to which they are */
    REPORT_CHUNK = 4096    /* logits per group of logprobs_parts */
};
enum { SAMPLE_TOKEN, SAMPLE_MASKED };

#endif
