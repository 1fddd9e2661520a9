/* panel.h: the CPU's packed layout of a weight matrix: panels of 16 rows, interleaved by words of four bytes, so a vector loads
 * the same word of 16 rows.
 *
 * A row is a sequence of blocks. A block is words of 4 bytes and, if its size is no multiple of 4, a tail of 1 or 2 bytes (its
 * scale). A panel begins with the tails, 16 of the first block, 16 of the second and so on, padded to a multiple of 64 bytes.
 * Then come the words, block by block: a line of 64 bytes holds one word of 16 rows and is 64-byte aligned. Formats without
 * blocks (f32, f16, bf16) use words of one or two elements. Rows that pad the last panel are zero.
 *
 * Bits within a word keep the format's order, except in words that its PACK_WORD rearranges. f16 has split halves: a line has
 * the 16 first elements, then the 16 second ones, because kernels load them as vectors of f16.
 */
#ifndef SATCHEL_CPU_PANEL_H
#define SATCHEL_CPU_PANEL_H

#include <stdint.h>

enum { PANEL_ROWS = 16, PANEL_LINE = 64 };

/* A format's packing parameters. */
typedef struct {
    uint32_t id;
    int block, bytes;                          /* elements and bytes of a packing unit */
    int tail, tail_bytes;                      /* offset in a block of its tail; the tail's bytes, or 0 */
    int split_halves;                          /* 1: the first halves of 16 words come before the second ones */
    uint32_t (*pack_word)(int word, uint32_t); /* NULL: words are copied unchanged */
    uint32_t (*unpack_word)(int word, uint32_t);
} panel_format;

const panel_format *panel_format_find(uint32_t id); /* NULL: not a weight format */

/* Bytes, for rows of k elements (whole blocks), of the tails at a panel's head and of a whole panel; SIZE_TOO_MUCH on overflow
 * (size.h). */
uint64_t panel_head(const panel_format *, int64_t k);
uint64_t panel_bytes(const panel_format *, int64_t k);

/* Number of panels of `rows` rows; bytes of all panels of a stack of matrices (rows, k), or 0 if they cannot be packed: the
 * format is NULL, a size is below 1, or a row is not whole blocks. */
int64_t panel_count(int64_t rows);
uint64_t panel_stack_bytes(const panel_format *, int64_t stack, int64_t rows, int64_t k);

/* Packs `rows` rows (1 to 16), `stride` bytes apart, into one panel; unpack_row restores the bytes of one row. */
void panel_pack(const panel_format *, int64_t k, int rows, const uint8_t *from, uint64_t stride, uint8_t *panel);
void panel_unpack_row(const panel_format *, int64_t k, int row, const uint8_t *panel, uint8_t *to);

#endif
