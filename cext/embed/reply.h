/* reply.h: one answer, and the step that computes the next token of all of them. */
#ifndef SATCHEL_EMBED_REPLY_H
#define SATCHEL_EMBED_REPLY_H

#include "answer.h"
#include "choices.h"
#include "model.h"

enum { FAULT = 160 };

struct satchel_reply {
    satchel_model *model;
    int32_t slot;
    int32_t *prompt; /* its tokens that are not computed yet are from `fed` on */
    int64_t n_prompt, fed, cached, made, most;
    int32_t last;   /* token that the next step computes, once the prompt is done */
    int32_t queued; /* token that the caller has not had */
    int has_queued, reason, failed, ignore_end, flushed;
    hal_sampling sampling;
    int64_t number;    /* its name in a worker process */
    choices *choices;  /* NULL: the plan samples alone */
    char fault[FAULT]; /* why it failed; empty: a step did */
    answer answer;
};

/* Gives the reply's slot to it, with the longest begin of its prompt that a free slot has. options: for a worker process, which
 * begins the answer. The lock is held. */
int reply_begin(satchel_reply *, const satchel_generate_options *);
/* Runs steps until the reply has a token queued, or is over. The lock is held. */
int reply_advance(satchel_reply *);
/* Takes the queued token, and notes why the answer ends with it; 0: there is none, or it is an end token, which no caller gets. */
int reply_take(satchel_reply *, int32_t *token);
/* Frees its slot. The lock is held. */
void reply_end(satchel_reply *);

#endif
