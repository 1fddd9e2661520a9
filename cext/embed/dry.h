/* dry.h: penalties of tokens that would continue a repetition; runtime/sampling/dry.py is the definition, to the last bit. */
#ifndef SATCHEL_EMBED_DRY_H
#define SATCHEL_EMBED_DRY_H

#include "satchel.h"
#include "words.h"

enum { MOST_PENALTIES = 512 };

/* Options, and the sequence breakers in tokens. All zeros: none. */
typedef struct {
    double multiplier, steepness; /* steepness: natural logarithm of the base */
    int64_t allowed_length, reach;
    struct breaker *breakers; /* by their first token */
    int64_t n_breakers, room;
    int64_t *lengths; /* work space, `reach` entries and one */
    struct repeated *repeated;
} dry;

/* reach: most tokens that are searched. An error where a breaker is no UTF-8, or there is no memory. */
int dry_open(const words *, const satchel_generate_options *, int64_t context, dry *out);
void dry_free(dry *);
/* (token, bits of a float32) pairs for the token after `ids`, the largest penalties first; gives their number. */
int32_t dry_find(const dry *, const int32_t *ids, int64_t count, int32_t *pairs);

#endif
