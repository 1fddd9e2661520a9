/* conversation.h: answers to a list of messages. How messages become a prompt is decided here and nowhere else. */
#ifndef SATCHEL_PROGRAM_CONVERSATION_H
#define SATCHEL_PROGRAM_CONVERSATION_H

#include "satchel.h"

typedef struct {
    const char *role; /* "system", "user" or "assistant" */
    const char *text;
    int64_t size; /* bytes of the text */
} message;

/* An answer under way. Text that may be the begin of `stop` is held back. */
typedef struct {
    satchel_reply *reply;
    const char *stop; /* ends the answer, and is not part of it; NULL: the model's end tokens alone do */
    char *text;       /* what was computed and not given out yet, behind `given` bytes that the last call gave out */
    size_t have, given, room;
    int over; /* nothing more is computed */
} answer;

/* Begins an answer to messages; answer_end() ends it. On failure the code is one of satchel.h, and nothing is kept. */
int answer_begin(satchel_model *, const message *, int count, const satchel_generate_options *, answer *out);
/* Begins the continuation of a text, which is no message. */
int answer_text(satchel_model *, const char *text, int64_t size, const satchel_generate_options *, answer *out);
/* The next text, of whole characters: 1, 0 where the answer is over, or a code. Valid until the next call. */
int answer_next(answer *, const char **text, size_t *size);
void answer_end(answer *);

#endif
