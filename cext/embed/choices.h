/* choices.h: what a reply may choose next beyond what its sampler chain says: a token bitmask, and edits of single logits. They
 * change from token to token, so that the host makes them between steps; runtime/engine/host_sampling.py is the definition.
 *
 * Between choices_prepare() and choices_took() bitmask and edits hold for the next token. */
#ifndef SATCHEL_EMBED_CHOICES_H
#define SATCHEL_EMBED_CHOICES_H

#include "backend.h"
#include "satchel.h"

/* A grammar of a model. */
struct satchel_grammar {
    satchel_model *model;
    struct grammar *grammar; /* NULL: a worker process has it, by kind and text */
    int64_t kind;            /* GRAMMAR_ */
    char *text;
    uint64_t size; /* bytes of the text */
};
/* JSON of any shape, with SATCHEL_JSON_ flags; or a text. */
enum { GRAMMAR_JSON = 4, GRAMMAR_TEXT = 8 };

typedef struct choices choices;

/* The choices of an answer to a prompt; *out is NULL where the plan samples alone. An error where an option is out of range. */
int choices_open(const satchel_model *, const satchel_generate_options *, const int32_t *prompt, int64_t count,
                 choices **out);
/* The same checks alone, for a worker process. */
int choices_check(const satchel_model *, const satchel_generate_options *);
void choices_free(choices *);
/* Settles the next token's bitmask and edits, unless they are; an error where no token may come. */
int choices_prepare(choices *);
/* Writes them and their numbers for a row: bitmask: a bit for each logit; edits: MOST_EDITS pairs (token, bits of a float32). */
void choices_write(const choices *, hal_sampling *params, uint32_t *bitmask, int32_t *edits);
/* Takes the sampled token, with its negative log-probability in bits. */
int choices_took(choices *, int32_t token, float nll_bits);

#endif
