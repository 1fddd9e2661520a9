/* saved.h: what a slot holds as bytes: tokens, and the states of the computed ones. They fit every context and number of slots of the
 * same file, and each number in them is checked when they are read: they may come from anyone. */
#ifndef SATCHEL_EMBED_SAVED_H
#define SATCHEL_EMBED_SAVED_H

#include <stdio.h>

#include "model.h"

/* Where the bytes go, or come from: memory, or a file where that is not NULL. */
typedef struct {
    uint8_t *bytes;
    FILE *file;
    uint64_t at, size; /* bytes so far; those that there are */
    uint32_t crc;      /* of all since the head */
    int code;          /* of the first transfer that failed */
} saved_stream;

/* Bytes of `tokens` tokens, of which the first `computed` have states. 0: the model's states cannot be saved, with an error. */
uint64_t saved_size(const satchel_model *, int64_t tokens, int64_t computed);
/* Writes the slot with these tokens. The lock is held, as below. */
int saved_write(satchel_model *, int32_t slot, const int32_t *ids, int64_t count, saved_stream *);
/* Reads into a free slot, that which was used longest ago; gives the tokens, which the caller frees, and their number. On failure the
 * slot is empty. */
int64_t saved_read(satchel_model *, saved_stream *, int32_t **ids);

#endif
