/* encode.c: words_encode(): a text is cut at special tokens; what is between them is encoded by the kind of tokenizer. */
#include <stdlib.h>
#include <string.h>

#include "encode.h"
#include "error.h"
#include "utf8.h"

enum { MOST_TEXT = 1 << 28, PIECE = 1 << 15 };

/* A part of a text: a special token, or ordinary text (token -1). */
typedef struct {
    const char *text;
    int64_t size;
    int32_t token;
} fragment;
typedef struct {
    fragment *items;
    int64_t n, room;
} fragment_list;

static int add_fragment(fragment_list *list, const char *text, int64_t size, int32_t token) {
    if (list->n == list->room) {
        int64_t room = list->room ? list->room * 2 : 16;
        fragment *grown = realloc(list->items, (size_t)room * sizeof *grown);
        if (!grown)
            return hal_fail(HAL_E_MEMORY, "no memory for %lld parts of a text", (long long)room);
        list->items = grown;
        list->room = room;
    }
    list->items[list->n++] = (fragment){text, size, token};
    return 0;
}

static int is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* Where a long text may end: before a space between two letters; `size`: nowhere. */
static int64_t border(const char *text, int64_t size) {
    for (int64_t i = PIECE; i + 1 < size; i++)
        if (text[i] == ' ' && is_letter(text[i - 1]) && is_letter(text[i + 1]))
            return i;
    return size;
}

/* In pieces, which bounds the memory that long texts take. */
static int encode_scored(const words *w, const char *text, int64_t size, int start, token_list *out) {
    int code = 0;
    while (size && !code) {
        int64_t end = w->head->flags & TOKENIZER_CUTS ? border(text, size) : size;
        code = scored_encode(w, text, end, start, out);
        start = 0;
        text += end;
        size -= end;
    }
    return code;
}

int words_encode_plain(const words *w, const char *text, int64_t size, int start, token_list *out) {
    switch (w->head->kind) {
    case TOKENIZER_SCORED:
        return encode_scored(w, text, size, start, out);
    case TOKENIZER_UNIGRAM:
        return unigram_encode(w, text, size, out);
    case TOKENIZER_WORDPIECE:
        return wordpiece_encode(w, text, size, out);
    default:
        return bpe_encode(w, text, size, out);
    }
}

static const char *find(const char *text, int64_t size, gguf_bytes what) {
    for (const char *at = text; size - (at - text) >= (int64_t)what.size; at++) {
        at = memchr(at, what.data[0], (size_t)(size - (at - text)) - (size_t)what.size + 1);
        if (!at)
            return NULL;
        if (!memcmp(at, what.data, what.size))
            return at;
    }
    return NULL;
}

static int is_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

void words_trim(const tokenizer_special *s, int after, int before, const char **text, const char **end) {
    while (after && s->flags & SPECIAL_RIGHT && *text < *end && is_space(**text))
        ++*text;
    while (before && s->flags & SPECIAL_LEFT && *text < *end && is_space((*end)[-1]))
        --*end;
}

/* Cuts ordinary text at every occurrence of a special token, with the white space that it takes. */
static int cut_text(const tokenizer_special *s, gguf_bytes what, fragment whole, fragment_list *out) {
    const char *text = whole.text, *end = whole.text + whole.size;
    for (int after = 0;; after = 1) {
        const char *at = find(text, end - text, what), *until = at ? at : end;
        int code = 0;
        words_trim(s, after, !!at, &text, &until);
        if (text < until && (code = add_fragment(out, text, until - text, -1)))
            return code;
        if (!at)
            return 0;
        if ((code = add_fragment(out, at, (int64_t)what.size, (int32_t)s->token)))
            return code;
        text = at + what.size;
    }
}

/* Cuts all parts that are text so far at one special token, if any has it. */
static int cut_parts(const words *w, const tokenizer_special *s, fragment_list *parts, fragment_list *spare) {
    gguf_bytes what = words_token(w, (int32_t)s->token, 1);
    int64_t i = 0;
    int code = 0;
    while (i < parts->n && (parts->items[i].token >= 0 || !find(parts->items[i].text, parts->items[i].size, what)))
        i++;
    if (i == parts->n)
        return 0;
    spare->n = 0;
    for (int64_t k = 0; k < parts->n && !code; k++) {
        fragment part = parts->items[k];
        if (k < i || part.token >= 0)
            code = add_fragment(spare, part.text, part.size, part.token);
        else
            code = cut_text(s, what, part, spare);
    }
    fragment_list made = *spare;
    *spare = *parts;
    *parts = made;
    return code;
}

/* Cuts a text at special tokens, one after the other in the order of the section, then encodes what is between them. */
static int encode_parts(const words *w, const char *text, int64_t size, uint32_t flags, token_list *out) {
    fragment_list parts = {0}, spare = {0};
    int start = !(flags & WORDS_CONTINUES);
    int code = size ? add_fragment(&parts, text, size, -1) : 0;
    for (uint32_t i = 0; i < w->head->n_specials && !code; i++)
        if (w->specials[i].flags & SPECIAL_ALWAYS || flags & WORDS_SPECIAL)
            code = cut_parts(w, w->specials + i, &parts, &spare);
    for (int64_t i = 0; i < parts.n && !code; i++) {
        fragment part = parts.items[i];
        if (part.token < 0) {
            code = words_encode_plain(w, part.text, part.size, start, out);
        } else {
            code = token_list_add(out, part.token);
        }
        start = part.token >= 0;
    }
    free(parts.items);
    free(spare.items);
    return code;
}

int words_encode(const words *w, const char *text, int64_t size, uint32_t flags, token_list *out) {
    const tokenizer_head *h = w->head;
    int64_t count;
    int code = 0;
    if (size > MOST_TEXT)
        return hal_fail(HAL_E_INVALID, "text: expected at most %d bytes, got %lld", MOST_TEXT, (long long)size);
    if ((count = utf8_points(text, size, NULL)) < 0)
        return hal_fail(HAL_E_INVALID, "text: expected UTF-8, got another byte at %lld", (long long)(-1 - count));
    if (h->flags & TOKENIZER_ADD_BOS && !(flags & WORDS_BARE))
        code = token_list_add(out, h->bos);
    if (!code)
        code = encode_parts(w, text, size, flags, out);
    if (!code && h->flags & TOKENIZER_ADD_EOS && !(flags & WORDS_BARE))
        code = token_list_add(out, h->eos);
    return code;
}
