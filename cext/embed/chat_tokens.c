/* chat_tokens.c: the tokens of a rendered prompt: see chat.h, and encode_rendered in formats/tokenizer/base.py.
 *
 * The prompt is cut at special tokens while user text is still escaped, so none is found in it. Then the escape is undone, and the
 * text between is encoded; where a marker of the template came of it nevertheless, its text is encoded in two parts. */
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "chat.h"

/* A part of the prompt: a token, or text (token -1). */
typedef struct {
    int32_t token;
    const char *text;
    uint64_t size;
} piece;
typedef struct {
    piece *list;
    uint64_t n, room;
} pieces;

static int add_piece(tpl_heap *h, pieces *p, piece one) {
    if (one.token < 0 && !one.size)
        return 0;
    if (p->n == p->room) {
        uint64_t room = p->room ? p->room * 2 : 64;
        piece *grown = tpl_alloc(h, room * sizeof *grown);
        if (!grown)
            return h->code;
        if (p->n)
            memcpy(grown, p->list, (size_t)p->n * sizeof *grown);
        p->list = grown;
        p->room = room;
    }
    p->list[p->n++] = one;
    return 0;
}

static const char *find(const char *text, uint64_t size, gguf_bytes what) {
    while (what.size && size >= what.size) {
        const char *at = memchr(text, what.data[0], (size_t)(size - what.size + 1));
        if (!at)
            return NULL;
        size -= (uint64_t)(at - text);
        text = at;
        if (!memcmp(text, what.data, (size_t)what.size))
            return text;
        text++;
        size--;
    }
    return NULL;
}

/* Cuts every text at one special token, with the white space that it takes. */
static int cut_at(tpl_heap *h, pieces *from, pieces *to, const tokenizer_special *s, gguf_bytes what) {
    to->n = 0;
    for (uint64_t i = 0; i < from->n && !h->code; i++) {
        piece p = from->list[i];
        const char *text = p.text, *end = p.text + p.size;
        if (p.token >= 0) {
            add_piece(h, to, p);
            continue;
        }
        for (int after = 0; !h->code; after = 1) {
            const char *at = find(text, (uint64_t)(end - text), what), *until = at ? at : end;
            words_trim(s, after, !!at, &text, &until);
            add_piece(h, to, (piece){-1, text, (uint64_t)(until - text)});
            if (!at)
                break;
            add_piece(h, to, (piece){(int32_t)s->token, NULL, 0});
            text = at + what.size;
        }
    }
    return h->code;
}

static int is_marker(const tpl_template *t, uint32_t token) {
    for (uint32_t i = 0; i < t->head->n_markers; i++)
        if (t->markers[i] == token)
            return 1;
    return 0;
}

/* Cuts the text at all special tokens, in their order; plain: at those alone that any text is cut at, but not at the markers. */
static int cut(tpl_heap *h, const tpl_template *t, const words *w, pieces *p, int plain) {
    pieces other = {0};
    for (uint32_t i = 0; i < w->head->n_specials && !h->code; i++) {
        const tokenizer_special *s = w->specials + i;
        gguf_bytes what = words_token(w, (int32_t)s->token, 1);
        int found = 0;
        if (plain && (!(s->flags & SPECIAL_ALWAYS) || is_marker(t, s->token)))
            continue;
        for (uint64_t k = 0; k < p->n && !found; k++)
            found = p->list[k].token < 0 && find(p->list[k].text, p->list[k].size, what);
        if (found && !cut_at(h, p, &other, s, what)) {
            pieces kept = *p;
            *p = other;
            other = kept;
        }
    }
    return h->code;
}

/* The longest marker at the begin of a text; NULL: none. */
static gguf_bytes marker_at(const tpl_template *t, const words *w, const char *text, uint64_t size) {
    gguf_bytes best = {0};
    for (uint32_t i = 0; i < t->head->n_markers; i++) {
        gguf_bytes what = words_token(w, (int32_t)t->markers[i], 1);
        if (what.size > best.size && what.size <= size && !memcmp(text, what.data, (size_t)what.size))
            best = what;
    }
    return best;
}

/* Encodes a text in parts, each of which ends behind the first character of a marker. */
static int encode_apart(const tpl_template *t, const words *w, const char *text, uint64_t size, int start,
                        token_list *out) {
    uint64_t begin = 0;
    int code = 0;
    for (uint64_t at = 0; at < size && !code;) {
        gguf_bytes found = marker_at(t, w, text + at, size - at);
        if (!found.size) {
            at++;
            continue;
        }
        uint64_t end = at + 1;
        while (end < size && ((uint8_t)text[end] & 0xC0) == 0x80)
            end++;
        code = words_encode_plain(w, text + begin, (int64_t)(end - begin), start, out);
        start = 0;
        begin = end;
        at += found.size;
    }
    return code || begin == size ? code : words_encode_plain(w, text + begin, (int64_t)(size - begin), start, out);
}

static int encode(const tpl_template *t, const words *w, const piece *p, int start, token_list *out) {
    int64_t before = out->n;
    int code = words_encode_plain(w, p->text, (int64_t)p->size, start, out), marker = 0;
    for (int64_t i = before; i < out->n && !code; i++)
        marker |= is_marker(t, (uint32_t)out->ids[i]);
    if (!marker)
        return code;
    out->n = before;
    return encode_apart(t, w, p->text, p->size, start, out);
}

/* Encodes what stands between special tokens. *start: whether it is at the begin or behind a special token; then of what follows. */
static int encode_text(tpl_heap *h, const tpl_template *t, const words *w, const piece *p, int *start,
                       token_list *out) {
    tpl_builder plain = {0};
    pieces inner = {0};
    int code = 0;
    tpl_put_unescaped(h, &t->escape, &plain, p->text, p->size);
    if (add_piece(h, &inner, (piece){-1, plain.data, plain.size}) || cut(h, t, w, &inner, 1))
        return h->code;
    for (uint64_t i = 0; i < inner.n && !code; i++) {
        int32_t token = inner.list[i].token;
        code = token >= 0 ? token_list_add(out, token) : encode(t, w, inner.list + i, *start, out);
        *start = token >= 0;
    }
    return code;
}

int chat_tokenize(tpl_heap *h, const tpl_template *t, const words *w, tpl_value prompt, token_list *out) {
    pieces all = {0};
    int code, start = 1;
    add_piece(h, &all, (piece){-1, prompt.text->data, prompt.text->size});
    code = cut(h, t, w, &all, 0);
    if (!code && w->head->flags & TOKENIZER_ADD_BOS && !(all.n && all.list[0].token == w->head->bos))
        code = token_list_add(out, w->head->bos);
    for (uint64_t i = 0; i < all.n && !code && !h->code; i++)
        if (all.list[i].token < 0) {
            code = encode_text(h, t, w, all.list + i, &start, out);
        } else {
            code = token_list_add(out, all.list[i].token);
            start = 1;
        }
    return h->code ? h->code : code;
}
