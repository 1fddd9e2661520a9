/* panel.c: rows to panels and back; see panel.h. Nothing is owned here. */
#include <stddef.h>
#include <string.h>

#include "formats.h"
#include "panel.h"
#include "types.h"

/* LONE_, PACK_WORD_ and UNPACK_WORD_<format>: as the format's header says, else 0 and NULL. */
#include "lone.inc"

/* Numbers and bytes of what is packed as one: a block, or as many numbers as fill a word. */
#define NUMBERS(stem, block) (sizeof(block_##stem) < 4 ? 4 / (int)sizeof(block_##stem) : (block))
#define BYTES(stem) (sizeof(block_##stem) < 4 ? 4 : (int)sizeof(block_##stem))

#define CPU_WEIGHT(stem, id, block, act)                                                                            \
    {id, NUMBERS(stem, block), BYTES(stem), LONE_##stem, BYTES(stem) % 4, PACK_WORD_##stem, UNPACK_WORD_##stem},
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

static uint64_t line_up(uint64_t n) {
    return (n + PANEL_LINE - 1) / PANEL_LINE * PANEL_LINE;
}

uint64_t panel_head(const panel_format *f, int64_t k) {
    return line_up((uint64_t)(k / f->block) * PANEL_ROWS * (uint64_t)f->lone_bytes);
}

uint64_t panel_bytes(const panel_format *f, int64_t k) {
    return panel_head(f, k) + (uint64_t)(k / f->block) * (uint64_t)(f->bytes / 4) * PANEL_LINE;
}

uint64_t panel_matrix_bytes(const panel_format *f, int64_t rows, int64_t k) {
    return panel_bytes(f, k) * (uint64_t)((rows + PANEL_ROWS - 1) / PANEL_ROWS);
}

/* Byte offset in a block of its word number i: the lone part is left out. */
static int word_offset(const panel_format *f, int i) {
    return 4 * i + (f->lone_bytes && 4 * i >= f->lone ? f->lone_bytes : 0);
}

static uint8_t *words_of(const panel_format *f, int64_t k, int64_t block, const uint8_t *panel) {
    return (uint8_t *)(uintptr_t)panel + panel_head(f, k) + (uint64_t)block * (uint64_t)(f->bytes / 4) * PANEL_LINE;
}

static void pack_block(const panel_format *f, const uint8_t *const *from, int64_t block, uint8_t *words) {
    for (int i = 0; i < f->bytes / 4; i++) {
        int64_t at = block * f->bytes + word_offset(f, i);
        for (int r = 0; r < PANEL_ROWS; r++) {
            uint32_t word = 0;
            if (from[r])
                memcpy(&word, from[r] + at, 4);
            if (f->pack_word)
                word = f->pack_word(i, word);
            memcpy(words + i * PANEL_LINE + 4 * r, &word, 4);
        }
    }
}

void panel_pack(const panel_format *f, int64_t k, int rows, const uint8_t *from, uint64_t stride, uint8_t *panel) {
    const uint8_t *row[PANEL_ROWS] = {NULL};
    int64_t blocks = k / f->block;
    size_t lone = (size_t)f->lone_bytes;
    for (int r = 0; r < rows; r++)
        row[r] = from + stride * (uint64_t)r;
    memset(panel, 0, panel_head(f, k));
    for (int64_t b = 0; b < blocks; b++) {
        for (int r = 0; r < rows && lone; r++)
            memcpy(panel + ((uint64_t)b * PANEL_ROWS + (uint64_t)r) * lone, row[r] + b * f->bytes + f->lone, lone);
        pack_block(f, row, b, words_of(f, k, b, panel));
    }
}

void panel_unpack_row(const panel_format *f, int64_t k, int row, const uint8_t *panel, uint8_t *to) {
    size_t lone = (size_t)f->lone_bytes;
    for (int64_t b = 0; b < k / f->block; b++, to += f->bytes) {
        const uint8_t *words = words_of(f, k, b, panel) + 4 * row;
        if (lone)
            memcpy(to + f->lone, panel + ((uint64_t)b * PANEL_ROWS + (uint64_t)row) * lone, lone);
        for (int i = 0; i < f->bytes / 4; i++) {
            uint32_t word;
            memcpy(&word, words + i * PANEL_LINE, 4);
            if (f->unpack_word)
                word = f->unpack_word(i, word);
            memcpy(to + word_offset(f, i), &word, 4);
        }
    }
}
