/* packed.h: the formats with a packed layout on the device (tile.cuh), and gemv.cu's shared memory layout; shared by host and
 * kernels.
 */
#ifndef SATCHEL_CUDA_PACKED_H
#define SATCHEL_CUDA_PACKED_H

#include <stdint.h>

#include "../kernels/call.h"

#ifdef __CUDACC__
#define BOTH static __host__ __device__ inline
#else
#define BOTH static inline
#endif

/* name, GGUF's number, bytes of 16 rows times 256 columns, columns of a block */
#define PACKED_FORMATS(f)                                                                                              \
    f(q4_k, 12, 2304, 256) f(q5_k, 13, 2816, 256) f(q6_k, 14, 3360, 256) f(q8_0, 8, 4352, 32) f(q4_0, 2, 2304, 32)     \
        f(q5_0, 6, 2816, 32) f(iq4_nl, 20, 2304, 32) f(iq4_xs, 23, 2176, 256) f(mxfp4, 39, 2176, 32)                   \
            f(i8_g128, 2003, 4224, 128)

enum { TILE_ROWS = 16, CHUNK = 256 };               /* a chunk of a tile */
enum { PACKED_FLAG = 1 << 24, PACKED_MOST = 4352 }; /* HAL_PACKED; the largest chunk */
/* Bits of gpu_call.mode. GELU: the gate of GATED. POST, with NORM: what is normalized is h = residual + rms_norm(x, post), which
 * the output holds after the products' columns. SMALL, of batch.cu: groups of less shared memory. */
enum {
    PRODUCT_ADD = 1,
    PRODUCT_GATED = 2,
    PRODUCT_NORM = 4,
    PRODUCT_DETERMINISTIC = 8,
    PRODUCT_GELU = 16,
    PRODUCT_POST = 32,
    PRODUCT_SMALL = 64
};
enum { DENSE_WAVES = 16, GEMV_WAVES = 16, GEMV_COLUMNS = 4, GEMV_MATRICES = 4 }; /* columns and matrices: at most */
/* Waves of gemv_8.cu's groups, and the shared memory up to which they have a third stage. */
enum {
    GEMV_FEW_WAVES = 8,
    GEMV_FEW_SHARED = 99 << 10,
    GEMV_SHARED = 227 << 10 /* of a group on Hopper */,
    GEMV_OLD_STAGES = 1 /* of gemv_7.cu */
};

#ifdef __CUDACC__
/* The same as constant expressions: a switch would become branches at the start of every kernel. */
#define PACKED_SIZE_AT(name, number, bytes, block) number == I ? bytes:
template <int I> struct packed_size {
    enum { BYTES = PACKED_FORMATS(PACKED_SIZE_AT) 0 };
};
#define EIGHT_SIZES(i)                                                                                                 \
    packed_size<i>::BYTES, packed_size<i + 1>::BYTES, packed_size<i + 2>::BYTES, packed_size<i + 3>::BYTES,            \
        packed_size<i + 4>::BYTES, packed_size<i + 5>::BYTES, packed_size<i + 6>::BYTES, packed_size<i + 7>::BYTES
enum { PACKED_TABLE = 40 }; /* numbers below are in the table; those of our own formats are compared */
static __constant__ uint16_t packed_sizes[PACKED_TABLE] = {EIGHT_SIZES(0), EIGHT_SIZES(8), EIGHT_SIZES(16),
                                                           EIGHT_SIZES(24), EIGHT_SIZES(32)};
#define PACKED_SIZE_ABOVE(name, number, bytes, block) f == number ? bytes:
#endif

BOTH int packed_bytes(uint32_t format) {
#ifdef __CUDA_ARCH__
    const uint32_t f = format & 0xFFFFFFu;
    return f < PACKED_TABLE ? packed_sizes[f] : PACKED_FORMATS(PACKED_SIZE_ABOVE) 0;
#endif
    switch (format & 0xFFFFFFu) {
#define PACKED_BYTES(name, number, bytes, block)                                                                       \
    case number:                                                                                                       \
        return bytes;
        PACKED_FORMATS(PACKED_BYTES)
#undef PACKED_BYTES
    }
    return 0;
}

/* Index of the last weight: a residual, the norm's weights, or these, the post-norm's and a residual follow. */
BOTH int product_last(const gpu_call *c, uint32_t mode) {
    return (int)c->n_in - (mode & PRODUCT_POST ? 3 : mode & (PRODUCT_ADD | PRODUCT_NORM) ? 1 : 0);
}
/* Columns of the products in the output. */
BOTH int product_columns(const gpu_call *c, uint32_t mode) {
    return c->v[0].shape[1] - (mode & PRODUCT_POST ? c->v[1].shape[1] : 0);
}

BOTH int packed_tiles(const gpu_view *w) {
    return (w->shape[0] + 15) / 16;
}
BOTH int packed_chunks(const gpu_view *w) {
    return (w->shape[1] + 255) / 256;
}

/* Bytes of a chunk's activations: gemv.cuh has their order. */
BOTH int gemv_chunk_bytes(int columns) {
    return 544 * columns + 4 * ((columns + 3) / 4 * 4);
}

/* Rings of `stages` chunks for each wave lie first, then two batches of partial sums, activations, barriers, sums of squares. */
typedef struct {
    int stages, chunk_bytes, batch, chunks, act_bytes;
    int part, acts, bars, squares, bytes; /* offsets; total bytes */
} gemv_plan;

BOTH gemv_plan gemv_plan_staged(int waves, int stages, int chunk_bytes, int columns, int chunks) {
    gemv_plan p;
    p.stages = stages;
    p.chunk_bytes = chunk_bytes;
    p.batch = columns == 1 ? 4 : 2;
    p.chunks = chunks;
    p.act_bytes = gemv_chunk_bytes(columns);
    p.part = waves * p.stages * chunk_bytes;
    p.acts = p.part + 2 * p.batch * waves * 16 * 4 * columns;
    p.bars = p.acts + (chunks * p.act_bytes + 15) / 16 * 16;
    p.squares = p.bars + waves * p.stages * 8;
    p.bytes = p.squares + 2 * waves * 4 * 4; /* of the norm, then of the post-norm */
    return p;
}

/* A wave has two chunks of 16 waves, and three of few or, on Hopper, of one column, if these have room. There a wave asks for one before the
 * activations and for the others behind them (gemv.cu); asked for before them, deeper rings are no faster (measured with 2 to 5 stages). */
BOTH gemv_plan gemv_plan_of(int waves, int hopper, int chunk_bytes, int columns, int chunks) {
    int few = waves == GEMV_FEW_WAVES, deep = few || (hopper && columns == 1);
    gemv_plan p = gemv_plan_staged(waves, deep ? 3 : 2, chunk_bytes, columns, chunks);
    return !deep || p.bytes <= (few ? GEMV_FEW_SHARED : GEMV_SHARED)
               ? p
               : gemv_plan_staged(waves, 2, chunk_bytes, columns, chunks);
}

/* Bytes of a group of a pair, which has a barrier for each wave behind the rest (gemv_pair.cuh). */
BOTH int gemv_pair_bytes(const gemv_plan *p) {
    return p->bytes + GEMV_WAVES * 8;
}

/* The first chunk of part i of K; parts: 1, 2 or 4. */
BOTH int gemv_part(int chunks, int i, int parts) {
    return chunks * i >> (parts >> 1);
}

/* Groups that split K: a barrier and the parts' sums of squares come behind the rest, then the sums (gemv_split.cuh). */
enum { GEMV_SPLIT_MOST = 4, GEMV_SPLIT_BARRIER = 8, GEMV_SPLIT_HEAD = GEMV_SPLIT_BARRIER + GEMV_SPLIT_MOST * 16 };
/* Chunks times columns from which on two groups that load half of the activations each gain more than the exchange of sums takes: both
 * are some 1.5 microseconds there, at 33 bytes a nanosecond for a multiprocessor. Below it pairs are faster (measured for 64). */
enum { GEMV_SPLIT_LEAST = 96 };

/* Of a group with so many of `chunks`: its plan, and all its bytes with the sums of so many tiles. */
BOTH gemv_plan gemv_split_plan(int parts, int chunk_bytes, int columns, int chunks) {
    return gemv_plan_of(GEMV_WAVES, 1, chunk_bytes, columns, (chunks + parts - 1) >> (parts >> 1));
}
BOTH int gemv_split_bytes(const gemv_plan *p, int parts, int tiles, int columns) {
    return p->bytes + GEMV_SPLIT_HEAD + parts * tiles * columns * TILE_ROWS * 4;
}

#endif
