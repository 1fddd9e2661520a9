/* pattern.h: the machine that runs pre-tokenizers' patterns: a backtracking one over code points, with a bound on its steps. */
#ifndef SATCHEL_EMBED_PATTERN_H
#define SATCHEL_EMBED_PATTERN_H

#include "sections.h"

typedef struct {
    const pattern_code *code;
    const pattern_class *classes;
    const pattern_range *ranges;
    uint32_t n_code, n_classes, n_ranges;
} pattern_set;

/* NULL, or what is wrong: numbers out of range, code that does not end. */
const char *pattern_check(const pattern_set *);

/* Whether a character is of a class. */
int pattern_holds(const pattern_set *, uint32_t number, uint32_t point);

/* A run over one text. All zeros but `set` at first; pattern_end() frees it. */
typedef struct {
    const pattern_set *set;
    struct pattern_choice *stack;
    uint32_t room;
    uint64_t steps; /* that are left */
    int64_t search; /* where the search for a match began */
} pattern_run;
void pattern_end(pattern_run *);

/* The end of the longest-preferred match of the code at `start` that begins at text[at], in a text of `size` code points; -1: none;
 * an error code below that. */
int64_t pattern_match(pattern_run *, uint32_t start, const uint32_t *text, int64_t size, int64_t at);

#endif
