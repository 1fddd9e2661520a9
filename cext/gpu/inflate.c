/* inflate.c: unpacks a raw deflate stream (RFC 1951), so that GPU images take a third of their size in a library that links no
 * other one.
 *
 * A stream is a sequence of blocks: stored bytes, or symbols in two prefix codes, one of literals and lengths, one of
 * distances. A code is a table over the next LONGEST bits, whose entry is the symbol and how many of these bits it takes.
 */
#include "inflate.h"

#include <stdlib.h>
#include <string.h>

enum { LONGEST = 15, SYMBOLS = 288, FIXED_DISTANCES = 32, BLOCK_END = 256, LENGTH_CODES = 19, LONGEST_LENGTH = 7 };
enum { LENGTHS = 29, DISTANCES = 30, FIRST_LENGTH = 257, REPEAT = 16, FEW_ZEROS, MANY_ZEROS };

typedef struct {
    const uint8_t *in, *end;
    uint64_t bits; /* read and not yet taken, the next one lowest */
    int n;         /* of them */
    int beyond;    /* bytes of zeros that were read past the end */
} reader;

typedef struct {
    uint16_t of[1 << LONGEST]; /* symbol << 4 | bits; 0: no symbol begins so */
} code;

typedef struct {
    code symbols, distances;
} codes;

static void fill(reader *r, int n) {
    for (; r->n < n; r->n += 8) {
        if (r->in < r->end)
            r->bits |= (uint64_t)*r->in++ << r->n;
        else
            r->beyond++;
    }
}

static uint32_t take(reader *r, int n) {
    uint32_t out;
    fill(r, n);
    out = (uint32_t)(r->bits & ((1ull << n) - 1));
    r->bits >>= n;
    r->n -= n;
    return out;
}

/* Whether bits were taken that the stream does not have. */
static int too_far(const reader *r) {
    return r->beyond * 8 > r->n;
}

/* The next symbol; -1: none begins so. */
static int symbol(reader *r, const code *c) {
    uint16_t found;
    fill(r, LONGEST);
    found = c->of[r->bits & ((1 << LONGEST) - 1)];
    if (!found)
        return -1;
    take(r, found & 15);
    return found >> 4;
}

/* The canonical code of these lengths, 0 for symbols that do not occur: shorter codes first, equal ones in the symbols' order. */
static int make_code(code *out, const uint8_t *lengths, int n) {
    uint32_t next = 0, first[LONGEST + 1], count[LONGEST + 1] = {0};
    memset(out, 0, sizeof *out);
    for (int i = 0; i < n; i++)
        count[lengths[i]]++;
    for (int l = 1; l <= LONGEST; l++) {
        first[l] = next;
        if ((next += count[l]) > 1u << l)
            return -1;
        next <<= 1;
    }
    for (int i = 0; i < n; i++) {
        uint32_t l = lengths[i], at = 0;
        if (!l)
            continue;
        for (uint32_t b = 0, word = first[l]++; b < l; b++) /* a code's first bit is its highest, and comes first */
            at |= (word >> (l - 1 - b) & 1) << b;
        for (; at < 1 << LONGEST; at += 1u << l)
            out->of[at] = (uint16_t)(i << 4 | (int)l);
    }
    return 0;
}

static int fixed_codes(codes *out) {
    uint8_t lengths[SYMBOLS], fives[FIXED_DISTANCES];
    memset(lengths, 8, sizeof lengths);
    memset(lengths + 144, 9, 112);
    memset(lengths + BLOCK_END, 7, 24);
    memset(fives, 5, sizeof fives);
    return make_code(&out->symbols, lengths, SYMBOLS) | make_code(&out->distances, fives, FIXED_DISTANCES);
}

/* The codes that stand before a block: their lengths, in a code of their own. */
static int read_codes(reader *r, codes *out) {
    static const uint8_t order[LENGTH_CODES] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
    uint8_t lengths[SYMBOLS + FIXED_DISTANCES] = {0}, few[LENGTH_CODES] = {0};
    int n_symbols = (int)take(r, 5) + 257, n_distances = (int)take(r, 5) + 1, n = (int)take(r, 4) + 4, i;
    if (n_symbols > SYMBOLS)
        return -1;
    for (i = 0; i < n; i++)
        few[order[i]] = (uint8_t)take(r, 3);
    if (make_code(&out->symbols, few, LENGTH_CODES))
        return -1;
    for (i = 0; i < n_symbols + n_distances;) {
        int s = symbol(r, &out->symbols), times = 1;
        uint8_t length = (uint8_t)s;
        if (s < 0 || (s == REPEAT && !i))
            return -1;
        if (s >= REPEAT) {
            length = s == REPEAT ? lengths[i - 1] : 0;
            times = (int)(s == MANY_ZEROS ? 11 + take(r, 7) : 3 + take(r, s == REPEAT ? 2 : 3));
        }
        if (times > n_symbols + n_distances - i)
            return -1;
        memset(lengths + i, length, (size_t)times);
        i += times;
    }
    return make_code(&out->symbols, lengths, n_symbols) | make_code(&out->distances, lengths + n_symbols, n_distances);
}

static int stored_block(reader *r, uint8_t **to, const uint8_t *end) {
    uint32_t n, inverse;
    take(r, r->n % 8);
    n = take(r, 16);
    inverse = take(r, 16);
    if (n != (~inverse & 0xFFFF) || n > (uint64_t)(end - *to))
        return -1;
    for (; n; n--)
        *(*to)++ = (uint8_t)take(r, 8);
    return 0;
}

static int coded_block(reader *r, const codes *c, const uint8_t *start, uint8_t **to, const uint8_t *end) {
    static const uint16_t lengths[LENGTHS] = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                              31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
    static const uint8_t length_bits[LENGTHS] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
                                                 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
    static const uint16_t distances[DISTANCES] = {1,    2,    3,    4,    5,    7,    9,    13,    17,    25,
                                                  33,   49,   65,   97,   129,  193,  257,  385,   513,   769,
                                                  1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577};
    uint8_t *at = *to;
    for (;;) {
        int s = symbol(r, &c->symbols), d;
        uint32_t length, back;
        if (s == BLOCK_END)
            break;
        if (s < 0 || at == end || too_far(r))
            return -1;
        if (s < BLOCK_END) {
            *at++ = (uint8_t)s;
            continue;
        }
        if ((s -= FIRST_LENGTH) >= LENGTHS)
            return -1;
        length = lengths[s] + take(r, length_bits[s]);
        if ((d = symbol(r, &c->distances)) < 0 || d >= DISTANCES)
            return -1;
        back = distances[d] + take(r, d < 2 ? 0 : d / 2 - 1);
        if (back > (uint64_t)(at - start) || length > (uint64_t)(end - at))
            return -1;
        for (; length; length--, at++) /* may overlap: it repeats what it writes */
            *at = at[-(int64_t)back];
    }
    *to = at;
    return 0;
}

int gpu_inflate(const uint8_t *from, uint64_t stored, uint8_t *to, uint64_t size) {
    enum { STORED, FIXED, OWN };
    reader r = {.in = from, .end = from + stored};
    const uint8_t *start = to, *end = to + size;
    codes *c = malloc(sizeof *c);
    int last = 0, failed = !c;
    while (!failed && !last) {
        last = (int)take(&r, 1);
        switch (take(&r, 2)) {
        case STORED:
            failed = stored_block(&r, &to, end);
            break;
        case FIXED:
            failed = fixed_codes(c) || coded_block(&r, c, start, &to, end);
            break;
        case OWN:
            failed = read_codes(&r, c) || coded_block(&r, c, start, &to, end);
            break;
        default:
            failed = 1;
        }
    }
    free(c);
    return failed || to != end || too_far(&r) ? -1 : 0;
}
