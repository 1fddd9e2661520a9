/* packed.k.h: reads packed weights (packed_layout.h): for each format the codes of a stretch of 32 columns as signed bytes, and its
 * scales. Targets that have packed weights define, besides the words of port.h:
 *
 *   word_16                  a vector of four uint32_t, with [ ]; loads of it are one access of 16 bytes
 *   int32_t DOT4(a, b, sum)  sum + the products of the signed bytes of a and b; port.h has one of plain C, dot_4()
 */
#ifndef SATCHEL_PACKED_K_H
#define SATCHEL_PACKED_K_H

#include "packed_layout.h"
#include "port.h"

#ifndef LOOKUP_8 /* bytes of the eight of low and high by the four numbers of q, each below 8; a target may have an instruction */
FN uint32_t lookup_8(uint32_t low, uint32_t high, uint32_t q) {
    uint32_t out = 0;
    for (int i = 0; i < 32; i += 8) {
        uint32_t at = q >> i & 7;
        out |= ((at < 4 ? low : high) >> 8 * (at % 4) & 255) << i;
    }
    return out;
}
#define LOOKUP_8(low, high, q) lookup_8(low, high, q)
#endif
#ifndef FAR /* a target whose pointers do not say so: a load that is known to be of device memory */
#define FAR(type, from) (*(DEVICE const type *)(from))
#endif

/* An element of half h of a stretch is step[h] * its byte - low. */
typedef struct {
    float step[2], low;
} packed_scale;

/* A row of a chunk: `row` is where its words are, 512 bytes apart; held: NULL, or the words that the thread has loaded; `more` the
 * row's bytes behind all words. */
typedef struct {
    DEVICE const char *row, *more;
    THREAD const word_16 *held;
} packed_place;

FN word_16 packed_word(packed_place p, int i) {
    return p.held ? p.held[i] : FAR(word_16, p.row + PACKED_WORD * i);
}

FN uint32_t packed_part_of(packed_place p, int i, int part) {
    return p.held ? p.held[i][part] : FAR(uint32_t, p.row + PACKED_WORD * i + 4 * part);
}

FN uint32_t packed_more(packed_place p, int i, int part) {
    return packed_part_of(p, i + part / 4, part % 4);
}

FN uint32_t half_of(uint32_t word, int upper) {
    return upper ? word >> 16 : word & 0xFFFF;
}

/* --- codes: part i of c has elements 4 i to 4 i + 3 of the stretch */

FN void packed_nibbles(packed_place p, int j, THREAD uint32_t *c) {
    word_16 w = packed_word(p, j);
    UNROLLED
    for (int i = 0; i < 4; i++) {
        c[i] = w[i] & 0x0F0F0F0Fu;
        c[4 + i] = w[i] >> 4 & 0x0F0F0F0Fu;
    }
}

FN void packed_codes_q4_k(packed_place p, int j, THREAD uint32_t *c) {
    packed_nibbles(p, j, c);
}

FN void packed_codes_q5_k(packed_place p, int j, THREAD uint32_t *c) {
    uint32_t fifth = packed_more(p, 8, j);
    packed_nibbles(p, j, c);
    UNROLLED
    for (int i = 0; i < 4; i++) {
        c[i] |= fifth << (4 - i) & 0x10101010u;
        c[4 + i] |= fifth >> i & 0x10101010u;
    }
}

/* Sixteen times the code. */
FN void packed_codes_q4_0(packed_place p, int j, THREAD uint32_t *c) {
    word_16 w = packed_word(p, j);
    UNROLLED
    for (int i = 0; i < 4; i++) {
        c[i] = w[i] << 4 & 0xF0F0F0F0u;
        c[4 + i] = w[i] & 0xF0F0F0F0u;
    }
}

/* Eight times the code. */
FN void packed_codes_q5_0(packed_place p, int j, THREAD uint32_t *c) {
    word_16 w = packed_word(p, j);
    uint32_t fifth = packed_more(p, 8, j);
    UNROLLED
    for (int i = 0; i < 4; i++) {
        c[i] = (w[i] << 3 & 0x78787878u) | (fifth << (7 - i) & 0x80808080u);
        c[4 + i] = (w[i] >> 1 & 0x78787878u) | (fifth << (3 - i) & 0x80808080u);
    }
}

/* Four times the code. */
FN void packed_codes_q6_k(packed_place p, int j, THREAD uint32_t *c) {
    word_16 w = packed_word(p, j);
    uint32_t low = packed_more(p, 8, 2 * j), high = packed_more(p, 8, 2 * j + 1);
    UNROLLED
    for (int i = 0; i < 4; i++) {
        c[i] = (w[i] << 2 & 0x3C3C3C3Cu) | (low << (6 - 2 * i) & 0xC0C0C0C0u);
        c[4 + i] = (w[i] >> 2 & 0x3C3C3C3Cu) | (high << (6 - 2 * i) & 0xC0C0C0C0u);
    }
}

FN void packed_codes_q8_0(packed_place p, int j, THREAD uint32_t *c) {
    word_16 low = packed_word(p, 2 * j), high = packed_word(p, 2 * j + 1);
    UNROLLED
    for (int i = 0; i < 4; i++) {
        c[i] = low[i];
        c[4 + i] = high[i];
    }
}

FN void packed_codes_i8_g128(packed_place p, int j, THREAD uint32_t *c) {
    packed_codes_q8_0(p, j, c);
}

/* Codes that are looked up: their signed bytes by the nibbles of q, of the table of a format. */
#define PACKED_TABLE(stem, value)                                                                                      \
    FN uint32_t packed_table_##stem(int i) {                                                                           \
        return (uint32_t)((value)(i) & 255) | (uint32_t)((value)(i + 1) & 255) << 8 |                                  \
               (uint32_t)((value)(i + 2) & 255) << 16 | (uint32_t)((value)(i + 3) & 255) << 24;                        \
    }                                                                                                                  \
    FN uint32_t packed_looked_up_##stem(uint32_t q) {                                                                  \
        uint32_t upper = (q >> 3 & 0x01010101u) * 255, at = q & 0x07070707u;                                           \
        return (LOOKUP_8(packed_table_##stem(0), packed_table_##stem(4), at) & ~upper) |                               \
               (LOOKUP_8(packed_table_##stem(8), packed_table_##stem(12), at) & upper);                                \
    }                                                                                                                  \
    FN void packed_codes_##stem(packed_place p, int j, THREAD uint32_t *c) {                                           \
        packed_nibbles(p, j, c);                                                                                       \
        UNROLLED                                                                                                       \
        for (int i = 0; i < 8; i++)                                                                                    \
            c[i] = packed_looked_up_##stem(c[i]);                                                                      \
    }
PACKED_TABLE(iq4_nl, iq4_nl_table)
PACKED_TABLE(iq4_xs, iq4_nl_table)
PACKED_TABLE(mxfp4, e2m1_table)

/* --- scales of stretch j */

FN packed_scale packed_one_scale(float step) {
    packed_scale s = {{step, step}, 0.0f};
    return s;
}

/* Q4_K and Q5_K: d and dmin, then the file's 12 bytes, in word i. */
FN packed_scale packed_scale_k(packed_place p, int i, int j) {
    word_16 head = packed_word(p, i);
    int by = 8 * (j % 4);
    uint32_t scale = head[1] >> by, low = head[2] >> by, rest = head[3] >> by;
    packed_scale s;
    if (j < 4) {
        scale &= 63;
        low &= 63;
    } else {
        scale = (rest & 15) | (scale >> 2 & 48);
        low = (rest >> 4 & 15) | (low >> 2 & 48);
    }
    s.step[0] = s.step[1] = f16_to_f32((uint16_t)half_of(head[0], 0)) * (float)scale;
    s.low = f16_to_f32((uint16_t)half_of(head[0], 1)) * (float)low;
    return s;
}

/* Eight halves in word i. */
FN packed_scale packed_scale_8(packed_place p, int i, int j, float unit) {
    uint32_t two = packed_part_of(p, i, j / 2);
    return packed_one_scale(unit * f16_to_f32((uint16_t)half_of(two, j % 2)));
}

FN packed_scale packed_scale_q4_k(packed_place p, int j) {
    return packed_scale_k(p, 8, j);
}

FN packed_scale packed_scale_q5_k(packed_place p, int j) {
    return packed_scale_k(p, 10, j);
}

FN packed_scale packed_scale_q6_k(packed_place p, int j) {
    uint32_t four = packed_part_of(p, 12, j / 2) >> 16 * (j % 2);
    float d = 0.25f * f16_to_f32(FAR(uint16_t, p.more));
    packed_scale s = {{d * (float)(int8_t)(four & 255), d * (float)(int8_t)(four >> 8 & 255)}, 0.0f};
    return s;
}

FN packed_scale packed_scale_q8_0(packed_place p, int j) {
    return packed_scale_8(p, 16, j, 1.0f);
}

FN packed_scale packed_scale_q4_0(packed_place p, int j) {
    return packed_scale_8(p, 8, j, 0.0625f);
}

FN packed_scale packed_scale_q5_0(packed_place p, int j) {
    return packed_scale_8(p, 10, j, 0.125f);
}

FN packed_scale packed_scale_iq4_nl(packed_place p, int j) {
    return packed_scale_8(p, 8, j, 1.0f);
}

FN packed_scale packed_scale_iq4_xs(packed_place p, int j) {
    uint32_t head = FAR(uint32_t, p.more), low = FAR(uint32_t, p.more + 4) >> 4 * j & 15;
    int scale = (int)(low | (head >> (16 + 2 * j) & 3) << 4) - 32;
    return packed_one_scale(f16_to_f32((uint16_t)half_of(head, 0)) * (float)scale);
}

FN packed_scale packed_scale_mxfp4(packed_place p, int j) {
    return packed_one_scale(mxfp4_scale((uint8_t)(FAR(uint32_t, p.more + 4 * (j / 4)) >> 8 * (j % 4) & 255)));
}

FN packed_scale packed_scale_i8_g128(packed_place p, int j) {
    return packed_one_scale(FAR(float, p.more + 4 * (j / 4)));
}

/* --- a row of a matrix */

/* Row `row` of the tile whose chunk this is. */
FN packed_place packed_place_of(DEVICE const char *chunk, uint32_t bytes, int row) {
    const uint32_t more = bytes / PACKED_ROWS % 16; /* of a row */
    packed_place p = {chunk + 16 * row, chunk + (bytes - PACKED_ROWS * more) + more * (uint32_t)row, NULL};
    return p;
}

/* The tile of a row of matrix w. */
FN DEVICE const char *packed_tile_of(CONSTANT gpu_view *w, int64_t row) {
    int64_t tile = (int64_t)packed_chunks(w->shape[1]) * packed_bytes(w->format);
    return (DEVICE const char *)(uintptr_t)w->data + row / PACKED_ROWS * tile;
}

FN void packed_elements(THREAD const uint32_t *c, packed_scale s, THREAD float *out) {
    UNROLLED
    for (int e = 0; e < 32; e++)
        out[e] = s.step[e / 16] * (float)(int8_t)(c[e / 4] >> 8 * (e % 4) & 255) - s.low;
}

/* Elements 32 i to 32 i + 31 of row `row` of a tile. */
FN void packed_unpack(uint32_t format, DEVICE const char *tile, int row, int i, THREAD float *out) {
    uint32_t bytes = packed_bytes(format), c[8];
    packed_place p = packed_place_of(tile + (int64_t)(i / 8) * bytes, bytes, row);
    switch (format & ~(uint32_t)PACKED_BIT) {
#define PACKED_UNPACK(stem, number, words, more, block)                                                                \
    case number:                                                                                                       \
        packed_codes_##stem(p, i % 8, c);                                                                              \
        packed_elements(c, packed_scale_##stem(p, i % 8), out);                                                        \
        break;
        PACKED_FORMATS(PACKED_UNPACK)
#undef PACKED_UNPACK
    }
}

#endif
