/* grammar.h: grammars as automata over bytes that call each other, and the tokens that may come next in one.
 *
 * A rule is a deterministic automaton, of which an edge is a range of bytes or a call of a rule; where the rule called is over, the
 * caller goes on at the edge's end. So a place in a text is a set of (state, stack); a token may come if its bytes lead somewhere.
 * Tokens are a trie, which is walked beside the automaton. What a state allows without its stack is kept for the next time.
 *
 * Work is bounded: sets, stacks and walks have limits, beyond which the grammar fails with an error. Grammars of one model are used
 * by one thread at a time: the model's lock is held. */
#ifndef SATCHEL_EMBED_GRAMMAR_H
#define SATCHEL_EMBED_GRAMMAR_H

#include "gguf.h"
#include "sections.h"
#include "words.h"

/* The tables of a section, or those of JSON. */
typedef struct {
    void *owned; /* what free() ends */
    const uint32_t *starts;
    const grammar_state *states; /* n_states and one, which ends the lists of the last */
    const grammar_range *ranges;
    const grammar_call *calls;
    uint32_t n_rules, n_states, n_ranges, n_calls;
} automaton;

/* Reads and checks a section; on failure nothing is kept. */
int automaton_read(gguf_bytes section, automaton *out);
/* JSON (RFC 8259) in UTF-8, with \u left out: rule 0 is an object, 1 any value. spaces: what stands between tokens may be a space, or
 * a line end with an indent of up to 24. */
int automaton_json(int spaces, automaton *out);
enum { JSON_OBJECT, JSON_VALUE };
void automaton_free(automaton *);

/* The bytes of all ordinary tokens. */
typedef struct trie trie;
int trie_open(const words *, trie **out);
void trie_free(trie *);

/* An automaton with a vocabulary, and what is known of its states. */
typedef struct grammar grammar;
/* Takes the automaton. start: its rule. words: of a bitmask. */
int grammar_open(automaton, uint32_t start, const trie *, uint32_t words, grammar **out);
void grammar_free(grammar *);

/* A place in a text of the grammar. */
typedef struct place place;
int place_open(grammar *, place **out);
void place_free(place *);
/* Sets the bits of the tokens that may come; clears all others. Where the grammar leaves no choice of bytes, that is the token that the
 * tokenizer makes of them, as llguidance has it: a model has seen no other. */
int place_fill(place *, const words *, uint32_t *bitmask);
/* Goes on by a token's bytes; an error where they cannot come. */
int place_take(place *, const words *, int32_t token);
/* Whether the text may end here; and whether it must. */
int place_is_complete(const place *);
int place_is_finished(const place *);

#endif
