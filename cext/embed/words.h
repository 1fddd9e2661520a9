/* words.h: the section satchel.tokenizer, checked: text to tokens, and the bytes of a token. */
#ifndef SATCHEL_EMBED_WORDS_H
#define SATCHEL_EMBED_WORDS_H

#include "gguf.h"
#include "pattern.h"

/* The section. It owns an aligned copy of the bytes, into which the others point. */
typedef struct {
    uint8_t *copy;
    const tokenizer_head *head;
    const uint32_t *begins;
    const uint8_t *flags;
    const int32_t *byte_tokens;
    const tokenizer_merge *merges;
    const tokenizer_word *words;
    const tokenizer_special *specials;
    const uint32_t *ends, *programs;
    pattern_set patterns;
    const tokenizer_map *maps;
    const uint32_t *points;
    const uint8_t *charsmap, *bytes;
    uint32_t longest; /* bytes of a word */
} words;

/* Reads and checks the section; on failure nothing is kept. words_free() ends it. vocabulary: width of the model's logits. */
int words_read(const gguf_file *, uint32_t vocabulary, words *out);
void words_free(words *);
/* The bytes of a token; none for an id out of range. hidden: also of tokens that are not shown. */
gguf_bytes words_token(const words *, int32_t token, int hidden);
/* The same without the space that the tokenizer put before a text. *strip: whether it may still come; 1 before the first token of a
 * text where the tokenizer does so. */
gguf_bytes words_shown(const words *, int32_t token, int hidden, int *strip);
int words_is_end(const words *, int32_t token);
/* The control or user-defined token of this text; -1: none. */
int32_t words_special(const words *, const char *text, size_t size);

/* Tokens in growing memory; free() ends `ids`. */
typedef struct {
    int32_t *ids;
    int64_t n, room;
} token_list;
int token_list_add(token_list *, int32_t token);

/* Flags of words_encode, those of satchel_tokenize: texts of control tokens become them; nothing is added around the text; the text
 * goes on after another one, so that no space is put before it. */
enum { WORDS_SPECIAL = 1, WORDS_BARE = 2, WORDS_CONTINUES = 4 };
/* Appends the tokens of a text. An error for a text that is no UTF-8. */
int words_encode(const words *, const char *text, int64_t size, uint32_t flags, token_list *out);
/* The same for a text of UTF-8 that is cut at no special token. start: it is at the begin, or after a special token. */
int words_encode_plain(const words *, const char *text, int64_t size, int start, token_list *out);
/* Takes off a text the white space that a special token takes with it. after: the text comes behind the token; before: in front of it. */
void words_trim(const tokenizer_special *, int after, int before, const char **text, const char **end);

#endif
