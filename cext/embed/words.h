/* words.h: byte-level BPE: the section satchel.tokenizer, checked, text to tokens, and the bytes of a token. */
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
    const uint8_t *bytes;
} words;

/* Reads and checks the section; on failure nothing is kept. words_free() ends it. vocabulary: width of the model's logits. */
int words_read(const gguf_file *, uint32_t vocabulary, words *out);
void words_free(words *);
/* The bytes of a token; none for an id out of range. hidden: also of tokens that are not shown. */
gguf_bytes words_token(const words *, int32_t token, int hidden);
int words_is_end(const words *, int32_t token);

/* Tokens in growing memory; free() ends `ids`. */
typedef struct {
    int32_t *ids;
    int64_t n, room;
} token_list;
int token_list_add(token_list *, int32_t token);

/* Appends the tokens of a text. special: texts of control tokens become them. An error for a text that is no UTF-8. */
int words_encode(const words *, const char *text, int64_t size, int special, token_list *out);
/* The same for a text that is cut at no special token. */
int words_encode_plain(const words *, const char *text, int64_t size, token_list *out);

#endif
