/* packed_rows.k.h: writes packed weights (pack_<format>), and get_rows and get_rows_part of them. */
#ifndef SATCHEL_PACKED_ROWS_K_H
#define SATCHEL_PACKED_ROWS_K_H

#include "packed.k.h"

/* --- packing: a thread makes one word, or the bytes behind the words, of a row of a chunk */

/* What a row of a chunk is made of: `blocks` blocks are left of it from the first on, none past the matrix's end. */
typedef struct {
    DEVICE const char *first;
    int blocks;
} packed_source;

/* Four codes from column k on of a chunk, of which `code` gives those that are there. */
#define FOUR_CODES(name, stem, block, code)                                                                            \
    FN uint32_t packed_four_##name(packed_source s, int k) {                                                           \
        uint32_t out = 0;                                                                                              \
        for (int e = k; e < k + 4 && e / (block) < s.blocks; e++) {                                                    \
            DEVICE const block_##stem *b = (DEVICE const block_##stem *)s.first + e / (block);                         \
            out |= (uint32_t)((code) & 255) << 8 * (e % 4);                                                            \
        }                                                                                                              \
        return out;                                                                                                    \
    }
FOUR_CODES(q4_k, q4_k, 256, q4_k_code(b, e / 32, e % 32))
FOUR_CODES(q5_k, q5_k, 256, q5_k_code(b, e / 32, e % 32))
FOUR_CODES(q6_k, q6_k, 256, q6_k_code(b, e) ^ 32)
FOUR_CODES(q8_0, q8_0, 32, b->qs[e % 32])
FOUR_CODES(q4_0, q4_0, 32, (b->qs[e % 16] >> (4 * (e % 32 / 16)) & 15) ^ 8)
FOUR_CODES(q5_0, q5_0, 32, q5_code(b->qs, b->qh, e % 32) ^ 16)
FOUR_CODES(iq4_nl, iq4_nl, 32, b->qs[e % 16] >> (4 * (e % 32 / 16)) & 15)
FOUR_CODES(iq4_xs, iq4_xs, 256, b->qs[e / 32 * 16 + e % 16] >> (4 * (e % 32 / 16)) & 15)
FOUR_CODES(mxfp4, mxfp4, 32, b->qs[e % 16] >> (4 * (e % 32 / 16)) & 15)
FOUR_CODES(i8_g128, i8_g128, 128, b->qs[e % 128])

/* Part i of a word of nibbles, of fifth bits and of upper two bits. */
#define PACKED_BITS(stem)                                                                                              \
    FN uint32_t packed_low_##stem(packed_source s, int j, int i) {                                                     \
        return (packed_four_##stem(s, 32 * j + 4 * i) & 0x0F0F0F0Fu) |                                                 \
               (packed_four_##stem(s, 32 * j + 16 + 4 * i) & 0x0F0F0F0Fu) << 4;                                        \
    }                                                                                                                  \
    FN uint32_t packed_fifth_##stem(packed_source s, int j) {                                                          \
        uint32_t out = 0;                                                                                              \
        for (int i = 0; i < 8; i++)                                                                                    \
            out |= (packed_four_##stem(s, 32 * j + 4 * i) >> 4 & 0x01010101u) << i;                                    \
        return out;                                                                                                    \
    }                                                                                                                  \
    FN uint32_t packed_upper_##stem(packed_source s, int j) {                                                          \
        uint32_t out = 0;                                                                                              \
        for (int i = 0; i < 4; i++)                                                                                    \
            out |= (packed_four_##stem(s, 16 * j + 4 * i) >> 4 & 0x03030303u) << 2 * i;                                \
        return out;                                                                                                    \
    }
PACKED_BITS(q4_k)
PACKED_BITS(q5_k)
PACKED_BITS(q6_k)
PACKED_BITS(q4_0)
PACKED_BITS(q5_0)
PACKED_BITS(iq4_nl)
PACKED_BITS(iq4_xs)
PACKED_BITS(mxfp4)

/* Part i of the head of a block of Q4_K or Q5_K, of the scales of Q6_K, and of the halves of eight blocks. */
FN uint32_t packed_bytes_at(DEVICE const uint8_t *at) {
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

FN uint32_t packed_head(packed_source s, int i) {
    return s.blocks > 0 ? packed_bytes_at((DEVICE const uint8_t *)s.first + 4 * i) : 0;
}

FN uint32_t packed_scales(packed_source s, int i) {
    DEVICE const block_q6_k *b = (DEVICE const block_q6_k *)s.first;
    return s.blocks > 0 ? packed_bytes_at((DEVICE const uint8_t *)b->scales + 4 * i) : 0;
}

#define PACKED_HALVES(stem)                                                                                            \
    FN uint32_t packed_halves_##stem(packed_source s, int i) {                                                         \
        DEVICE const block_##stem *b = (DEVICE const block_##stem *)s.first + 2 * i;                                   \
        return (2 * i < s.blocks ? b[0].d : 0u) | (2 * i + 1 < s.blocks ? (uint32_t)b[1].d << 16 : 0u);                \
    }
PACKED_HALVES(q8_0)
PACKED_HALVES(q4_0)
PACKED_HALVES(q5_0)
PACKED_HALVES(iq4_nl)

/* Part i of word n of a row of a chunk. */
FN uint32_t packed_made_q4_k(packed_source s, int n, int i) {
    return n < 8 ? packed_low_q4_k(s, n, i) : packed_head(s, i);
}

FN uint32_t packed_made_q5_k(packed_source s, int n, int i) {
    return n < 8 ? packed_low_q5_k(s, n, i) : n < 10 ? packed_fifth_q5_k(s, 4 * (n - 8) + i) : packed_head(s, i);
}

FN uint32_t packed_made_q6_k(packed_source s, int n, int i) {
    return n < 8 ? packed_low_q6_k(s, n, i) : n < 12 ? packed_upper_q6_k(s, 4 * (n - 8) + i) : packed_scales(s, i);
}

FN uint32_t packed_made_q8_0(packed_source s, int n, int i) {
    return n < 16 ? packed_four_q8_0(s, 16 * n + 4 * i) : packed_halves_q8_0(s, i);
}

FN uint32_t packed_made_q4_0(packed_source s, int n, int i) {
    return n < 8 ? packed_low_q4_0(s, n, i) : packed_halves_q4_0(s, i);
}

FN uint32_t packed_made_q5_0(packed_source s, int n, int i) {
    return n < 8 ? packed_low_q5_0(s, n, i) : n < 10 ? packed_fifth_q5_0(s, 4 * (n - 8) + i) : packed_halves_q5_0(s, i);
}

FN uint32_t packed_made_iq4_nl(packed_source s, int n, int i) {
    return n < 8 ? packed_low_iq4_nl(s, n, i) : packed_halves_iq4_nl(s, i);
}

FN uint32_t packed_made_iq4_xs(packed_source s, int n, int i) {
    return packed_low_iq4_xs(s, n, i);
}

FN uint32_t packed_made_mxfp4(packed_source s, int n, int i) {
    return packed_low_mxfp4(s, n, i);
}

FN uint32_t packed_made_i8_g128(packed_source s, int n, int i) {
    return packed_four_i8_g128(s, 16 * n + 4 * i);
}

/* The bytes behind the words. */
FN void packed_end_of(uint32_t format, packed_source s, DEVICE char *to) {
    DEVICE const block_i8_g128 *b = (DEVICE const block_i8_g128 *)s.first;
    if (format == 14)
        *(DEVICE uint16_t *)to = s.blocks > 0 ? ((DEVICE const block_q6_k *)s.first)->d : 0;
    for (int i = 0; format == 2003 && i < 2; i++)
        ((DEVICE float *)to)[i] = i < s.blocks ? b[i].d : 0.0f;
    for (int i = 0; format == 23 && i < 2; i++)
        ((DEVICE uint32_t *)to)[i] = packed_head(s, i);
    for (int i = 0; format == 39 && i < 8; i++)
        to[i] = i < s.blocks ? (char)((DEVICE const block_mxfp4 *)s.first + i)->e : 0;
}

/* v[0].shape is (stack, rows, columns); v[1] the file's rows, one matrix after the other. A group writes a chunk. */
#define PACKED_PACK(stem, number, words, more, block)                                                                  \
    KERNEL(pack_##stem, GROUP) {                                                                                       \
        enum { BYTES = PACKED_ROWS * (16 * (words) + (more)), OF_CHUNK = PACKED_CHUNK / (block) };                     \
        int rows = c->v[0].shape[1], chunks = packed_chunks(c->v[0].shape[2]), tiles = packed_tiles(rows);             \
        int64_t at = (int64_t)m.group[1] * tiles + m.group[0] / chunks, first = at % tiles * PACKED_ROWS;              \
        int chunk = m.group[0] % chunks, left = c->v[0].shape[2] / (block) - chunk * OF_CHUNK;                         \
        DEVICE char *to = (DEVICE char *)(uintptr_t)c->v[0].data + (at * chunks + chunk) * BYTES;                      \
        for (int i = m.thread; i < PACKED_ROWS * ((words) + 1); i += m.threads) {                                      \
            int row = i % PACKED_ROWS, word = i / PACKED_ROWS;                                                         \
            DEVICE const block_##stem *b =                                                                             \
                (DEVICE const block_##stem *)ROW(const char, c->v + 1, (int64_t)m.group[1] * rows + first + row) +     \
                chunk * OF_CHUNK;                                                                                      \
            packed_source s = {(DEVICE const char *)b, first + row < rows ? left : 0};                                 \
            if (word == (words))                                                                                       \
                packed_end_of(number, s, to + PACKED_WORD * word + (more) * row);                                      \
            for (int part = 0; word < (words) && part < 4; part++)                                                     \
                *(DEVICE uint32_t *)(to + PACKED_WORD * word + 16 * row + 4 * part) =                                  \
                    packed_made_##stem(s, word, part);                                                                 \
        }                                                                                                              \
    }
PACKED_FORMATS(PACKED_PACK)

/* --- rows */

/* get_rows, and in mode 1 get_rows_part: a group writes a row, a thread 32 elements of it at a time. */
#define PACKED_GET_ROWS(name) KERNEL(name, GROUP)

PACKED_GET_ROWS(packed_rows) {
    CONSTANT gpu_view *y = c->v, *w = c->v + 1;
    int row = m.group[0], k = w->shape[1], id;
    int64_t own;
    if (row >= rows_of(c, y))
        return;
    id = i32_at(c->v + 2, row);
    own = (int64_t)id - (c->mode ? ((CONSTANT arg_get_rows_part *)c->arg)->first : 0);
    for (int i = m.thread; i < packed_chunks(k) * 8; i += m.threads) {
        float out[32];
        for (int e = 0; e < 32; e++)
            out[e] = 0;
        if (inside(own, w->shape[0]))
            packed_unpack(w->format, packed_tile_of(w, own), (int)(own % PACKED_ROWS), i, out);
        for (int e = 0; e < 32 && 32 * i + e < k; e++)
            ROW(float, y, row)[32 * i + e] = out[e];
    }
    if (c->mode ? id < 0 : !inside(own, w->shape[0]))
        fault(c);
}

#endif
