/* encode.h: how encode.c encodes ordinary text, by the kind of tokenizer. Texts are UTF-8 of at most 2^28 bytes; an error code is
 * below 0. The cost is that of the text's length times the logarithm of it or of the vocabulary. */
#ifndef SATCHEL_EMBED_ENCODE_H
#define SATCHEL_EMBED_ENCODE_H

#include "words.h"

int bpe_encode(const words *, const char *text, int64_t size, token_list *out);
/* start: a space is put before the text, if the tokenizer does so. */
int scored_encode(const words *, const char *text, int64_t size, int start, token_list *out);
int unigram_encode(const words *, const char *text, int64_t size, token_list *out);
int wordpiece_encode(const words *, const char *text, int64_t size, token_list *out);

/* The number of the word of these bytes; -1: none. */
int64_t find_word(const words *, const uint8_t *bytes, uint64_t size);

/* The words that begin with the same `depth` bytes: all of them at first, {0, n_words, 0}. */
typedef struct {
    uint32_t low, high, depth;
} word_range;
/* Leaves the words whose next byte is this one; 0: there are none. */
int narrow_words(const words *, word_range *, uint8_t byte);
/* The number of the word that ends here; -1: none. */
int64_t word_at(const words *, const word_range *);

/* Bytes of the character that begins with this byte; never more than there are. */
static inline int64_t character_size(uint8_t lead, int64_t left) {
    int64_t size = lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    return size < left ? size : left;
}

/* U+2581, which these vocabularies write for a space. Within the library both are a space. */
static const uint8_t space_mark[3] = {0xE2, 0x96, 0x81};
/* Copies bytes with each U+2581 as a space; gives their number. `to` may be `from`. */
int64_t copy_spaces(uint8_t *to, const uint8_t *from, int64_t size);

/* What of the text has no token: its bytes' tokens, where the vocabulary has all of them, else one unknown token for all that
 * follow each other. */
typedef struct {
    const words *w;
    token_list *out;
    int was_unknown;
} piece_writer;
int write_piece(piece_writer *, int32_t token);
int write_unknown(piece_writer *, const uint8_t *bytes, int64_t size);

#endif
