/* packed_layout.h: the packed layout of weights for the portable kernels; shared by host and kernels.
 *
 * A matrix is cut into tiles of 32 rows, a tile into chunks of 256 columns, tile by tile. A chunk holds words of 16 bytes, word by
 * word: word i of its 32 rows side by side, so 32 lanes with a row each read 512 adjacent bytes, whatever the width of a wave.
 * First come the codes, then the scales. Rows and columns past the matrix's end are zeros, so a chunk takes no more bytes than the
 * file's blocks of 32 rows.
 *
 *   codes of 4 bits   word j: stretch j (columns 32 j to 32 j + 31); byte 4 i + b holds column 4 i + b in its lower half and column
 *                     16 + 4 i + b in its upper half
 *   fifth bits        word 8 + j / 4, part j % 4: bit 8 b + i of column 4 i + b, bit 8 b + 4 + i of column 16 + 4 i + b
 *   upper two bits    word 8 + j / 2, part 2 (j % 2) + h: bits 8 b + 2 i and above, of column 16 h + 4 i + b
 *   codes of 8 bits   word 2 j + h: columns 16 h to 16 h + 15 of stretch j
 *   scales            Q4_K, Q5_K: the 16 bytes at the head of the file's block. Q6_K: 16 bytes of scales, and behind the words two
 *                     bytes of each row, d. Formats with blocks of 32: eight halves. Behind the words, 8 bytes of each row:
 *                     I8_G128: two floats; MXFP4: eight exponents; IQ4_XS: the head of the file's block.
 *
 * Codes of Q4_0, Q5_0 and Q6_K are stored less their offset, as two's complement, so a byte with a code in its upper bits is a
 * multiple of the signed code.
 *
 * What a stretch of a row takes at least: bytes, and a lane's instructions, to get bytes out of codes (once), and for each column of
 * activations dot products of four bytes and the rest. counted: all vector instructions for one column in clang's code for gfx1100.
 *
 *             bytes   unpack   dot   rest   counted
 *   Q4_K      18        12      16     8      41
 *   Q5_K      22        36      16     8      56
 *   Q6_K      26.25     40      16    10      62
 *   Q8_0      34         0      16     5      21
 *   Q4_0      18        12      16     5      33
 *   Q5_0      22        36      16     5      52
 *   IQ4_NL    18        60      16     5      81
 *   IQ4_XS    17        60      16     8      86
 *   MXFP4     17        60      16     7      86
 *   I8_G128   33         0      16     5      21
 *
 * At 960 GB/s and 192 units of 32 lanes at 2.4 GHz (RX 7900 XTX), 32 rows of a stretch of Q4_K take memory 0.60 ns and all units
 * together 0.09 ns, those of Q6_K 0.88 and 0.13. At 5.3 TB/s and 1216 units of 16 lanes at 2.1 GHz (MI300X): 0.11 and 0.03, 0.16 and
 * 0.05. Each further column adds 24 to 26 instructions, so four are below memory's time on the first, and near it on the second. That
 * is arithmetic from data sheets; no such card has run this.
 */
#ifndef SATCHEL_PACKED_LAYOUT_H
#define SATCHEL_PACKED_LAYOUT_H

#include <stdint.h>

#include "call.h"

#ifdef FN /* of port.h: a kernel includes this */
#define PACKED_FN FN
#else
#define PACKED_FN static inline
#endif

/* name, GGUF's number, words of a row of a chunk, bytes of a row behind them, columns of a block */
#define PACKED_FORMATS(f)                                                                                              \
    f(q4_k, 12, 9, 0, 256) f(q5_k, 13, 11, 0, 256) f(q6_k, 14, 13, 2, 256) f(q8_0, 8, 17, 0, 32) f(q4_0, 2, 9, 0, 32)  \
        f(q5_0, 6, 11, 0, 32) f(iq4_nl, 20, 9, 0, 32) f(iq4_xs, 23, 8, 8, 256) f(mxfp4, 39, 8, 8, 32)                  \
            f(i8_g128, 2003, 16, 8, 128)

enum { PACKED_ROWS = 32, PACKED_CHUNK = 256, PACKED_WORD = 16 * PACKED_ROWS /* bytes of a word of all rows */ };
enum { PACKED_BIT = 1 << 24 /* HAL_PACKED */ };

/* Bits of gpu_call.mode. GELU: the gate of GATED is GELU. POST, with NORM: what is normalized is h = residual + rms_norm(x, post),
 * which the output holds behind the products' columns. */
enum { PACKED_ADD = 1, PACKED_GATED = 2, PACKED_NORM = 4, PACKED_GELU = 8, PACKED_POST = 16 };

/* A group: teams of 32 threads, a thread for each row of a tile, which share a matrix's chunks; of a gated product the first half of
 * the teams those of the gate, the others those of the up. A stretch's activations are 8 numbers of four upper bytes, 8 of lower
 * ones, the scale and the sum. */
enum {
    PACKED_COLUMNS = 4,                  /* of activations that a group takes, at most */
    PACKED_TEAMS = 8,                    /* at most */
    PACKED_STRETCH = 20,                 /* numbers of four bytes of a stretch's activations, two of them unused */
    PACKED_NUMBERS = 8 * PACKED_STRETCH, /* of a chunk of one column */
    PACKED_HEAD = 2 * PACKED_COLUMNS +
        PACKED_TEAMS * PACKED_ROWS / 4 /* floats: two norms of each column, one of each wave */
};

PACKED_FN uint32_t packed_bytes(uint32_t format) {
    switch (format & ~(uint32_t)PACKED_BIT) {
#define PACKED_BYTES(name, number, words, more, block)                                                                 \
    case number:                                                                                                       \
        return PACKED_ROWS * (16 * (words) + (more));
        PACKED_FORMATS(PACKED_BYTES)
#undef PACKED_BYTES
    }
    return 0;
}

PACKED_FN int packed_tiles(int32_t rows) {
    return (rows + PACKED_ROWS - 1) / PACKED_ROWS;
}

PACKED_FN int packed_chunks(int32_t columns) {
    return (columns + PACKED_CHUNK - 1) / PACKED_CHUNK;
}

/* Teams of a group that share the chunks of a matrix: a power of two, by the number of columns alone. */
PACKED_FN int packed_ways(int32_t columns, uint32_t mode) {
    int most = mode & PACKED_GATED ? PACKED_TEAMS / 2 : PACKED_TEAMS, ways = mode & PACKED_GATED ? 1 : 2;
    while (ways < most && ways < packed_chunks(columns))
        ways *= 2;
    return ways;
}

PACKED_FN int packed_teams(int32_t columns, uint32_t mode) {
    return packed_ways(columns, mode) * (mode & PACKED_GATED ? 2 : 1);
}

#endif
