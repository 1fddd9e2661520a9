/* unigram.c: see encode.h. Unigram: the text is normalized by the vocabulary's character map, then cut into the pieces whose scores
 * have the largest sum. All as SentencePiece does it: sums are float32, and of equal ones the first found stays. */
#include <stdlib.h>
#include <string.h>

#include "encode.h"
#include "error.h"
#include "utf8.h"

enum { DEEPEST = 1024, MOST_NORMAL = 1 << 28 };

/* The normalized text. */
typedef struct {
    uint8_t *bytes;
    int64_t size, room;
} normal_text;

static int append(normal_text *n, const uint8_t *bytes, int64_t size) {
    if (n->size + size > n->room) {
        int64_t room = 2 * n->room + size + 64;
        uint8_t *grown = room > MOST_NORMAL ? NULL : realloc(n->bytes, (size_t)room);
        if (!grown)
            return hal_fail(HAL_E_MEMORY, "no memory for a text of %lld bytes", (long long)room);
        n->bytes = grown;
        n->room = room;
    }
    memcpy(n->bytes + n->size, bytes, (size_t)size);
    n->size += size;
    return 0;
}

static uint32_t read_unit(const uint8_t *at) {
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* The replacement of the longest begin of a text that the character map has, and the number of bytes that it stands for; NULL: none.
 * The map is a double array: a unit has the offset of its children, the label that led to it, and whether a leaf is among them. */
static const uint8_t *replacement(const words *w, const uint8_t *text, int64_t size, int64_t *took) {
    uint32_t n = w->head->n_charsmap, units = n ? read_unit(w->charsmap) / 4 : 0, unit, at;
    const uint8_t *trie = w->charsmap + 4, *strings, *found = NULL;
    if (!units || units > (n - 5) / 4)
        return NULL;
    strings = trie + 4 * (size_t)units;
    unit = read_unit(trie);
    at = unit >> 10 << (unit >> 6 & 8);
    for (int64_t i = 0; i < size && i < DEEPEST; i++) {
        at ^= text[i];
        if (at >= units)
            break;
        unit = read_unit(trie + 4 * (size_t)at);
        if ((unit & 0x800000FFu) != text[i])
            break;
        at ^= unit >> 10 << (unit >> 6 & 8);
        if (unit >> 8 & 1 && at < units) {
            uint32_t value = read_unit(trie + 4 * (size_t)at) & 0x7FFFFFFF;
            if (value < n - 4 - 4 * units) {
                found = strings + value;
                *took = i + 1;
            }
        }
    }
    return found;
}

static int normalize(const words *w, const uint8_t *text, int64_t size, normal_text *out) {
    int squeeze = (w->head->flags & TOKENIZER_SQUEEZE) != 0, after_space = squeeze, first = 1, code = 0;
    for (int64_t i = 0; i < size && !code;) {
        int64_t took = character_size(text[i], size - i), made = took;
        const uint8_t *to = replacement(w, text + i, size - i, &took);
        if (to)
            made = (int64_t)strlen((const char *)to);
        else
            to = text + i;
        i += took;
        /* Spaces at the begin count only as long as there is something behind them. */
        if (first && squeeze && made == 1 && *to == ' ')
            continue;
        if (first && w->head->flags & TOKENIZER_SPACE_PREFIX)
            code = append(out, (const uint8_t *)" ", 1);
        first = 0;
        while (after_space && made && *to == ' ') {
            to++;
            made--;
        }
        if (made && !code)
            code = append(out, to, made);
        if (made)
            after_space = squeeze && to[made - 1] == ' ';
    }
    out->size = out->size ? copy_spaces(out->bytes, out->bytes, out->size) : 0;
    while (squeeze && out->size && out->bytes[out->size - 1] == ' ')
        out->size--;
    return code;
}

/* The best way to a place: its last piece, and where that begins. */
typedef struct {
    float score;
    uint32_t from, to;
    int32_t token; /* -1: a character without one */
} best_way;

static void reach(best_way *way, float score, int64_t from, int32_t token) {
    if (way->from == UINT32_MAX || score > way->score)
        *way = (best_way){score, (uint32_t)from, 0, token};
}

static void find_ways(const words *w, const normal_text *t, best_way *ways) {
    for (int64_t at = 0, wide; at < t->size; at += wide) {
        word_range r = {0, w->head->n_words, 0};
        float here = ways[at].score;
        int alone = 0;
        wide = character_size(t->bytes[at], t->size - at);
        for (int64_t end = at; end < t->size && narrow_words(w, &r, t->bytes[end]);) {
            int64_t found = word_at(w, &r);
            float score;
            end++;
            if (found < 0)
                continue;
            memcpy(&score, &w->words[found].value, sizeof score);
            reach(ways + end, score + here, at, (int32_t)w->words[found].token);
            alone |= end - at == wide;
        }
        if (!alone)
            reach(ways + at + wide, w->head->unknown_score + here, at, -1);
    }
}

int unigram_encode(const words *w, const char *text, int64_t size, token_list *out) {
    normal_text t = {0};
    piece_writer p = {w, out, 0};
    best_way *ways = NULL;
    int code = normalize(w, (const uint8_t *)text, size, &t);
    if (!code && t.size && !(ways = malloc(((size_t)t.size + 1) * sizeof *ways)))
        code = hal_fail(HAL_E_MEMORY, "no memory for a text of %lld bytes", (long long)t.size);
    if (ways) {
        ways[0] = (best_way){0};
        for (int64_t i = 1; i <= t.size; i++)
            ways[i] = (best_way){.from = UINT32_MAX};
        find_ways(w, &t, ways);
        for (uint32_t end = (uint32_t)t.size, from; end; end = from) {
            from = ways[end].from;
            ways[from].to = end;
        }
        for (uint32_t at = 0; at < t.size && !code; at = ways[at].to) {
            const best_way *way = ways + ways[at].to;
            code = way->token < 0 ? write_unknown(&p, t.bytes + at, ways[at].to - at) : write_piece(&p, way->token);
        }
    }
    free(ways);
    free(t.bytes);
    return code;
}
