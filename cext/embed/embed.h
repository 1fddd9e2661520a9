/* embed.h: the vector of a text, pooled from the hidden rows of its tokens. */
#ifndef SATCHEL_EMBED_EMBED_H
#define SATCHEL_EMBED_EMBED_H

#include "model.h"

/* The vector of these tokens, plan.head->width floats, by slot 0. A code of satchel.h on failure. The lock is held. */
int embed_tokens(satchel_model *, const int32_t *ids, int64_t count, float *out);

#endif
