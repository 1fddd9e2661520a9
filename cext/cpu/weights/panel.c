/* panel.c: packs rows into panels and unpacks them; see panel.h. Owns nothing. */
#include <stddef.h>
#include <string.h>

#include "formats.h"
#include "panel.h"
#include "size.h"
#include "types.h"

/* TAIL_, SPLIT_HALVES_, PACK_WORD_ and UNPACK_WORD_<format>: from the format's header, or 0 and NULL. */
#include "panel_defaults.inc"

/* Elements and bytes of a packing unit: a block, or as many elements as fill a word. */
#define NUMBERS(stem, block) (sizeof(block_##stem) < 4 ? 4 / (int)sizeof(block_##stem) : (block))
#define BYTES(stem) (sizeof(block_##stem) < 4 ? 4 : (int)sizeof(block_##stem))

#define CPU_WEIGHT(stem, id, block, act)                                                                               \
    {id,                                                                                                               \
     NUMBERS(stem, block),                                                                                             \
     BYTES(stem),                                                                                                      \
     TAIL_##stem,                                                                                                      \
     BYTES(stem) % 4,                                                                                                  \
     SPLIT_HALVES_##stem,                                                                                              \
     PACK_WORD_##stem,                                                                                                 \
     UNPACK_WORD_##stem},
static const panel_format formats[] = {
#include "types.inc"
};
#undef CPU_WEIGHT

const panel_format *panel_format_find(uint32_t id) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (formats[i].id == id)
            return formats + i;
    return NULL;
}

uint64_t panel_head(const panel_format *f, int64_t k) {
    return size_line_up(size_mul((uint64_t)(k / f->block), PANEL_ROWS * (uint64_t)f->tail_bytes), PANEL_LINE);
}

uint64_t panel_bytes(const panel_format *f, int64_t k) {
    return size_add(panel_head(f, k), size_mul((uint64_t)(k / f->block), (uint64_t)(f->bytes / 4) * PANEL_LINE));
}

int64_t panel_count(int64_t rows) {
    return rows / PANEL_ROWS + (rows % PANEL_ROWS != 0);
}

uint64_t panel_stack_bytes(const panel_format *f, int64_t stack, int64_t rows, int64_t k) {
    if (!f || stack < 1 || rows < 1 || k < 1 || k % f->block)
        return 0;
    return size_mul((uint64_t)stack, size_mul((uint64_t)panel_count(rows), panel_bytes(f, k)));
}

/* Byte offset in a block of its word number i; words skip the tail. */
static int word_offset(const panel_format *f, int i) {
    return 4 * i + (f->tail_bytes && 4 * i >= f->tail ? f->tail_bytes : 0);
}

static uint8_t *words_of(const panel_format *f, int64_t k, int64_t block, const uint8_t *panel) {
    return (uint8_t *)(uintptr_t)panel + panel_head(f, k) + (uint64_t)block * (uint64_t)(f->bytes / 4) * PANEL_LINE;
}

static void store_word(const panel_format *f, uint8_t *line, int row, uint32_t x) {
    uint16_t low = (uint16_t)x, high = (uint16_t)(x >> 16);
    if (!f->split_halves) {
        memcpy(line + 4 * row, &x, 4);
        return;
    }
    memcpy(line + 2 * row, &low, 2);
    memcpy(line + PANEL_LINE / 2 + 2 * row, &high, 2);
}

static uint32_t load_word(const panel_format *f, const uint8_t *line, int row) {
    uint32_t x;
    uint16_t low, high;
    memcpy(&low, line + 2 * row, 2);
    memcpy(&high, line + PANEL_LINE / 2 + 2 * row, 2);
    memcpy(&x, line + 4 * row, 4);
    return f->split_halves ? low | (uint32_t)high << 16 : x;
}

/* Packs one word of 16 rows; a missing row is zero. */
static void pack_words(const panel_format *f, const uint8_t *const *from, int64_t at, int word, uint8_t *line) {
    for (int r = 0; r < PANEL_ROWS; r++) {
        uint32_t x = 0;
        if (from[r])
            memcpy(&x, from[r] + at, 4);
        if (f->pack_word)
            x = f->pack_word(word, x);
        store_word(f, line, r, x);
    }
}

typedef uint32_t four_words __attribute__((vector_size(16)));

/* Packs four consecutive words of 16 existing rows, by transposing 4 x 4 words at a time. */
static void pack_four(const uint8_t *const *from, int64_t at, uint8_t *lines) {
    for (int r = 0; r < PANEL_ROWS; r += 4) {
        four_words x[4], y[4];
        for (int i = 0; i < 4; i++)
            memcpy(x + i, from[r + i] + at, sizeof *x);
        for (int i = 0; i < 2; i++) {
            y[i] = __builtin_shufflevector(x[2 * i], x[2 * i + 1], 0, 4, 1, 5);
            y[2 + i] = __builtin_shufflevector(x[2 * i], x[2 * i + 1], 2, 6, 3, 7);
        }
        for (int i = 0; i < 2; i++) {
            x[2 * i] = __builtin_shufflevector(y[2 * i], y[2 * i + 1], 0, 1, 4, 5);
            x[2 * i + 1] = __builtin_shufflevector(y[2 * i], y[2 * i + 1], 2, 3, 6, 7);
        }
        for (int i = 0; i < 4; i++)
            memcpy(lines + i * PANEL_LINE + 4 * r, x + i, sizeof *x);
    }
}

static void pack_block(const panel_format *f, const uint8_t *const *from, int64_t block, uint8_t *words) {
    int n = f->bytes / 4, four = !f->pack_word && !f->split_halves && from[PANEL_ROWS - 1];
    for (int i = 0; i < n;) {
        int64_t at = block * f->bytes + word_offset(f, i);
        if (four && i + 4 <= n && word_offset(f, i + 3) == word_offset(f, i) + 12) {
            pack_four(from, at, words + i * PANEL_LINE);
            i += 4;
        } else {
            pack_words(f, from, at, i, words + i * PANEL_LINE);
            i++;
        }
    }
}

void panel_pack(const panel_format *f, int64_t k, int rows, const uint8_t *from, uint64_t stride, uint8_t *panel) {
    const uint8_t *row[PANEL_ROWS] = {NULL};
    int64_t blocks = k / f->block;
    size_t tail = (size_t)f->tail_bytes;
    for (int r = 0; r < rows; r++)
        row[r] = from + stride * (uint64_t)r;
    memset(panel, 0, panel_head(f, k));
    for (int64_t b = 0; b < blocks; b++) {
        for (int r = 0; r < rows && tail; r++)
            memcpy(panel + ((uint64_t)b * PANEL_ROWS + (uint64_t)r) * tail, row[r] + b * f->bytes + f->tail, tail);
        pack_block(f, row, b, words_of(f, k, b, panel));
    }
}

void panel_unpack_row(const panel_format *f, int64_t k, int row, const uint8_t *panel, uint8_t *to) {
    size_t tail = (size_t)f->tail_bytes;
    for (int64_t b = 0; b < k / f->block; b++, to += f->bytes) {
        const uint8_t *words = words_of(f, k, b, panel);
        if (tail)
            memcpy(to + f->tail, panel + ((uint64_t)b * PANEL_ROWS + (uint64_t)row) * tail, tail);
        for (int i = 0; i < f->bytes / 4; i++) {
            uint32_t word = load_word(f, words + i * PANEL_LINE, row);
            if (f->unpack_word)
                word = f->unpack_word(i, word);
            memcpy(to + word_offset(f, i), &word, 4);
        }
    }
}
