/* worker.h: the calls of a worker process, `satchel worker`, which has the full engine. It gives tokens and vectors; their text is
 * made on this side, by the tables that it sends when a model is opened, so that text, stop strings and thinking are the same.
 *
 * The model's lock is held in every call. What comes is not trusted: sizes, token ids and numbers are checked, and a worker that
 * breaks a rule is given up, and so is one that gives no sign of life for as long as it has told. Once it is gone, every call fails
 * with what is known of its end. */
#ifndef SATCHEL_EMBED_WORKER_H
#define SATCHEL_EMBED_WORKER_H

#include "choices.h"
#include "gguf.h"
#include "satchel.h"

typedef struct worker worker;

/* What a worker says of a model. The bytes are its own, until the next call. */
typedef struct {
    int32_t context, slots, vocabulary, embedding;
    gguf_bytes kernels, tokenizer, chat; /* the last two: sections, as in a built file */
} worker_facts;

/* Starts the worker and opens the file in it. On failure nothing is kept. worker_close() ends it; NULL: nothing. */
int worker_open(const satchel_model_options *, const char *path, worker **out, worker_facts *facts);
void worker_close(worker *);

/* Begins an answer of at most `most` tokens; *number is its name in further calls. */
int worker_generate(worker *, const satchel_generate_options *, int64_t seed, int64_t most, const int32_t *ids,
                    int64_t count, int64_t *number);
/* The next token, or -1 where there is none, and why: SATCHEL_ENDED or SATCHEL_LENGTH, else 0. cached: tokens of the prompt that were
 * not computed again. */
int worker_next(worker *, int64_t number, int32_t *token, int64_t *cached, int *reason);
void worker_end(worker *, int64_t number);
/* The vector of tokens, of `width` numbers. */
int worker_embed(worker *, const int32_t *ids, int64_t count, float *row, int32_t width);
/* Whether a text is a grammar. */
int worker_check_grammar(worker *, const char *text, uint64_t size);
/* A conversation as the file's template writes it. The bytes are the worker's, until its next call; ids: int32_t each. */
typedef struct {
    gguf_bytes text, ids;
    int32_t thinks;
} worker_prompt;
int worker_render(worker *, const char *request, uint64_t size, worker_prompt *out);

#endif
