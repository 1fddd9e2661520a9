/* wordpiece.c: see encode.h. WordPiece: characters are cleaned, taken apart, stripped of accents and lower-cased by the section's maps;
 * a word ends at white space and on both sides of a punctuation mark, and becomes the longest token that it begins with, then the
 * longest one that the rest begins with. A word for which that fails, or of more than 100 characters, is one unknown token. */
#include <string.h>

#include "encode.h"
#include "utf8.h"

enum { LONGEST_WORD = 100, PUNCTUATION = 0, HANGUL = 0xAC00, HANGUL_VOWELS = 21, HANGUL_ENDS = 28 };

/* The word so far: its characters, of which the marks from number `marks` on are a run that may still be sorted. */
typedef struct {
    const words *w;
    token_list *out;
    uint32_t points[LONGEST_WORD];
    uint8_t order[LONGEST_WORD]; /* of the marks */
    uint32_t n, marks;           /* n may be larger than LONGEST_WORD: the word is too long */
} word;

static size_t utf8_put(uint8_t *to, uint32_t point) {
    int n = utf8_size(point);
    for (int i = n - 1; i > 0; i--, point >>= 6)
        to[i] = (uint8_t)(0x80 | (point & 0x3F));
    to[0] = (uint8_t)(n == 1 ? point : (0xF00u << (4 - n) >> 4 & 0xF0) | point);
    return (size_t)n;
}

/* The longest token that the bytes begin with, after "##" where they go on; -1: none. size: bytes that it takes. */
static int64_t longest(const words *w, const uint8_t *bytes, size_t count, int goes_on, size_t *size) {
    word_range r = {0, w->head->n_words, 0};
    int64_t found = -1;
    if (goes_on && (!narrow_words(w, &r, '#') || !narrow_words(w, &r, '#')))
        return -1;
    for (size_t i = 0; i < count && narrow_words(w, &r, bytes[i]); i++) {
        int64_t here = word_at(w, &r);
        if (here >= 0) {
            found = here;
            *size = i + 1;
        }
    }
    return found;
}

static int end_word(word *d) {
    uint8_t bytes[4 * LONGEST_WORD];
    int64_t before = d->out->n;
    size_t size = 0, took = 0;
    int code = 0, failed = d->n > LONGEST_WORD;
    for (uint32_t i = 0; i < d->n && !failed; i++)
        size += utf8_put(bytes + size, d->points[i]);
    for (size_t at = 0; at < size && !failed && !code; at += took) {
        int64_t found = longest(d->w, bytes + at, size - at, at > 0, &took);
        failed = found < 0;
        code = failed ? 0 : token_list_add(d->out, (int32_t)d->w->words[found].token);
    }
    if (failed && !code) {
        d->out->n = before;
        code = token_list_add(d->out, d->w->head->unknown);
    }
    d->n = d->marks = 0;
    return code;
}

/* The order of a mark within its run; 0: no mark. */
static uint32_t mark_order(const words *w, uint32_t point) {
    for (uint32_t i = 1; point >= 0x300 && i < w->head->n_classes; i++)
        if (pattern_holds(&w->patterns, i, point))
            return i;
    return 0;
}

/* Adds a character that the maps have made. */
static int add_point(word *d, uint32_t point) {
    uint32_t order = mark_order(d->w, point), i = d->n;
    int alone = pattern_holds(&d->w->patterns, PUNCTUATION, point), code = 0;
    if ((alone || point == ' ') && d->n && (code = end_word(d)))
        return code;
    if (point == ' ')
        return 0;
    i = d->n++;
    if (i < LONGEST_WORD) {
        for (; order && i > d->marks && d->order[i - 1] > order; i--) {
            d->points[i] = d->points[i - 1];
            d->order[i] = d->order[i - 1];
        }
        d->points[i] = point;
        d->order[i] = (uint8_t)(order < 255 ? order : 255);
    }
    if (!order)
        d->marks = d->n;
    return alone ? end_word(d) : 0;
}

static const tokenizer_map *map_of(const words *w, uint32_t point) {
    uint32_t low = 0, high = w->head->n_maps;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (point > w->maps[middle].high)
            low = middle + 1;
        else
            high = middle;
    }
    return low < w->head->n_maps && point >= w->maps[low].low ? w->maps + low : NULL;
}

static int add_or_break(word *d, uint32_t point) {
    if (point > 0x10FFFF)
        point = 0xFFFD;
    if (point)
        return add_point(d, point);
    d->marks = d->n;
    return 0;
}

static int add_hangul(word *d, uint32_t syllable) {
    uint32_t letters[3] = {0x1100 + syllable / (HANGUL_VOWELS * HANGUL_ENDS),
                           0x1161 + syllable / HANGUL_ENDS % HANGUL_VOWELS, 0x11A7 + syllable % HANGUL_ENDS};
    int code = 0;
    for (int i = 0; i < 2 + (syllable % HANGUL_ENDS != 0) && !code; i++)
        code = add_or_break(d, letters[i]);
    return code;
}

/* Adds what the maps make of a character of the text. */
static int add_mapped(word *d, uint32_t point) {
    const tokenizer_map *m = map_of(d->w, point);
    int code = 0;
    switch (m ? m->kind : N_MAPS) {
    case MAP_MOVE:
        return add_or_break(d, point + m->value);
    case MAP_DROP:
        return 0;
    case MAP_BREAK:
        return add_or_break(d, 0);
    case MAP_SPACED:
        code = add_point(d, ' ');
        code = code ? code : add_or_break(d, point);
        return code ? code : add_point(d, ' ');
    case MAP_HANGUL:
        return add_hangul(d, point - HANGUL);
    case MAP_POINTS:
        for (uint32_t i = 0; i < m->count && !code; i++)
            code = add_or_break(d, d->w->points[m->value + i]);
        return code;
    default:
        return add_or_break(d, point);
    }
}

int wordpiece_encode(const words *w, const char *text, int64_t size, token_list *out) {
    word d = {.w = w, .out = out};
    int code = 0;
    for (int64_t i = 0, wide; i < size && !code; i += wide) {
        const uint8_t *at = (const uint8_t *)text + i;
        uint32_t point = at[0];
        wide = character_size(at[0], size - i);
        if (wide > 1)
            point &= 0x7Fu >> wide;
        for (int64_t k = 1; k < wide; k++)
            point = point << 6 | (at[k] & 0x3F);
        code = add_mapped(&d, point);
    }
    return code || !d.n ? code : end_word(&d);
}
