/* merge.h: merges neighbours of a sequence of symbols, the pair of the lowest rank first and of those the leftmost, until none is
 * left: the loop of every kind of BPE. */
#ifndef SATCHEL_EMBED_MERGE_H
#define SATCHEL_EMBED_MERGE_H

#include "words.h"

/* Symbols form a list. size: bytes of its text, 0: it became part of the one before. */
typedef struct {
    int32_t token; /* -1: none */
    uint32_t at, size, before, after;
} merge_symbol;
typedef struct {
    uint32_t rank, place, size; /* size: of both, which tells whether they still are what they were */
    int32_t made;
} merge_pair;
enum { NOWHERE = UINT32_MAX };

/* A sequence and its memory, which grows with the longest one. Zeros at first; merge_end() frees it. text: what `at` counts in. */
typedef struct {
    const words *w;
    const uint8_t *text;
    merge_symbol *symbols;
    merge_pair *heap;
    uint32_t n, n_heap;
    uint64_t room;
} merger;

/* Whether two neighbours may become one token, and at which rank. */
typedef int merge_rule(const merger *, const merge_symbol *left, const merge_symbol *right, merge_pair *);

/* Room for a sequence of `size` symbols, of which there are none yet. */
int merge_begin(merger *, uint64_t size);
/* Adds a symbol at the end; there is room. */
void merge_add(merger *, int32_t token, uint32_t at, uint32_t size);
/* Merges all that may be. symbols[0] is the first of those that are left, and `after` leads to the others; not for an empty one. */
void merge_all(merger *, merge_rule *);
void merge_end(merger *);

#endif
