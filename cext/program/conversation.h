/* conversation.h: answers to a list of messages. How messages become a prompt is decided here and nowhere else. */
#ifndef SATCHEL_PROGRAM_CONVERSATION_H
#define SATCHEL_PROGRAM_CONVERSATION_H

#include "satchel.h"

typedef struct {
    const char *role; /* "system", "user" or "assistant" */
    const char *text; /* UTF-8 */
    int64_t size;     /* bytes of the text */
} message;

/* Begins an answer to messages, which satchel_reply_free() ends. On failure the code is one of satchel.h, and *out is NULL. */
int answer_open(satchel_model *, const message *, int count, const satchel_generate_options *, satchel_reply **out);
/* The next text, of whole characters and not empty: 1, 0 where the answer is over, or a code. Valid until the next call. */
int answer_next(satchel_reply *, const char **text, size_t *size);

#endif
