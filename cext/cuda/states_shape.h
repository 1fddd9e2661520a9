/* states_shape.h: partition of the work of states.cu, shared by the kernels and their table.
 *
 * A piece is a slot's consecutive tokens in a step. A piece shorter than STATE_LONG goes token by token; a longer one is cut into
 * chunks, which begin where the piece does, at positions that are multiples of STATE_CHUNK, and after a position whose state is
 * kept. So a chunk ends where a state is stored.
 */
#ifndef SATCHEL_CUDA_STATES_SHAPE_H
#define SATCHEL_CUDA_STATES_SHAPE_H

#include "call.h"

#ifdef __CUDACC__
#define STATE_FN static __host__ __device__ __forceinline__
#else
#define STATE_FN static inline
#endif

enum {
    STATE_CHUNK = 64 /* most tokens of a chunk */,
    STATE_LONG = 16,
    STATE_FEW = 128 /* tokens of a call whose pieces all go token by token */,
    STATE_MOST = 8192 /* tokens of a call */,
    STATE_KEYS = 128 /* most N of the kernels that take chunks */,
    STATE_KEYS_BY_TOKEN = 256 /* most N of those that do not */,
    STATE_COLUMNS = 32 /* of a head's state, of a group */
};

/* Kernels that go token by token: a thread has four columns of every 16th row. */
enum { TOKEN_THREADS = 128, TOKEN_ROWS = TOKEN_THREADS / (STATE_COLUMNS / 4), TOKEN_STARTS = 32 };

/* Kernel that makes the matrices of chunks: two heads of one group of keys. */
enum {
    MATRIX_HEADS = 2,
    MATRIX_PITCH = STATE_CHUNK + 4,
    MATRIX_THREADS = 64 * MATRIX_HEADS,
    MATRIX_K = 0,
    MATRIX_Q = MATRIX_K + STATE_CHUNK * STATE_KEYS * 4,
    MATRIX_KK = MATRIX_Q + STATE_CHUNK * STATE_KEYS * 4,
    MATRIX_QK = MATRIX_KK + STATE_CHUNK * STATE_CHUNK * 4,
    MATRIX_SHARED = MATRIX_QK + STATE_CHUNK * STATE_CHUNK * 4
};

/* Kernel that goes chunk by chunk: two warps multiply, four load the next chunk. A stage has keys, queries, both matrices, values,
 * and for each token its decay from the chunk's start, to its end, and its beta. */
enum {
    CHUNK_WARPS = STATE_COLUMNS / 16,
    CHUNK_LOADERS = 4,
    CHUNK_THREADS = 32 * (CHUNK_WARPS + CHUNK_LOADERS),
    CHUNK_V_PITCH = STATE_COLUMNS + 4,
    CHUNK_K = 0,
    CHUNK_Q = CHUNK_K + STATE_CHUNK * STATE_KEYS * 4,
    CHUNK_INVERSE = CHUNK_Q + STATE_CHUNK * STATE_KEYS * 4,
    CHUNK_SEEN = CHUNK_INVERSE + STATE_CHUNK * STATE_CHUNK * 4,
    CHUNK_V = CHUNK_SEEN + STATE_CHUNK * STATE_CHUNK * 4,
    CHUNK_FADES = CHUNK_V + STATE_CHUNK * CHUNK_V_PITCH * 4,
    CHUNK_STAGE = CHUNK_FADES + 3 * STATE_CHUNK * 4,
    CHUNK_BITS = 2 * CHUNK_STAGE,
    CHUNK_SHARED = CHUNK_BITS + 2 * STATE_MOST / 8
};

/* The scratch of a call of many tokens, in floats: rows (T, H, STATE_CHUNK) of `seen` and, with the delta rule, of `inverse`,
 * then decays (H, T) from a chunk's start and to its end. */
typedef struct {
    uint64_t inverse, faded, left, all;
} state_scratch;

STATE_FN state_scratch state_scratch_of(const gpu_call *c, int delta) {
    const uint64_t tokens = (uint64_t)c->v[3].shape[0], heads = (uint64_t)c->v[3].shape[1];
    const uint64_t rows = tokens * heads * STATE_CHUNK;
    state_scratch s;
    s.inverse = rows;
    s.faded = delta ? 2 * rows : rows;
    s.left = s.faded + heads * tokens;
    s.all = s.left + heads * tokens;
    return s;
}

/* Groups of columns of a head. */
STATE_FN int state_slices(const gpu_view *state) {
    return (state->shape[3] + STATE_COLUMNS - 1) / STATE_COLUMNS;
}

#endif
